package oauth

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/store/storetest"
)

// TestServersWithOtherClocks: servers on one Postgres whose clocks are five minutes off accept each
// other's codes, tokens and logins, which last for less.
func TestServersWithOtherClocks(t *testing.T) {
	where := storetest.Postgres(t)
	open := func(off time.Duration) *store.Store {
		t.Helper()
		s, err := store.OpenWithClock(t.Context(), where, func() time.Time { return time.Now().Round(0).Add(off) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	for _, off := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		var cfg Config
		s := newSite(t, func(c *Config) {
			c.Store, c.Now = open(off), nil
			vault, err := credential.NewVault(t.Context(), c.Store, rootKey)
			if err != nil {
				t.Fatal(err)
			}
			c.Vault, cfg = vault, *c
		})
		cfg.Store = open(0)
		other, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		a := s.ask(s.register(), loopbackRedirect)
		code := s.allow(s.browser(), a).Get("code")

		exchange := func(form url.Values) (r reply) {
			t.Helper()
			req := httptest.NewRequestWithContext(t.Context(), "POST", s.url("/oauth/token"), strings.NewReader(form.Encode()))
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := httptest.NewRecorder()
			other.Handler().ServeHTTP(w, req)
			if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || r.AccessToken == "" {
				t.Fatalf("%d %s, %v", w.Code, w.Body, err)
			}
			return r
		}
		first := exchange(a.exchange(code))
		second := s.post("/oauth/token", a.refresh(first.RefreshToken))
		for _, token := range []string{first.AccessToken, second.AccessToken} {
			id, err := other.Verify(t.Context(), token)
			if !s.alive(token) || err != nil || id.Expires.Sub(cfg.Store.Now()) > accessTTL+time.Minute {
				t.Errorf("off by %v: %+v, %v", off, id, err)
			}
		}
		exchange(a.refresh(second.RefreshToken))
	}
}
