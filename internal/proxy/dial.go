package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/closednet"
)

// errAddress is wrapped by the error for an address that must not be dialled.
var errAddress = errors.New("address refused")

// checkAddress says whether addr may be dialled: it is not closed, or the operator has listed it.
func checkAddress(addr netip.Addr, closed *closednet.List, allowed []netip.Prefix) error {
	own := addr.Unmap().WithZone("")
	for _, p := range allowed {
		if p.Contains(own) {
			return nil
		}
	}
	if closed.Contains(addr) {
		return fmt.Errorf("%w: %s is not a public address, is this host's, or is denied; list it in allowPrivateAddresses if it is the service's", errAddress, own)
	}
	return nil
}

// newDialer returns a dialer that looks at the very address it is about to connect to, after every resolution of names: what a
// name meant a moment before makes no difference.
func newDialer(closed *closednet.List, allowed []netip.Prefix) *net.Dialer {
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
			return checkAddress(ap.Addr(), closed, allowed)
		},
	}
}
