// Package publicaddr tells addresses of the public internet from all others: those of this machine, of its networks, and those that
// lead to either by another name. Whoever dials where a stranger or a stranger's name server points asks it about the very address
// that is about to be dialled.
package publicaddr

import "net/netip"

// unicast is all of IPv6 that has been given out for hosts (RFC 4291). What lies outside leads nowhere, inside, or into IPv4: mapped
// and translated addresses, NAT64.
var unicast = netip.MustParsePrefix("2000::/3")

// special lists the networks, of those that package netip takes for ordinary ones, that are not (IANA's special-purpose registries).
var special = func() (list []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}()

// Is reports whether addr is a public host's. An IPv4 address in IPv6's clothes is never one: nothing needs it.
func Is(addr netip.Addr) bool {
	addr = addr.WithZone("")
	if !addr.IsGlobalUnicast() || addr.IsPrivate() || addr.Is6() && !unicast.Contains(addr) {
		return false
	}
	for _, p := range special {
		if p.Contains(addr) {
			return false
		}
	}
	return true
}
