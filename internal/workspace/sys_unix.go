//go:build linux || darwin

package workspace

import (
	"io/fs"
	"syscall"
)

// openFlags keep an open from blocking: on a FIFO without a writer, on a leased file, on a
// terminal.
const openFlags = syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_NOFOLLOW

type fileID struct {
	dev, ino uint64
}

// onDisk returns the bytes that a file occupies (not counting holes), its identity, and its links.
func onDisk(fi fs.FileInfo) (bytes int64, id fileID, links uint64) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fi.Size(), fileID{}, 1
	}
	return int64(st.Blocks) * 512, fileID{uint64(st.Dev), uint64(st.Ino)}, uint64(st.Nlink)
}

// uidOf returns the uid that a file belongs to.
func uidOf(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

func (o Owner) owns(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == o.UID && int(st.Gid) == o.GID
}

// of returns the owner of the workspace in a directory.
func (o Owner) of(dir fs.FileInfo) Owner {
	if st, ok := dir.Sys().(*syscall.Stat_t); ok && o.First <= int(st.Uid) && int(st.Uid) < o.End {
		return Owner{UID: int(st.Uid), GID: int(st.Gid)}
	}
	return o
}

// Disk returns the file system that holds the workspace. Only its free space reveals files that are
// deleted but open: no walk finds them.
func (w *Workspace) Disk() (Disk, error) {
	raw, err := w.self.SyscallConn()
	if err != nil {
		return Disk{}, err
	}
	var st syscall.Statfs_t
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = syscall.Fstatfs(int(fd), &st) }); err != nil {
		return Disk{}, err
	}
	return Disk{
		Bytes: int64(st.Blocks) * int64(st.Bsize), FreeBytes: int64(st.Bavail) * int64(st.Bsize),
		Files: int64(st.Files), FreeFiles: int64(st.Ffree),
	}, statErr
}
