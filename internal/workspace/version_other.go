//go:build !linux

package workspace

import (
	"io/fs"
	"time"
)

// versionOf also returns when the file last changed, as far as that is known: files that a container on another machine's
// kernel shares with this one have no time of change to rely on.
func versionOf(fi fs.FileInfo) (version, time.Time) {
	return version{size: fi.Size(), modified: fi.ModTime().UnixNano()}, fi.ModTime()
}

func tick() time.Time { return time.Now().Add(-maxTick) }
