package oauth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/secret"
)

// Upstream is the provider at which people log in.
type Upstream struct {
	// Kind is "oidc" (OpenID Connect) or "oauth" (OAuth 2 with an address that tells who somebody is, as GitHub has it).
	Kind string
	// Issuer is the OpenID Connect provider. For "oauth" it may name the provider; without it, the host of AuthorizationURL does.
	Issuer string
	// AuthorizationURL, TokenURL and UserInfoURL are for "oauth"; OpenID Connect discovers its own. EmailsURL lists the addresses of the
	// user with what is verified; without it, UserInfoURL + "/emails".
	AuthorizationURL, TokenURL, UserInfoURL, EmailsURL string
	ClientID                                           string
	ClientSecret                                       secret.Value
	Scopes                                             []string
	// AllowedDomains and AllowedEmails name who may come in, by verified e-mail address. The domain "*" is everybody.
	AllowedDomains, AllowedEmails []string
	// DisplayName is what the login button says.
	DisplayName string
}

const (
	upstreamTimeout  = 10 * time.Second
	maxUpstreamBytes = 1 << 20
)

// person is whom the provider has logged in.
type person struct {
	issuer, subject, name string
	email                 string // verified, or empty
	token                 *oauth2.Token
}

// caller is the id under which the person uses this server: the same at each login, whatever becomes of name and address.
func (p person) caller() string {
	sum := sha256.Sum256([]byte(p.issuer + "\x00" + p.subject))
	return "user:" + hex.EncodeToString(sum[:16])
}

// login is a way to find out who somebody is.
type login interface {
	// authURL is where the browser goes.
	authURL(ctx context.Context, state, nonce, verifier string, choose bool) (string, error)
	// checkIssuer refuses an answer that says it comes from somebody else (RFC 9207).
	checkIssuer(ctx context.Context, iss []string) error
	// identify asks the provider whom the code stands for.
	identify(ctx context.Context, code, nonce, verifier string) (person, error)
	// recheck asks the provider again who a caller is who has logged in. The error may be errNotVouched.
	recheck(ctx context.Context, caller string) (person, error)
}

func newLogin(u Upstream, client *http.Client, vault *credential.Vault, redirect string, now func() time.Time) (login, error) {
	if client == nil {
		client = &http.Client{
			Timeout:       upstreamTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	if u.ClientID == "" {
		return nil, errors.New("auth.clientId is missing")
	}
	switch u.Kind {
	case "oidc":
		if err := secureURL("auth.issuer", u.Issuer); err != nil {
			return nil, err
		}
		if len(u.Scopes) == 0 {
			u.Scopes = []string{"email", "profile"}
		}
		if !slices.Contains(u.Scopes, oidc.ScopeOpenID) {
			u.Scopes = append([]string{oidc.ScopeOpenID}, u.Scopes...)
		}
		return &oidcLogin{upstream: u, http: &loginHTTP{client}, vault: vault, redirect: redirect, now: now}, nil
	case "oauth":
		for what, raw := range map[string]string{"auth.authorizationUrl": u.AuthorizationURL, "auth.tokenUrl": u.TokenURL, "auth.userInfoUrl": u.UserInfoURL} {
			if err := secureURL(what, raw); err != nil {
				return nil, err
			}
		}
		if u.EmailsURL == "" {
			u.EmailsURL = strings.TrimRight(u.UserInfoURL, "/") + "/emails"
		} else if err := secureURL("auth.emailsUrl", u.EmailsURL); err != nil {
			return nil, err
		}
		if u.Issuer == "" {
			at, err := url.Parse(u.AuthorizationURL)
			if err != nil {
				return nil, err
			}
			u.Issuer = at.Scheme + "://" + at.Host
		}
		h := &loginHTTP{client}
		return &plainLogin{upstream: u, http: h, tokens: loginConnection(vault, u, u.TokenURL, h), config: oauth2.Config{
			ClientID: u.ClientID, ClientSecret: u.ClientSecret.Reveal(), Scopes: u.Scopes, RedirectURL: redirect,
			Endpoint: oauth2.Endpoint{AuthURL: u.AuthorizationURL, TokenURL: u.TokenURL},
		}}, nil
	}
	return nil, fmt.Errorf(`auth.type: %q must be "oidc" or "oauth"`, u.Kind)
}

// oidcLogin is OpenID Connect. The provider is discovered at the first use, and again until that succeeds.
type oidcLogin struct {
	upstream Upstream
	http     *loginHTTP
	vault    *credential.Vault
	redirect string
	now      func() time.Time

	mu    sync.Mutex
	found *oidcProvider
}

type oidcProvider struct {
	config   oauth2.Config
	verifier *oidc.IDTokenVerifier
	provider *oidc.Provider
	tokens   credential.Source
	sendsIss bool
}

func (l *oidcLogin) provider(ctx context.Context) (*oidcProvider, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.found != nil {
		return l.found, nil
	}
	// The provider keeps the context, to fetch keys later.
	p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), l.http.Client), l.upstream.Issuer)
	if err != nil {
		return nil, fmt.Errorf("discover the login provider: %w", err)
	}
	var meta struct {
		Authorization string   `json:"authorization_endpoint"`
		Token         string   `json:"token_endpoint"`
		Keys          string   `json:"jwks_uri"`
		AuthMethods   []string `json:"token_endpoint_auth_methods_supported"`
		Scopes        []string `json:"scopes_supported"`
		SendsIss      bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := p.Claims(&meta); err != nil {
		return nil, fmt.Errorf("discover the login provider: %w", err)
	}
	for what, raw := range map[string]string{"authorization_endpoint": meta.Authorization, "token_endpoint": meta.Token, "jwks_uri": meta.Keys} {
		if err := secureURL("the login provider's "+what, raw); err != nil {
			return nil, err
		}
	}
	endpoint := p.Endpoint()
	switch {
	case l.upstream.ClientSecret.IsZero():
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	case meta.AuthMethods == nil || slices.Contains(meta.AuthMethods, "client_secret_basic"):
		endpoint.AuthStyle = oauth2.AuthStyleInHeader
	default:
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	scopes := l.upstream.Scopes
	if slices.Contains(meta.Scopes, oidc.ScopeOfflineAccess) && !slices.Contains(scopes, oidc.ScopeOfflineAccess) {
		scopes = append(slices.Clone(scopes), oidc.ScopeOfflineAccess) // to be able to ask again
	}
	l.found = &oidcProvider{
		tokens: loginConnection(l.vault, l.upstream, meta.Token, l.http),
		config: oauth2.Config{ClientID: l.upstream.ClientID, ClientSecret: l.upstream.ClientSecret.Reveal(), Endpoint: endpoint,
			RedirectURL: l.redirect, Scopes: scopes},
		verifier: p.Verifier(&oidc.Config{ClientID: l.upstream.ClientID, Now: l.now}),
		provider: p,
		sendsIss: meta.SendsIss,
	}
	return l.found, nil
}

func (l *oidcLogin) authURL(ctx context.Context, state, nonce, verifier string, choose bool) (string, error) {
	p, err := l.provider(ctx)
	if err != nil {
		return "", err
	}
	return p.config.AuthCodeURL(state, authOptions(verifier, choose, oidc.Nonce(nonce))...), nil
}

// authOptions are PKCE's, and the wish to choose among accounts.
func authOptions(verifier string, choose bool, more ...oauth2.AuthCodeOption) []oauth2.AuthCodeOption {
	if choose {
		more = append(more, oauth2.SetAuthURLParam("prompt", "select_account"))
	}
	return append(more, oauth2.S256ChallengeOption(verifier))
}

func (l *oidcLogin) checkIssuer(ctx context.Context, iss []string) error {
	p, err := l.provider(ctx)
	if err != nil {
		return err
	}
	if len(iss) == 0 && !p.sendsIss {
		return nil
	}
	if len(iss) != 1 || iss[0] != l.upstream.Issuer {
		return errWrongIssuer
	}
	return nil
}

var errWrongIssuer = errors.New("the answer is of another login provider")

func (l *oidcLogin) identify(ctx context.Context, code, nonce, verifier string) (person, error) {
	p, err := l.provider(ctx)
	if err != nil {
		return person{}, err
	}
	ctx = oidc.ClientContext(ctx, l.http.Client)
	token, err := p.config.Exchange(ctx, code, oauth2.VerifierOption(verifier))
	if err != nil {
		return person{}, exchangeError(err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return person{}, errors.New("the login provider sent no id_token")
	}
	id, err := p.verifier.Verify(ctx, raw)
	if err != nil {
		return person{}, fmt.Errorf("the login provider's id_token: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(nonce)) != 1 {
		return person{}, errors.New("the login provider's id_token is of another login")
	}
	var claims userClaims
	if err := id.Claims(&claims); err != nil {
		return person{}, fmt.Errorf("the login provider's id_token: %w", err)
	}
	if len(id.Audience) > 1 && claims.AuthorizedParty != l.upstream.ClientID {
		return person{}, errors.New("the login provider's id_token is for another client")
	}
	if id.Subject == "" {
		return person{}, errors.New("the login provider's id_token names nobody")
	}
	if claims.verifiedEmail() == "" && p.provider.UserInfoEndpoint() != "" {
		info, err := p.provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
		var more userClaims
		if err == nil && info.Subject == id.Subject && info.Claims(&more) == nil {
			claims = more // whole: an address of one and a "verified" of the other would prove nothing
		}
	}
	return person{issuer: l.upstream.Issuer, subject: id.Subject, name: cleanName(claims.Name), email: claims.verifiedEmail(), token: token}, nil
}

func (l *oidcLogin) recheck(ctx context.Context, caller string) (person, error) {
	p, err := l.provider(ctx)
	if err != nil {
		return person{}, err
	}
	var user struct {
		userClaims
		Subject string `json:"sub"`
	}
	err = l.http.askWho(ctx, p.tokens, caller, p.provider.UserInfoEndpoint(), &user)
	return person{subject: user.Subject, email: user.verifiedEmail()}, err
}

// userClaims is what a provider says of somebody.
type userClaims struct {
	Email           string `json:"email"`
	Verified        any    `json:"email_verified"` // some send a text
	Name            string `json:"name"`
	AuthorizedParty string `json:"azp"`
}

func (c userClaims) verifiedEmail() string {
	if c.Verified != true && c.Verified != "true" {
		return ""
	}
	return lower(c.Email)
}

// plainLogin is OAuth 2 with an address that tells whose token it is sent.
type plainLogin struct {
	upstream Upstream
	http     *loginHTTP
	tokens   credential.Source
	config   oauth2.Config
}

func (l *plainLogin) authURL(_ context.Context, state, _, verifier string, choose bool) (string, error) {
	return l.config.AuthCodeURL(state, authOptions(verifier, choose)...), nil
}

func (l *plainLogin) checkIssuer(_ context.Context, iss []string) error {
	if len(iss) > 1 || len(iss) == 1 && strings.TrimRight(iss[0], "/") != strings.TrimRight(l.upstream.Issuer, "/") {
		return errWrongIssuer
	}
	return nil
}

func (l *plainLogin) identify(ctx context.Context, code, _, verifier string) (person, error) {
	token, err := l.config.Exchange(context.WithValue(ctx, oauth2.HTTPClient, l.http.Client), code, oauth2.VerifierOption(verifier))
	if err != nil {
		return person{}, exchangeError(err)
	}
	p, err := l.whoIs(func(at string, v any) error { return l.http.get(ctx, at, "Bearer "+token.AccessToken, v) })
	p.token = token
	return p, err
}

func (l *plainLogin) recheck(ctx context.Context, caller string) (person, error) {
	return l.whoIs(func(at string, v any) error { return l.http.askWho(ctx, l.tokens, caller, at, v) })
}

// whoIs makes a person of what the provider answers at its addresses.
func (l *plainLogin) whoIs(get func(at string, v any) error) (person, error) {
	var user struct {
		userClaims
		Subject string          `json:"sub"`
		ID      json.RawMessage `json:"id"`
		Login   string          `json:"login"`
	}
	if err := get(l.upstream.UserInfoURL, &user); err != nil {
		return person{}, err
	}
	p := person{issuer: l.upstream.Issuer, subject: user.Subject, name: cleanName(user.Name), email: user.verifiedEmail()}
	if p.subject == "" { // GitHub's is a number, which stays the same when somebody takes another name
		p.subject = strings.Trim(string(user.ID), `"`)
	}
	if p.subject == "" || p.subject == "null" || p.subject == "0" {
		return person{}, errors.New("the login provider does not say who it is: its answer has neither sub nor id")
	}
	if p.name == "" {
		p.name = cleanName(user.Login)
	}
	if p.email != "" {
		return p, nil
	}
	var list []struct {
		Email             string
		Primary, Verified bool
	}
	if err := get(l.upstream.EmailsURL, &list); err != nil {
		return person{}, err
	}
	for _, e := range list {
		if e.Primary && e.Verified {
			p.email = lower(e.Email)
		}
	}
	return p, nil
}

// loginHTTP is how the provider is talked to.
type loginHTTP struct{ *http.Client }

// statusError is an answer of the provider's that is not 200.
type statusError struct {
	at     string
	status int
}

func (e statusError) Error() string {
	return fmt.Sprintf("ask the login provider: %s answered %d %s", e.at, e.status, http.StatusText(e.status))
}

// refuses reports whether the provider has answered that the token, or who it stands for, is not known.
func (e statusError) refuses() bool {
	return e.status == http.StatusUnauthorized || e.status == http.StatusForbidden || e.status == http.StatusNotFound
}

// get asks the provider something with the user's token.
func (h *loginHTTP) get(ctx context.Context, at, authorization string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", authorization)
	req.Header.Set("Accept", "application/json")
	resp, err := h.Do(req)
	if err != nil {
		return fmt.Errorf("ask the login provider: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return statusError{at, resp.StatusCode}
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxUpstreamBytes)).Decode(v); err != nil {
		return fmt.Errorf("ask the login provider: %s: %w", at, err)
	}
	return nil
}

// exchangeError keeps the provider's answer, which may hold anything, out of the log.
func exchangeError(err error) error {
	var answer *oauth2.RetrieveError
	if errors.As(err, &answer) && answer.Response != nil {
		return fmt.Errorf("the login provider's token endpoint answered %d %.64q", answer.Response.StatusCode, answer.ErrorCode)
	}
	return fmt.Errorf("exchange the login's code: %w", err)
}
