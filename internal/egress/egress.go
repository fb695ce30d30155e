// Package egress connects code in sandboxes that have no network to hosts by name.
//
// A run lists the names that it may reach. Its connections arrive at the server as CONNECT and
// absolute-form requests of HTTP clients, or with the name that code connected to. Egress matches
// the name before it resolves it, writes the connection to the audit trail, checks the very address
// that it dials, and requires that TLS asks for the same name. It does not look into TLS.
//
// Everything from the sandbox is hostile. The package does not know how sandboxes work: its caller
// passes the sandbox of a connection.
package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/share"
)

// defaultUploadBytes is the default of Config.UploadBytes.
const defaultUploadBytes = 10 << 20

// MaxTunnels bounds the memory of the tunnels' buffers: 128 KB each, and up to 256 KB that arrived
// from code and the host does not take.
const MaxTunnels = 1024

const (
	dialTimeout  = 10 * time.Second
	helloTimeout = 10 * time.Second
)

// Config of an Egress.
type Config struct {
	// Ceiling lists what runs may ask for, in the form of their hosts. Nil: every public host.
	Ceiling []string
	// Closed lists the networks that names must not lead to.
	Closed *closednet.List
	Audit  *audit.Trail
	// UploadBytes bounds what a run sends outside; 0: defaultUploadBytes.
	UploadBytes int64
	// MaxTunnels bounds the connections of all callers; 0: MaxTunnels. If another caller needs
	// room, a caller loses its oldest ones beyond an equal share. Operator never loses any.
	MaxTunnels int
	Operator   string
	Registerer prometheus.Registerer      // nil: no metrics
	Logger     *slog.Logger               // nil: silent
	User       func(caller string) string // the e-mail address of a caller, or ""; may be nil
	Resolver   *net.Resolver              // nil: the system's
}

// Egress serves the connections of runs. Its methods are safe for concurrent use.
type Egress struct {
	cfg     Config
	ceiling []rule // nil: every public host
	log     *slog.Logger
	dialer  *net.Dialer
	tunnels *share.Pool
	metrics *metrics
	buffers bufferPool

	mu        sync.Mutex
	runs      map[string]*run // by id
	byToken   map[string]*run
	bySandbox map[string][]*run
	pacers    map[string]*rate.Limiter // by caller
}

// New returns an Egress.
func New(cfg Config) (*Egress, error) {
	e := &Egress{
		cfg: cfg, log: cfg.Logger, dialer: cfg.Closed.Dialer(dialTimeout, cfg.Closed.Opened()),
		tunnels: share.New(share.Config{Capacity: int64(cmp.Or(cfg.MaxTunnels, MaxTunnels)), Exempt: cfg.Operator}),
		runs:    map[string]*run{}, byToken: map[string]*run{}, bySandbox: map[string][]*run{}, pacers: map[string]*rate.Limiter{},
	}
	if cfg.Audit == nil {
		return nil, errors.New("egress: Config needs Audit")
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.cfg.User == nil {
		e.cfg.User = func(string) string { return "" }
	}
	e.cfg.UploadBytes = cmp.Or(cfg.UploadBytes, defaultUploadBytes)
	e.dialer.Resolver = cfg.Resolver
	if cfg.Ceiling != nil {
		e.ceiling = []rule{}
	}
	for _, text := range cfg.Ceiling {
		rules, err := parseEntry(text)
		if err != nil {
			return nil, fmt.Errorf("network.allow: %w", err)
		}
		e.ceiling = append(e.ceiling, rules...)
	}
	var err error
	e.metrics, err = newMetrics(cfg.Registerer, e.ceiling)
	return e, err
}

// Shares returns the pool of connections, for metrics.
func (e *Egress) Shares() *share.Pool { return e.tunnels }

// dial connects to a name that a run may reach. The dialer's Control checks the address.
func (e *Egress) dial(ctx context.Context, to target) (net.Conn, *refusal) {
	// The dot keeps the resolver from trying the host's search domains.
	conn, err := e.dialer.DialContext(ctx, "tcp", net.JoinHostPort(to.name+".", fmt.Sprint(to.port)))
	if err == nil {
		return conn, nil
	}
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	timeout, isTimeout := errors.AsType[net.Error](err)
	switch {
	case ctx.Err() != nil:
		return nil, cmp.Or(causeOf(ctx), errLeft)
	case errors.Is(err, closednet.ErrAddress):
		return nil, refuse(403, codePrivate, "%s has an address that code must not reach: it is private, this server's or denied. "+
			"The operator can open private networks with SANDBOX_NETWORK_ALLOW.", to).
			because("its address is private, the server's or denied (SANDBOX_NETWORK_ALLOW opens private networks)")
	case isLookup && lookup.IsNotFound:
		return nil, refuse(502, codeUnreachable, "The name %s does not exist.", to.name).because("the name does not exist")
	case isTimeout && timeout.Timeout():
		return nil, refuse(504, codeTimeout, "%s did not answer in time.", to).because("the host did not answer in time")
	case isLookup:
		return nil, refuse(502, codeUnreachable, "The server cannot resolve %s.", to.name).because("the server cannot resolve the name")
	}
	return nil, refuse(502, codeUnreachable, "%s refused the connection or cannot be reached.", to).because("the host cannot be reached")
}

// copyBuffer is the size of the buffers that carry bytes.
const copyBuffer = 64 << 10

// bufferPool holds buffers for copying.
type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte {
	if p, ok := b.pool.Get().(*[copyBuffer]byte); ok {
		return p[:]
	}
	return make([]byte, copyBuffer)
}

func (b *bufferPool) Put(p []byte) { b.pool.Put((*[copyBuffer]byte)(p)) }
