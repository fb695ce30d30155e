package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/logging/logtest"
	"mcp-code-sandbox/internal/oauth/oauthtest"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
)

const (
	loopbackRedirect = "http://127.0.0.1:33418/callback"
	webRedirect      = "https://client.example/callback"
	apiToken         = "the-api-token"
)

var rootKey = bytes.Repeat([]byte{7}, 32)

// site is a server under test with its login provider.
type site struct {
	t     *testing.T
	srv   *Server
	http  *httptest.Server
	idp   *oauthtest.Provider
	store *store.Store
	path  string // of the store
	log   *logtest.Buffer
	clock *clock
}

// clock is a clock that tests advance.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// newSite starts a server that allows example.com.
func newSite(t *testing.T, edits ...func(*Config)) *site { return start(t, false, edits...) }

func start(t *testing.T, tls bool, edits ...func(*Config)) *site {
	t.Helper()
	s := &site{t: t, idp: oauthtest.NewProvider(t), log: &logtest.Buffer{}, clock: &clock{}, path: filepath.Join(t.TempDir(), "state.db")}
	var err error
	if s.store, err = store.Open(t.Context(), s.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.store.Close() })
	s.http = httptest.NewUnstartedServer(nil)
	scheme := "http://"
	if tls {
		scheme = "https://"
	}
	base := scheme + s.http.Listener.Addr().String()
	cfg := Config{
		Issuer: base, Resource: base + "/mcp", Store: s.store, Keys: executiontoken.NewKeys(rootKey, "access"), APIToken: secret.New(apiToken), Now: s.clock.now,
		Upstream: Upstream{Kind: "oidc", Issuer: s.idp.URL, ClientID: s.idp.ClientID, ClientSecret: secret.New(s.idp.ClientSecret), AllowedDomains: []string{"example.com"}, DisplayName: "Test Login"},
		Logger:   slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if cfg.Vault, err = credential.NewVault(t.Context(), s.store, rootKey); err != nil {
		t.Fatal(err)
	}
	for _, edit := range edits {
		edit(&cfg)
	}
	if s.srv, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	s.http.Config.Handler = s.srv.Handler()
	if tls {
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
	t.Cleanup(s.http.Close)
	return s
}

func (s *site) browser() *oauthtest.Browser {
	return oauthtest.NewBrowser(s.t, s.http.Client().Transport, "http://127.0.0.1:33418/", "https://client.example/", "cursor:")
}

func (s *site) url(path string) string { return s.srv.cfg.Issuer + path }

// reply is the answer of an API endpoint.
type reply struct {
	Status       int
	Header       http.Header
	Body         string
	AccessToken  string `json:"access_token"`
	RefreshToken string `json:"refresh_token"`
	TokenType    string `json:"token_type"`
	ExpiresIn    int    `json:"expires_in"`
	Scope        string `json:"scope"`
	Error        string `json:"error"`
	Description  string `json:"error_description"`
	ClientID     string `json:"client_id"`
	AuthMethod   string `json:"token_endpoint_auth_method"`
}

func (s *site) send(method, path, contentType, body string) reply {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url(path), strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := s.http.Client().Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	r := reply{Status: resp.StatusCode, Header: resp.Header, Body: string(b)}
	_ = json.Unmarshal(b, &r)
	return r
}

func (s *site) post(path string, form url.Values) reply {
	s.t.Helper()
	return s.send("POST", path, "application/x-www-form-urlencoded", form.Encode())
}

// register registers a client with both kinds of redirect URIs.
func (s *site) register(redirects ...string) string {
	s.t.Helper()
	if len(redirects) == 0 {
		redirects = []string{loopbackRedirect, webRedirect}
	}
	body, _ := json.Marshal(map[string]any{"client_name": "Test Client", "redirect_uris": redirects})
	r := s.send("POST", "/oauth/register", "application/json", string(body))
	if r.Status != http.StatusCreated || r.ClientID == "" || r.AuthMethod != "none" {
		s.t.Fatalf("register: %d %s", r.Status, r.Body)
	}
	return r.ClientID
}

// ask is an authorization request with its PKCE verifier.
type ask struct {
	url.Values
	verifier string
}

func (s *site) ask(client, redirect string) ask {
	verifier := oauth2.GenerateVerifier()
	return ask{url.Values{"response_type": {"code"}, "client_id": {client}, "redirect_uri": {redirect}, "state": {"client-state"},
		"code_challenge": {oauth2.S256ChallengeFromVerifier(verifier)}, "code_challenge_method": {"S256"}, "resource": {s.srv.cfg.Resource}}, verifier}
}

func (s *site) authorizeURL(a ask) string { return s.url("/oauth/authorize?" + a.Encode()) }

// allow logs in, consents, and returns the parameters that the client gets.
func (s *site) allow(b *oauthtest.Browser, a ask) url.Values {
	s.t.Helper()
	page := b.Get(s.authorizeURL(a))
	if page.Status != 0 {
		page = b.Submit(page, "/oauth/consent", map[string]string{"decision": "allow"})
	}
	if page.Status != 0 || !strings.HasPrefix(page.URL.String(), a.Get("redirect_uri")) {
		s.t.Fatalf("arrived at %s (%d), not at the client:\n%s", page.URL, page.Status, page.Body)
	}
	return page.URL.Query()
}

func (a ask) exchange(code string) url.Values {
	return url.Values{"grant_type": {"authorization_code"}, "code": {code}, "client_id": a.Values["client_id"], "redirect_uri": a.Values["redirect_uri"], "code_verifier": {a.verifier}, "resource": a.Values["resource"]}
}

func (a ask) refresh(token string) url.Values {
	return url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}, "client_id": a.Values["client_id"]}
}

// tokens authorizes a client and exchanges its code.
func (s *site) tokens(b *oauthtest.Browser, a ask) reply {
	s.t.Helper()
	q := s.allow(b, a)
	r := s.post("/oauth/token", a.exchange(q.Get("code")))
	if r.Status != 200 || r.AccessToken == "" || r.RefreshToken == "" {
		s.t.Fatalf("token: %d %s", r.Status, r.Body)
	}
	return r
}

// alive reports whether an access token is valid.
func (s *site) alive(token string) bool {
	s.t.Helper()
	_, err := s.srv.Verify(s.t.Context(), token)
	if err != nil && !errors.Is(err, ErrInvalidToken) {
		s.t.Fatal(err)
	}
	return err == nil
}

// wantPage checks that the browser shows a page and was not redirected.
func wantPage(t *testing.T, p *oauthtest.Page, status int, text string) {
	t.Helper()
	if p.Status != status || !strings.Contains(p.Body, text) {
		t.Errorf("%s: status %d, want %d with %q:\n%s", p.URL, p.Status, status, text, p.Body)
	}
}

// fakeConnection records its calls.
type fakeConnection struct {
	at string

	mu           sync.Mutex
	exchanged    []string // caller and code
	verifier     string
	redirect     string
	disconnected []string
	err          error
}

func (c *fakeConnection) AuthorizeURL(state, verifier, redirect string) string {
	return c.at + "?" + url.Values{"state": {state}, "redirect_uri": {redirect}, "challenge": {oauth2.S256ChallengeFromVerifier(verifier)}}.Encode()
}

func (c *fakeConnection) Exchange(_ context.Context, caller, code, verifier, redirect string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exchanged = append(c.exchanged, caller+" "+code)
	c.verifier, c.redirect = verifier, redirect
	return c.err
}

func (c *fakeConnection) Disconnect(_ context.Context, caller string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disconnected = append(c.disconnected, caller)
	return c.err
}
