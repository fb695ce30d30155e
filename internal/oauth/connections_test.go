package oauth

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/oauth2"

	"mcp-code-sandbox/internal/oauth/oauthtest"
)

const serviceAuthorize = "https://client.example/authorize" // where the browsers of these tests stop

// connectSite has two services to connect and one of the operator.
func connectSite(t *testing.T) (s *site, datadog, linear *fakeConnection) {
	datadog, linear = &fakeConnection{at: serviceAuthorize}, &fakeConnection{at: serviceAuthorize}
	s = newSite(t, func(c *Config) {
		c.Connections = map[string]Connection{"datadog": datadog, "linear": linear}
		c.Services = func(_ context.Context, caller string) []ServiceState {
			datadog.mu.Lock()
			defer datadog.mu.Unlock()
			connected := slices.ContainsFunc(datadog.exchanged, func(e string) bool { return strings.HasPrefix(e, caller+" ") }) && !slices.Contains(datadog.disconnected, caller)
			return []ServiceState{{Name: "datadog", DisplayName: "Datadog <EU>", Connected: connected}, {Name: "linear"}, {Name: "weather", Connected: true}}
		}
	})
	return s, datadog, linear
}

func (s *site) login(b *oauthtest.Browser, u oauthtest.User) string {
	s.t.Helper()
	if s.loggedIn(b) {
		b.Submit(b.Get(s.url("/connections")), "/connections/logout", nil)
	}
	s.idp.SetUser(u)
	if p := b.Get(s.url("/oauth/login")); !strings.Contains(p.Body, u.Email) {
		s.t.Fatalf("not logged in as %s:\n%s", u.Email, p.Body)
	}
	return person{issuer: s.idp.URL, subject: u.Subject}.caller()
}

var (
	annsAccount = oauthtest.User{Subject: "1001", Email: "ann@example.com"}
	bobsAccount = oauthtest.User{Subject: "1002", Email: "bob@example.com"}
)

// startConnect starts a connection and returns the service's answer.
func (s *site) startConnect(b *oauthtest.Browser, service string) url.Values {
	s.t.Helper()
	p := b.Submit(b.Get(s.url("/connections")), "/"+service+"/connect", nil)
	q := p.URL.Query()
	if p.Status != 0 || q.Get("redirect_uri") != s.url("/connections/callback/"+service) || len(q.Get("state")) < 40 {
		s.t.Fatalf("arrived at %s", p.URL)
	}
	return url.Values{"state": {q.Get("state")}, "code": {"the-code"}}
}

func (s *site) callback(service string, q url.Values) string {
	return s.url("/connections/callback/" + service + "?" + q.Encode())
}

func TestConnectionIsMadeByWhoBeganIt(t *testing.T) {
	s, datadog, linear := connectSite(t)
	ann, bob := s.browser(), s.browser()
	annID := s.login(ann, annsAccount)
	bobID := s.login(bob, bobsAccount)

	// Ann sends Bob her link, or the answer to it: one of them would use the other's account.
	answer := s.startConnect(ann, "datadog")
	wantPage(t, bob.Get(s.callback("datadog", answer)), 400, "not made for this browser")
	// The right browser, but Ann has logged out, and then Bob has logged in.
	ann.Submit(ann.Get(s.url("/connections")), "/connections/logout", nil)
	wantPage(t, ann.Get(s.callback("datadog", answer)), 400, "cannot be used")
	s.login(ann, annsAccount)
	answer = s.startConnect(ann, "datadog")
	s.login(ann, bobsAccount)
	wantPage(t, ann.Get(s.callback("datadog", answer)), 400, "cannot be used")
	s.login(ann, annsAccount)
	// Mix-up: a connection to one service ends at another.
	wantPage(t, ann.Get(s.callback("linear", s.startConnect(ann, "datadog"))), 400, "cannot be used")
	// The state of a login is not valid for a connection.
	fresh := s.browser()
	login, err := url.Parse(s.answerOf(fresh))
	if err != nil {
		t.Fatal(err)
	}
	s.login(fresh, annsAccount)
	wantPage(t, fresh.Get(s.callback("datadog", login.Query())), 400, "cannot be used")
	wantPage(t, ann.Get(s.callback("datadog", url.Values{"state": {newSecret()}, "code": {"x"}})), 400, "cannot be used")
	wantPage(t, ann.Get(s.callback("unknown", s.startConnect(ann, "datadog"))), 404, "Service not found")
	two := s.startConnect(ann, "datadog")
	two.Add("code", "another")
	wantPage(t, ann.Get(s.callback("datadog", two)), 400, "cannot be used")
	if len(datadog.exchanged)+len(linear.exchanged) != 0 {
		t.Fatalf("exchanged %v, %v", datadog.exchanged, linear.exchanged)
	}

	// The intended way.
	p := ann.Submit(ann.Get(s.url("/connections")), "/datadog/connect", nil)
	challenge := p.URL.Query().Get("challenge")
	answer = url.Values{"state": {p.URL.Query().Get("state")}, "code": {"anns-code"}}
	wantPage(t, ann.Get(s.callback("datadog", answer)), 200, "Connected.")
	if !slices.Equal(datadog.exchanged, []string{annID + " anns-code"}) || oauth2.S256ChallengeFromVerifier(datadog.verifier) != challenge || datadog.redirect != s.url("/connections/callback/datadog") {
		t.Errorf("%+v", datadog)
	}
	wantPage(t, ann.Get(s.callback("datadog", answer)), 400, "used before")

	// Only Ann is connected, and only she can disconnect.
	page := ann.Get(s.url("/connections"))
	for _, want := range []string{"Datadog &lt;EU&gt;", `/datadog/disconnect"`, `/linear/connect"`, "provided by the operator"} {
		if !strings.Contains(page.Body, want) {
			t.Errorf("the page does not have %q:\n%s", want, page.Body)
		}
	}
	if !strings.Contains(bob.Get(s.url("/connections")).Body, `/datadog/connect"`) {
		t.Error("bob is connected")
	}
	wantPage(t, ann.Submit(page, "/datadog/disconnect", nil), 200, "Disconnected.")
	if !slices.Equal(datadog.disconnected, []string{annID}) || annID == bobID {
		t.Errorf("%v", datadog.disconnected)
	}
	datadog.err = errors.New("svc-secret is in here")
	wantPage(t, bob.Get(s.callback("datadog", s.startConnect(bob, "datadog"))), 200, "did not answer as it should")
}

func TestConnectionRefusedByTheService(t *testing.T) {
	s, datadog, _ := connectSite(t)
	ann := s.browser()
	s.login(ann, annsAccount)
	answer := s.startConnect(ann, "datadog")
	answer.Set("error", "access_denied")
	wantPage(t, ann.Get(s.callback("datadog", answer)), 200, "the service refused")
	if len(datadog.exchanged) != 0 {
		t.Errorf("exchanged %v", datadog.exchanged)
	}
	if p := ann.Get(s.url("/connections?done=%3Cscript%3E")); strings.Contains(p.Body, "script") || strings.Contains(p.Body, `class="message"`) {
		t.Errorf("what the address says is shown:\n%s", p.Body)
	}
}

// No other site can send these forms.
func TestConnectionFormsAreNotForged(t *testing.T) {
	s, datadog, _ := connectSite(t)
	ann, bob := s.browser(), s.browser()
	s.login(ann, annsAccount)
	s.login(bob, bobsAccount)
	_, bobs := bob.Form(bob.Get(s.url("/connections")), "/connections/logout")
	_, own := ann.Form(ann.Get(s.url("/connections")), "/connections/logout")
	for _, path := range []string{"/connections/datadog/connect", "/connections/datadog/disconnect", "/connections/logout", "/connections/login", "/connections/apps/x/revoke"} {
		for name, c := range map[string]struct {
			form    url.Values
			headers map[string]string
		}{
			"no token":       {url.Values{}, nil},
			"bob's token":    {bobs, nil},
			"another origin": {own, map[string]string{"Origin": "https://evil.example"}},
			"a null origin":  {own, map[string]string{"Origin": "null"}},
			"another site":   {own, map[string]string{"Sec-Fetch-Site": "cross-site"}},
			"same site":      {own, map[string]string{"Sec-Fetch-Site": "same-site"}},
		} {
			if p := ann.Post(s.url(path), c.form, nil, c.headers); p.Status != 403 {
				t.Errorf("%s with %s: %d", path, name, p.Status)
			}
		}
		if p := ann.Get(s.url(path)); p.Status != 405 && p.Status != 404 {
			t.Errorf("GET %s: %d", path, p.Status)
		}
		if p := s.browser().Post(s.url(path), own, nil, nil); p.Status != 403 {
			t.Errorf("%s without cookies: %d", path, p.Status)
		}
	}
	// A form from before a login is invalid after it.
	fresh := s.browser()
	before := fresh.Get(s.url("/connections"))
	s.login(fresh, annsAccount)
	wantPage(t, fresh.Submit(before, "/connections/login", map[string]string{"token": apiToken}), 403, "out of date")
	if !s.loggedIn(ann) || len(datadog.disconnected) != 0 {
		t.Error("a forged form did something")
	}
}

func TestUserRevokesClient(t *testing.T) {
	s := newSite(t)
	a := s.ask(s.register(), webRedirect)
	ann, bob := s.browser(), s.browser()
	token := s.tokens(ann, a).AccessToken
	page := ann.Get(s.url("/connections"))
	wantPage(t, page, 200, "Test Client")
	to, _ := ann.Form(page, "/revoke")

	s.login(bob, bobsAccount)
	bobsPage := bob.Get(s.url("/connections"))
	if strings.Contains(bobsPage.Body, "Test Client") {
		t.Error("bob sees ann's clients")
	}
	_, form := bob.Form(bobsPage, "/connections/logout")
	bob.Post(to, form, nil, nil)
	if !s.alive(token) {
		t.Fatal("bob ended ann's grant")
	}
	wantPage(t, ann.Submit(page, "/revoke", nil), 200, "Access revoked.")
	if s.alive(token) {
		t.Error("the token outlives its grant")
	}
	wantPage(t, ann.Get(s.authorizeURL(s.ask(a.Get("client_id"), webRedirect))), 200, "Allow <b>Test Client</b>") // no longer remembered
}

func TestWhatIsNotConfiguredIsNotThere(t *testing.T) {
	paths := []string{"/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp", "/oauth/authorize", "/oauth/login"}
	for name, c := range map[string]struct {
		connections map[string]Connection
		status      int // of /connections
	}{
		"only services": {map[string]Connection{"datadog": &fakeConnection{at: serviceAuthorize}}, 200},
		"nothing":       {nil, 404},
	} {
		s := newSite(t, func(cfg *Config) { cfg.Upstream, cfg.Connections = Upstream{}, c.connections })
		for _, path := range paths {
			if r := s.send("GET", path, "", ""); r.Status != 404 {
				t.Errorf("%s: %s: %d", name, path, r.Status)
			}
		}
		if r := s.send("GET", "/connections", "", ""); r.Status != c.status {
			t.Errorf("%s: %d", name, r.Status)
		}
		if s.srv.Challenge() != "" || s.alive("at1.x.y.z") {
			t.Errorf("%s: challenge %q", name, s.srv.Challenge())
		}
		if c.connections != nil { // the API token's holder connects
			b := s.browser()
			b.Submit(b.Get(s.url("/connections")), "/connections/login", map[string]string{"token": apiToken})
			if !s.loggedIn(b) {
				t.Error("the API token does not open the page")
			}
		}
	}
}
