//go:build !linux

package workspace

import (
	"io/fs"
	"time"
)

// versionOf returns the version of a file, and when it last changed. Files that a container on
// another kernel shares with this one have no reliable time of change.
func versionOf(fi fs.FileInfo) (version, time.Time) {
	return version{size: fi.Size(), modified: fi.ModTime().UnixNano()}, fi.ModTime()
}

func tick() time.Time { return time.Now().Add(-maxTick) }
