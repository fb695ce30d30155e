package agent

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/netguard"
)

// blockNetworks adds unreachable routes, then drops the capability to remove them again: nothing else
// needs CAP_NET_ADMIN.
func blockNetworks(networks []string) error {
	if len(networks) > 0 {
		if err := netguard.Block(networks); err != nil {
			return err
		}
	}
	return dropCapability(unix.CAP_NET_ADMIN)
}

// dropCapability takes a capability, if the process has it, from every set of every thread, for good.
func dropCapability(capability uint) error {
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
	set.Inheritable &^= bit // the kernel takes it from the ambient set, too
	return setCapabilities(sets)
}

// setCapabilities sets the capabilities of every thread: those of the Go runtime have them, too.
func setCapabilities(sets [2]unix.CapUserData) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if e != 0 {
		return fmt.Errorf("set capabilities: %w", e)
	}
	return nil
}
