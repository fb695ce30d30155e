// Package closednet owns the list of networks that code must not reach: everything but the public
// internet, plus this host, this server's public address and what the operator denies. Backends
// apply the list to sandboxes that have a network; whatever connects on behalf of code dials with
// it. The package knows none of them.
package closednet

import (
	"cmp"
	"net/netip"
	"slices"
)

// networks are closed on every host: IANA's special-purpose registries, and Azure's host, which has
// a public address. Only IPv6 networks that are assigned to hosts are open, so no IPv4 address
// passes in an IPv6 form (mapped, NAT64, 6to4, Teredo).
var networks = func() (list []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"::/3", "4000::/2", "8000::/1", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}()

// Networks lists the networks that are closed on every host.
func Networks() []netip.Prefix { return slices.Clone(networks) }

// Subtract returns networks that cover blocked without allowed. It splits a blocked network that
// contains an allowed one.
func Subtract(blocked, allowed []netip.Prefix) []netip.Prefix {
	seen := map[netip.Prefix]bool{}
	var out []netip.Prefix
	var add func(p netip.Prefix)
	add = func(p netip.Prefix) {
		for _, a := range allowed {
			a = a.Masked()
			switch {
			case a.Overlaps(p) && a.Bits() <= p.Bits():
				return
			case a.Overlaps(p):
				low, high := Halves(p)
				add(low)
				add(high)
				return
			}
		}
		if !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	for _, p := range blocked {
		add(p.Masked())
	}
	return out
}

// compact sorts networks and drops those that another one contains.
func compact(list []netip.Prefix) (out []netip.Prefix) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for _, p := range list { // a network that contains p comes before it
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// Halves splits a network into two that are longer by a bit. p must be masked and not a single
// address.
func Halves(p netip.Prefix) (low, high netip.Prefix) {
	bits := p.Bits() + 1
	low = netip.PrefixFrom(p.Addr(), bits)
	b := p.Addr().AsSlice()
	b[(bits-1)/8] |= 1 << (7 - (bits-1)%8)
	addr, _ := netip.AddrFromSlice(b)
	return low, netip.PrefixFrom(addr, bits)
}

// Parse parses an address or a network. An IPv4 network in IPv6 notation (::ffff:10.0.0.0/104)
// becomes IPv4.
func Parse(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil && addr.Zone() == "" {
		return single(addr), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// single returns the network of one address.
func single(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	return netip.PrefixFrom(addr, addr.BitLen())
}
