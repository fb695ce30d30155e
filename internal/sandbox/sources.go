package sandbox

import (
	"io/fs"
	"os"
	"slices"
)

// Sources identifies the directories behind mounts; nil if one is missing. If they change,
// sandboxes that mount the old ones are stale: a runner that was installed again is a new directory
// at the same path.
type Sources []fs.FileInfo

// SourcesOf returns the current sources of mounts.
func SourcesOf(mounts []Mount) Sources {
	all := make(Sources, len(mounts))
	for i, m := range mounts {
		all[i], _ = os.Stat(m.Source)
	}
	return all
}

// Same reports whether none has changed.
func (s Sources) Same(now Sources) bool {
	return slices.EqualFunc(s, now, func(a, b fs.FileInfo) bool {
		return a == nil && b == nil || a != nil && b != nil && os.SameFile(a, b)
	})
}
