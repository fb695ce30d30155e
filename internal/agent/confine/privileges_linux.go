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
	if err := prctlAll(unix.PR_CAPBSET_DROP, uintptr(capability)); err != nil {
		return fmt.Errorf("drop capability %d: %w", capability, err)
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

// dropPrivileges drops every capability, sets no_new_privs and installs the run filter, on every
// thread: they share a pid namespace with the program, and any of them may fork it.
func dropPrivileges() error {
	if err := dropBoundingSet(); err != nil {
		return err
	}
	if err := prctlAll(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if err := setCapabilities([2]unix.CapUserData{}); err != nil {
		return err
	}
	if err := prctlAll(unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return RunFilter().InstallOnAllThreads()
}

// dropBoundingSet empties the bounding set of every thread. All threads have the same one.
func dropBoundingSet() error {
	for c := 0; ; c++ {
		isSet, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // past the kernel's last capability
		}
		if err == nil && isSet != 0 {
			err = prctlAll(unix.PR_CAPBSET_DROP, uintptr(c))
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
}

// prctlAll calls prctl on every thread.
func prctlAll(option, arg uintptr) error {
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, option, arg, 0, 0, 0, 0); e != 0 {
		return e
	}
	return nil
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

// EnterNamespaces confines every thread of run-init, process 1 of new namespaces, before its run is
// known. It calls enter after it has made the mounts and before it drops the privileges. procDir
// may be empty; see [NewProcDir].
func EnterNamespaces(procDir, tmpBytes string, enter func() error) error {
	size, err := strconv.ParseInt(tmpBytes, 10, 64)
	if err != nil {
		return fmt.Errorf("size of /tmp: %w", err)
	}
	if err := privateMounts(procDir, size); err != nil {
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

// IgnoreSignals makes the process ignore the signals that the Go runtime would end it for. Catching
// them with os/signal takes three threads. Programs that it starts get the default actions.
func IgnoreSignals() error {
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, perThreadSyscall:
			continue // the runtime needs the last two
		}
		handler, err := action(sig)
		if err != nil {
			return err
		}
		switch handler {
		case sigDefault: // does not end process 1
		case sigIgnore: // inherited, perhaps from nohup
			err = setAction(sig, sigDefault)
		default: // the runtime resets it between fork and exec
			err = setAction(sig, sigIgnore)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// IgnoreChildren has the kernel reap the children of the process.
func IgnoreChildren() error { return setAction(unix.SIGCHLD, sigIgnore) }

// Actions of signals, as the kernel knows them, and the signal of AllThreadsSyscall.
const (
	sigDefault       = 0
	sigIgnore        = 1
	perThreadSyscall = 33
)

// IgnoreFaults makes the process ignore the signals that the Go runtime takes for its own faults
// when they are queued with a matching code, and those of C libraries, which it does not catch. A
// real fault still ends the process.
func IgnoreFaults() error {
	for _, sig := range []syscall.Signal{
		unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS, 32, 33, 34,
	} {
		if err := setAction(sig, sigIgnore); err != nil {
			return err
		}
	}
	return nil
}

// ResetLibrarySignals undoes IgnoreFaults for the signals of C libraries, which a program would
// inherit.
func ResetLibrarySignals() error {
	for sig := syscall.Signal(32); sig <= 34; sig++ {
		if err := setAction(sig, sigDefault); err != nil {
			return err
		}
	}
	return nil
}

func setAction(sig syscall.Signal, handler uintptr) error {
	return sigaction(sig, &[4]uintptr{handler}, nil)
}

// action returns what the process does at a signal: sigDefault, sigIgnore or a function.
func action(sig syscall.Signal) (handler uintptr, err error) {
	var old [4]uintptr
	err = sigaction(sig, nil, &old)
	return old[0], err
}

// sigaction's structures hold handler, flags, restorer and mask.
func sigaction(sig syscall.Signal, set, old *[4]uintptr) error {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	if e != 0 {
		return fmt.Errorf("signal %d: %w", sig, e)
	}
	return nil
}
