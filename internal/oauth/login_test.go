package oauth

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mcp-code-sandbox/internal/oauth/oauthtest"
	"mcp-code-sandbox/internal/secret"
)

// answerOf starts a login and returns the URL with which the provider sends the browser back.
func (s *site) answerOf(b *oauthtest.Browser) string {
	s.t.Helper()
	stop := b.StopAt
	b.StopAt = append([]string{s.url("/oauth/callback")}, stop...)
	defer func() { b.StopAt = stop }()
	p := b.Get(s.url("/oauth/login"))
	if p.Status != 0 {
		s.t.Fatalf("arrived at %s", p.URL)
	}
	return p.URL.String()
}

func (s *site) loggedIn(b *oauthtest.Browser) bool {
	s.t.Helper()
	return strings.Contains(b.Get(s.url("/connections")).Body, "Log out")
}

// A login is finished once, in the browser that started it.
func TestLoginBelongsToItsBrowser(t *testing.T) {
	s := newSite(t)
	mallory, victim := s.browser(), s.browser()

	// Login CSRF: mallory tries to log the victim in as mallory.
	answer := s.answerOf(mallory)
	victim.Get(s.url("/connections")) // has its own cookie
	wantPage(t, victim.Get(answer), 400, "not made for this browser")
	if s.loggedIn(victim) || s.idp.Logins() != 0 {
		t.Errorf("the victim is logged in by somebody else's answer (%d codes were exchanged)", s.idp.Logins())
	}
	// A browser without cookies.
	wantPage(t, s.browser().Get(answer), 400, "not made for this browser")

	// Code injection: mallory puts the victim's code into her own answer.
	stolen, err := url.Parse(s.answerOf(victim))
	if err != nil {
		t.Fatal(err)
	}
	own, err := url.Parse(answer)
	if err != nil {
		t.Fatal(err)
	}
	q := own.Query()
	q.Set("code", stolen.Query().Get("code"))
	own.RawQuery = q.Encode()
	wantPage(t, mallory.Get(own.String()), 502, "login provider")
	if s.loggedIn(mallory) {
		t.Error("mallory is logged in with the victim's code")
	}

	// The real answer works once, and not after its time.
	answer = s.answerOf(victim)
	if p := victim.Get(answer); p.URL.String() != s.url("/connections") || !s.loggedIn(victim) {
		t.Fatalf("arrived at %s", p.URL)
	}
	wantPage(t, victim.Get(answer), 400, "used before")
	late := s.browser()
	answer = s.answerOf(late)
	s.clock.advance(requestTTL)
	wantPage(t, late.Get(answer), 400, "too old")
}

func TestLoginSessionIsNew(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	value := func(name string) string {
		for _, c := range b.Cookies(s.url("/")) {
			if c.Name == name {
				return c.Value
			}
		}
		return ""
	}
	planted := newSecret()
	b.SetCookies(s.url("/"), &http.Cookie{Name: s.srv.cookieName(sessionCookie), Value: planted, Path: "/"})
	b.Get(s.url("/oauth/login"))
	first := value(s.srv.cookieName(sessionCookie))
	if first == planted || first == "" || !s.loggedIn(b) {
		t.Fatalf("session %q, planted %q", first, planted)
	}
	p := b.Get(s.url("/connections"))
	b.Submit(p, "/connections/logout", nil)
	if s.loggedIn(b) || value(s.srv.cookieName(sessionCookie)) != "" {
		t.Error("still logged in")
	}
	b.SetCookies(s.url("/"), &http.Cookie{Name: s.srv.cookieName(sessionCookie), Value: first, Path: "/"})
	if s.loggedIn(b) {
		t.Error("the session outlives the logout")
	}
	b.Get(s.url("/oauth/login"))
	s.clock.advance(sessionTTL)
	if s.loggedIn(b) {
		t.Error("the session outlives its time")
	}
}

func TestLoginRefusesWhatTheProviderDoesNotVouchFor(t *testing.T) {
	claim := func(k string, v any) func(*oauthtest.Provider) {
		return func(p *oauthtest.Provider) { p.EditClaims(func(c map[string]any) { c[k] = v }) }
	}
	user := func(u oauthtest.User) func(*oauthtest.Provider) {
		return func(p *oauthtest.Provider) { u.Subject = "7"; p.SetUser(u) }
	}
	answer := func(edit func(url.Values)) func(*oauthtest.Provider) {
		return func(p *oauthtest.Provider) { p.EditAnswer(edit) }
	}
	for name, c := range map[string]struct {
		edit   func(*oauthtest.Provider)
		status int
		text   string
	}{
		"nonce of another login":   {claim("nonce", "x"), 502, "login provider"},
		"no nonce":                 {claim("nonce", ""), 502, "login provider"},
		"another issuer's token":   {claim("iss", "https://evil.example"), 502, "login provider"},
		"another client's token":   {claim("aud", "somebody else"), 502, "login provider"},
		"shared with another":      {claim("aud", []string{"sandbox-at-idp", "somebody else"}), 502, "login provider"},
		"expired token":            {claim("exp", time.Now().Add(-time.Hour).Unix()), 502, "login provider"},
		"mix-up: another issuer":   {answer(func(q url.Values) { q.Set("iss", "https://evil.example") }), 400, "not made for this browser"},
		"mix-up: issuer missing":   {answer(func(q url.Values) { q.Del("iss") }), 400, "not made for this browser"},
		"mix-up: two issuers":      {answer(func(q url.Values) { q.Add("iss", "https://evil.example") }), 400, "not made for this browser"},
		"two codes":                {answer(func(q url.Values) { q.Add("code", "x") }), 400, "not made for this browser"},
		"refused there":            {answer(func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") }), 403, "not logged in"},
		"refused with a code":      {answer(func(q url.Values) { q.Set("error", "<script>") }), 403, "not logged in"},
		"unverified address":       {user(oauthtest.User{Email: "ann@example.com", Unverified: true}), 403, "does not vouch"},
		"no address":               {user(oauthtest.User{}), 403, "does not vouch"},
		"another domain":           {user(oauthtest.User{Email: "ann@evil.example"}), 403, "ann@evil.example is not on"},
		"a domain that ends alike": {user(oauthtest.User{Email: "ann@evilexample.com"}), 403, "is not on"},
		"a subdomain":              {user(oauthtest.User{Email: "ann@x.example.com"}), 403, "is not on"},
		"two at signs":             {user(oauthtest.User{Email: "ann@evil.example@example.com"}), 403, "is not on"},
		"a domain in a comment":    {user(oauthtest.User{Email: `"ann@example.com"@evil.example`}), 403, "is not on"},
		"no name":                  {user(oauthtest.User{Email: "@example.com"}), 403, "is not on"},
		"look-alike letters":       {user(oauthtest.User{Email: "ann@example.c\u043em"}), 403, "is not on"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c.edit(s.idp)
			b := s.browser()
			wantPage(t, b.Get(s.url("/oauth/login")), c.status, c.text)
			if s.loggedIn(b) {
				t.Error("logged in")
			}
		})
	}
}

func TestAllowList(t *testing.T) {
	l, err := newAllowList([]string{"Example.com", "@sk.example"}, []string{"Bob@Other.example"})
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{
		"ANN@EXAMPLE.COM": true, "ann@sk.example": true, "bob@other.example": true,
		"ann@other.example": false, "": false, "example.com": false, "ann@\u017fk.example": false, "ann@s\u212a.example": false, "ann@example.com ": false,
	} {
		if got := l.email(address); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
	for _, bad := range [][2][]string{{nil, nil}, {{"com"}, nil}, {{"*.example.com"}, nil}, {{"a@b.c"}, nil}, {nil, {"nobody"}}, {nil, {"a@b@c"}}} {
		if _, err := newAllowList(bad[0], bad[1]); err == nil {
			t.Errorf("%v is a list", bad)
		}
	}
	if l, err := newAllowList([]string{"*"}, nil); err != nil || !l.email("") {
		t.Errorf("everybody: %v", err)
	}
}

func TestLoginByUserInfo(t *testing.T) {
	s := newSite(t)
	s.idp.EditClaims(func(c map[string]any) { delete(c, "email"); delete(c, "email_verified") }) // as some providers do
	b := s.browser()
	b.Get(s.url("/oauth/login"))
	if !s.loggedIn(b) {
		t.Error("not logged in")
	}
}

func TestLoginAsAtGitHub(t *testing.T) {
	hub := oauthtest.NewGitHub(t)
	s := newSite(t, func(c *Config) {
		c.Upstream = Upstream{Kind: "oauth", AuthorizationURL: hub.URL + "/login/oauth/authorize", TokenURL: hub.URL + "/login/oauth/access_token", UserInfoURL: hub.URL + "/user",
			ClientID: hub.ClientID, ClientSecret: secret.New(hub.ClientSecret), Scopes: []string{"read:user", "user:email"}, AllowedEmails: []string{"ann@example.com"}}
	})
	b := s.browser()
	if p := b.Get(s.url("/oauth/login")); !strings.Contains(p.Body, "ann@example.com") {
		t.Fatalf("%d at %s:\n%s", p.Status, p.URL, p.Body)
	}
	if _, err := s.store.GetUser(t.Context(), person{issuer: hub.URL, subject: "1001"}.caller()); err != nil {
		t.Errorf("the user under issuer and number: %v", err)
	}
	// Neither the address of the profile nor a verified secondary address counts.
	for _, u := range []oauthtest.User{{Subject: "1002", Email: "ann@example.com", Name: "Eve", Unverified: true}, {Subject: "1003", Email: "eve@example.com", Name: "Eve"}} {
		hub.SetUser(u)
		if p := s.browser().Get(s.url("/oauth/login")); p.Status != 403 {
			t.Errorf("%+v: %d at %s", u, p.Status, p.URL)
		}
	}
	hub.SetUser(oauthtest.User{Subject: "0", Email: "ann@example.com"})
	wantPage(t, s.browser().Get(s.url("/oauth/login")), 502, "login provider")
}

// The server starts while its provider is down, and discovers it later.
func TestProviderIsDownAtFirst(t *testing.T) {
	s := newSite(t)
	var up atomic.Bool
	var idp *httptest.Server
	idp = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			http.Error(w, "not yet", http.StatusServiceUnavailable)
			return
		}
		writeJSON(w, 200, map[string]any{"issuer": idp.URL, "authorization_endpoint": "https://client.example/authorize", "token_endpoint": "https://client.example/token", "jwks_uri": "https://client.example/jwks"})
	}))
	defer idp.Close()
	l, err := newLogin(Upstream{Kind: "oidc", Issuer: idp.URL, ClientID: "c"}, nil, s.url("/oauth/callback"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	s.srv.login = l
	wantPage(t, s.browser().Get(s.url("/oauth/login")), 502, "does not answer")
	up.Store(true)
	if p := s.browser().Get(s.url("/oauth/login")); p.Status != 0 || p.URL.Host != "client.example" {
		t.Errorf("%d at %s", p.Status, p.URL)
	}
}

func TestLoginWithAPIToken(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	page := b.Get(s.url("/connections"))
	wantPage(t, page, 200, "Continue with Test Login")
	for _, wrong := range []string{"", "the-api-tokem", apiToken + " "} {
		wantPage(t, b.Submit(page, "/connections/login", map[string]string{"token": wrong}), 403, "not the API token")
	}
	p := b.Submit(page, "/connections/login", map[string]string{"token": apiToken})
	wantPage(t, p, 200, "holder of the API token")
	old := b.Cookies(s.url("/"))
	// The API token's holder is not a user: to allow an MCP client, a person logs in, which ends
	// the old session.
	wantPage(t, b.Get(s.authorizeURL(s.ask(s.register(), loopbackRedirect))), 200, "ann@example.com")
	b.SetCookies(s.url("/"), old...)
	if s.loggedIn(b) {
		t.Error("the session of before the login still works")
	}

	guesser := s.browser()
	page = guesser.Get(s.url("/connections"))
	var last *oauthtest.Page
	for range 12 {
		last = guesser.Submit(page, "/connections/login", map[string]string{"token": "guess"})
	}
	wantPage(t, last, 429, "Too many")
	wantPage(t, guesser.Submit(page, "/connections/login", map[string]string{"token": apiToken}), 200, "holder of the API token") // not rate-limited
	if strings.Contains(s.log.String(), "the-api-tok") {
		t.Error("a token is in the log")
	}

	// A new API token ends the logins with the old one, and no others.
	holder, user := s.browser(), s.browser()
	holder.Submit(holder.Get(s.url("/connections")), "/connections/login", map[string]string{"token": apiToken})
	user.Get(s.url("/oauth/login"))
	if !s.loggedIn(holder) || !s.loggedIn(user) {
		t.Fatal("not logged in")
	}
	s.srv.cfg.APIToken = secret.New("another-api-token")
	if s.loggedIn(holder) || !s.loggedIn(user) {
		t.Errorf("with a new API token, its holder is logged in: %t, a user: %t", s.loggedIn(holder), s.loggedIn(user))
	}

	none := newSite(t, func(c *Config) { c.APIToken = secret.Value{} })
	b = none.browser()
	page = b.Get(none.url("/connections"))
	if strings.Contains(page.Body, "/connections/login") {
		t.Error("a login by a token that there is not")
	}
	_, form := b.Form(b.Get(none.url("/oauth/login")), "/connections/logout")
	b.Post(none.url("/connections/logout"), form, nil, nil)
	form.Set("form", visit{secret: b.Cookies(none.url("/"))[0].Value}.formToken())
	form.Set("token", "")
	wantPage(t, b.Post(none.url("/connections/login"), form, nil, nil), 403, "not the API token")
}

func TestCookiesAreTheHostsOwn(t *testing.T) {
	s := start(t, true)
	resp, err := s.http.Client().Transport.RoundTrip(httptest.NewRequestWithContext(t.Context(), "GET", s.url("/connections"), nil))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	cookies := resp.Cookies()
	if len(cookies) != 1 || cookies[0].Name != "__Host-mcs_browser" || !cookies[0].Secure || !cookies[0].HttpOnly || cookies[0].Path != "/" || cookies[0].Domain != "" || cookies[0].SameSite != http.SameSiteLaxMode {
		t.Errorf("%+v", cookies)
	}
	b := s.browser()
	a := s.ask(s.register(), webRedirect)
	s.tokens(b, a)
	names := map[string]bool{}
	for _, c := range b.Cookies(s.url("/")) {
		names[c.Name] = true
	}
	if !maps.Equal(names, map[string]bool{"__Host-mcs_browser": true, "__Host-mcs_session": true}) {
		t.Errorf("%v", names)
	}
}

// On one's own computer any loopback name works; the provider redirects to the public one.
func TestLoginByAnotherNameOfThisComputer(t *testing.T) {
	s := newSite(t)
	other := strings.Replace(s.srv.cfg.Issuer, "127.0.0.1", "localhost", 1)
	b := s.browser()
	if p := b.Get(other + "/oauth/login?x=1"); p.URL.String() != s.url("/connections") || !s.loggedIn(b) {
		t.Errorf("%d at %s", p.Status, p.URL)
	}
	for host, want := range map[string]bool{
		"localhost:" + s.srv.base.Port(): true, s.srv.base.Host: false, "localhost:1": false, "evil.example:" + s.srv.base.Port(): false, "localhost": false, "": false,
	} {
		if got := s.srv.misaddressed(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	good := newSite(t).srv.cfg
	for want, edit := range map[string]func(*Config){
		"must be like https://": func(c *Config) { c.Issuer = "sandbox.example.com" },
		"PUBLIC_BASE_URL":       func(c *Config) { c.Issuer = "http://sandbox.example.com" },
		"auth.issuer":           func(c *Config) { c.Upstream.Issuer = "http://login.example.com" },
		"auth.type":             func(c *Config) { c.Upstream.Kind = "saml" },
		"auth.clientId":         func(c *Config) { c.Upstream.ClientID = "" },
		"allowedDomains":        func(c *Config) { c.Upstream.AllowedDomains = nil },
		"auth.tokenUrl": func(c *Config) {
			c.Upstream = Upstream{Kind: "oauth", ClientID: "c", AuthorizationURL: "https://a/", UserInfoURL: "https://a/", TokenURL: "http://a/"}
		},
		"Config needs Store and Keys": func(c *Config) { c.Keys = nil },
		"URL of the MCP endpoint":     func(c *Config) { c.Resource = "/mcp" },
		"auth.emailsUrl": func(c *Config) {
			c.Upstream = Upstream{Kind: "oauth", ClientID: "c", AuthorizationURL: "https://a/", UserInfoURL: "https://a/", TokenURL: "https://a/", EmailsURL: "ftp://a/"}
		},
		"is not a domain such as": func(c *Config) { c.Upstream.AllowedDomains = []string{"*.example.com"} },
	} {
		cfg := good
		edit(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
