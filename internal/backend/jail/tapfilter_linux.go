package jail

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/closednet"
)

// tapFilter is a BPF program for the tap that slirp4netns reads from. It also stops sockets that
// bypass the unreachable routes inside. slirp4netns holds the tap outside the sandbox, so no
// capability gained inside can remove the filter.
func tapFilter(closed []netip.Prefix) []unix.SockFilter {
	return closednet.Filter(closed, []netip.Addr{netip.MustParseAddr(slirpDNS)}, 0xffffffff, 0)
}

// filterTap sets the filter of a tap.
func filterTap(tap int, filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(tap), unix.TUNATTACHFILTER, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return fmt.Errorf("set the filter of the tap: %w", e)
	}
	return nil
}

// takeTap duplicates the descriptor of /dev/net/tun in slirp4netns, a child of this process.
func takeTap(pid int) (int, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.ReadDir(dir)
	if err != nil {
		return -1, err
	}
	for _, e := range open {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(dir+"/"+e.Name(), &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(10, 200) {
			return unix.PidfdGetfd(pidfd, fd, 0)
		}
	}
	return -1, errors.New("it has not opened " + tun)
}
