package closednet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// lookupTimeout bounds a lookup of the public host, which a start waits for.
	lookupTimeout = 2 * time.Second
	// refreshEvery is how often Follow looks up the public host, and this host's addresses where no event tells of changes.
	refreshEvery = 30 * time.Second
	// maxResolved bounds the addresses of the public host that are remembered: round-robin names give a few at a time.
	maxResolved = 64
	// maxClosed is how many networks a packet filter has room for.
	maxClosed = 900
)

// MaxDeny bounds Config.Deny.
const MaxDeny = 256

// Config of a List.
type Config struct {
	// Deny lists further networks to close. No exception opens them for a sandbox.
	Deny []netip.Prefix
	// Allow lists exceptions for sandboxes.
	Allow []netip.Prefix
	// PublicHost is the name or address under which clients reach this server; empty: none.
	PublicHost string
	// Lookup resolves PublicHost; nil: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	Logger *slog.Logger // nil is silent
}

// List is what is closed at the moment. It is safe for concurrent use. A nil List is one of the zero Config.
type List struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	resolved []netip.Addr // of PublicHost, those seen last at the end
	failing  bool         // the last lookup failed
	changed  map[int]func()
	next     int
}

// New returns the list. It waits a moment for PublicHost to be resolved; Follow tries again.
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
		p = p.Masked()
		if p.Bits() > 0 {
			l.cfg.Deny = append(l.cfg.Deny, p)
			continue
		}
		low, high := Halves(p) // a route to everything would replace the default route, which name servers need
		l.cfg.Deny = append(l.cfg.Deny, low, high)
	}
	l.resolve(ctx)
	return l
}

// Allowed lists the exceptions for sandboxes.
func (l *List) Allowed() []netip.Prefix { return slices.Clone(l.config().Allow) }

func (l *List) config() Config {
	if l == nil {
		return Config{}
	}
	return l.cfg
}

// ForSandbox lists the IPv4 networks that are closed to a sandbox now: no IPv6 leaves one at all. engine are addresses of
// the machine that the sandbox runs on, where that is not this one.
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
		return nil, fmt.Errorf("%d networks must be closed to sandboxes, and a filter has room for %d: deny networks in place of single addresses (SANDBOX_NETWORK_DENY)", len(closed), maxClosed)
	}
	return closed, nil
}

// Contains reports whether addr is closed, exceptions for sandboxes aside. Who dials for a stranger asks about the very
// address that is about to be dialled.
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

// resolve adds what PublicHost resolves to now. What it resolved to before stays closed; a failed lookup changes nothing.
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
			err = errors.New("it has no address")
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if !l.failing && ctx.Err() == nil {
			l.log.Warn("the host of PUBLIC_BASE_URL cannot be resolved; sandboxes with network may reach it by its address", "host", l.cfg.PublicHost, "error", err)
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

// Subscribe has f called after each change that Follow sees. f must not block for long. stop ends that, and waits for no call.
func (l *List) Subscribe(f func()) (stop func()) {
	if l == nil {
		return func() {} // nobody follows it
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

// Follow keeps the list up to date with this host's addresses and PublicHost, until ctx ends.
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

// addresses lists, in order, all that can change.
func (l *List) addresses() []netip.Addr {
	own, err := hostAddresses()
	if err != nil {
		l.log.Warn("cannot look for changes of this host's addresses; trying again", "error", err)
	}
	all := append(own, l.publicAddresses()...)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func (l *List) notify() {
	l.mu.Lock()
	var calls []func()
	for _, f := range l.changed {
		calls = append(calls, f)
	}
	l.mu.Unlock()
	for _, f := range calls {
		f()
	}
}
