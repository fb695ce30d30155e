//go:build unix

package workspace

import (
	"io/fs"
	"syscall"
)

// openFlags keep an open from blocking: on a FIFO without a writer, on a file under a lease, on a terminal.
const openFlags = syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_NOFOLLOW

type fileID struct {
	dev, ino uint64
}

// onDisk returns the bytes that a file occupies (a hole occupies none), its identity and the number of its links.
func onDisk(fi fs.FileInfo) (bytes int64, id fileID, links uint64) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fi.Size(), fileID{}, 1
	}
	return int64(st.Blocks) * 512, fileID{uint64(st.Dev), uint64(st.Ino)}, uint64(st.Nlink)
}

// owns reports whether a file is the owner's already.
func (o Owner) owns(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == o.UID && int(st.Gid) == o.GID
}
