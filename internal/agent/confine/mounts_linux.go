package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// EmptyNamespace makes a mount namespace that holds only an empty, read-only root. Call it after
// SeparateMounts, and before anything is shared again.
func EmptyNamespace() (*os.File, error) {
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
	runtime.UnlockOSThread() // after an error, the thread ends with its goroutine
	return empty, nil
}

// emptyRoot replaces the calling thread's root, and everything mounted below it, by an empty
// directory.
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

// HideMounts moves every thread into the empty namespace and back to root, a descriptor. Then
// mountinfo in /proc, which reveals the host's path of the workspace, is empty. The namespace of
// root must stay open while processes use it, or its mounts disappear.
func HideMounts(empty, root int) error {
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

// SeparateMounts keeps mounts that the host makes later out of the sandbox and its runs.
func SeparateMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

// procDirs is where the agent has a directory for the /proc of each run. Runs cannot reach it:
// their own /tmp covers it.
const procDirs = "/tmp"

// MountProcDirs makes the agent's procDirs writable.
func MountProcDirs() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("tmpfs", procDirs, "tmpfs", flags, "mode=0700,size=64k"); err != nil {
		return fmt.Errorf("mount %s of the agent: %w", procDirs, err)
	}
	return nil
}

// NewProcDir makes a directory for the /proc of a run. Removing it, after the run, detaches /proc
// with its covers, which stay on it while somebody has a descriptor of it. The end of the run's
// mount namespace would remove the covers.
func NewProcDir() (string, error) {
	dir, err := os.MkdirTemp(procDirs, "")
	if err != nil {
		return "", fmt.Errorf("make a directory for /proc: %w", err)
	}
	return dir, nil
}

// privateMounts gives the run its own /proc, terminals, and empty, sized /tmp and /dev/shm. It
// mounts /proc on procDir, unless that is empty.
func privateMounts(procDir string, tmpBytes int64) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	// Slave, not private: a workspace that the agent attaches later must appear here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate mounts: %w", err)
	}
	if procDir != "" {
		if err := unix.Mount(procDir, "/proc", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("prepare /proc: %w", err)
		}
	}
	size := ""
	if tmpBytes > 0 {
		size = ",size=" + strconv.FormatInt(tmpBytes, 10)
	}
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=1777,nr_inodes=65536"+size); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	mountTerminals()
	if err := unix.Mount("proc", "/proc", "proc", flags|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	var hidden []string
	for _, name := range HiddenProc() {
		hidden = append(hidden, "/proc/"+name)
	}
	if err := Hide(hidden...); err != nil {
		return err
	}
	// Code may read the settings of the sandbox's namespaces but not change them.
	if err := unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind /proc/sys: %w", err)
	}
	if err := unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|flags|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("make /proc/sys read-only: %w", err)
	}
	return nil
}

// Hide covers files with /dev/null and directories with one empty directory. Paths need not exist.
func Hide(paths ...string) error {
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	empty := "" // a directory that is covered
	for _, path := range paths {
		fi, err := os.Lstat(path)
		switch {
		case err != nil:
			continue
		case !fi.IsDir():
			err = unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
		case empty != "":
			err = unix.Mount(empty, path, "", unix.MS_BIND, "")
		default:
			err = unix.Mount("tmpfs", path, "tmpfs", flags, "size=0,mode=0555")
			empty = path
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	return nil
}

// maxTerminals limits the pseudo-terminals of one run. The kernel has 4096 for the whole machine,
// and does not count their buffers, about 40 KB each, as the sandbox's memory.
const maxTerminals = 32

// mountTerminals gives the run its own /dev/pts. If the kernel cannot, the run has no terminals:
// the sandbox's /dev/pts is empty.
func mountTerminals() {
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	err := unix.Mount("devpts", "/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620,max="+strconv.Itoa(maxTerminals))
	if errors.Is(err, unix.EINVAL) { // gVisor knows fewer options, and its terminals are its own memory
		_ = unix.Mount("devpts", "/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666")
	}
}

// MountZygoteTmp mounts a small /tmp that no run can reach.
func MountZygoteTmp() error {
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,size=16m"); err != nil {
		return fmt.Errorf("mount /tmp: %w", err)
	}
	return nil
}
