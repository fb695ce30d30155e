package oauth

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/oauth/oauthtest"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/store/storetest"
)

// newPostgresSite is newSite with a Postgres, which storetest.Stop stops.
func newPostgresSite(t *testing.T, where string) *site {
	t.Helper()
	db, err := store.Open(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return newSite(t, func(c *Config) {
		c.Store = db
		if c.Vault, err = credential.NewVault(t.Context(), db, rootKey); err != nil {
			t.Fatal(err)
		}
	})
}

const unchecked = "logins cannot be checked now; try again in 10 seconds"

// TestPostgresDown: while the database does not answer, clients and browsers are asked to try
// again, and nobody loses a login.
func TestPostgresDown(t *testing.T) {
	s := newPostgresSite(t, storetest.Postgres(t))
	b, a := s.browser(), s.ask(s.register(), loopbackRedirect)
	r := s.tokens(b, a)
	start := storetest.Stop(t)
	for name, got := range map[string]reply{
		"refresh":  s.post("/oauth/token", a.refresh(r.RefreshToken)),
		"exchange": s.post("/oauth/token", a.exchange("code")),
		"revoke":   s.post("/oauth/revoke", url.Values{"token": {r.RefreshToken}, "client_id": a.Values["client_id"]}),
		"register": s.send("POST", "/oauth/register", "application/json", `{"redirect_uris": ["`+webRedirect+`"]}`),
	} {
		if got.Status != http.StatusServiceUnavailable || got.Error != "temporarily_unavailable" || got.Description != unchecked || got.Header.Get("Retry-After") != "10" {
			t.Errorf("%s: %d %v %s", name, got.Status, got.Header, got.Body)
		}
	}
	for browser, at := range map[*oauthtest.Browser]string{b: s.url("/connections"), s.browser(): s.authorizeURL(a)} {
		page := browser.Get(at)
		wantPage(t, page, http.StatusServiceUnavailable, "Try again in a moment.")
		if page.Header.Get("Retry-After") != "10" || strings.Contains(page.Body, "failed to connect") {
			t.Errorf("%s: %v\n%s", at, page.Header, page.Body)
		}
	}
	start()
	if !s.alive(r.AccessToken) || !s.loggedIn(b) {
		t.Error("a login is lost")
	}
	if next := s.post("/oauth/token", a.refresh(r.RefreshToken)); next.Status != http.StatusOK {
		t.Errorf("the refresh token is lost: %d %s", next.Status, next.Body)
	}
}

// TestSlowPostgres: if the database does not answer about a user, nobody blames the login provider.
func TestSlowPostgres(t *testing.T) {
	where := storetest.Postgres(t)
	s := newPostgresSite(t, where)
	a := s.ask(s.register(), loopbackRedirect)
	r := s.tokens(s.browser(), a)
	db, err := sql.Open("pgx", where)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	lock, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback()
	if _, err := lock.Exec(`LOCK TABLE users`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	req := httptest.NewRequestWithContext(ctx, "POST", s.url("/oauth/token"), strings.NewReader(a.refresh(r.RefreshToken).Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	s.srv.Handler().ServeHTTP(w, req)
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), unchecked) || strings.Contains(s.log.String(), "the login provider did not answer") {
		t.Errorf("%d %s\n%s", w.Code, w.Body, s.log)
	}
}

// TestRefreshReadsNothingAfterwards: once a refresh token is used up, no failure to read the user
// makes the client send it again, which would end the grant.
func TestRefreshReadsNothingAfterwards(t *testing.T) {
	s := newSite(t)
	a := s.ask(s.register(), loopbackRedirect)
	r := s.tokens(s.browser(), a)
	db, err := sql.Open("sqlite", s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TRIGGER gone AFTER INSERT ON oauth_refresh_tokens BEGIN DELETE FROM users; END`); err != nil {
		t.Fatal(err)
	}
	if next := s.post("/oauth/token", a.refresh(r.RefreshToken)); next.Status != http.StatusOK {
		t.Errorf("%d %s", next.Status, next.Body)
	}
}
