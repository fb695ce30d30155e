package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// errAddress is wrapped by the error for an address that must not be dialled.
var errAddress = errors.New("address refused")

// special lists the networks that are not the public internet's, and those that lead into IPv4 by another name. Package
// netip knows more: loopback, link-local, private, multicast, unspecified.
var special = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
	"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10",
)

func prefixes(texts ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		ps[i] = netip.MustParsePrefix(text)
	}
	return ps
}

// checkAddress says whether addr may be dialled: it is public, or the operator has listed it.
func checkAddress(addr netip.Addr, allowed []netip.Prefix) error {
	mapped := addr.Is4In6()
	addr = addr.Unmap().WithZone("")
	for _, p := range allowed {
		if p.Contains(addr) {
			return nil
		}
	}
	public := !mapped && addr.IsGlobalUnicast() && !addr.IsPrivate()
	for _, p := range special {
		public = public && !p.Contains(addr)
	}
	if !public {
		return fmt.Errorf("%w: %s is not a public address; list it in allowPrivateAddresses if it is the service's", errAddress, addr)
	}
	return nil
}

// newDialer returns a dialer that looks at the very address it is about to connect to, after every resolution of names: what a
// name meant a moment before makes no difference.
func newDialer(allowed []netip.Prefix) *net.Dialer {
	return &net.Dialer{
		Timeout:   dialTimeout,
		KeepAlive: 30 * time.Second,
		Control: func(network, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("%w: %q is not an address", errAddress, address)
			}
			if network != "tcp4" && network != "tcp6" {
				return fmt.Errorf("%w: the network %q", errAddress, network)
			}
			return checkAddress(ap.Addr(), allowed)
		},
	}
}
