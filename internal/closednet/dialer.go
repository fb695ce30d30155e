package closednet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"
)

// ErrAddress is wrapped by the errors of Check, and so by those of a Dialer.
var ErrAddress = errors.New("address refused")

// Dialer returns a dialer that checks the address it connects to, after name resolution. A nil List
// closes what is closed on every host.
func (l *List) Dialer(timeout time.Duration, allowed []netip.Prefix) *net.Dialer {
	return &net.Dialer{
		Timeout:   timeout,
		KeepAlive: 30 * time.Second,
		Control: func(network, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("%w: %q is not an address", ErrAddress, address)
			}
			if network != "tcp4" && network != "tcp6" {
				return fmt.Errorf("%w: the network %q", ErrAddress, network)
			}
			if ap.Addr().Unmap().IsUnspecified() {
				return fmt.Errorf("%w: %s means this host", ErrAddress, ap.Addr())
			}
			if l.isServer(ap) {
				return fmt.Errorf("%w: %s is this server", ErrAddress, ap)
			}
			return l.Check(ap.Addr(), allowed)
		},
	}
}

// CloseServer closes the port on which this server listens, on every address of this host. No
// network that is open by exception opens it.
func (l *List) CloseServer(addr net.Addr) {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ports = append(l.ports, tcp.AddrPort().Port())
}

// isServer reports whether this server listens at an address.
func (l *List) isServer(ap netip.AddrPort) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	listens := slices.Contains(l.ports, ap.Port())
	l.mu.Unlock()
	if !listens {
		return false
	}
	addr := ap.Addr().Unmap().WithZone("")
	own, err := hostAddresses()
	return err != nil || addr.IsLoopback() || slices.Contains(own, addr) || slices.Contains(l.publicAddresses(), addr)
}

// Check returns an error unless addr is open or allowed.
func (l *List) Check(addr netip.Addr, allowed []netip.Prefix) error {
	own := addr.Unmap().WithZone("")
	for _, p := range allowed {
		if p.Contains(own) {
			return nil
		}
	}
	if l.Contains(addr) {
		return fmt.Errorf("%w: %s is not a public address, is this host's, or is denied", ErrAddress, own)
	}
	return nil
}

// Opened lists the networks that are open by exception to connections from this host: the allowed
// ones without the denied. A network opens this host's loopback only if it lies within it, and this
// host's other addresses if it contains them.
func (l *List) Opened() (opened []netip.Prefix) {
	cfg := l.config()
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	for _, p := range cfg.Allow {
		if slices.ContainsFunc(loopback, func(l netip.Prefix) bool { return l.Bits() <= p.Bits() && l.Overlaps(p) }) {
			opened = append(opened, p)
			continue
		}
		opened = append(opened, Subtract([]netip.Prefix{p}, loopback)...)
	}
	return Subtract(opened, cfg.Deny)
}
