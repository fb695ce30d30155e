package closednet

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Offsets into an Ethernet frame that carries IPv4.
const (
	offEtherType = 12
	offFragment  = 20
	offProtocol  = 23
	offDst       = 30
	offIP        = 14
)

type program []unix.SockFilter

func (p *program) op(code uint16, k uint32, jt, jf uint8) {
	*p = append(*p, unix.SockFilter{Code: code, Jt: jt, Jf: jf, K: k})
}

// Filter is a classic BPF program on Ethernet frames. It passes ARP, queries to the name servers,
// and IPv4 to addresses that are neither blocked nor loopback. It drops the rest. Unlike routes, it
// also stops sockets that choose their interface (IP_PKTINFO, SO_BINDTODEVICE and others).
func Filter(blocked []netip.Prefix, resolvers []netip.Addr, pass, drop uint32) []unix.SockFilter {
	const (
		word   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		half   = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		octet  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		anyBit = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		and    = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		ret    = unix.BPF_RET | unix.BPF_K
	)
	var p program
	p.op(half, offEtherType, 0, 0)
	p.op(equal, unix.ETH_P_ARP, 0, 1)
	p.op(ret, pass, 0, 0)
	p.op(equal, unix.ETH_P_IP, 1, 0)
	p.op(ret, drop, 0, 0)

	for _, r := range resolvers {
		if !r.Is4() {
			continue
		}
		p.op(word, offDst, 0, 0)
		p.op(equal, be32(r), 0, 9)
		p.op(octet, offProtocol, 0, 0)
		p.op(equal, unix.IPPROTO_UDP, 1, 0)
		p.op(equal, unix.IPPROTO_TCP, 0, 6)
		p.op(half, offFragment, 0, 0)
		p.op(anyBit, 0x1fff, 4, 0)                              // later fragments have no port
		p.op(unix.BPF_LDX|unix.BPF_B|unix.BPF_MSH, offIP, 0, 0) // the length of the IPv4 header
		p.op(unix.BPF_LD|unix.BPF_H|unix.BPF_IND, offIP+2, 0, 0)
		p.op(equal, 53, 0, 1)
		p.op(ret, pass, 0, 0)
	}
	for _, n := range append([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, blocked...) {
		if !n.Addr().Is4() {
			continue // IPv6 never passes
		}
		p.op(word, offDst, 0, 0)
		p.op(and, uint32(uint64(0xffffffff)<<(32-n.Bits())), 0, 0)
		p.op(equal, be32(n.Masked().Addr()), 0, 1)
		p.op(ret, drop, 0, 0)
	}
	p.op(ret, pass, 0, 0)
	return p
}

func be32(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}
