package netguard

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/closednet"
)

// Block makes packets to each network (CIDR) fail with EHOSTUNREACH. It needs CAP_NET_ADMIN.
func Block(networks []string) error {
	prefixes, err := parsePrefixes(networks)
	if err != nil {
		return err
	}
	nl, err := openNetlink()
	if err != nil {
		return err
	}
	defer nl.close()
	return nl.block(prefixes)
}

// Guard closes the network namespace of a container toward the networks in configJSON and toward
// the networks of its interfaces, which hold its neighbours and the host. It may run again with
// more to close. Processes in the container lack CAP_NET_ADMIN, so they cannot undo it.
func Guard(configJSON string, out io.Writer) error {
	var cfg Config
	if err := json.Unmarshal([]byte(configJSON), &cfg); err != nil {
		return fmt.Errorf("parse configuration: %w", err)
	}
	blocked, err := parsePrefixes(cfg.Unreachable)
	if err != nil {
		return err
	}
	open, err := parsePrefixes(cfg.Open)
	if err != nil {
		return err
	}
	addrs, err := interfaceAddresses()
	if err != nil {
		return err
	}
	nl, err := openNetlink()
	if err != nil {
		return err
	}
	defer nl.close()
	// This comes first: the unreachable routes hide the default route that it copies.
	servers := parseResolvers(append(cfg.Resolvers, resolvers()...))
	if err := nl.allowResolvers(addrs, servers); err != nil {
		return err
	}
	for _, a := range addrs {
		if !slices.ContainsFunc(open, func(o netip.Prefix) bool { return covers(o, a.prefix) }) {
			blocked = append(blocked, override(a.prefix)...)
		}
		if a.prefix.Addr().Is4() {
			if err := nl.dropBroadcast(a); err != nil {
				return err
			}
		}
	}
	if slices.ContainsFunc(addrs, func(a interfaceAddress) bool { return a.prefix.Addr().Is6() }) {
		blocked = append(blocked, override(netip.MustParsePrefix("::/0"))...) // no IPv6 network is open
	}
	if err := nl.block(blocked); err != nil {
		return err
	}
	if err := nl.filterEgress(addrs, closednet.Filter(blocked, servers, verdictPass, verdictDrop)); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, Done)
	return err
}

// Describe prints the addresses and name servers of the network namespace that it runs in.
func Describe(out io.Writer) error {
	addrs, err := interfaceAddresses()
	if err != nil {
		return err
	}
	host := HostNetwork{Addresses: []string{}, Resolvers: resolvers()}
	for _, a := range addrs {
		host.Addresses = append(host.Addresses, a.prefix.Addr().String())
	}
	return json.NewEncoder(out).Encode(host)
}

func parsePrefixes(texts []string) (out []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// parseResolvers returns the IPv4 addresses among texts, each once.
func parseResolvers(texts []string) (out []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// interfaceAddress is an address of an interface other than loopback.
type interfaceAddress struct {
	index  int
	prefix netip.Prefix // not masked: it holds the address
}

func interfaceAddresses() (out []interfaceAddress, err error) {
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
			p, err := netip.ParsePrefix(a.String())
			if err == nil {
				out = append(out, interfaceAddress{i.Index, p})
			}
		}
	}
	return out, nil
}

// override returns networks that cover p and take precedence over its route, because they are
// longer.
func override(p netip.Prefix) []netip.Prefix {
	p = p.Masked()
	if p.IsSingleIP() {
		return []netip.Prefix{p}
	}
	low, high := closednet.Halves(p)
	return []netip.Prefix{low, high}
}

func covers(network, p netip.Prefix) bool {
	return network.Bits() <= p.Bits() && network.Contains(p.Addr())
}

// resolvers returns the name servers in resolv.conf. It skips loopback, where Docker's own one is.
func resolvers() (out []string) {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return nil
	}
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

// gateway returns the gateway and the interface of the IPv4 default route, if it has one.
func gateway() (gw netip.Addr, device string) {
	text, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return gw, ""
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line) // interface, destination, gateway, flags, …, mask at 7
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		raw, err := strconv.ParseUint(f[2], 16, 32)
		if err != nil {
			continue
		}
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], uint32(raw)) // the file shows the number as it is in memory
		return netip.AddrFrom4(b), f[0]
	}
	return gw, ""
}
