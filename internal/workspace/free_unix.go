//go:build linux || darwin

package workspace

import "syscall"

// Free returns how many bytes are left on the file system that holds the workspace. It is the only measure that
// sees files which are deleted but open: they take room, but no walk finds them.
func (w *Workspace) Free() (int64, error) {
	raw, err := w.self.SyscallConn()
	if err != nil {
		return 0, err
	}
	var st syscall.Statfs_t
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = syscall.Fstatfs(int(fd), &st) }); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), statErr
}
