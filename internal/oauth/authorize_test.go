package oauth

import (
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/executiontoken"
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
		"https://a/" + strings.Repeat("a", 2000), "https://ä.example/", "https://u:p@a/cb", "http://127.0.0.1%00.evil.example/"} {
		if err := checkRedirectURI(raw); err == nil {
			t.Errorf("%q can be registered", raw)
		}
	}
}

// Whatever is wrong with a request from a stranger's client, the browser is not sent anywhere before its user has logged in and agreed.
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
	// A program on one's own computer is told; so is a client that the user has allowed.
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
	// The login page leads nowhere but here.
	for _, extra := range []string{"?next=https://evil.example", "?return_to=//evil.example", "?redirect_uri=https://evil.example"} {
		if p := s.browser().Get(s.url("/oauth/login" + extra)); p.URL.String() != s.url("/connections") {
			t.Errorf("%s led to %s", extra, p.URL)
		}
	}
}

func TestCodeIsForItsClientAndVerifier(t *testing.T) {
	s := newSite(t)
	client, other := s.register(), s.register()
	b := s.browser()
	for name, edit := range map[string]func(url.Values){
		"another client":         func(f url.Values) { f.Set("client_id", other) },
		"no client":              func(f url.Values) { f.Del("client_id") },
		"another verifier":       func(f url.Values) { f.Set("code_verifier", strings.Repeat("v", 43)) },
		"no verifier":            func(f url.Values) { f.Del("code_verifier") },
		"challenge as verifier":  func(f url.Values) { f.Set("code_verifier", s.ask(client, webRedirect).Get("code_challenge")) },
		"another address":        func(f url.Values) { f.Set("redirect_uri", webRedirect) },
		"another port":           func(f url.Values) { f.Set("redirect_uri", "http://127.0.0.1:1/callback") },
		"no address":             func(f url.Values) { f.Del("redirect_uri") },
		"another resource":       func(f url.Values) { f.Set("resource", "https://other.example/mcp") },
		"another code":           func(f url.Values) { f.Set("code", newSecret()) },
		"a code twice":           func(f url.Values) { f.Add("code", f.Get("code")) },
		"another kind of grant":  func(f url.Values) { f.Set("grant_type", "client_credentials") },
		"the code as a refresh":  func(f url.Values) { f.Set("grant_type", "refresh_token"); f.Set("refresh_token", f.Get("code")) },
		"a secret it never had":  nil,
		"after its minute":       nil,
		"parameters in the path": nil,
	} {
		t.Run(name, func(t *testing.T) {
			a := s.ask(client, loopbackRedirect)
			form := a.exchange(s.allow(b, a).Get("code"))
			var r reply
			switch name {
			case "a secret it never had":
				req, _ := http.NewRequest("POST", s.url("/oauth/token"), strings.NewReader(form.Encode()))
				req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				req.SetBasicAuth(client, "secret")
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				r.Status = resp.StatusCode
				if r2 := s.post("/oauth/token", form); r2.Status != 200 {
					t.Errorf("asking with a header first used the code up: %s", r2.Body)
				}
			case "after its minute":
				s.clock.advance(codeTTL)
				r = s.post("/oauth/token", form)
			case "parameters in the path":
				r = s.send("POST", "/oauth/token?"+form.Encode(), "application/x-www-form-urlencoded", "")
			default:
				edit(form)
				r = s.post("/oauth/token", form)
			}
			if r.Status/100 != 4 || r.AccessToken != "" || r.RefreshToken != "" {
				t.Errorf("%d %s", r.Status, r.Body)
			}
		})
	}
}

func TestReuseEndsEverything(t *testing.T) {
	s := newSite(t)
	client := s.register()
	b := s.browser()
	t.Run("code", func(t *testing.T) {
		a := s.ask(client, loopbackRedirect)
		form := a.exchange(s.allow(b, a).Get("code"))
		first := s.post("/oauth/token", form)
		if !s.alive(first.AccessToken) {
			t.Fatal("the first token does not work")
		}
		if r := s.post("/oauth/token", form); r.Error != "invalid_grant" {
			t.Errorf("second use: %d %s", r.Status, r.Body)
		}
		if s.alive(first.AccessToken) {
			t.Error("the access token outlives the reuse of its code")
		}
		if r := s.post("/oauth/token", a.refresh(first.RefreshToken)); r.Error != "invalid_grant" {
			t.Errorf("refresh: %d %s", r.Status, r.Body)
		}
	})
	t.Run("refresh token", func(t *testing.T) {
		a := s.ask(client, loopbackRedirect)
		first := s.tokens(b, a)
		second := s.post("/oauth/token", a.refresh(first.RefreshToken))
		if second.Status != 200 || second.RefreshToken == first.RefreshToken || !s.alive(second.AccessToken) {
			t.Fatalf("refresh: %d %s", second.Status, second.Body)
		}
		if r := s.post("/oauth/token", a.refresh(first.RefreshToken)); r.Error != "invalid_grant" {
			t.Errorf("reuse: %d %s", r.Status, r.Body)
		}
		if s.alive(first.AccessToken) || s.alive(second.AccessToken) {
			t.Error("an access token outlives the reuse of a refresh token")
		}
		if r := s.post("/oauth/token", a.refresh(second.RefreshToken)); r.Error != "invalid_grant" {
			t.Errorf("the newest refresh token after the reuse: %d %s", r.Status, r.Body)
		}
	})
	t.Run("refresh token of another client", func(t *testing.T) {
		a := s.ask(client, loopbackRedirect)
		first := s.tokens(b, a)
		stolen := s.ask(s.register(), loopbackRedirect).refresh(first.RefreshToken)
		if r := s.post("/oauth/token", stolen); r.Error != "invalid_grant" || s.alive(first.AccessToken) {
			t.Errorf("%d %s; alive %v", r.Status, r.Body, s.alive(first.AccessToken))
		}
	})
	t.Run("refresh for another resource", func(t *testing.T) {
		a := s.ask(client, loopbackRedirect)
		form := a.refresh(s.tokens(b, a).RefreshToken)
		form.Set("resource", "https://other.example/mcp")
		if r := s.post("/oauth/token", form); r.Error != "invalid_target" {
			t.Errorf("%d %s", r.Status, r.Body)
		}
		form.Del("resource")
		if r := s.post("/oauth/token", form); r.Status != 200 {
			t.Errorf("a refusal used the token up: %d %s", r.Status, r.Body)
		}
	})
}

func TestVerifyRefuses(t *testing.T) {
	s := newSite(t)
	a := s.ask(s.register(), loopbackRedirect)
	token := s.tokens(s.browser(), a).AccessToken
	if !s.alive(token) {
		t.Fatal("the token does not work")
	}
	payload, err := executiontoken.NewKeys(rootKey, "access").Open(accessPrefix, token)
	if err != nil {
		t.Fatal(err)
	}
	edited := func(old, new string) []byte {
		p := strings.Replace(string(payload), old, new, 1)
		if p == string(payload) {
			t.Fatalf("%s is not in %s", old, payload)
		}
		return []byte(p)
	}
	access := executiontoken.NewKeys(rootKey, "access")
	for name, bad := range map[string]string{
		"empty":                "",
		"the API token":        apiToken,
		"a byte changed":       token[:len(token)-1] + string(token[len(token)-1]^1),
		"another purpose":      executiontoken.NewKeys(rootKey, "execution").Seal(accessPrefix, payload),
		"another prefix":       access.Seal(executiontoken.Prefix, payload),
		"another installation": executiontoken.NewKeys(slices.Repeat([]byte{8}, 32), "access").Seal(accessPrefix, payload),
		"another audience":     access.Seal(accessPrefix, edited(s.srv.cfg.Resource, s.srv.cfg.Issuer+"/other")),
		"another issuer":       access.Seal(accessPrefix, edited(`"iss":"http`, `"iss":"httpx`)),
		"another grant":        access.Seal(accessPrefix, edited(`"grt":"`, `"grt":"x`)),
		"not JSON":             access.Seal(accessPrefix, []byte("{")),
		"too long":             access.Seal(accessPrefix, append(slices.Clone(payload), strings.Repeat(" ", 5000)...)),
	} {
		if s.alive(bad) {
			t.Errorf("%s: accepted", name)
		}
	}
	// An access token is no execution token either, whatever keys are used.
	if _, err := access.Verify(token, time.Now()); err == nil {
		t.Error("an access token passes for an execution token")
	}
	s.clock.advance(accessTTL)
	if s.alive(token) {
		t.Error("it outlives its time")
	}
}

func TestRevocation(t *testing.T) {
	s := newSite(t)
	client := s.register()
	b := s.browser()
	for _, which := range []string{"access", "refresh"} {
		a := s.ask(client, loopbackRedirect)
		r := s.tokens(b, a)
		token := map[string]string{"access": r.AccessToken, "refresh": r.RefreshToken}[which]
		if got := s.post("/oauth/revoke", url.Values{"token": {token}, "client_id": {s.register()}}); got.Status != 200 || !s.alive(r.AccessToken) {
			t.Errorf("%s: another client's revocation: %d, alive %v", which, got.Status, s.alive(r.AccessToken))
		}
		if got := s.post("/oauth/revoke", url.Values{"token": {token}, "client_id": {client}}); got.Status != 200 || s.alive(r.AccessToken) {
			t.Errorf("%s: %d, alive %v", which, got.Status, s.alive(r.AccessToken))
		}
		if got := s.post("/oauth/token", a.refresh(r.RefreshToken)); got.Error != "invalid_grant" {
			t.Errorf("%s: refresh after the revocation: %d %s", which, got.Status, got.Body)
		}
	}
	if got := s.post("/oauth/revoke", url.Values{"token": {"nonsense"}, "client_id": {client}}); got.Status != 200 {
		t.Errorf("unknown token: %d", got.Status)
	}
}

// Somebody who leaves the list is out at once, with all they have.
func TestAllowListIsLookedAtEachTime(t *testing.T) {
	s := newSite(t)
	a := s.ask(s.register(), loopbackRedirect)
	b := s.browser()
	r := s.tokens(b, a)
	s.srv.allow = allowList{emails: map[string]bool{"bob@example.com": true}}
	if s.alive(r.AccessToken) {
		t.Error("the access token still works")
	}
	if p := b.Get(s.url("/connections")); !strings.Contains(p.Body, "Log in") {
		t.Errorf("the browser's session still works:\n%s", p.Body)
	}
	if got := s.post("/oauth/token", a.refresh(r.RefreshToken)); got.Error != "invalid_grant" {
		t.Errorf("refresh: %d %s", got.Status, got.Body)
	}
	s.srv.allow = allowList{everybody: true}
	if s.alive(r.AccessToken) {
		t.Error("the grant was not ended by the refused refresh")
	}
}

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
	wantPage(t, b.Get(s.authorizeURL(s.ask(s.register(), webRedirect))), 200, "Allow <b>Test Client</b>") // of the same name and address
	s.allow(b, s.ask(client, loopbackRedirect))
	wantPage(t, b.Get(s.authorizeURL(s.ask(client, loopbackRedirect))), 200, "Allow <b>Test Client</b>") // any program could wait there
	s.idp.SetUser(oauthtest.User{Subject: "1002", Email: "bob@example.com"})
	wantPage(t, s.browser().Get(s.authorizeURL(s.ask(client, webRedirect))), 200, "Allow <b>Test Client</b>") // to another user

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

	// A program's own scheme works too, and a second login gives the same caller.
	b2 := s.browser()
	a2 := s.ask(client, "cursor://anysphere.cursor-mcp/oauth/callback")
	id2, err := s.srv.Verify(t.Context(), s.tokens(b2, a2).AccessToken)
	if err != nil || id2.Caller != id.Caller {
		t.Errorf("%+v, %v", id2, err)
	}

	// Nothing that opens a door is in the database or in the log.
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

func TestGrantEnds(t *testing.T) {
	s := newSite(t)
	a := s.ask(s.register(), loopbackRedirect)
	r := s.tokens(s.browser(), a)
	for range 2 {
		s.clock.advance(13 * 24 * time.Hour)
		if r = s.post("/oauth/token", a.refresh(r.RefreshToken)); r.Status != 200 {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
	}
	s.clock.advance(5 * 24 * time.Hour)
	if r = s.post("/oauth/token", a.refresh(r.RefreshToken)); r.Error != "invalid_grant" {
		t.Errorf("after a month without a login: %d %s", r.Status, r.Body)
	}
}
