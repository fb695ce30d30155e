package netguard

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// netlink is a routing socket. A library would add 110 to 270 KB to an agent of 3.7 MB, and none
// can attach a classic BPF program (filterEgress), which needs no capability beyond CAP_NET_ADMIN.
type netlink struct {
	fd  int
	seq uint32
}

var native = binary.NativeEndian

func openNetlink() (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &netlink{fd: fd}, nil
}

func (n *netlink) close() { _ = unix.Close(n.fd) }

// block adds an unreachable route for each network.
func (n *netlink) block(networks []netip.Prefix) error {
	for _, p := range networks {
		err := n.addRoute(p, unix.RtMsg{Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNREACHABLE})
		if err != nil {
			return fmt.Errorf("block %s: %w", p, err)
		}
	}
	return nil
}

// allowResolvers routes port 53 of the IPv4 name servers as without the guard. Other ports of the
// same addresses stay closed.
func (n *netlink) allowResolvers(addrs []interfaceAddress, servers []netip.Addr) error {
	const (
		table    = 8099
		priority = 100 // before the main table
	)
	gw, device := gateway()
	if !gw.IsValid() || len(servers) == 0 {
		return nil
	}
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	inTable := []attribute{number(unix.RTA_TABLE, table), number(unix.RTA_OIF, uint32(dev.Index))}
	for _, a := range addrs {
		if a.index == dev.Index && a.prefix.Addr().Is4() {
			msg := unix.RtMsg{Type: unix.RTN_UNICAST, Scope: unix.RT_SCOPE_LINK}
			if err := n.addRoute(a.prefix.Masked(), msg, inTable...); err != nil {
				return fmt.Errorf("route to name servers: %w", err)
			}
		}
	}
	err = n.addRoute(netip.MustParsePrefix("0.0.0.0/0"), unix.RtMsg{Type: unix.RTN_UNICAST},
		append(inTable, address(unix.RTA_GATEWAY, gw))...)
	if err != nil {
		return fmt.Errorf("route to name servers: %w", err)
	}
	const port = 53
	ports := native.AppendUint16(native.AppendUint16(nil, port), port)
	for _, addr := range servers {
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			// A struct fib_rule_hdr has the layout of a struct rtmsg.
			rule := unix.RtMsg{Family: unix.AF_INET, Dst_len: 32, Type: unix.FR_ACT_TO_TBL}
			err := request(n, unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, rule,
				address(unix.FRA_DST, addr), number(unix.FRA_PRIORITY, priority), number(unix.FRA_TABLE, table),
				attribute{unix.FRA_IP_PROTO, []byte{protocol}}, attribute{unix.FRA_DPORT_RANGE, ports})
			if err != nil && err != unix.EEXIST {
				return fmt.Errorf("allow queries to the name server %s: %w", addr, err)
			}
		}
	}
	return nil
}

// dropBroadcast removes the broadcast routes of an IPv4 network. They are in the local table, which
// takes precedence over the unreachable routes.
func (n *netlink) dropBroadcast(a interfaceAddress) error {
	p := a.prefix.Masked()
	last := p.Addr().As4()
	binary.BigEndian.PutUint32(last[:], binary.BigEndian.Uint32(last[:])|uint32(uint64(1)<<(32-p.Bits())-1))
	for _, dst := range []netip.Addr{p.Addr(), netip.AddrFrom4(last)} {
		msg := unix.RtMsg{
			Family: unix.AF_INET, Dst_len: 32,
			Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_BROADCAST, Scope: unix.RT_SCOPE_NOWHERE,
		}
		err := request(n, unix.RTM_DELROUTE, 0, msg, address(unix.RTA_DST, dst), number(unix.RTA_OIF, uint32(a.index)))
		if err != nil && err != unix.ESRCH {
			return fmt.Errorf("drop the broadcast address %s: %w", dst, err)
		}
	}
	return nil
}

// The verdicts of a traffic control filter.
const (
	verdictPass = 0 // TC_ACT_OK
	verdictDrop = 2 // TC_ACT_SHOT
)

// tcMsg is the kernel's struct tcmsg.
type tcMsg struct {
	_                     uint32 // the family and padding
	Index                 int32
	Handle, Parent, Inner uint32
}

// filterEgress runs a classic BPF program on each packet that leaves an interface, regardless of
// the route that its socket has chosen. The program returns a verdict. It replaces an earlier one.
func (n *netlink) filterEgress(addrs []interfaceAddress, program []unix.SockFilter) error {
	const (
		clsactHandle, clsactParent, clsactEgress = 0xffff0000, 0xfffffff1, 0xfffffff3
		bpfOpsLen, bpfOps, bpfFlags              = 4, 5, 8
		directAction                             = 1
		priority, handle                         = 1, 1
	)
	ops := unsafe.Slice((*byte)(unsafe.Pointer(&program[0])), len(program)*unix.SizeofSockFilter)
	options := appendAttribute(nil, attribute{bpfOpsLen, native.AppendUint16(nil, uint16(len(program)))})
	options = appendAttribute(options, attribute{bpfOps, ops})
	options = appendAttribute(options, number(bpfFlags, directAction))
	// The lower half is the protocol in network byte order: all of them.
	info := priority<<16 | uint32(native.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
	done := map[int]bool{}
	for _, a := range addrs {
		if done[a.index] {
			continue
		}
		done[a.index] = true
		qdisc := tcMsg{Index: int32(a.index), Handle: clsactHandle, Parent: clsactParent}
		err := request(n, unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, qdisc,
			attribute{unix.TCA_KIND, []byte("clsact\x00")})
		if err == nil || err == unix.EEXIST {
			filter := tcMsg{Index: int32(a.index), Handle: handle, Parent: clsactEgress, Inner: info}
			err = request(n, unix.RTM_NEWTFILTER, unix.NLM_F_CREATE, filter,
				attribute{unix.TCA_KIND, []byte("bpf\x00")}, attribute{unix.TCA_OPTIONS, options})
		}
		if err != nil {
			return fmt.Errorf("filter outgoing packets (the kernel needs the modules sch_ingress and cls_bpf): %w", err)
		}
	}
	return nil
}

// addRoute adds a route to a network, or replaces it.
func (n *netlink) addRoute(dst netip.Prefix, msg unix.RtMsg, attrs ...attribute) error {
	msg.Family, msg.Dst_len, msg.Protocol = unix.AF_INET, uint8(dst.Bits()), unix.RTPROT_STATIC
	if dst.Addr().Is6() {
		msg.Family = unix.AF_INET6
	}
	if dst.Bits() > 0 {
		attrs = append(attrs, address(unix.RTA_DST, dst.Addr()))
	}
	return request(n, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, msg, attrs...)
}

// request sends a message and waits for its acknowledgement. The header is a struct of the
// kernel's.
func request[T unix.RtMsg | tcMsg](n *netlink, kind, flags uint16, header T, attrs ...attribute) error {
	n.seq++
	b := make([]byte, unix.SizeofNlMsghdr, 128)
	b = append(b, unsafe.Slice((*byte)(unsafe.Pointer(&header)), unsafe.Sizeof(header))...)
	for _, a := range attrs {
		b = appendAttribute(b, a)
	}
	native.PutUint32(b[0:], uint32(len(b)))
	native.PutUint16(b[4:], kind)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	native.PutUint32(b[8:], n.seq)
	if err := unix.Sendto(n.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	got, _, err := unix.Recvfrom(n.fd, buf, 0)
	if err != nil {
		return err
	}
	if got < unix.SizeofNlMsghdr+4 || native.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("unexpected netlink answer of %d bytes", got)
	}
	if e := int32(native.Uint32(buf[unix.SizeofNlMsghdr:])); e != 0 {
		return unix.Errno(-e)
	}
	return nil
}

// attribute is a netlink attribute.
type attribute struct {
	kind uint16
	data []byte
}

func number(kind uint16, v uint32) attribute {
	return attribute{kind, native.AppendUint32(nil, v)}
}

func address(kind uint16, addr netip.Addr) attribute {
	return attribute{kind, addr.AsSlice()}
}

func appendAttribute(b []byte, a attribute) []byte {
	b = native.AppendUint16(b, uint16(unix.SizeofRtAttr+len(a.data)))
	b = native.AppendUint16(b, a.kind)
	b = append(b, a.data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}
