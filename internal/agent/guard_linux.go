package agent

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/closednet"
)

// resolverTable is the routing table of what goes to name servers; resolverPriority puts its rules before the main table.
const (
	resolverTable    = 8099
	resolverPriority = 100
)

// GuardNetwork closes the network namespace that it is started in toward the networks of the configuration and the
// interfaces' own: neighbours and the host. It is for namespaces of containers, whose own processes lack the capability
// that it needs, and that undoing it would need.
func GuardNetwork(configJSON string, out io.Writer) error {
	var cfg GuardConfig
	if err := json.Unmarshal([]byte(configJSON), &cfg); err != nil {
		return fmt.Errorf("parse configuration: %w", err)
	}
	links, err := links()
	if err != nil {
		return err
	}
	nl, err := openNetlink()
	if err != nil {
		return err
	}
	defer nl.close()
	// All that follows can be done again, when there is more to close.
	// First the way that stays open: the routes below hide it.
	servers := append(cfg.Resolvers, resolvers()...)
	if err := nl.allowResolvers(links, servers); err != nil {
		return err
	}
	networks := cfg.Unreachable
	sixth := false
	for _, l := range links {
		sixth = sixth || l.prefix.Addr().Is6()
		if !slices.ContainsFunc(cfg.Open, func(o string) bool { return covers(o, l.prefix) }) {
			networks = append(networks, longer(l.prefix)...)
		}
		if l.prefix.Addr().Is4() {
			if err := nl.dropBroadcast(l); err != nil {
				return err
			}
		}
	}
	if sixth { // nothing of IPv6 is open
		networks = append(networks, "::/1", "8000::/1")
	}
	// The routes make a forbidden connection fail at once; the filter also stops a socket that goes past routes.
	if err := addUnreachableRoutes(networks); err != nil {
		return err
	}
	if err := nl.filter(links, networks, servers); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, GuardDone)
	return err
}

// DescribeNetwork prints the addresses and name servers of the network namespace that it is started in.
func DescribeNetwork(out io.Writer) error {
	links, err := links()
	if err != nil {
		return err
	}
	about := HostNetwork{Addresses: []string{}, Resolvers: resolvers()}
	for _, l := range links {
		about.Addresses = append(about.Addresses, l.prefix.Addr().String())
	}
	return json.NewEncoder(out).Encode(about)
}

// link is an address of an interface other than loopback.
type link struct {
	index  int
	prefix netip.Prefix // with the address's own bits
}

func links() (out []link, err error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			addr, ok := netip.AddrFromSlice(n.IP)
			bits, _ := n.Mask.Size()
			if ok {
				addr = addr.Unmap()
				out = append(out, link{i.Index, netip.PrefixFrom(addr, min(bits, addr.BitLen()))})
			}
		}
	}
	return out, nil
}

// longer are networks that cover p and go before it, since they are longer.
func longer(p netip.Prefix) []string {
	p = p.Masked()
	if p.IsSingleIP() {
		return []string{p.String()}
	}
	low, high := closednet.Halves(p)
	return []string{low.String(), high.String()}
}

func covers(network string, p netip.Prefix) bool {
	n, err := netip.ParsePrefix(network)
	return err == nil && n.Bits() <= p.Bits() && n.Contains(p.Addr())
}

// resolvers are the name servers of resolv.conf that are not on loopback, where the engine's own one is.
func resolvers() []string {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil && !a.IsLoopback() {
			out = append(out, a.String())
		}
	}
	return out
}

// gateway is the IPv4 default route's, or nothing.
func gateway() (gw netip.Addr, device string) {
	text, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return gw, ""
	}
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		f := strings.Fields(sc.Text()) // interface, destination, gateway, flags, …, mask at 7
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		raw, err := hex.DecodeString(f[2])
		if err != nil || len(raw) != 4 {
			continue
		}
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], binary.BigEndian.Uint32(raw))
		return netip.AddrFrom4(b), f[0]
	}
	return gw, ""
}

// netlink is a routing socket.
type netlink struct {
	fd  int
	seq uint32
}

func openNetlink() (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &netlink{fd: fd}, nil
}

func (n *netlink) close() { _ = unix.Close(n.fd) }

// attribute is a netlink attribute.
type attribute struct {
	kind uint16
	data []byte
}

func number(kind uint16, v uint32) attribute {
	return attribute{kind, binary.NativeEndian.AppendUint32(nil, v)}
}

func appendAttribute(b []byte, a attribute) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(a.data)))
	b = binary.NativeEndian.AppendUint16(b, a.kind)
	b = append(b, a.data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// request sends a message and waits for its acknowledgement.
func (n *netlink) request(kind, flags uint16, head []byte, attrs ...attribute) error {
	n.seq++
	ne := binary.NativeEndian
	b := make([]byte, unix.SizeofNlMsghdr, 128)
	b = append(b, head...)
	for _, a := range attrs {
		b = appendAttribute(b, a)
	}
	ne.PutUint32(b[0:], uint32(len(b)))
	ne.PutUint16(b[4:], kind)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	ne.PutUint32(b[8:], n.seq)
	if err := unix.Sendto(n.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	return readAck(n.fd)
}

// allowResolvers lets questions to name servers, and nothing else to the same address, go where they would without the guard.
func (n *netlink) allowResolvers(links []link, servers []string) error {
	gw, device := gateway()
	if !gw.IsValid() || len(servers) == 0 {
		return nil
	}
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	route := func(bits byte, scope byte, attrs ...attribute) error {
		head := []byte{unix.AF_INET, bits, 0, 0, unix.RT_TABLE_UNSPEC, unix.RTPROT_STATIC, scope, unix.RTN_UNICAST, 0, 0, 0, 0}
		attrs = append(attrs, number(unix.RTA_TABLE, resolverTable), number(unix.RTA_OIF, uint32(dev.Index)))
		return n.request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, head, attrs...)
	}
	for _, l := range links {
		if l.index == dev.Index && l.prefix.Addr().Is4() {
			dst := l.prefix.Masked()
			if err := route(byte(dst.Bits()), unix.RT_SCOPE_LINK, attribute{unix.RTA_DST, dst.Addr().AsSlice()}); err != nil {
				return fmt.Errorf("route to name servers: %w", err)
			}
		}
	}
	if err := route(0, unix.RT_SCOPE_UNIVERSE, attribute{unix.RTA_GATEWAY, gw.AsSlice()}); err != nil {
		return fmt.Errorf("route to name servers: %w", err)
	}
	seen := map[netip.Addr]bool{}
	for _, s := range servers {
		addr, err := netip.ParseAddr(s)
		if err != nil || !addr.Is4() || seen[addr] {
			continue
		}
		seen[addr] = true
		for _, protocol := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			head := []byte{unix.AF_INET, 32, 0, 0, unix.RT_TABLE_UNSPEC, 0, 0, unix.FR_ACT_TO_TBL, 0, 0, 0, 0}
			ports := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, 53), 53)
			err := n.request(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, head, attribute{unix.FRA_DST, addr.AsSlice()},
				number(unix.FRA_PRIORITY, resolverPriority), number(unix.FRA_TABLE, resolverTable),
				attribute{unix.FRA_IP_PROTO, []byte{protocol}}, attribute{unix.FRA_DPORT_RANGE, ports})
			if err != nil && err != unix.EEXIST {
				return fmt.Errorf("let questions to the name server %s pass: %w", addr, err)
			}
		}
	}
	return nil
}

// What of the kernel's traffic control is used: a place for filters on what leaves an interface, and a filter that is a
// classic BPF program whose answer is the verdict.
const (
	clsactHandle = 0xffff0000
	clsactParent = 0xfffffff1
	clsactEgress = 0xfffffff3

	tcaKind, tcaOptions                         = 1, 2
	tcaBPFOpsLen, tcaBPFOps, tcaBPFFlags        = 4, 5, 8
	bpfActDirect                                = 1
	verdictPass, verdictDrop                    = 0, 2 // TC_ACT_OK, TC_ACT_SHOT
	filterPriority, filterHandle         uint32 = 1, 1
)

// filter drops what leaves toward the networks, whatever route a socket has chosen.
func (n *netlink) filter(links []link, networks, servers []string) error {
	var blocked []netip.Prefix
	for _, s := range networks {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return err
		}
		blocked = append(blocked, p)
	}
	var open []netip.Addr
	for _, s := range servers {
		if a, err := netip.ParseAddr(s); err == nil {
			open = append(open, a)
		}
	}
	ne := binary.NativeEndian
	var ops []byte
	prog := closednet.Filter(blocked, open, verdictPass, verdictDrop)
	for _, f := range prog {
		ops = ne.AppendUint16(ops, f.Code)
		ops = append(ops, f.Jt, f.Jf)
		ops = ne.AppendUint32(ops, f.K)
	}
	var options []byte
	options = appendAttribute(options, attribute{tcaBPFOpsLen, ne.AppendUint16(nil, uint16(len(prog)))})
	options = appendAttribute(options, attribute{tcaBPFOps, ops})
	options = appendAttribute(options, number(tcaBPFFlags, bpfActDirect))
	head := func(index int, handle, parent, info uint32) []byte {
		b := make([]byte, 4, 20) // the family, and padding
		for _, v := range []uint32{uint32(index), handle, parent, info} {
			b = ne.AppendUint32(b, v)
		}
		return b
	}
	// The protocol is in network order: all of them.
	info := filterPriority<<16 | uint32(unix.ETH_P_ALL&0xff)<<8 | uint32(unix.ETH_P_ALL>>8)
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		info = filterPriority<<16 | unix.ETH_P_ALL
	}
	done := map[int]bool{}
	for _, l := range links {
		if done[l.index] {
			continue
		}
		done[l.index] = true
		err := n.request(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_EXCL, head(l.index, clsactHandle, clsactParent, 0), attribute{tcaKind, []byte("clsact\x00")})
		if err == nil || err == unix.EEXIST { // then the filter replaces the one before
			err = n.request(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE, head(l.index, filterHandle, clsactEgress, info),
				attribute{tcaKind, []byte("bpf\x00")}, attribute{tcaOptions, options})
		}
		if err != nil {
			return fmt.Errorf("filter what leaves (the engine's kernel needs sch_ingress and cls_bpf): %w", err)
		}
	}
	return nil
}

// dropBroadcast removes the way to all neighbours at once: it is in a table that goes before every other.
func (n *netlink) dropBroadcast(l link) error {
	p := l.prefix.Masked()
	last := p.Addr().As4()
	binary.BigEndian.PutUint32(last[:], binary.BigEndian.Uint32(last[:])|uint32(uint64(1)<<(32-p.Bits())-1))
	for _, dst := range []netip.Addr{p.Addr(), netip.AddrFrom4(last)} {
		head := []byte{unix.AF_INET, 32, 0, 0, unix.RT_TABLE_LOCAL, 0, unix.RT_SCOPE_NOWHERE, unix.RTN_BROADCAST, 0, 0, 0, 0}
		err := n.request(unix.RTM_DELROUTE, 0, head, attribute{unix.RTA_DST, dst.AsSlice()}, number(unix.RTA_OIF, uint32(l.index)))
		if err != nil && err != unix.ESRCH {
			return fmt.Errorf("drop the broadcast address %s: %w", dst, err)
		}
	}
	return nil
}
