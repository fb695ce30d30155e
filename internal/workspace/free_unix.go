//go:build linux || darwin

package workspace

import "syscall"

// Free returns how many bytes are left on the file system that holds the workspace. It is the only measure that
// sees files which are deleted but open: they take room, but no walk finds them.
func (w *Workspace) Free() (int64, error) {
	st, err := w.statfs()
	return int64(st.Bavail) * int64(st.Bsize), err
}

// DiskSize returns how many bytes that file system has.
func (w *Workspace) DiskSize() (int64, error) {
	st, err := w.statfs()
	return int64(st.Blocks) * int64(st.Bsize), err
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
