// Package proxy lets code call outside services with credentials that it never sees.
//
// A call comes to /proxy/{service}/{path} with an execution token. The proxy checks the token, the method and the path, counts, notes in the audit
// trail what it is about to do, puts the caller's real credential on the request and passes it on; on the way back it masks that credential wherever the
// service repeats it. Everything that comes from the caller's side is hostile, and a service is trusted with its own credential only.
//
// The package knows no sandboxes and no login: it is told which sandbox a connection comes from, and who a caller is.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/untrusted"
)

// Defaults and bounds.
const (
	DefaultTimeout = 30 * time.Second
	DefaultTTL     = 300 * time.Second
	// DefaultCalls is how many calls of all callers may be going at a time.
	DefaultCalls = 1024
	MaxTTL       = executiontoken.MaxTTL

	dialTimeout = 10 * time.Second
	minIdle     = 2 * time.Minute
	// maxCalls is how many calls of one token may be going at a time.
	maxCalls = 256
	// recheck is how often a call that is going looks whether another process has revoked its token.
	recheck = 2 * time.Second
)

// Default rates.
var (
	DefaultTokenRate   = Rate{PerSecond: 100, Burst: 200}
	DefaultServiceRate = Rate{PerSecond: 500, Burst: 1000}
)

// Rate is how many requests are let through. The zero Rate stands for the default.
type Rate struct {
	PerSecond float64
	Burst     int // at once, after a pause; 0: twice PerSecond, at least 1
}

// or returns r with its defaults, or standard if it is zero.
func (r Rate) or(standard Rate) Rate {
	if r.PerSecond <= 0 {
		r = standard
	}
	if r.Burst <= 0 {
		r.Burst = max(1, int(2*r.PerSecond))
	}
	return r
}

func (r Rate) limiter() *rate.Limiter { return rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst) }

// Service is an outside API.
type Service struct {
	Name        string // in URLs and tokens; compared exactly
	DisplayName string
	Disabled    bool // known, but its proxy is not enabled: asking for a token is a 400
	// BaseURL is where requests go: its path is put before theirs. It has no query, fragment or user.
	BaseURL *url.URL
	// Timeout bounds the wait for the service to take a request and to begin its answer; 0: DefaultTimeout.
	Timeout time.Duration
	// IdleTimeout bounds the pauses within an answer; 0: Timeout, but at least two minutes.
	IdleTimeout time.Duration
	// Ceiling lists the patterns beyond which no token may go; nil: Defaults, and if that is nil too, everything.
	Ceiling []string
	// Defaults are the patterns of a token for which none were asked; nil: nothing.
	Defaults []string
	// Methods that tokens may be made for; nil: the usual ones. CONNECT and TRACE are always refused.
	Methods []string
	// Headers are names of request header fields that are passed on besides the usual ones.
	Headers           []string
	AllowEncodedSlash bool
	// AllowPrivate lists closed networks in which the service may be. It opens them for calls of this service only.
	AllowPrivate []netip.Prefix
	RateLimit    Rate // of the service, divided among the callers that use it
	TokenRate    Rate // of each token
	Credential   credential.Source
	ConnectURL   string // where a person connects it; empty for an operator's own credential
}

// Config of a Proxy.
type Config struct {
	Services []Service
	Keys     *executiontoken.Keys // of the purpose "execution token"
	Store    *store.Store
	Audit    *Audit
	BaseURL  string // the server's public URL
	// Closed lists where no service may be but by its own AllowPrivate.
	Closed *closednet.List
	// Instance is this process's id. Tokens of runs are valid in the process that made them alone.
	Instance string
	// Alive reports whether another instance is running; nil: none is. Tokens of dead instances' runs are revoked by New.
	Alive      func(instance string) bool
	Registerer prometheus.Registerer // nil: nothing is counted
	Logger     *slog.Logger          // nil: silent
	Now        func() time.Time      // nil: time.Now
	// User returns the e-mail address of a caller for log and audit, or ""; nil: there are none.
	User func(caller string) string
	// MaxCalls is how many calls may be going at a time; 0: DefaultCalls. Callers share them: when another one wants some, a caller
	// loses its oldest calls beyond an equal share. Operator is a caller that loses none.
	MaxCalls int
	Operator string
}

// Proxy passes calls on. It is safe for concurrent use.
type Proxy struct {
	services map[string]*service
	names    []string // in the order of the configuration
	keys     *executiontoken.Keys
	store    *store.Store
	audit    *Audit
	baseURL  atomic.Pointer[url.URL]
	instance string
	metrics  *metrics
	log      *slog.Logger
	now      func() time.Time
	user     func(string) string
	live     *liveTokens
	calls    *share.Pool
	noise    *rate.Limiter // of what strangers can have written to log and audit
	buffers  bufferPool
}

// service is a Service made ready.
type service struct {
	Service
	ceiling, defaults []pattern
	transport         *http.Transport
	rate              *sharedRate
	headers           map[string]bool
	patterns          atomic.Pointer[patterns] // of the credential that was used last
}

var usualMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// New returns a Proxy. Its errors name the service and the field, in the configuration's words. It revokes the tokens that runs of dead
// instances left.
func New(cfg Config) (*Proxy, error) {
	p := &Proxy{
		services: map[string]*service{}, keys: cfg.Keys, store: cfg.Store, audit: cfg.Audit, instance: cfg.Instance,
		log: cfg.Logger, now: cfg.Now, user: cfg.User, live: newLiveTokens(), noise: rate.NewLimiter(10, 100),
	}
	p.calls = share.New(share.Config{Capacity: int64(cmp.Or(cfg.MaxCalls, DefaultCalls)), Exempt: cfg.Operator})
	if p.keys == nil || p.store == nil || p.audit == nil {
		return nil, errors.New("proxy: keys, store and audit trail are needed")
	}
	if err := p.SetBaseURL(cfg.BaseURL); err != nil {
		return nil, err
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.now == nil {
		p.now = time.Now
	}
	if p.user == nil {
		p.user = func(string) string { return "" }
	}
	for _, s := range cfg.Services {
		if p.services[s.Name] != nil {
			return nil, fmt.Errorf("%s: there are two services of that name", s.Name)
		}
		made, err := newService(s, cfg.Closed)
		if err != nil {
			return nil, err
		}
		p.services[s.Name] = made
		p.names = append(p.names, s.Name)
	}
	var err error
	if p.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, err
	}
	if err := p.revokeDead(cfg.Alive); err != nil {
		return nil, err
	}
	return p, nil
}

// Shares returns the pool of calls, for metrics.
func (p *Proxy) Shares() *share.Pool { return p.calls }

// SetBaseURL changes the public URL, for instance once a listener has its port.
func (p *Proxy) SetBaseURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("the public URL: %w", err)
	}
	p.baseURL.Store(u)
	return nil
}

func newService(s Service, closed *closednet.List) (*service, error) {
	fail := func(field, format string, args ...any) (*service, error) {
		return nil, fmt.Errorf("mcpServers.%s.%s: %s", s.Name, field, fmt.Sprintf(format, args...))
	}
	if s.Name == "" || strings.Trim(s.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" || len(s.Name) > 64 {
		return nil, fmt.Errorf("mcpServers.%q: the name may have letters, digits, - and _, 64 at most", s.Name)
	}
	made := &service{Service: s, headers: map[string]bool{}}
	if s.Disabled {
		return made, nil
	}
	if s.Credential == nil {
		return fail("userAuthentication", "is missing")
	}
	if err := checkBaseURL(s.BaseURL, closed, s.AllowPrivate); err != nil {
		return fail("proxy.baseURL", "%v", err)
	}
	var err error
	if made.ceiling, err = parsePatterns(s.Ceiling); err != nil {
		return fail("proxy.allowedPaths", "%v", err)
	}
	if made.defaults, err = parsePatterns(s.Defaults); err != nil {
		return fail("proxy.defaultAllowedPaths", "%v", err)
	}
	switch {
	case s.Ceiling != nil:
	case s.Defaults != nil:
		made.ceiling = made.defaults
	default:
		made.ceiling = []pattern{{text: "/**", deep: true}}
	}
	for _, d := range made.defaults {
		if !coveredBy(made.ceiling, d) {
			return fail("proxy.defaultAllowedPaths", "%s goes beyond allowedPaths", d.text)
		}
	}
	if s.Methods == nil {
		made.Methods = usualMethods
	}
	for _, m := range made.Methods {
		if !validName(m) || m != strings.ToUpper(m) || m == http.MethodConnect || m == http.MethodTrace {
			return fail("proxy.allowedMethods", "%q is not a method that can be allowed", m)
		}
	}
	for _, h := range s.Headers {
		name := http.CanonicalHeaderKey(h)
		if !validName(h) || neverForwarded(name) {
			return fail("proxy.allowedHeaders", "%q is not a header field that can be passed on", h)
		}
		made.headers[name] = true
	}
	if s.Timeout < 0 || s.IdleTimeout < 0 {
		return fail("proxy.timeout", "must be positive")
	}
	if s.Timeout == 0 {
		made.Timeout = DefaultTimeout
	}
	if s.IdleTimeout == 0 {
		made.IdleTimeout = max(made.Timeout, minIdle)
	}
	made.rate = newSharedRate(s.RateLimit.or(DefaultServiceRate))
	made.transport = newTransport(closed, s.AllowPrivate)
	return made, nil
}

func checkBaseURL(u *url.URL, closed *closednet.List, allowed []netip.Prefix) error {
	switch {
	case u == nil || u.Host == "" || u.Hostname() == "":
		return errors.New("is missing, or names no host")
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("must start with https:// (or http://), not %s://", u.Scheme)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("must not have a user, query or fragment")
	}
	if _, err := parsePath(u.EscapedPath(), true); err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return checkAddress(addr, closed, allowed)
	}
	return nil
}

// revokeDead ends the tokens of runs whose process is gone.
func (p *Proxy) revokeDead(alive func(string) bool) error {
	ctx := context.Background()
	instances, err := p.store.ExecutionTokenInstances(ctx, p.now())
	if err != nil {
		return fmt.Errorf("looking for execution tokens of dead processes: %w", err)
	}
	for _, id := range instances {
		if id != p.instance && alive != nil && alive(id) {
			continue
		}
		jtis, err := p.store.RevokeInstanceTokens(ctx, id, p.now())
		if err != nil {
			return fmt.Errorf("revoking execution tokens of dead processes: %w", err)
		}
		p.log.Info("execution_proxy: Tokens of a dead process revoked", "instance", id, "tokens", len(jtis))
	}
	return nil
}

// ServiceState tells a caller about a service.
type ServiceState struct {
	Name, DisplayName string
	Connected         bool
	ConnectURL        string // where to connect it; empty when nothing is to be connected
}

// connectedSource is a credential.Source that can tell without making a credential ready.
type connectedSource interface {
	Connected(ctx context.Context, caller string) (bool, error)
}

// Services returns the services that can be called, in the order of the configuration.
func (p *Proxy) Services(ctx context.Context, caller string) []ServiceState {
	var states []ServiceState
	for _, name := range p.names {
		s := p.services[name]
		if s.Disabled {
			continue
		}
		state := ServiceState{Name: name, DisplayName: s.DisplayName, ConnectURL: s.ConnectURL}
		if state.DisplayName == "" {
			state.DisplayName = name
		}
		if c, ok := s.Credential.(connectedSource); ok {
			connected, err := c.Connected(ctx, caller)
			state.Connected = err == nil && connected
		} else {
			_, err := s.Credential.Credential(ctx, caller)
			state.Connected = err == nil
		}
		states = append(states, state)
	}
	return states
}

// name is how log and audit call a caller.
func (p *Proxy) name(caller string) string {
	if user := p.user(caller); user != "" {
		return user
	}
	return caller
}

// find returns an enabled service.
func (p *Proxy) find(name string) (*service, *Error) {
	s := p.services[name]
	switch {
	case s == nil:
		return nil, refuse(http.StatusNotFound, CodeNotConfigured, "service %s not configured", clip(name, 64))
	case s.Disabled:
		return nil, refuse(http.StatusBadRequest, CodeNotEnabled, "proxy not enabled for service %s", name)
	}
	return s, nil
}

func (s *service) allowsMethod(m string) bool { return slices.Contains(s.Methods, m) }

// clip keeps a stranger's text short and printable.
func clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
	return untrusted.Clip(s, n)
}
