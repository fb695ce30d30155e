package jail

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The unreachable routes inside make forbidden connections fail at once, but a socket that names its
// interface (IP_PKTINFO, IP_UNICAST_IF, a multicast address and a bound source) goes past routes. So the
// device itself drops what must not leave: a classic BPF program on the tap that slirp4netns reads from,
// held by it, outside the sandbox and out of reach of whatever capability were won inside.

// Offsets into an Ethernet frame that carries IPv4.
const (
	offEtherType = 12
	offFragment  = 20
	offProtocol  = 23
	offDst       = 30
	offIP        = 14
)

type tapProgram []unix.SockFilter

func (p *tapProgram) op(code uint16, k uint32, jt, jf uint8) {
	*p = append(*p, unix.SockFilter{Code: code, Jt: jt, Jf: jf, K: k})
}

// tapFilter lets ARP pass, questions to slirp4netns's name server, and IPv4 to everything that is neither
// blocked nor a loopback address.
func tapFilter(blocked []netip.Prefix) []unix.SockFilter {
	const (
		word, half, octet = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		equal             = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		anyBit            = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		and               = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		ret               = unix.BPF_RET | unix.BPF_K
		pass, drop        = 0xffffffff, 0
	)
	var p tapProgram
	p.op(half, offEtherType, 0, 0)
	p.op(equal, unix.ETH_P_ARP, 0, 1)
	p.op(ret, pass, 0, 0)
	p.op(equal, unix.ETH_P_IP, 1, 0)
	p.op(ret, drop, 0, 0)

	p.op(word, offDst, 0, 0)
	dns := netip.MustParseAddr(slirpDNS).As4()
	p.op(equal, be32(dns), 0, 10)
	p.op(octet, offProtocol, 0, 0)
	p.op(equal, unix.IPPROTO_UDP, 1, 0)
	p.op(equal, unix.IPPROTO_TCP, 0, 6)
	p.op(half, offFragment, 0, 0)
	p.op(anyBit, 0x1fff, 4, 0)                              // a later fragment has no port
	p.op(unix.BPF_LDX|unix.BPF_B|unix.BPF_MSH, offIP, 0, 0) // the length of the IPv4 header
	p.op(unix.BPF_LD|unix.BPF_H|unix.BPF_IND, offIP+2, 0, 0)
	p.op(equal, 53, 0, 1)
	p.op(ret, pass, 0, 0)
	p.op(ret, drop, 0, 0)

	for _, n := range append([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, blocked...) {
		if !n.Addr().Is4() {
			continue // IPv6 never passes
		}
		addr := n.Masked().Addr().As4()
		p.op(word, offDst, 0, 0)
		p.op(and, uint32(uint64(0xffffffff)<<(32-n.Bits())), 0, 0)
		p.op(equal, be32(addr), 0, 1)
		p.op(ret, drop, 0, 0)
	}
	p.op(ret, pass, 0, 0)
	return p
}

func be32(b [4]byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// filterTap puts the filter on the tap that slirp4netns, a child of this process, holds open.
func filterTap(slirp int, filter []unix.SockFilter) error {
	tap, err := takeTap(slirp)
	if err != nil {
		return fmt.Errorf("find the tap of slirp4netns: %w", err)
	}
	defer unix.Close(tap)
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(tap), unix.TUNATTACHFILTER, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return fmt.Errorf("attach the filter of the tap: %w", e)
	}
	return nil
}

// takeTap duplicates the one descriptor of a process that is /dev/net/tun.
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
