package confine

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DropCapability removes a capability from every set of every thread, for good. It does nothing if
// the process does not have it.
func DropCapability(capability uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	set, bit := &sets[capability/32], uint32(1)<<(capability%32)
	if set.Permitted&bit == 0 {
		return nil
	}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(capability), 0); e != 0 {
		return fmt.Errorf("drop capability %d: %w", capability, e)
	}
	set.Effective &^= bit
	set.Permitted &^= bit
	set.Inheritable &^= bit // the kernel also removes it from the ambient set
	return setCapabilities(sets)
}

// setCapabilities sets the capabilities of every thread, including those of the Go runtime.
func setCapabilities(sets [2]unix.CapUserData) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if e != 0 {
		return fmt.Errorf("set capabilities: %w", e)
	}
	return nil
}

// dropPrivileges drops every capability of the process, sets no_new_privs and installs the run
// filter. The last two, and the bounding set, hold for the calling thread and what it forks.
func dropPrivileges() error {
	for c := 0; c <= 63; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			if errors.Is(err, unix.EINVAL) {
				break // past the kernel's last capability
			}
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	// On every thread: those of the runtime share a pid namespace with the program.
	if err := setCapabilities([2]unix.CapUserData{}); err != nil {
		return err
	}
	if err := noNewPrivileges(); err != nil {
		return err
	}
	return RunFilter().Install()
}

func noNewPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// MakeUnreadable keeps other processes from reading the memory and the descriptors of this one
// through /proc.
func MakeUnreadable() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become unreadable: %w", err)
	}
	return nil
}

// EnterNamespaces confines run-init, process 1 of new namespaces, before its run is known. It calls
// enter after it has made the mounts and before it drops the privileges.
func EnterNamespaces(tmpBytes string, enter func() error) error {
	size, err := strconv.ParseInt(tmpBytes, 10, 64)
	if err != nil {
		return fmt.Errorf("size of /tmp: %w", err)
	}
	if err := privateMounts(size); err != nil {
		return err
	}
	if err := enter(); err != nil {
		return err
	}
	if err := SetLimits(earlyLimits...); err != nil {
		return err
	}
	return dropPrivileges()
}

// IgnoreFaults makes the process ignore the signals that the Go runtime takes for its own faults
// when they are queued with a matching code, and those of C libraries, which it does not catch. A
// real fault still ends the process.
func IgnoreFaults() error {
	for _, sig := range []syscall.Signal{
		unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS, 32, 33, 34,
	} {
		if err := setAction(sig, 1); err != nil { // SIG_IGN
			return err
		}
	}
	return nil
}

// ResetLibrarySignals undoes IgnoreFaults for the signals of C libraries, which a program would
// inherit.
func ResetLibrarySignals() error {
	for sig := syscall.Signal(32); sig <= 34; sig++ {
		if err := setAction(sig, 0); err != nil {
			return err
		}
	}
	return nil
}

func setAction(sig syscall.Signal, handler uintptr) error {
	action := [4]uintptr{handler} // handler, flags, restorer, mask
	if _, _, e := unix.Syscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); e != 0 {
		return fmt.Errorf("signal %d: %w", sig, e)
	}
	return nil
}
