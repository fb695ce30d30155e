package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/httpapi"
	"mcp-code-sandbox/internal/oauth"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/store/storetest"
)

// TestLoginsWithoutDatabase: without its database, the server calls no login wrong or ended, since
// clients would forget it.
func TestLoginsWithoutDatabase(t *testing.T) {
	const issuer = "http://127.0.0.1:1"
	db, err := store.Open(t.Context(), storetest.SQLite(t))
	if err != nil {
		t.Fatal(err)
	}
	keys := executiontoken.NewKeys(bytes.Repeat([]byte{7}, 32), "access")
	login, err := oauth.New(oauth.Config{
		Issuer: issuer, Resource: issuer + "/mcp", Store: db, Keys: keys,
		Upstream: oauth.Upstream{Kind: "oidc", Issuer: issuer, ClientID: "c", AllowedDomains: []string{"example.com"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := json.Marshal(map[string]any{"iss": issuer, "aud": issuer + "/mcp", "grt": "g", "exp": time.Now().Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	users, token := people{login, db}, keys.Seal("at1", claims)
	refresh := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/oauth/token", strings.NewReader("grant_type=refresh_token&client_id=c&refresh_token=r"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		login.Handler().ServeHTTP(w, r)
		return w
	}
	if _, _, err := users.Verify(t.Context(), token); err != httpapi.ErrTokenEnded {
		t.Errorf("a token of a grant that does not exist: %v", err)
	}
	if w := refresh(); !strings.Contains(w.Body.String(), "invalid_grant") {
		t.Errorf("a refresh token that does not exist: %d %s", w.Code, w.Body)
	}
	db.Close()
	if _, _, err := users.Verify(t.Context(), token); !errors.Is(err, httpapi.ErrUnchecked) {
		t.Errorf("without the database: %v", err)
	}
	if _, _, err := users.Verify(t.Context(), "guess"); !errors.Is(err, oauth.ErrInvalidToken) {
		t.Errorf("a wrong token without the database: %v", err)
	}
	if w := refresh(); w.Code < http.StatusInternalServerError || strings.Contains(w.Body.String(), "invalid_grant") {
		t.Errorf("a refresh without the database: %d %s", w.Code, w.Body)
	}
}
