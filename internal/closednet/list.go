package closednet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// lookupTimeout bounds a lookup of the public host. New waits for it.
	lookupTimeout = 2 * time.Second
	// refreshEvery is the interval at which Follow resolves the public host. It also reads this
	// host's addresses if the kernel does not report changes.
	refreshEvery = 30 * time.Second
	// maxResolved bounds the remembered addresses of the public host. Round-robin names return a
	// few at a time.
	maxResolved = 64
	// maxClosed is how many networks fit into a packet filter.
	maxClosed = 900
)

// MaxDeny bounds Config.Deny.
const MaxDeny = 256

// Config of a List.
type Config struct {
	// Deny lists further networks to close. Allow does not open them.
	Deny []netip.Prefix
	// Allow lists networks that are open to sandboxes.
	Allow []netip.Prefix
	// PublicHost is the host name or address by which clients reach this server, or empty.
	PublicHost string
	// Lookup resolves PublicHost; nil means the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	Logger *slog.Logger // nil is silent
}

// List is the list of closed networks. It is safe for concurrent use. A nil List has a zero Config.
type List struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	resolved []netip.Addr // of PublicHost, most recent last
	failing  bool         // the last lookup failed
	ports    []uint16     // on which this server listens
	changed  map[int]func()
	next     int
}

// New returns the list. It tries to resolve PublicHost, for a short time; Follow tries again.
func New(ctx context.Context, cfg Config) *List {
	l := &List{cfg: cfg, log: cfg.Logger, changed: map[int]func(){}}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.cfg.Lookup == nil {
		l.cfg.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	l.cfg.Deny = nil
	for _, p := range cfg.Deny {
		if p = p.Masked(); p.Bits() > 0 {
			l.cfg.Deny = append(l.cfg.Deny, p)
			continue
		}
		low, high := Halves(p) // a route to everything would replace the default route to name servers
		l.cfg.Deny = append(l.cfg.Deny, low, high)
	}
	l.resolve(ctx)
	return l
}

// Allowed lists the networks that are open to sandboxes by exception.
func (l *List) Allowed() []netip.Prefix { return slices.Clone(l.config().Allow) }

func (l *List) config() Config {
	if l == nil {
		return Config{}
	}
	return l.cfg
}

// ForSandbox lists the IPv4 networks that are closed to a sandbox now. No IPv6 packet leaves a
// sandbox. engine lists the addresses of the machine that runs the sandbox, if it is not this one.
func (l *List) ForSandbox(engine ...netip.Addr) ([]netip.Prefix, error) {
	own, err := hostAddresses()
	if err != nil {
		return nil, err
	}
	closed := Networks()
	for _, addr := range slices.Concat(own, engine, l.publicAddresses()) {
		closed = append(closed, single(addr))
	}
	closed = append(Subtract(closed, l.config().Allow), l.config().Deny...)
	closed = slices.DeleteFunc(closed, func(p netip.Prefix) bool { return !p.Addr().Is4() })
	if closed = compact(closed); len(closed) > maxClosed {
		return nil, fmt.Errorf("%d networks must be closed to sandboxes, but a filter holds %d: "+
			"deny networks instead of single addresses (SANDBOX_NETWORK_DENY)", len(closed), maxClosed)
	}
	return closed, nil
}

// Contains reports whether addr is closed, without exceptions for sandboxes. A proxy must ask about
// the very address that it is about to dial.
func (l *List) Contains(addr netip.Addr) bool {
	addr = addr.WithZone("")
	own, err := hostAddresses()
	if err != nil || !addr.IsValid() || slices.Contains(own, addr) || slices.Contains(l.publicAddresses(), addr) {
		return true
	}
	in := func(p netip.Prefix) bool { return p.Contains(addr) }
	return slices.ContainsFunc(networks, in) || slices.ContainsFunc(l.config().Deny, in)
}

// hostAddresses lists the addresses of this host's interfaces.
func hostAddresses() (out []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this host's addresses: %w", err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, addr.Unmap())
			}
		}
	}
	return out, nil
}

func (l *List) publicAddresses() []netip.Addr {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.resolved)
}

// resolve adds the current addresses of PublicHost. Earlier ones stay closed. A failed lookup
// changes nothing.
func (l *List) resolve(ctx context.Context) {
	if l.cfg.PublicHost == "" {
		return
	}
	addrs := []netip.Addr{}
	literal, err := netip.ParseAddr(l.cfg.PublicHost)
	if err == nil {
		addrs = append(addrs, literal)
	} else {
		lctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		if addrs, err = l.cfg.Lookup(lctx, l.cfg.PublicHost); err == nil && len(addrs) == 0 {
			err = errors.New("it has no addresses")
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if !l.failing && ctx.Err() == nil {
			l.log.Warn("cannot resolve the host of PUBLIC_BASE_URL; sandboxes with network may reach it by its address",
				"host", l.cfg.PublicHost, "error", err, "fix", "correct the name or its DNS entry, or put its address into SANDBOX_NETWORK_DENY")
		}
		l.failing = true
		return
	}
	l.failing = false
	for _, addr := range addrs[:min(len(addrs), maxResolved)] {
		addr = addr.Unmap().WithZone("")
		l.resolved = append(slices.DeleteFunc(l.resolved, func(a netip.Addr) bool { return a == addr }), addr)
	}
	l.resolved = slices.Clone(l.resolved[max(0, len(l.resolved)-maxResolved):])
}

// Subscribe calls f after each change that Follow sees. f must return soon. stop ends the
// subscription; it does not wait for a call in progress.
func (l *List) Subscribe(f func()) (stop func()) {
	if l == nil {
		return func() {} // it never changes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	id := l.next
	l.next++
	l.changed[id] = f
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.changed, id)
	}
}

// Follow keeps the list up to date with this host's and PublicHost's addresses until ctx ends.
func (l *List) Follow(ctx context.Context) {
	l.follow(ctx, addressEvents(ctx, l.log))
}

func (l *List) follow(ctx context.Context, events <-chan struct{}) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	var last []netip.Addr
	for {
		if now := l.addresses(); !slices.Equal(now, last) {
			last = now
			l.notify()
		}
		select {
		case <-ctx.Done():
			return
		case <-events:
		case <-tick.C:
			l.resolve(ctx)
		}
	}
}

// addresses lists everything that can change, sorted.
func (l *List) addresses() []netip.Addr {
	own, err := hostAddresses()
	if err != nil {
		l.log.Warn("cannot read this host's addresses; trying again", "error", err)
	}
	all := append(own, l.publicAddresses()...)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func (l *List) notify() {
	l.mu.Lock()
	calls := slices.Collect(maps.Values(l.changed))
	l.mu.Unlock()
	for _, f := range calls {
		f()
	}
}
