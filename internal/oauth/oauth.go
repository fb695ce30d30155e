// Package oauth lets people in: it is the authorization server that MCP clients talk to, and the pages on which a person logs in,
// allows a client, and connects services.
//
// People are not known here. They log in at an upstream provider, by OpenID Connect or GitHub-style OAuth, and become callers. MCP
// clients get short-lived access tokens for one resource, by OAuth 2.1: authorization code with PKCE, rotating refresh tokens. Every
// token hangs on a grant in the store, which is looked up at each use, so a revoked grant is dead at once.
//
// It does not know what a service's credential is: it only starts and finishes connections. It knows nothing of MCP's messages.
package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/hostname"
	"mcp-code-sandbox/internal/ratelimit"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
)

const (
	// Scope is the one thing a client can be allowed: to use the tools as the user.
	Scope = "mcp"
	// localCaller is the holder of the API token.
	localCaller = "local"

	accessTTL    = 15 * time.Minute
	codeTTL      = time.Minute
	requestTTL   = 15 * time.Minute // for a person to log in, or to make up their mind
	sessionTTL   = 12 * time.Hour
	refreshTTL   = 14 * 24 * time.Hour // of a refresh token that is not used
	grantTTL     = 30 * 24 * time.Hour // after that the user logs in again
	consentTTL   = 90 * 24 * time.Hour
	clientTTL    = 90 * 24 * time.Hour // of a registered client that nobody uses any more
	unusedTTL    = 24 * time.Hour      // of one that nobody ever used
	keepEvidence = 7 * 24 * time.Hour  // of used codes and tokens, to notice a second use
	purgeEvery   = 10 * time.Minute

	maxClients  = 1000
	maxRequests = 2000

	accessPrefix = "at1"
)

// ErrInvalidToken says that an access token is not one of ours, is meant for something else, has expired, or was revoked.
var ErrInvalidToken = errors.New("invalid access token")

// ErrTokenEnded is the ErrInvalidToken of a token that this server made, and that has expired or was revoked.
var ErrTokenEnded = fmt.Errorf("%w: it has expired or was revoked", ErrInvalidToken)

// Sealer makes texts that only this installation can have made; *executiontoken.Keys is one.
type Sealer interface {
	Seal(prefix string, payload []byte) string
	Open(prefix, token string) ([]byte, error)
}

// Connection starts and ends callers' connections to one service; *credential.Connection is one.
type Connection interface {
	// AuthorizeURL is where a person allows the connection. The verifier is PKCE's.
	AuthorizeURL(state, verifier, redirect string) string
	// Exchange makes the caller's connection of the code that came back.
	Exchange(ctx context.Context, caller, code, verifier, redirect string) error
	// Disconnect ends the caller's connection. It is gone even when telling the service failed.
	Disconnect(ctx context.Context, caller string) error
}

// ServiceState is a service as a caller sees it.
type ServiceState struct {
	Name, DisplayName string
	Connected         bool
	ConnectURL        string // where to connect it; empty when nothing is to be connected
}

// Config of a Server.
type Config struct {
	// Issuer is the public base URL: how clients and browsers address this server.
	Issuer string
	// Resource is what access tokens are for: the MCP endpoint's URL.
	Resource string
	// Upstream is where people log in. The zero value: nobody can, and there is no authorization server.
	Upstream Upstream
	Store    *store.Store
	// Vault keeps the provider's tokens, to ask it again whether it still knows somebody. Nil: logins end after an hour.
	Vault *credential.Vault
	// Keys are those of the purpose "access".
	Keys Sealer
	// APIToken opens the connections page to its holder, as the caller "local". Zero: nobody comes in that way.
	APIToken secret.Value
	// Services lists what there is, and what the caller has connected; nil: nothing.
	Services func(ctx context.Context, caller string) []ServiceState
	// Connections are the services that each caller connects, by name.
	Connections map[string]Connection
	// HTTPClient talks to the upstream provider; nil: one with a timeout that follows no redirect.
	HTTPClient *http.Client
	// ClientDocuments fetches the documents by which MCP clients describe themselves, from addresses that strangers choose; nil: a
	// transport that reaches public addresses only.
	ClientDocuments http.RoundTripper
	Closed          *closednet.List  // where that transport does not connect to
	Now             func() time.Time // nil: time.Now
	Logger          *slog.Logger
}

// Identity is who holds an access token.
type Identity struct {
	Caller, Email string
	Scopes        []string
	Expires       time.Time
}

// Server is the authorization server and its pages. It is safe for concurrent use.
type Server struct {
	cfg       Config
	base      *url.URL
	resource  *url.URL
	secure    bool // reached by https
	login     login
	allow     allowList
	documents *documents
	store     *store.Store
	now       func() time.Time
	log       *slog.Logger
	limits    limits
	guard     *http.CrossOriginProtection
	purged    atomic.Int64
}

// limits bound what strangers can make the server do.
type limits struct {
	registrations, passwords, requests, tokens *ratelimit.Limiter
}

// New checks the configuration. It asks nobody: an upstream provider that is down is noticed at the first login.
func New(_ context.Context, cfg Config) (*Server, error) {
	cfg.Issuer = strings.TrimRight(cfg.Issuer, "/")
	base, err := url.Parse(cfg.Issuer)
	if err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, fmt.Errorf("the public base URL %q must be like https://sandbox.example.com", cfg.Issuer)
	}
	resource, err := url.Parse(cfg.Resource)
	if err != nil || resource.Host == "" {
		return nil, fmt.Errorf("the resource %q must be the URL of the MCP endpoint", cfg.Resource)
	}
	if cfg.Store == nil || cfg.Keys == nil {
		return nil, errors.New("a store and keys are needed")
	}
	s := &Server{cfg: cfg, base: base, resource: resource, secure: base.Scheme == "https", store: cfg.Store, now: cfg.Now, log: cfg.Logger}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.guard = http.NewCrossOriginProtection()
	if err := s.guard.AddTrustedOrigin(base.Scheme + "://" + base.Host); err != nil {
		return nil, fmt.Errorf("the public base URL %q: %w", cfg.Issuer, err)
	}
	s.limits = limits{
		registrations: ratelimit.New(rate.Every(10*time.Second), 20, rate.Every(time.Second), 100, s.now),
		passwords:     ratelimit.New(rate.Every(6*time.Second), 10, rate.Every(time.Second), 100, s.now),
		requests:      ratelimit.New(rate.Every(100*time.Millisecond), 100, rate.Every(20*time.Millisecond), 300, s.now),
		tokens:        ratelimit.New(rate.Every(50*time.Millisecond), 200, rate.Every(10*time.Millisecond), 500, s.now),
	}
	s.documents = newDocuments(cfg.ClientDocuments, cfg.Closed, s.now)
	if cfg.Upstream.Kind == "" {
		return s, nil
	}
	if !s.secure && !hostname.IsLoopback(base.Hostname()) {
		return nil, fmt.Errorf("the public base URL %q must begin with https:// for people to log in; set PUBLIC_BASE_URL", cfg.Issuer)
	}
	if s.login, err = newLogin(cfg.Upstream, cfg.HTTPClient, cfg.Vault, s.url("/oauth/callback"), s.now); err != nil {
		return nil, err
	}
	s.allow, err = newAllowList(cfg.Upstream.AllowedDomains, cfg.Upstream.AllowedEmails)
	return s, err
}

// Handler serves /.well-known/oauth-*, /oauth/… and /connections…. What is not configured is not found.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	if s.login != nil {
		mux.Handle("/.well-known/oauth-authorization-server"+s.base.Path, api("GET", s.serverMetadata))
		mux.Handle("/.well-known/oauth-protected-resource", api("GET", s.resourceMetadata))
		mux.Handle("/.well-known/oauth-protected-resource"+s.resource.Path, api("GET", s.resourceMetadata))
		mux.Handle("/oauth/register", api("POST", s.register))
		mux.Handle("/oauth/token", api("POST", s.token))
		mux.Handle("/oauth/revoke", api("POST", s.revoke))
		mux.Handle("GET /oauth/authorize", s.page(s.authorize))
		mux.Handle("POST /oauth/consent", s.form(s.consent))
		mux.Handle("GET /oauth/login", s.page(s.startPage))
		mux.Handle("GET /oauth/callback", s.page(s.loginCallback))
	}
	if s.login != nil || len(s.cfg.Connections) > 0 {
		mux.Handle("GET /oauth/style.css", http.HandlerFunc(serveStyle))
		mux.Handle("GET /connections", s.page(s.connections))
		mux.Handle("GET /connections/{$}", s.page(s.connections))
		mux.Handle("POST /connections/login", s.form(s.tokenLogin))
		mux.Handle("POST /connections/logout", s.form(s.logout))
		mux.Handle("POST /connections/apps/{grant}/revoke", s.form(s.revokeApp))
		mux.Handle("POST /connections/{service}/connect", s.form(s.connect))
		mux.Handle("POST /connections/{service}/disconnect", s.form(s.disconnect))
		mux.Handle("GET /connections/callback/{service}", s.page(s.connectCallback))
	}
	return mux
}

// accessClaims is what an access token says. Everything else is in the store, under the grant.
type accessClaims struct {
	Issuer   string `json:"iss"`
	Audience string `json:"aud"`
	Grant    string `json:"grt"`
	Issued   int64  `json:"iat"`
	Expires  int64  `json:"exp"`
}

func (s *Server) accessToken(g store.Grant, now time.Time) (token string, expires time.Time, err error) {
	expires = now.Add(accessTTL)
	if g.Expires.Before(expires) {
		expires = g.Expires
	}
	payload, err := json.Marshal(accessClaims{s.cfg.Issuer, g.Resource, g.ID, now.Unix(), expires.Unix()})
	if err != nil {
		return "", time.Time{}, err
	}
	return s.cfg.Keys.Seal(accessPrefix, payload), expires, nil
}

// Verify tells who holds an access token for the MCP endpoint. The MAC refuses strangers without asking the store; then the grant is
// looked up, so that what is revoked is dead at once. The error matches [ErrInvalidToken], or is the store's.
func (s *Server) Verify(ctx context.Context, bearer string) (Identity, error) {
	g, c, err := s.grantOf(ctx, bearer)
	if err != nil {
		return Identity{}, err
	}
	if c.Audience != s.cfg.Resource || g.Resource != s.cfg.Resource || !s.allow.email(g.Email) {
		return Identity{}, ErrInvalidToken
	}
	return Identity{Caller: g.Caller, Email: g.Email, Scopes: strings.Fields(g.Scope), Expires: time.Unix(c.Expires, 0)}, nil
}

// grantOf opens an access token and finds its grant.
func (s *Server) grantOf(ctx context.Context, bearer string) (store.Grant, accessClaims, error) {
	var c accessClaims
	if s.login == nil || len(bearer) > 4<<10 {
		return store.Grant{}, c, ErrInvalidToken
	}
	payload, err := s.cfg.Keys.Open(accessPrefix, bearer)
	if err != nil || json.Unmarshal(payload, &c) != nil {
		return store.Grant{}, c, ErrInvalidToken
	}
	now := s.now()
	switch {
	case c.Issuer != s.cfg.Issuer:
		return store.Grant{}, c, ErrInvalidToken
	case now.Unix() >= c.Expires:
		return store.Grant{}, c, ErrTokenEnded
	}
	g, err := s.store.GetGrant(ctx, c.Grant, now)
	if errors.Is(err, store.ErrNotFound) {
		err = ErrTokenEnded
	}
	return g, c, err
}

// Challenge returns the parameters of a WWW-Authenticate header by which an MCP client finds this server: resource_metadata and
// scope. It is empty when nobody can log in.
func (s *Server) Challenge() string {
	if s.login == nil {
		return ""
	}
	return fmt.Sprintf(`resource_metadata="%s", scope="%s"`, s.resourceMetadataURL(), Scope)
}

// Email returns the e-mail address of a caller who has logged in, or nothing.
func (s *Server) Email(caller string) string {
	if caller == localCaller {
		return ""
	}
	u, err := s.store.GetUser(context.Background(), caller)
	if err != nil {
		return ""
	}
	return u.Email
}

// url is a public address of this server's.
func (s *Server) url(path string) string { return s.cfg.Issuer + path }

// path is the same for use within a page.
func (s *Server) path(path string) string { return s.base.Path + path }

// purge forgets, now and then, what can no longer matter.
func (s *Server) purge(ctx context.Context) {
	now := s.now()
	last := s.purged.Load()
	if now.UnixNano()-last < int64(purgeEvery) || !s.purged.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	if err := s.store.PurgeOAuth(ctx, now, now.Add(-keepEvidence), now.Add(-clientTTL)); err != nil {
		s.log.Warn("old logins and grants were not removed", "error", err)
	}
}
