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

// The unreachable routes inside make forbidden connections fail at once, but a socket that names its
// interface (IP_PKTINFO, IP_UNICAST_IF, a multicast address and a bound source) goes past routes. So the
// device itself drops what must not leave: a classic BPF program on the tap that slirp4netns reads from,
// held by it, outside the sandbox and out of reach of whatever capability were won inside.

// tapFilter lets ARP pass, questions to slirp4netns's name server, and IPv4 to everything that is neither
// blocked nor a loopback address.
func tapFilter(blocked []netip.Prefix) []unix.SockFilter {
	return closednet.Filter(blocked, []netip.Addr{netip.MustParseAddr(slirpDNS)}, 0xffffffff, 0)
}

// filterTap puts the filter on a tap, in place of the one before.
func filterTap(tap int, filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(tap), unix.TUNATTACHFILTER, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return fmt.Errorf("attach the filter of the tap: %w", e)
	}
	return nil
}

// takeTap duplicates the one descriptor of slirp4netns, a child of this process, that is /dev/net/tun.
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
	return -1, errors.New("it has none")
}
