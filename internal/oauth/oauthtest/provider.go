// Package oauthtest has real servers on loopback for tests of logins and connections: login
// providers, a service with OAuth, and a browser. The servers check requests strictly, and approve
// what a person would be asked.
package oauthtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// User has an account at a provider.
type User struct {
	Subject, Email, Name string
	Unverified           bool // the e-mail address
}

// Provider is a login provider: OpenID Connect, or OAuth like GitHub's. It logs everybody in as the
// chosen user.
type Provider struct {
	// URL is the issuer.
	URL, ClientID, ClientSecret string

	key *ecdsa.PrivateKey

	mu     sync.Mutex
	user   User
	codes  map[string]grantedCode
	tokens map[string]User
	fresh  map[string]User // by refresh token
	short  bool            // see ShortTokens
	down   bool
	asked  int
	claims func(map[string]any)
	answer func(url.Values)
	logins int
}

type grantedCode struct {
	user                       User
	redirect, challenge, nonce string
}

// NewProvider starts an OpenID Connect provider.
func NewProvider(t testing.TB) *Provider {
	p := newProvider(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discovery)
	mux.HandleFunc("GET /jwks", p.jwks)
	mux.HandleFunc("GET /authorize", p.authorize)
	mux.HandleFunc("POST /token", p.token)
	mux.HandleFunc("GET /userinfo", p.userInfo)
	p.start(t, mux)
	return p
}

// NewGitHub starts a provider with GitHub's URLs: /login/oauth/authorize,
// /login/oauth/access_token, /user and /user/emails.
func NewGitHub(t testing.TB) *Provider {
	p := newProvider(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /login/oauth/authorize", p.authorize)
	mux.HandleFunc("POST /login/oauth/access_token", p.token)
	mux.HandleFunc("GET /user", p.githubUser)
	mux.HandleFunc("GET /user/emails", p.githubEmails)
	p.start(t, mux)
	return p
}

func newProvider(t testing.TB) *Provider {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Provider{ClientID: "sandbox-at-idp", ClientSecret: "idp-secret-" + rand.Text(), key: key,
		user:  User{Subject: "1001", Email: "ann@example.com", Name: "Ann"},
		codes: map[string]grantedCode{}, tokens: map[string]User{}, fresh: map[string]User{}}
}

func (p *Provider) start(t testing.TB, h http.Handler) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		down := p.down
		p.mu.Unlock()
		if down {
			http.Error(w, "maintenance", http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	p.URL = srv.URL
}

// SetUser chooses the user of the next logins.
func (p *Provider) SetUser(u User) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.user = u
}

// ShortTokens makes access tokens expire at once, and adds refresh tokens that work once.
func (p *Provider) ShortTokens() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.short = true
}

// Remove removes a user's account and all its tokens.
func (p *Provider) Remove(subject string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range []map[string]User{p.tokens, p.fresh} {
		maps.DeleteFunc(list, func(_ string, u User) bool { return u.Subject == subject })
	}
}

// Rename changes a user's e-mail address.
func (p *Provider) Rename(subject, email string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range []map[string]User{p.tokens, p.fresh} {
		for token, u := range list {
			if u.Subject == subject {
				u.Email = email
				list[token] = u
			}
		}
	}
}

// SetDown makes every request fail with 503, or stops that.
func (p *Provider) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// Tokens returns the tokens that are valid.
func (p *Provider) Tokens() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(slices.Collect(maps.Keys(p.tokens)), slices.Collect(maps.Keys(p.fresh))...)
}

// Asked returns how many times the user of a token was requested.
func (p *Provider) Asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// EditClaims sets a function that changes the claims of each ID token.
func (p *Provider) EditClaims(edit func(map[string]any)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims = edit
}

// EditAnswer sets a function that changes the parameters with which browsers come back.
func (p *Provider) EditAnswer(edit func(url.Values)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = edit
}

// Logins returns how many codes were exchanged.
func (p *Provider) Logins() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.logins
}

func (p *Provider) discovery(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, 200, map[string]any{
		"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token",
		"jwks_uri": p.URL + "/jwks", "userinfo_endpoint": p.URL + "/userinfo",
		"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported":          []string{"ES256"},
		"authorization_response_iss_parameter_supported": true,
	})
}

func (p *Provider) jwks(w http.ResponseWriter, _ *http.Request) {
	point, err := p.key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writeJSON(w, 200, map[string]any{"keys": []map[string]any{{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "k1",
		"x": b64(point[1:33]), "y": b64(point[33:])}}})
}

// authorize logs the chosen user in without asking. It refuses requests without state, PKCE or
// nonce.
func (p *Provider) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	switch {
	case q.Get("client_id") != p.ClientID, q.Get("response_type") != "code":
		http.Error(w, "wrong client_id or response_type", http.StatusBadRequest)
		return
	case len(q.Get("state")) < 32, len(q.Get("code_challenge")) != 43, q.Get("code_challenge_method") != "S256":
		http.Error(w, "state and PKCE are wanted here", http.StatusBadRequest)
		return
	case strings.HasSuffix(r.URL.Path, "/authorize") && strings.Contains(q.Get("scope"), "openid") && len(q.Get("nonce")) < 32:
		http.Error(w, "a nonce is wanted here", http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	code := rand.Text()
	p.codes[code] = grantedCode{p.user, q.Get("redirect_uri"), q.Get("code_challenge"), q.Get("nonce")}
	answer := url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {p.URL}}
	if p.answer != nil {
		p.answer(answer)
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+answer.Encode(), http.StatusFound)
}

func (p *Provider) token(w http.ResponseWriter, r *http.Request) {
	if !validClient(r, p.ClientID, p.ClientSecret) {
		writeJSON(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client"})
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.PostFormValue("grant_type") == "refresh_token" {
		old := r.PostFormValue("refresh_token")
		u, ok := p.fresh[old]
		delete(p.fresh, old)
		if !ok {
			writeJSON(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
			return
		}
		writeJSON(w, 200, p.tokensFor(u))
		return
	}
	c, ok := p.codes[r.PostFormValue("code")]
	delete(p.codes, r.PostFormValue("code"))
	if !ok || r.PostFormValue("grant_type") != "authorization_code" || r.PostFormValue("redirect_uri") != c.redirect || !verifiesChallenge(r.PostFormValue("code_verifier"), c.challenge) {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
		return
	}
	p.logins++
	answer := p.tokensFor(c.user)
	if c.nonce != "" {
		now := time.Now()
		claims := map[string]any{"iss": p.URL, "aud": p.ClientID, "sub": c.user.Subject, "nonce": c.nonce, "iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
			"email": c.user.Email, "email_verified": !c.user.Unverified, "name": c.user.Name}
		if p.claims != nil {
			p.claims(claims)
		}
		answer["id_token"] = p.sign(claims)
	}
	writeJSON(w, 200, answer)
}

func (p *Provider) tokensFor(u User) map[string]any {
	access := rand.Text()
	p.tokens[access] = u
	answer := map[string]any{"access_token": access, "token_type": "bearer", "expires_in": 300}
	if p.short {
		refresh := rand.Text()
		p.fresh[refresh] = u
		answer["refresh_token"], answer["expires_in"] = refresh, 1
	}
	return answer
}

func (p *Provider) sign(claims map[string]any) string {
	header, _ := json.Marshal(map[string]any{"alg": "ES256", "kid": "k1", "typ": "JWT"})
	payload, _ := json.Marshal(claims)
	text := b64(header) + "." + b64(payload)
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, p.key, sum[:])
	if err != nil {
		panic(err) // the key is valid
	}
	var sig [64]byte
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	return text + "." + b64(sig[:])
}

func (p *Provider) holder(w http.ResponseWriter, r *http.Request) (User, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	u, ok := p.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	if !ok {
		http.Error(w, "whose token?", http.StatusUnauthorized)
	}
	return u, ok
}

func (p *Provider) userInfo(w http.ResponseWriter, r *http.Request) {
	if u, ok := p.holder(w, r); ok {
		writeJSON(w, 200, map[string]any{"sub": u.Subject, "email": u.Email, "email_verified": !u.Unverified, "name": u.Name})
	}
}

// githubUser answers like GitHub: the id is a number, and the e-mail address is unverified.
func (p *Provider) githubUser(w http.ResponseWriter, r *http.Request) {
	if u, ok := p.holder(w, r); ok {
		writeJSON(w, 200, map[string]any{"id": json.Number(u.Subject), "login": strings.ToLower(u.Name), "name": u.Name, "email": "anything@example.com"})
	}
}

func (p *Provider) githubEmails(w http.ResponseWriter, r *http.Request) {
	if u, ok := p.holder(w, r); ok {
		writeJSON(w, 200, []map[string]any{
			{"email": "other@elsewhere.example", "primary": false, "verified": true},
			{"email": u.Email, "primary": true, "verified": !u.Unverified},
		})
	}
}

// validClient checks a client's secret, in the header or in the body.
func validClient(r *http.Request, id, secret string) bool {
	if user, pass, ok := r.BasicAuth(); ok {
		u, err1 := url.QueryUnescape(user)
		p, err2 := url.QueryUnescape(pass)
		return err1 == nil && err2 == nil && u == id && p == secret
	}
	return r.PostFormValue("client_id") == id && r.PostFormValue("client_secret") == secret
}

func verifiesChallenge(verifier, challenge string) bool {
	sum := sha256.Sum256([]byte(verifier))
	return len(verifier) >= 43 && b64(sum[:]) == challenge
}

func b64(p []byte) string { return base64.RawURLEncoding.EncodeToString(p) }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
