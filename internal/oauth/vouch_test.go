package oauth

import (
	"bytes"
	"os"
	"testing"
	"time"

	"mcp-code-sandbox/internal/oauth/oauthtest"
	"mcp-code-sandbox/internal/secret"
)

// TestRemovedUserLosesAccess: a user whose account at the provider was closed keeps refreshing.
func TestRemovedUserLosesAccess(t *testing.T) {
	github := func(s *oauthtest.Provider) func(*Config) {
		return func(c *Config) {
			c.Upstream = Upstream{Kind: "oauth", AuthorizationURL: s.URL + "/login/oauth/authorize", TokenURL: s.URL + "/login/oauth/access_token", UserInfoURL: s.URL + "/user",
				ClientID: s.ClientID, ClientSecret: secret.New(s.ClientSecret), AllowedDomains: []string{"example.com"}}
		}
	}
	for name, setup := range map[string]func(t *testing.T) (*site, *oauthtest.Provider){
		"OpenID Connect": func(t *testing.T) (*site, *oauthtest.Provider) {
			s := newSite(t)
			return s, s.idp
		},
		"OpenID Connect with refresh tokens": func(t *testing.T) (*site, *oauthtest.Provider) {
			s := newSite(t)
			s.idp.ShortTokens()
			return s, s.idp
		},
		"GitHub": func(t *testing.T) (*site, *oauthtest.Provider) {
			hub := oauthtest.NewGitHub(t)
			return newSite(t, github(hub)), hub
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, idp := setup(t)
			idp.EditClaims(func(c map[string]any) { c["exp"] = s.clock.now().Add(time.Minute).Unix() })
			b := s.browser()
			a := s.ask(s.register(), loopbackRedirect)
			r := s.tokens(b, a)
			asked := idp.Asked()
			refresh := func() bool {
				t.Helper()
				next := s.post("/oauth/token", a.refresh(r.RefreshToken))
				if next.Status != 200 {
					if next.Error != "invalid_grant" {
						t.Errorf("refused with %d %s", next.Status, next.Body)
					}
					return false
				}
				r = next
				return true
			}
			// A user whom the provider knows stays logged in, and the provider is not asked each
			// time.
			for range 8 {
				s.clock.advance(14 * time.Minute)
				if !refresh() || !s.alive(r.AccessToken) || !s.loggedIn(b) {
					t.Fatal("a user of the provider's has lost access")
				}
			}
			if n := idp.Asked() - asked; n < 2 || n > 8 {
				t.Errorf("in two hours the provider was asked %d times", n)
			}

			text, err := os.ReadFile(s.path)
			if wal, werr := os.ReadFile(s.path + "-wal"); werr == nil {
				text = append(text, wal...)
			}
			for _, token := range idp.Tokens() {
				if err != nil || bytes.Contains(text, []byte(token)) {
					t.Errorf("the store has a token of the provider's in plain text (%v)", err)
				}
			}

			idp.Remove("1001")
			began := s.clock.now()
			for s.alive(r.AccessToken) || s.loggedIn(b) {
				if s.clock.now().Sub(began) >= time.Hour {
					t.Fatal("after an hour, a removed user still has access")
				}
				s.clock.advance(5 * time.Minute)
				refresh()
			}
			if refresh() {
				t.Error("a removed user can refresh")
			}
			// When the account is back, the person logs in again, and the same grant continues.
			b.Get(s.url("/oauth/login"))
			if !refresh() || !s.alive(r.AccessToken) {
				t.Error("after a new login, the client stays out")
			}
		})
	}
}

// TestProviderDown: while the provider is down, users stay logged in for a while, and no refresh
// token is lost.
func TestProviderDown(t *testing.T) {
	s := newSite(t)
	b := s.browser()
	a := s.ask(s.register(), loopbackRedirect)
	r := s.tokens(b, a)
	s.idp.SetDown(true)
	s.clock.advance(40 * time.Minute)
	next := s.post("/oauth/token", a.refresh(r.RefreshToken))
	if next.Status != 200 || !s.loggedIn(b) {
		t.Fatalf("after 40 minutes: %d %s", next.Status, next.Body)
	}
	s.clock.advance(20 * time.Minute)
	for range 2 {
		if r = s.post("/oauth/token", a.refresh(next.RefreshToken)); r.Status != 503 || r.Error != "temporarily_unavailable" {
			t.Errorf("after an hour: %d %s", r.Status, r.Body)
		}
	}
	if s.alive(next.AccessToken) || s.loggedIn(b) {
		t.Error("after an hour, somebody whom nobody vouches for has access")
	}
	s.idp.SetDown(false)
	if r = s.post("/oauth/token", a.refresh(next.RefreshToken)); r.Status != 200 || !s.loggedIn(b) {
		t.Errorf("when the provider is back: %d %s", r.Status, r.Body)
	}

	// A new address at the provider takes effect at once.
	s.idp.Rename("1001", "ann@elsewhere.example")
	s.clock.advance(40 * time.Minute)
	if r = s.post("/oauth/token", a.refresh(r.RefreshToken)); r.Status != 400 || r.Error != "invalid_grant" {
		t.Errorf("with an address that is not allowed: %d %s", r.Status, r.Body)
	}
}

// TestNoVault: if the provider's tokens are not stored, logins end.
func TestNoVault(t *testing.T) {
	s := newSite(t, func(c *Config) { c.Vault = nil })
	b := s.browser()
	a := s.ask(s.register(), loopbackRedirect)
	r := s.tokens(b, a)
	s.clock.advance(40 * time.Minute)
	if r = s.post("/oauth/token", a.refresh(r.RefreshToken)); r.Error != "invalid_grant" || s.loggedIn(b) {
		t.Errorf("%d %s", r.Status, r.Body)
	}
}
