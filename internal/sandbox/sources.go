package sandbox

import (
	"io/fs"
	"os"
	"slices"
)

// Sources are what mounts have shown at one moment; nil what was not there. A runner that is
// installed anew is another directory in the place of the old one, which a sandbox that is there
// would go on to see, with nothing left in it.
type Sources []fs.FileInfo

// SourcesOf returns what mounts would show now.
func SourcesOf(mounts []Mount) Sources {
	all := make(Sources, len(mounts))
	for i, m := range mounts {
		all[i], _ = os.Stat(m.Source)
	}
	return all
}

// Same reports whether all of them are what they were.
func (s Sources) Same(now Sources) bool {
	return slices.EqualFunc(s, now, func(a, b fs.FileInfo) bool {
		return a == nil && b == nil || a != nil && b != nil && os.SameFile(a, b)
	})
}
