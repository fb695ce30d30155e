// Package oauth is the authorization server for MCP clients, and serves the pages on which a person
// logs in, allows a client and connects services.
//
// People log in at an upstream provider, by OpenID Connect or GitHub-style OAuth, and become
// callers. MCP clients get short-lived access tokens for one resource by OAuth 2.1: authorization
// code with PKCE, and rotating refresh tokens. Each use of a token looks up its grant in the store,
// so that revoking a grant takes effect at once.
//
// login.go shows one login from top to bottom, authorize.go and token.go the authorization of a
// client, and connections.go the connection of a service. The package starts and finishes
// connections, but never sees a service's credential. It does not know MCP's messages.
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
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/hostname"
	"mcp-code-sandbox/internal/ratelimit"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
)

const (
	// Scope is the only scope: to use the tools as the user.
	Scope = "mcp"
	// localCaller is the holder of the API token.
	localCaller = "local"

	accessTTL    = 15 * time.Minute
	codeTTL      = time.Minute
	requestTTL   = 15 * time.Minute // for a person to log in or decide
	sessionTTL   = 12 * time.Hour
	refreshTTL   = 14 * 24 * time.Hour // of an unused refresh token
	grantTTL     = 30 * 24 * time.Hour // until the user has to log in again
	consentTTL   = 90 * 24 * time.Hour
	clientTTL    = 90 * 24 * time.Hour // of a registered client since its last use
	unusedTTL    = 24 * time.Hour      // of a registered client that was never used
	keepEvidence = 7 * 24 * time.Hour  // of used codes and tokens, to detect reuse
	purgeEvery   = 10 * time.Minute

	maxClients  = 1000
	maxRequests = 2000

	accessPrefix = "at1"
)

var (
	// ErrInvalidToken means that an access token is not ours, is for another resource, has expired
	// or was revoked.
	ErrInvalidToken = errors.New("invalid access token")
	// ErrTokenEnded is the ErrInvalidToken of a token that this server issued.
	ErrTokenEnded = fmt.Errorf("%w: it has expired or was revoked", ErrInvalidToken)
)

// Connection starts and ends callers' connections to one service; *credential.Connection implements
// it.
type Connection interface {
	// AuthorizeURL returns the URL on which a person allows the connection. verifier is for PKCE.
	AuthorizeURL(state, verifier, redirect string) string
	// Exchange stores the caller's connection for an authorization code.
	Exchange(ctx context.Context, caller, code, verifier, redirect string) error
	// Disconnect deletes the caller's connection, even if it returns an error of the service.
	Disconnect(ctx context.Context, caller string) error
}

// ServiceState describes a service to a caller.
type ServiceState struct {
	Name, DisplayName string
	Connected         bool
	ConnectURL        string // where to connect it; empty if callers do not connect it
}

// Config of a Server.
type Config struct {
	Issuer   string   // the public base URL
	Resource string   // the MCP endpoint's URL, for which access tokens are issued
	Upstream Upstream // where people log in; zero: nowhere, and there is no authorization server
	Store    *store.Store
	// Vault keeps the provider's tokens, to check later that it still knows a user. Nil: logins end
	// after an hour.
	Vault *credential.Vault
	Keys  *executiontoken.Keys // of the purpose "access"
	// APIToken logs its holder in to the connections page as the caller "local"; zero: nobody.
	APIToken secret.Value
	// Services returns the services as the caller sees them; nil: none.
	Services func(ctx context.Context, caller string) []ServiceState
	// Connections are the services that each caller connects, by name.
	Connections map[string]Connection
	// ClientDocuments fetches the client id metadata documents, from URLs that anybody may choose.
	// Nil: a transport that connects to public addresses only.
	ClientDocuments http.RoundTripper
	Closed          *closednet.List  // networks to which that transport does not connect
	Now             func() time.Time // nil: the store's
	Logger          *slog.Logger     // nil: silent
}

// Identity is the holder of an access token.
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

// limits bound the work that anybody can cause.
type limits struct {
	registrations, passwords, requests, tokens *ratelimit.Limiter
}

// New checks the configuration. It does not contact the upstream provider: the first login does.
func New(cfg Config) (*Server, error) {
	cfg.Issuer = strings.TrimRight(cfg.Issuer, "/")
	base, err := url.Parse(cfg.Issuer)
	if err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" ||
		base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("the public base URL %q must be like https://sandbox.example.com", cfg.Issuer)
	}
	resource, err := url.Parse(cfg.Resource)
	if err != nil || resource.Host == "" {
		return nil, fmt.Errorf("the resource %q must be the URL of the MCP endpoint", cfg.Resource)
	}
	if cfg.Store == nil || cfg.Keys == nil {
		return nil, errors.New("oauth: Config needs Store and Keys")
	}
	s := &Server{
		cfg: cfg, base: base, resource: resource, secure: base.Scheme == "https",
		store: cfg.Store, now: cfg.Now, log: cfg.Logger, guard: http.NewCrossOriginProtection(),
	}
	if s.now == nil {
		s.now = cfg.Store.Now
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
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
	if err := CheckIssuer(base); err != nil {
		return nil, err
	}
	if s.login, err = newLogin(cfg.Upstream, cfg.Vault, s.url("/oauth/callback"), s.now); err != nil {
		return nil, err
	}
	s.allow, err = newAllowList(cfg.Upstream.AllowedDomains, cfg.Upstream.AllowedEmails)
	return s, err
}

// CheckIssuer returns an error unless people can log in at a public base URL.
func CheckIssuer(u *url.URL) error {
	if u.Scheme != "https" && !hostname.IsLoopback(u.Hostname()) {
		return fmt.Errorf("the public base URL %q must begin with https:// for people to log in; set PUBLIC_BASE_URL", u)
	}
	return nil
}

// Handler serves /.well-known/oauth-*, /oauth/… and /connections…, as far as they are configured.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	if s.login != nil {
		mux.Handle("/.well-known/oauth-authorization-server"+s.base.Path, s.api("GET", s.serverMetadata))
		mux.Handle("/.well-known/oauth-protected-resource", s.api("GET", s.resourceMetadata))
		mux.Handle("/.well-known/oauth-protected-resource"+s.resource.Path, s.api("GET", s.resourceMetadata))
		mux.Handle("/oauth/register", s.api("POST", s.register))
		mux.Handle("/oauth/token", s.api("POST", s.token))
		mux.Handle("/oauth/revoke", s.api("POST", s.revoke))
		mux.Handle("GET /oauth/authorize", s.page(s.authorize))
		mux.Handle("POST /oauth/consent", s.form(s.consent))
		mux.Handle("GET /oauth/login", s.page(s.loginPage))
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

// accessClaims are the content of an access token. The rest is in the store, under the grant.
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

// Verify returns the holder of an access token for the MCP endpoint. The error wraps
// [ErrInvalidToken] (and [ErrTokenEnded] for a token of ours), or is the store's. A forged token
// never reaches the store.
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

// grantOf opens an access token and finds its grant. Its errors are those of Verify.
func (s *Server) grantOf(ctx context.Context, bearer string) (store.Grant, accessClaims, error) {
	var c accessClaims
	if s.login == nil || len(bearer) > 4<<10 {
		return store.Grant{}, c, ErrInvalidToken
	}
	payload, err := s.cfg.Keys.Open(accessPrefix, bearer)
	if err != nil || json.Unmarshal(payload, &c) != nil || c.Issuer != s.cfg.Issuer {
		return store.Grant{}, c, ErrInvalidToken
	}
	now := s.now()
	if now.Unix() >= c.Expires {
		return store.Grant{}, c, ErrTokenEnded
	}
	g, err := s.store.GetGrant(ctx, c.Grant, now)
	if errors.Is(err, store.ErrNotFound) {
		err = ErrTokenEnded
	}
	return g, c, err
}

// Challenge returns the parameters of a WWW-Authenticate header that lead an MCP client to this
// server, or "" if nobody can log in.
func (s *Server) Challenge() string {
	if s.login == nil {
		return ""
	}
	return fmt.Sprintf(`resource_metadata="%s", scope="%s"`, s.resourceMetadataURL(), Scope)
}

// Email returns the e-mail address of a caller who has logged in, or "".
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

// url returns a public URL of this server.
func (s *Server) url(path string) string { return s.cfg.Issuer + path }

// path returns the same for links within a page.
func (s *Server) path(path string) string { return s.base.Path + path }

// purge removes expired rows from the store, at most every purgeEvery.
func (s *Server) purge(ctx context.Context) {
	now := s.now()
	last := s.purged.Load()
	if now.UnixNano()-last < int64(purgeEvery) || !s.purged.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	if err := s.store.PurgeOAuth(ctx, now, now.Add(-keepEvidence), now.Add(-clientTTL)); err != nil {
		s.log.Warn("expired logins and grants not removed", "error", err)
	}
}
