package userns

import (
	"io/fs"
	"os"
	"syscall"
)

// overflowID is how the kernel shows an id that a user namespace does not have.
const overflowID = 65534

// MayChown reports whether this process has the ids that a file belongs to, so that it can give the
// file to another one. An ordinary user's process outside an outer namespace has only its own.
func MayChown(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && mayChown(os.Geteuid(), status.Inside, int(st.Uid), int(st.Gid))
}

func mayChown(euid int, inside bool, fileUID, fileGID int) bool {
	if inside { // as root of the namespace
		return fileUID != overflowID && fileGID != overflowID
	}
	return euid == 0 || fileUID == euid
}
