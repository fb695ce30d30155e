// Package proxy lets code call outside services with credentials that the code never sees.
//
// A call arrives at /proxy/{service}/{path} with an execution token. The proxy checks the token,
// the method and the path, counts the call, writes it to the audit trail, puts the caller's
// credential on the request and forwards it. In the answer it masks the credential wherever the
// service repeats it. call.go shows one call from top to bottom.
//
// Everything that comes from the caller is hostile. A service is trusted with its own credential
// only. The package knows neither sandboxes nor logins: its caller passes the sandbox of a
// connection and the name of a user.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/untrusted"
)

// defaultCalls is the default of Config.MaxCalls.
const defaultCalls = 1024

// Config of a Proxy.
type Config struct {
	Services []Service
	Keys     *executiontoken.Keys // of the purpose "execution token"
	Store    *store.Store
	Audit    *audit.Trail
	BaseURL  string // the server's public URL
	// Closed lists networks that no service may be in, unless its AllowPrivate lists them.
	Closed *closednet.List
	// Instance is this process's id. A run's tokens are valid only in the process that issued them.
	Instance string
	// Alive reports whether another instance is running. New revokes the run tokens of the others.
	// If Alive is nil, no other instance is running.
	Alive      func(instance string) bool
	Registerer prometheus.Registerer // nil: no metrics
	Logger     *slog.Logger          // nil: silent
	Now        func() time.Time      // nil: the store's
	// User returns the e-mail address of a caller for log and audit trail, or "". It may be nil.
	User func(caller string) string
	// MaxCalls bounds the concurrent calls of all callers; 0: defaultCalls. If another caller needs
	// room, a caller loses its oldest calls beyond an equal share. Operator never loses any.
	MaxCalls int
	Operator string
}

// Proxy forwards calls to services. It is safe for concurrent use.
type Proxy struct {
	services   map[string]*service
	names      []string // in the order of the configuration
	keys       *executiontoken.Keys
	store      *store.Store
	audit      *audit.Trail
	baseURL    *url.URL
	instance   string
	metrics    *metrics
	log        *slog.Logger
	now        func() time.Time
	user       func(string) string
	live       *liveTokens
	calls      *share.Pool
	floodLimit *rate.Limiter // bounds what requests without a valid token write to log and audit trail
	buffers    bufferPool
}

// New returns a Proxy and revokes the run tokens of dead instances. If a service is configured
// wrongly, the error is a [*FieldError].
func New(cfg Config) (*Proxy, error) {
	p := &Proxy{
		services: map[string]*service{}, keys: cfg.Keys, store: cfg.Store, audit: cfg.Audit, instance: cfg.Instance,
		log: cfg.Logger, now: cfg.Now, user: cfg.User, live: newLiveTokens(), floodLimit: rate.NewLimiter(10, 100),
		calls: share.New(share.Config{Capacity: int64(cmp.Or(cfg.MaxCalls, defaultCalls)), Exempt: cfg.Operator}),
	}
	if p.keys == nil || p.store == nil || p.audit == nil {
		return nil, errors.New("proxy: Config needs Keys, Store and Audit")
	}
	var err error
	if p.baseURL, err = url.Parse(cfg.BaseURL); err != nil {
		return nil, fmt.Errorf("the public URL: %w", err)
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.now == nil {
		p.now = cfg.Store.Now
	}
	if p.user == nil {
		p.user = func(string) string { return "" }
	}
	for _, s := range cfg.Services {
		if p.services[s.Name] != nil {
			return nil, s.fieldError("", "two services have this name")
		}
		made, err := newService(s, cfg.Closed)
		if err != nil {
			return nil, err
		}
		p.services[s.Name] = made
		p.names = append(p.names, s.Name)
	}
	if p.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, err
	}
	return p, p.revokeDead(cfg.Alive)
}

// revokeDead revokes the tokens of runs that belonged to dead processes.
func (p *Proxy) revokeDead(alive func(string) bool) error {
	ctx := context.Background()
	instances, err := p.store.ExecutionTokenInstances(ctx, p.now())
	if err != nil {
		return fmt.Errorf("find execution tokens of dead processes: %w", err)
	}
	for _, id := range instances {
		if id != p.instance && alive != nil && alive(id) {
			continue
		}
		jtis, err := p.store.RevokeInstanceTokens(ctx, id, p.now())
		if err != nil {
			return fmt.Errorf("revoke execution tokens of dead processes: %w", err)
		}
		p.log.Info("execution_proxy: Tokens of a dead process revoked", "instance", id, "tokens", len(jtis))
	}
	return nil
}

// Shares returns the pool of concurrent calls, for metrics.
func (p *Proxy) Shares() *share.Pool { return p.calls }

// ServiceState describes a service to a caller.
type ServiceState struct {
	Name, DisplayName string
	Connected         bool
	ConnectURL        string // where to connect it; empty if callers do not connect it
}

// connectedSource is a credential.Source that knows whether a caller is connected without
// preparing a credential.
type connectedSource interface {
	Connected(ctx context.Context, caller string) (bool, error)
}

// Services returns the enabled services in the order of the configuration.
func (p *Proxy) Services(ctx context.Context, caller string) []ServiceState {
	var states []ServiceState
	for _, name := range p.names {
		s := p.services[name]
		if s.Disabled {
			continue
		}
		state := ServiceState{Name: name, DisplayName: cmp.Or(s.DisplayName, name), ConnectURL: s.ConnectURL}
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

// name returns how the log names a caller.
func (p *Proxy) name(caller string) string { return cmp.Or(p.user(caller), caller) }

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

// clip makes untrusted text short and printable.
func clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
	return untrusted.Clip(s, n)
}
