//go:build linux || darwin

package workspace

import "syscall"

// Disk returns the file system that holds the workspace. What is free of it is the only measure that sees files which are deleted
// but open: they take room, but no walk finds them.
func (w *Workspace) Disk() (Disk, error) {
	st, err := w.statfs()
	return Disk{
		Bytes: int64(st.Blocks) * int64(st.Bsize), FreeBytes: int64(st.Bavail) * int64(st.Bsize),
		Files: int64(st.Files), FreeFiles: int64(st.Ffree),
	}, err
}

func (w *Workspace) statfs() (st syscall.Statfs_t, err error) {
	raw, err := w.self.SyscallConn()
	if err != nil {
		return st, err
	}
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = syscall.Fstatfs(int(fd), &st) }); err != nil {
		return st, err
	}
	return st, statErr
}
