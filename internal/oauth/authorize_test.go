package oauth

import (
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/oauth/oauthtest"
)

func TestMatchRedirect(t *testing.T) {
	registered := []string{"https://client.example/cb?x=1", "http://127.0.0.1/cb", "http://localhost:8080/cb", "cursor://anysphere/cb", "http://[::1]:1/cb"}
	for raw, want := range map[string]bool{
		"https://client.example/cb?x=1": true,
		"http://127.0.0.1/cb":           true,
		"http://127.0.0.1:53682/cb":     true,
		"http://localhost:1/cb":         true,
		"http://[::1]:65535/cb":         true,
		"cursor://anysphere/cb":         true,

		"https://client.example/cb":                   false,
		"https://client.example/cb?x=1&y=2":           false,
		"https://client.example:443/cb?x=1":           false,
		"https://client.example/cb/../evil?x=1":       false,
		"https://client.example/cb?x=1#f":             false,
		"https://client.example@evil.example/cb?x=1":  false,
		"https://CLIENT.example/cb?x=1":               false,
		"https://client.example.evil.example/cb?x=1":  false,
		"http://client.example/cb?x=1":                false,
		"http://127.0.0.1:1@evil.example/cb":          false,
		"http://127.0.0.1.evil.example/cb":            false,
		"http://127.0.0.1:1/cb/":                      false,
		"http://127.0.0.1:1/cb?code=x":                false,
		"http://127.0.0.1:1/%63b":                     false,
		"http://127.0.0.2:1/cb":                       false,
		"http://localhost.evil.example/cb":            false,
		"https://127.0.0.1:1/cb":                      false,
		"http://user@127.0.0.1:1/cb":                  false,
		"http://127.0.0.1:1\\@evil.example/cb":        false,
		"http://127.0.0.1:1/cb\r\nSet-Cookie: a=b":    false,
		"HTTP://127.0.0.1:1/cb":                       false,
		"cursor://anysphere:1/cb":                     false,
		"cursor://evil/cb":                            false,
		"":                                            false,
		"//evil.example":                              false,
		"javascript:alert(1)//https://client.example": false,
	} {
		if got := matchRedirect(registered, raw); got != want {
			t.Errorf("%q: %v, want %v", raw, got, want)
		}
	}
	for _, raw := range []string{"http://client.example/cb", "javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "file:///etc/passwd", "https:///cb", "https://a/cb#", "/cb", "x:y",
		"ms-msdt:/id", "search-ms:query=x", "ms-settings:x", "x-apple.systempreferences:x", "steam://run/1", "smb://host/share", "ssh://host", "mailto:a@b.example", "com.:x", ".com:x", "myapp://cb",
		"https://a/" + strings.Repeat("a", 2000), "https://ä.example/", "https://u:p@a/cb", "http://127.0.0.1%00.evil.example/"} {
		if err := checkRedirectURI(raw); err == nil {
			t.Errorf("%q can be registered", raw)
		}
	}
	for _, raw := range []string{"cursor://anysphere.cursor-mcp/oauth/callback", "vscode://ms/cb", "vscode-insiders://ms/cb", "com.example.app:/cb", "io.example-1.x:/cb"} {
		if err := checkRedirectURI(raw); err != nil {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

// Whatever is wrong with a request, the browser is not redirected before its user has logged in and
// agreed.
func TestAuthorizeIsNoOpenRedirector(t *testing.T) {
	s := newSite(t)
	client := s.register()
	set := func(k, v string) func(ask) { return func(a ask) { a.Set(k, v) } }
	for name, c := range map[string]struct {
		edit func(ask)
		text string
	}{
		"unknown client":        {set("client_id", "mcp_unknown"), "client_id"},
		"no client":             {func(a ask) { a.Del("client_id") }, "client_id"},
		"two clients":           {func(a ask) { a.Add("client_id", client) }, "client_id"},
		"foreign address":       {set("redirect_uri", "https://evil.example/callback"), "redirect_uri"},
		"address with more":     {set("redirect_uri", webRedirect+"/../x"), "redirect_uri"},
		"no address":            {func(a ask) { a.Del("redirect_uri") }, "redirect_uri"},
		"two addresses":         {func(a ask) { a.Add("redirect_uri", loopbackRedirect) }, "redirect_uri"},
		"no PKCE":               {func(a ask) { a.Del("code_challenge"); a.Del("code_challenge_method") }, "PKCE"},
		"plain PKCE":            {set("code_challenge_method", "plain"), "PKCE"},
		"short challenge":       {set("code_challenge", "abc"), "PKCE"},
		"implicit":              {set("response_type", "token"), "response_type"},
		"fragment":              {set("response_mode", "fragment"), "response_mode"},
		"another resource":      {set("resource", "https://other.example/mcp"), "invalid_target"},
		"one resource of two":   {func(a ask) { a.Add("resource", "https://other.example/mcp") }, "invalid_target"},
		"repeated state":        {func(a ask) { a.Add("state", "x") }, "repeated"},
		"request object":        {set("request_uri", "https://evil.example/r"), "request_not_supported"},
		"a very long state":     {set("state", strings.Repeat("x", 9000)), "too long"},
		"client with bad path":  {set("client_id", "https://evil.example/"), "path"},
		"client with dots":      {set("client_id", "https://evil.example/a/../b"), "dot segments"},
		"client with user name": {set("client_id", "https://a@evil.example/b"), "client_id"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.ask(client, webRedirect)
			c.edit(a)
			p := s.browser().Get(s.authorizeURL(a))
			wantPage(t, p, 400, c.text)
			if len(p.Chain) != 1 {
				t.Errorf("sent to %v", p.Chain)
			}
		})
	}
	// A program on the user's computer gets the error, and so does a client that the user has
	// allowed.
	b := s.browser()
	a := s.ask(client, loopbackRedirect)
	a.Set("code_challenge_method", "plain")
	if q := b.Get(s.authorizeURL(a)).URL.Query(); q.Get("error") != "invalid_request" || q.Get("state") != "client-state" || q.Get("iss") != s.srv.cfg.Issuer {
		t.Errorf("answer %v", q)
	}
	s.allow(b, s.ask(client, webRedirect))
	a = s.ask(client, webRedirect)
	a.Set("resource", "https://other.example/mcp")
	if q := b.Get(s.authorizeURL(a)).URL.Query(); q.Get("error") != "invalid_target" || q.Has("code") {
		t.Errorf("answer %v", q)
	}
	// The login page redirects to this server only.
	for _, extra := range []string{"?next=https://evil.example", "?return_to=//evil.example", "?redirect_uri=https://evil.example"} {
		if p := s.browser().Get(s.url("/oauth/login" + extra)); p.URL.String() != s.url("/connections") {
			t.Errorf("%s led to %s", extra, p.URL)
		}
	}
}

// A user who is removed from the list loses all access at once.
func TestConsentIsTheUsersOwn(t *testing.T) {
	s := newSite(t)
	client := s.register()
	ann := s.browser()
	page := ann.Get(s.authorizeURL(s.ask(client, webRedirect)))
	for _, want := range []string{"Test Client", "client.example", "ann@example.com", "nobody vouches", "run code"} {
		if !strings.Contains(page.Body, want) {
			t.Errorf("the consent page does not say %q:\n%s", want, page.Body)
		}
	}
	policy := page.Header.Get("Content-Security-Policy")
	if !strings.Contains(policy, "frame-ancestors 'none'") || !strings.Contains(policy, "default-src 'none'") || page.Header.Get("X-Frame-Options") != "DENY" || page.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", page.Header)
	}

	if got := page.Header.Get("Referrer-Policy"); got != "same-origin" {
		t.Errorf("Referrer-Policy %q: with no-referrer, browsers send forms with a null origin", got)
	}

	to, form := ann.Form(page, "/oauth/consent")
	form.Set("decision", "allow")
	edited := func(k, v string) url.Values {
		f := url.Values{}
		for key := range form {
			f.Set(key, form.Get(key))
		}
		f.Set(k, v)
		return f
	}
	s.idp.SetUser(oauthtest.User{Subject: "1002", Email: "bob@example.com", Name: "Bob"})
	bob := s.browser()
	bobsPage := bob.Get(s.authorizeURL(s.ask(client, webRedirect)))
	_, bobsForm := bob.Form(bobsPage, "/oauth/consent")
	own := map[string]string{"Origin": s.srv.cfg.Issuer, "Sec-Fetch-Site": "same-origin"}
	for name, c := range map[string]struct {
		b       *oauthtest.Browser
		form    url.Values
		headers map[string]string
	}{
		"from another site":            {ann, form, map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}},
		"from another port":            {ann, form, map[string]string{"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"}},
		"from a sandboxed frame":       {ann, form, map[string]string{"Origin": "null"}},
		"without the form's token":     {ann, edited("form", ""), own},
		"with another's token":         {ann, edited("form", bobsForm.Get("form")), own},
		"with another's request":       {ann, edited("request", bobsForm.Get("request")), own},
		"in another browser":           {bob, form, own},
		"another's request, own token": {bob, func() url.Values { f := edited("form", bobsForm.Get("form")); return f }(), own},
		"without cookies":              {s.browser(), form, own},
	} {
		if p := c.b.Post(to, c.form, nil, c.headers); p.Status != 403 && p.Status != 400 {
			t.Errorf("%s: %d, arrived at %s", name, p.Status, p.URL)
		}
	}
	if q := ann.Post(to, form, page, own).URL.Query(); q.Get("code") == "" {
		t.Errorf("the true form does not work any more: %v", q)
	}
	if p := ann.Post(to, form, nil, own); p.Status != 400 {
		t.Errorf("the form works twice: %d %s", p.Status, p.URL)
	}
}

// A question to one user cannot be answered by the next one in the same browser.
func TestConsentIsNotTheNextUsers(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	client := s.register()
	_, asked := b.Form(b.Get(s.authorizeURL(s.ask(client, webRedirect))), "/oauth/consent")
	s.login(b, bobsAccount)
	to, form := b.Form(b.Get(s.authorizeURL(s.ask(client, webRedirect))), "/oauth/consent")
	form.Set("request", asked.Get("request"))
	form.Set("decision", "allow")
	wantPage(t, b.Post(to, form, nil, nil), 400, "cannot be used")
}

func TestConsentIsRememberedWhereTheClientIsCertain(t *testing.T) {
	s := newSite(t)
	client := s.register()
	b := s.browser()
	s.allow(b, s.ask(client, webRedirect))
	if p := b.Get(s.authorizeURL(s.ask(client, webRedirect))); p.Status != 0 || p.URL.Query().Get("code") == "" {
		t.Errorf("asked again: %s (%d)", p.URL, p.Status)
	}
	again := s.ask(client, webRedirect)
	again.Set("prompt", "consent")
	wantPage(t, b.Get(s.authorizeURL(again)), 200, "Allow <b>Test Client</b>")
	wantPage(t, b.Get(s.authorizeURL(s.ask(s.register(), webRedirect))), 200, "Allow <b>Test Client</b>") // same name and address
	s.allow(b, s.ask(client, loopbackRedirect))
	wantPage(t, b.Get(s.authorizeURL(s.ask(client, loopbackRedirect))), 200, "Allow <b>Test Client</b>") // any program may listen there
	s.idp.SetUser(oauthtest.User{Subject: "1002", Email: "bob@example.com"})
	wantPage(t, s.browser().Get(s.authorizeURL(s.ask(client, webRedirect))), 200, "Allow <b>Test Client</b>") // another user

	p := b.Get(s.authorizeURL(s.ask(client, loopbackRedirect)))
	if q := b.Submit(p, "/oauth/consent", map[string]string{"decision": "deny"}).URL.Query(); q.Get("error") != "access_denied" || q.Get("iss") != s.srv.cfg.Issuer || q.Get("state") != "client-state" {
		t.Errorf("refused: %v", q)
	}
	p = b.Get(s.authorizeURL(s.ask(client, loopbackRedirect)))
	p = b.Submit(p, "/oauth/consent", map[string]string{"decision": "switch"})
	wantPage(t, p, 200, "bob@example.com")
	if !slices.ContainsFunc(p.Chain, func(u string) bool { return strings.Contains(u, "prompt=select_account") }) {
		t.Errorf("no choice of account on the way: %v", p.Chain)
	}
}

func TestDance(t *testing.T) {
	s := newSite(t)
	client := s.register("http://localhost/callback", "cursor://anysphere.cursor-mcp/oauth/callback")
	b := s.browser()
	b.StopAt = append(b.StopAt, "http://localhost:4711/")
	a := s.ask(client, "http://localhost:4711/callback")
	q := s.allow(b, a)
	if q.Get("iss") != s.srv.cfg.Issuer || q.Get("state") != "client-state" {
		t.Errorf("answer %v", q)
	}
	r := s.post("/oauth/token", a.exchange(q.Get("code")))
	if r.TokenType != "Bearer" || r.ExpiresIn != 900 || r.Scope != "mcp" || r.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%+v", r)
	}
	id, err := s.srv.Verify(t.Context(), r.AccessToken)
	want := person{issuer: s.idp.URL, subject: "1001"}.caller()
	if err != nil || id.Caller != want || id.Email != "ann@example.com" || !slices.Equal(id.Scopes, []string{"mcp"}) || id.Expires.After(time.Now().Add(accessTTL)) {
		t.Errorf("%+v, %v; want caller %s", id, err, want)
	}
	if got := s.srv.Email(want); got != "ann@example.com" {
		t.Errorf("Email: %q", got)
	}
	if s.srv.Email("local") != "" || s.srv.Email("user:nobody") != "" {
		t.Error("somebody's e-mail address is somebody else's")
	}

	// A program's own scheme also works, and a second login returns the same caller.
	b2 := s.browser()
	a2 := s.ask(client, "cursor://anysphere.cursor-mcp/oauth/callback")
	id2, err := s.srv.Verify(t.Context(), s.tokens(b2, a2).AccessToken)
	if err != nil || id2.Caller != id.Caller {
		t.Errorf("%+v, %v", id2, err)
	}

	// Neither the database nor the log contains a usable secret.
	var secrets []string
	for _, c := range append(b.Cookies(s.url("/")), b2.Cookies(s.url("/"))...) {
		secrets = append(secrets, c.Value)
	}
	secrets = append(secrets, q.Get("code"), r.RefreshToken, r.AccessToken, s.idp.ClientSecret, apiToken)
	var stored strings.Builder
	for _, suffix := range []string{"", "-wal"} {
		p, err := os.ReadFile(s.path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		stored.Write(p)
	}
	if !strings.Contains(stored.String(), "ann@example.com") || !strings.Contains(s.log.String(), "user logged in") {
		t.Error("looked at the wrong place")
	}
	for _, secret := range secrets {
		if len(secret) < 10 || strings.Contains(stored.String(), secret) || strings.Contains(s.log.String(), secret) {
			t.Errorf("%q is stored or logged", secret)
		}
	}
}
