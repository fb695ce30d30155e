// Package closednet says what a sandbox with network cannot reach: everything that is not the internet. It knows no backend.
package closednet

import "net/netip"

// Networks are the private and special networks of IPv4. A backend adds the addresses of its host.
func Networks() []netip.Prefix {
	var out []netip.Prefix
	for _, n := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16",
		"198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
	} {
		out = append(out, netip.MustParsePrefix(n))
	}
	return out
}

// Subtract returns networks that cover blocked without allowed. A blocked network that contains an allowed
// one is split around it.
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

// Halves are the two networks, each longer by a bit, that make up p. p is masked and not a single address.
func Halves(p netip.Prefix) (low, high netip.Prefix) {
	bits := p.Bits() + 1
	low = netip.PrefixFrom(p.Addr(), bits)
	b := p.Addr().AsSlice()
	b[(bits-1)/8] |= 1 << (7 - (bits-1)%8)
	addr, _ := netip.AddrFromSlice(b)
	return low, netip.PrefixFrom(addr, bits)
}
