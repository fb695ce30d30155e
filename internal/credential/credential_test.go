package credential_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
)

var root = []byte("a root key of thirty-two bytes!!")

func openStore(t *testing.T, path string) *store.Store {
	t.Helper()
	st, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func newVault(t *testing.T, st *store.Store, root []byte, older ...[]byte) *credential.Vault {
	t.Helper()
	v, err := credential.NewVault(t.Context(), st, root, older...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestStaticSources(t *testing.T) {
	for name, test := range map[string]struct {
		source  credential.Source
		header  string
		value   string
		secrets []string
	}{
		"bearer": {credential.Bearer(secret.New("k-1")), "Authorization", "Bearer k-1", []string{"k-1"}},
		"basic":  {credential.Basic("me", secret.New("long-password")), "Authorization", "Basic bWU6bG9uZy1wYXNzd29yZA==", []string{"bWU6bG9uZy1wYXNzd29yZA==", "me:long-password", "long-password"}},
		// Freshdesk, Toggl, Stripe and others: the key is the user name.
		"basic with a password that is none": {credential.Basic("a-key", secret.New("X")), "Authorization", "Basic YS1rZXk6WA==", []string{"YS1rZXk6WA==", "a-key:X", "X", "a-key"}},
		"basic without password":             {credential.Basic("sk_live", secret.Value{}), "Authorization", "Basic c2tfbGl2ZTo=", []string{"c2tfbGl2ZTo=", "sk_live:", "sk_live"}},
		"header":                             {credential.Header("DD-API-KEY", secret.New("k-2")), "DD-API-KEY", "k-2", []string{"k-2"}},
		// A service that parses the value may repeat only the secret part.
		"header with a scheme":    {credential.Header("Authorization", secret.New("SSWS 00abcdefghi")), "Authorization", "SSWS 00abcdefghi", []string{"SSWS 00abcdefghi", "00abcdefghi"}},
		"header with a parameter": {credential.Header("Authorization", secret.New(`Token token="0123456789", v=1`)), "Authorization", `Token token="0123456789", v=1`, []string{`Token token="0123456789", v=1`, `token="0123456789", v=1`, "0123456789"}},
	} {
		c, err := test.source.Credential(t.Context(), "anybody")
		if err != nil || c.Header != test.header || c.Value != test.value || !slices.Equal(c.Secrets, test.secrets) || !c.Expires.IsZero() {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// TestVaultRefusesMovedRows: an attacker who can write to the database, but has no key, cannot move
// a token to another caller.
func TestVaultRefusesMovedRows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	st := openStore(t, path)
	v := newVault(t, st, root)
	const alice, bob = "alice-token-0123456789", "bob-token-0123456789"
	for _, row := range []struct{ caller, service, token string }{
		{"user:alice", "datadog", alice}, {"user:bob", "datadog", bob}, {"user:alice", "linear", "other-token"},
	} {
		if err := v.Put(t.Context(), row.caller, row.service, credential.Token{Access: row.token}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := v.Get(t.Context(), "user:alice", "datadog"); err != nil || got.Access != alice {
		t.Fatalf("%+v, %v", got, err)
	}

	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const from = `FROM connections WHERE caller = 'user:alice' AND service = 'datadog'`
	for name, attack := range map[string]struct{ change, caller, service string }{
		"content":                {`sealed = (SELECT sealed ` + from + `)`, "user:bob", "datadog"},
		"key and content":        {`(wrapped, sealed) = (SELECT wrapped, sealed ` + from + `)`, "user:bob", "datadog"},
		"whole row":              {`(id, wrapped, sealed) = (SELECT id, wrapped, sealed ` + from + `)`, "user:bob", "datadog"},
		"whole row, own service": {`(id, wrapped, sealed) = (SELECT id, wrapped, sealed ` + from + `)`, "user:alice", "linear"},
		"key id":                 {`key_id = '0000000000000000'`, "user:bob", "datadog"},
		"row id":                 {`id = 'x'`, "user:bob", "datadog"},
		"nothing":                {`sealed = x''`, "user:bob", "datadog"},
	} {
		saved, err := st.GetConnection(t.Context(), attack.caller, attack.service)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), `UPDATE connections SET `+attack.change+` WHERE caller = ? AND service = ?`, attack.caller, attack.service); err != nil {
			t.Fatal(err)
		}
		if got, err := v.Get(t.Context(), attack.caller, attack.service); err == nil || got.Access != "" {
			t.Errorf("%s moved: it opens as %+v", name, got)
		}
		if err := st.PutConnection(t.Context(), saved); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Get(t.Context(), attack.caller, attack.service); err != nil {
			t.Fatalf("%s put back: %v", name, err)
		}
	}

	// Nothing on disk is readable.
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(path), e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), alice) || strings.Contains(string(data), bob) {
			t.Errorf("%s holds a token in the clear", e.Name())
		}
	}
}

func TestVaultKeys(t *testing.T) {
	st := openStore(t, filepath.Join(t.TempDir(), "state.db"))
	if err := newVault(t, st, root).Put(t.Context(), "c", "s", credential.Token{Access: "secret-token"}); err != nil {
		t.Fatal(err)
	}
	next := []byte("another root key of 32 bytes, ok")
	if _, err := credential.NewVault(t.Context(), st, next); !errors.Is(err, credential.ErrWrongKey) || !strings.Contains(err.Error(), "JWT_SECRET") {
		t.Fatalf("a wrong key: %v", err)
	}
	if got, err := newVault(t, st, root).Get(t.Context(), "c", "s"); err != nil || got.Access != "secret-token" {
		t.Fatalf("after a wrong key was refused: %+v, %v", got, err)
	}
	if got, err := newVault(t, st, next, []byte("not this one"), root).Get(t.Context(), "c", "s"); err != nil || got.Access != "secret-token" {
		t.Fatalf("changed key: %+v, %v", got, err)
	}
	if got, err := newVault(t, st, next).Get(t.Context(), "c", "s"); err != nil || got.Access != "secret-token" {
		t.Fatalf("without the old key: %+v, %v", got, err)
	}
	if _, err := credential.NewVault(t.Context(), st, root); !errors.Is(err, credential.ErrWrongKey) {
		t.Fatalf("the old key still opens it: %v", err)
	}
}

// service is a fake authorization server whose refresh tokens work once.
type service struct {
	*httptest.Server
	refreshes, asked atomic.Int64
	answer           atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool] // instead of the usual answer
	inParams         bool                                                              // expects the client's secret in the form

	mu      sync.Mutex
	current string // the refresh token that works
	revoked []string
}

func newService(t *testing.T) *service {
	s := &service{current: "refresh-0"}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		if f := s.answer.Load(); f != nil && (*f)(w, r) {
			return
		}
		fail := func(status int, code string) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error": %q, "error_description": "about %s"}`, code, r.FormValue("refresh_token"))
		}
		if _, pw, basic := r.BasicAuth(); s.inParams == basic || (basic && pw != "client-secret") || (!basic && r.FormValue("client_secret") != "client-secret") {
			fail(http.StatusUnauthorized, "invalid_client")
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		switch r.FormValue("grant_type") {
		case "authorization_code":
			if r.FormValue("code") != "the-code" || r.FormValue("code_verifier") != "the-verifier" || r.FormValue("redirect_uri") != "https://here/cb" {
				fail(http.StatusBadRequest, "invalid_grant")
				return
			}
		case "refresh_token":
			if r.FormValue("refresh_token") != s.current {
				fail(http.StatusBadRequest, "invalid_grant")
				return
			}
			s.refreshes.Add(1)
		}
		n := s.refreshes.Load()
		s.current = fmt.Sprintf("refresh-%d", n)
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"access_token": fmt.Sprintf("access-%d", n), "refresh_token": s.current, "token_type": "Bearer", "expires_in": 3600})
	})
	mux.HandleFunc("POST /revoke", func(w http.ResponseWriter, r *http.Request) {
		if _, pw, basic := r.BasicAuth(); s.inParams == basic || (basic && pw != "client-secret") || (!basic && r.FormValue("client_secret") != "client-secret") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.revoked = append(s.revoked, r.FormValue("token"))
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *service) connection(v *credential.Vault) *credential.Connection {
	return v.OAuth(credential.OAuthClient{
		Service: "datadog", ClientID: "client", ClientSecret: secret.New("client-secret"),
		AuthorizationURL: s.URL + "/authorize", TokenURL: s.URL + "/token", RevocationURL: s.URL + "/revoke", Scopes: []string{"metrics_read"},
	}, nil)
}

// TestOneRefresh: 50 calls with an expired token, through two vaults on one store like two
// processes, refresh once. A second refresh would reuse a refresh token, and lose the connection.
func TestOneRefresh(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := newService(t)
	a := newVault(t, openStore(t, path), root)
	b := newVault(t, openStore(t, path), root)
	if err := a.Put(t.Context(), "alice", "datadog", credential.Token{Access: "old", Refresh: "refresh-0", Expires: time.Now().Add(-time.Minute)}); err != nil {
		t.Fatal(err)
	}
	conns := []*credential.Connection{s.connection(a), s.connection(b)}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range 50 {
		wg.Go(func() {
			<-start
			c, err := conns[i%2].Credential(t.Context(), "alice")
			if err != nil || c.Value != "Bearer access-1" || !slices.Equal(c.Secrets, []string{"access-1"}) || time.Until(c.Expires) < time.Hour/2 {
				t.Errorf("call %d: %+v, %v", i, c, err)
			}
		})
	}
	close(start)
	wg.Wait()
	if n := s.refreshes.Load(); n != 1 || s.asked.Load() != 1 {
		t.Errorf("%d refreshes, %d questions, want 1", n, s.asked.Load())
	}
}

func TestRefreshFailures(t *testing.T) {
	expired, ending := time.Now().Add(-time.Minute), time.Now().Add(20*time.Second)
	fail := func(status int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprint(w, body)
			return true
		}
	}
	for name, test := range map[string]struct {
		token     credential.Token
		answer    func(http.ResponseWriter, *http.Request) bool
		value     string // wanted
		lost      bool   // no longer connected
		connected bool   // afterwards
	}{
		"grant ended":            {credential.Token{Access: "old", Refresh: "stale", Expires: expired}, nil, "", true, false},
		"server error":           {credential.Token{Access: "old", Refresh: "refresh-0", Expires: expired}, fail(500, `oops refresh-0`), "", false, true},
		"client refused":         {credential.Token{Access: "old", Refresh: "refresh-0", Expires: expired}, fail(401, `{"error": "invalid_client"}`), "", false, true},
		"nonsense":               {credential.Token{Access: "old", Refresh: "refresh-0", Expires: expired}, fail(200, `{"access_token": `), "", false, true},
		"server error with time": {credential.Token{Access: "old", Refresh: "refresh-0", Expires: ending}, fail(500, `{}`), "Bearer old", false, true},
		"nothing to refresh":     {credential.Token{Access: "old", Expires: expired}, nil, "", true, false},
		"no end":                 {credential.Token{Access: "old"}, nil, "Bearer old", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			v := newVault(t, openStore(t, filepath.Join(t.TempDir(), "state.db")), root)
			conn := s.connection(v)
			if err := v.Put(t.Context(), "alice", "datadog", test.token); err != nil {
				t.Fatal(err)
			}
			if test.answer != nil {
				s.answer.Store(&test.answer)
			}
			c, err := conn.Credential(t.Context(), "alice")
			if c.Value != test.value || errors.Is(err, credential.ErrNotConnected) != test.lost || (err == nil) != (test.value != "") {
				t.Errorf("%+v, %v", c, err)
			}
			if err != nil && (strings.Contains(err.Error(), "refresh-0") || strings.Contains(err.Error(), "client-secret")) {
				t.Errorf("the error shows a secret: %v", err)
			}
			if ok, err := conn.Connected(t.Context(), "alice"); ok != test.connected || err != nil {
				t.Errorf("connected afterwards: %t, %v", ok, err)
			}
			s.answer.Store(nil)
			if c, err := conn.Credential(t.Context(), "alice"); test.connected && err != nil {
				t.Errorf("when the service is well again: %+v, %v", c, err) // the lease was released
			}
		})
	}
}

func TestConnectAndDisconnect(t *testing.T) {
	for _, inParams := range []bool{false, true} {
		s := newService(t)
		s.inParams = inParams
		conn := s.connection(newVault(t, openStore(t, filepath.Join(t.TempDir(), "state.db")), root))
		address := conn.AuthorizeURL("the-state", "the-verifier", "https://here/cb")
		for _, want := range []string{s.URL + "/authorize?", "state=the-state", "code_challenge_method=S256", "redirect_uri=https%3A%2F%2Fhere%2Fcb", "client_id=client", "scope=metrics_read", "response_type=code"} {
			if !strings.Contains(address, want) {
				t.Errorf("%s lacks %s", address, want)
			}
		}
		if strings.Contains(address, "the-verifier") {
			t.Errorf("%s shows the verifier", address)
		}
		if err := conn.Exchange(t.Context(), "alice", "another-code", "the-verifier", "https://here/cb"); err == nil {
			t.Error("a wrong code was exchanged")
		}
		if err := conn.Exchange(t.Context(), "alice", "the-code", "the-verifier", "https://here/cb"); err != nil {
			t.Fatal(err)
		}
		if c, err := conn.Credential(t.Context(), "alice"); err != nil || c.Value != "Bearer access-0" {
			t.Errorf("%+v, %v", c, err)
		}
		if _, err := conn.Credential(t.Context(), "bob"); !errors.Is(err, credential.ErrNotConnected) {
			t.Errorf("another person: %v", err)
		}
		if err := conn.Disconnect(t.Context(), "alice"); err != nil {
			t.Error(err)
		}
		if _, err := conn.Credential(t.Context(), "alice"); !errors.Is(err, credential.ErrNotConnected) {
			t.Errorf("disconnected: %v", err)
		}
		if want := []string{"refresh-0", "access-0"}; !slices.Equal(s.revoked, want) {
			t.Errorf("revoked %q, want %q", s.revoked, want)
		}
		if err := conn.Disconnect(t.Context(), "alice"); err != nil {
			t.Errorf("again: %v", err)
		}
	}
}

// TestDisconnectDuringRefresh: a token that arrives after its caller has disconnected is revoked.
func TestDisconnectDuringRefresh(t *testing.T) {
	s := newService(t)
	v := newVault(t, openStore(t, filepath.Join(t.TempDir(), "state.db")), root)
	conn := s.connection(v)
	if err := v.Put(t.Context(), "alice", "datadog", credential.Token{Access: "old", Refresh: "refresh-0", Expires: time.Now().Add(-time.Minute)}); err != nil {
		t.Fatal(err)
	}
	disconnect := func(http.ResponseWriter, *http.Request) bool {
		if err := conn.Disconnect(context.Background(), "alice"); err != nil {
			t.Error(err)
		}
		return false
	}
	s.answer.Store(&disconnect)
	if _, err := conn.Credential(t.Context(), "alice"); !errors.Is(err, credential.ErrNotConnected) {
		t.Errorf("%v", err)
	}
	if !slices.Contains(s.revoked, "access-1") || !slices.Contains(s.revoked, "refresh-1") {
		t.Errorf("revoked: %q", s.revoked)
	}
}
