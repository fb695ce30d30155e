package pool

import "golang.org/x/sys/unix"

const canRename = true

// renameNew renames a directory to what must not exist.
func renameNew(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}
