// Package hostname answers questions about the host part of addresses without looking anything up.
package hostname

import "net/netip"

// IsLoopback reports whether a host, without port and brackets, always means this computer:
// localhost in lower case, or a loopback address without a zone.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Zone() == "" && addr.Unmap().IsLoopback()
}
