package agent

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A mount's line in /proc/<pid>/mountinfo names the directory behind it: the host's path to the workspace, with the
// session's key and perhaps a person's name. The kernel lists the mounts of a process's mount namespace that lie
// below its root. So the processes of a run are in a namespace of no mounts, with a root outside of it.

// emptyFD is the descriptor on which run-init finds the agent's empty mount namespace.
const emptyFD = 6

// hiddenMounts is the argument that tells run-init to use it.
const hiddenMounts = "hidden"

// emptyNamespace makes a mount namespace with nothing in it but an empty, read-only root. It must come after
// separateMounts, and before anything is shared again.
func emptyNamespace() (*os.File, error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return nil, fmt.Errorf("open the mount namespace: %w", err)
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, fmt.Errorf("make a mount namespace: %w", err)
	}
	empty, err := os.Open("/proc/thread-self/ns/mnt")
	if err == nil {
		err = emptyRoot()
	}
	if err = errors.Join(err, unix.Setns(int(home.Fd()), unix.CLONE_NEWNS)); err != nil {
		return nil, fmt.Errorf("make an empty mount namespace: %w", err)
	}
	runtime.UnlockOSThread() // else the thread is lost
	return empty, nil
}

// emptyRoot replaces the calling thread's root, and all that is mounted below it, by an empty directory.
func emptyRoot() error {
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", flags, "size=4k,nr_inodes=1,mode=0555"); err != nil {
		return err
	}
	if err := unix.Chdir("/tmp"); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	return unix.Unmount(".", unix.MNT_DETACH) // the old one, which lies on top
}

// hideMounts moves every thread into the empty namespace and back to the root that is open. The namespace whose root
// that is must be held open for as long as somebody uses it, or its mounts go.
func hideMounts(empty, root int) error {
	dot := []byte(".\x00")
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_UNSHARE, unix.CLONE_FS, 0, 0); e != 0 {
		return fmt.Errorf("separate the roots of threads: %w", e)
	}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_SETNS, uintptr(empty), unix.CLONE_NEWNS, 0); e != 0 {
		return fmt.Errorf("enter the empty mount namespace: %w", e)
	}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_FCHDIR, uintptr(root), 0, 0); e != 0 {
		return fmt.Errorf("return to the root: %w", e)
	}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CHROOT, uintptr(unsafe.Pointer(&dot[0])), 0, 0); e != 0 {
		return fmt.Errorf("return to the root: %w", e)
	}
	return nil
}
