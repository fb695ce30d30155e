package prestart

import (
	"bufio"
	"crypto/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// empty removes everything in a directory that hostile code has filled and no process uses any
// more. It follows no link, overrides modes, and handles trees that are deeper than a path or the
// descriptors allow: it moves each directory to the top first.
func empty(dir string) {
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	_ = unix.Chmod(dir, 0o700|st.Mode&0o7777)
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(root)
	for {
		names := namesIn(root)
		progress := false
		for _, name := range names {
			if unix.Unlinkat(root, name, 0) == nil || unix.Unlinkat(root, name, unix.AT_REMOVEDIR) == nil {
				progress = true
				continue
			}
			_ = unix.Fchmodat(root, name, 0o700, 0) // it is a directory: anything else would be gone
			sub, err := unix.Openat(root, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			for _, inner := range namesIn(sub) {
				if unix.Unlinkat(sub, inner, 0) == nil || unix.Unlinkat(sub, inner, unix.AT_REMOVEDIR) == nil {
					progress = true
					continue
				}
				_ = unix.Fchmodat(sub, inner, 0o700, 0) // only a writable directory can be moved
				if unix.Renameat(sub, inner, root, ".moved-"+rand.Text()) == nil {
					progress = true
				}
			}
			_ = unix.Close(sub)
			if unix.Unlinkat(root, name, unix.AT_REMOVEDIR) == nil {
				progress = true
			}
		}
		if !progress {
			return
		}
	}
}

// namesIn lists a directory from its start.
func namesIn(fd int) []string {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return nil
	}
	var names []string
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil || n <= 0 {
			return names
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// removeIPC removes every System V object in the sandbox.
func removeIPC() {
	for _, kind := range []struct {
		file string
		call uintptr
		argc int // the index of the command in the call's arguments
	}{{"shm", unix.SYS_SHMCTL, 1}, {"msg", unix.SYS_MSGCTL, 1}, {"sem", unix.SYS_SEMCTL, 2}} {
		f, err := os.Open(filepath.Join("/proc/sysvipc", kind.file))
		if err != nil {
			continue // the kernel has no System V IPC
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			columns := strings.Fields(lines.Text()) // key, id, ...
			if len(columns) < 2 {
				continue
			}
			id, err := strconv.Atoi(columns[1])
			if err != nil {
				continue // the heading
			}
			args := [3]uintptr{uintptr(id)}
			args[kind.argc] = unix.IPC_RMID
			_, _, _ = unix.Syscall(kind.call, args[0], args[1], args[2])
		}
		_ = f.Close()
	}
}
