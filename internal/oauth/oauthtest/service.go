package oauthtest

import (
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Service is a service's authorization server at /oauth2/v1/authorize, /oauth2/v1/token and
// /oauth2/v1/revoke. It rotates refresh tokens, which work once.
type Service struct {
	URL, ClientID, ClientSecret string

	mu        sync.Mutex
	account   string
	ttl       time.Duration
	codes     map[string]serviceCode
	access    map[string]serviceToken
	refresh   map[string]string // account
	issued    []string
	refreshes int
	refuse    bool
}

type serviceCode struct{ account, redirect, challenge string }

type serviceToken struct {
	account string
	expires time.Time
}

// NewService starts a service that connects everybody to the chosen account, "acct-1" at first.
func NewService(t testing.TB) *Service {
	s := &Service{ClientID: "sandbox-at-service", ClientSecret: "service-secret-" + rand.Text(), account: "acct-1", ttl: time.Hour,
		codes: map[string]serviceCode{}, access: map[string]serviceToken{}, refresh: map[string]string{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /oauth2/v1/authorize", s.authorize)
	mux.HandleFunc("POST /oauth2/v1/token", s.token)
	mux.HandleFunc("POST /oauth2/v1/revoke", s.revoke)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	s.URL = srv.URL
	return s
}

// AuthorizationURL, TokenURL and RevocationURL are the URLs to configure.
func (s *Service) AuthorizationURL() string { return s.URL + "/oauth2/v1/authorize" }
func (s *Service) TokenURL() string         { return s.URL + "/oauth2/v1/token" }
func (s *Service) RevocationURL() string    { return s.URL + "/oauth2/v1/revoke" }

// SetAccount chooses the account of the next connections.
func (s *Service) SetAccount(account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.account = account
}

// SetTTL sets the lifetime of new access tokens.
func (s *Service) SetTTL(ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttl = ttl
}

// Refuse makes the person refuse, or stops that.
func (s *Service) Refuse(refuse bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// Account returns the account of a valid access token.
func (s *Service) Account(token string) (account string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.access[token]
	return t.account, ok && time.Now().Before(t.expires)
}

// Refreshes returns how many refresh tokens were used.
func (s *Service) Refreshes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refreshes
}

// Issued returns every access and refresh token ever issued.
func (s *Service) Issued() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.issued...)
}

func (s *Service) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("client_id") != s.ClientID || q.Get("response_type") != "code" || len(q.Get("state")) < 32 || len(q.Get("code_challenge")) != 43 || q.Get("code_challenge_method") != "S256" {
		http.Error(w, "client_id, response_type, state or PKCE is wrong", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := url.Values{"state": {q.Get("state")}}
	if s.refuse {
		answer.Set("error", "access_denied")
	} else {
		code := rand.Text()
		s.codes[code] = serviceCode{s.account, q.Get("redirect_uri"), q.Get("code_challenge")}
		answer.Set("code", code)
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+answer.Encode(), http.StatusFound)
}

func (s *Service) token(w http.ResponseWriter, r *http.Request) {
	if !validClient(r, s.ClientID, s.ClientSecret) {
		writeJSON(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var account string
	var ok bool
	switch r.PostFormValue("grant_type") {
	case "authorization_code":
		var c serviceCode
		c, ok = s.codes[r.PostFormValue("code")]
		delete(s.codes, r.PostFormValue("code"))
		ok = ok && r.PostFormValue("redirect_uri") == c.redirect && verifiesChallenge(r.PostFormValue("code_verifier"), c.challenge)
		account = c.account
	case "refresh_token":
		if account, ok = s.refresh[r.PostFormValue("refresh_token")]; ok {
			s.refreshes++
			delete(s.refresh, r.PostFormValue("refresh_token"))
		}
	}
	if !ok {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
		return
	}
	access, refresh := "svc-access-"+rand.Text(), "svc-refresh-"+rand.Text()
	s.access[access] = serviceToken{account, time.Now().Add(s.ttl)}
	s.refresh[refresh] = account
	s.issued = append(s.issued, access, refresh)
	writeJSON(w, 200, map[string]any{"access_token": access, "refresh_token": refresh, "token_type": "Bearer", "expires_in": int(s.ttl / time.Second)})
}

func (s *Service) revoke(w http.ResponseWriter, r *http.Request) {
	if !validClient(r, s.ClientID, s.ClientSecret) {
		writeJSON(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.access, r.PostFormValue("token"))
	delete(s.refresh, r.PostFormValue("token"))
	w.WriteHeader(http.StatusOK)
}
