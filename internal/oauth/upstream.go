package oauth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/secret"
)

// Upstream is the provider at which people log in.
type Upstream struct {
	// Kind is "oidc" (OpenID Connect) or "oauth" (OAuth 2 with a user info URL, like GitHub's).
	Kind string
	// Issuer is the OpenID Connect provider. For "oauth" it is optional; the default is the host of
	// AuthorizationURL.
	Issuer string
	// AuthorizationURL, TokenURL and UserInfoURL are for "oauth" only. EmailsURL lists the user's
	// addresses and which are verified; empty: UserInfoURL + "/emails".
	AuthorizationURL, TokenURL, UserInfoURL, EmailsURL string
	ClientID                                           string
	ClientSecret                                       secret.Value
	Scopes                                             []string
	// AllowedDomains and AllowedEmails list who may log in, by verified e-mail address. The domain
	// "*" means everybody.
	AllowedDomains, AllowedEmails []string
	// DisplayName is the name on the login button.
	DisplayName string
}

const (
	upstreamTimeout  = 10 * time.Second
	maxUpstreamBytes = 1 << 20

	// loginService is the vault's service name for the provider's tokens. No real service can have
	// it.
	loginService = "~login"
)

// person is a user as the provider describes them.
type person struct {
	issuer, subject, name string
	email                 string // verified, or ""
	token                 *oauth2.Token
}

// caller returns the person's caller id. It does not depend on name and address, which may change.
func (p person) caller() string {
	sum := sha256.Sum256([]byte(p.issuer + "\x00" + p.subject))
	return "user:" + hex.EncodeToString(sum[:16])
}

// login identifies people at a provider.
type login interface {
	// authURL returns the URL to which the browser goes.
	authURL(ctx context.Context, state, nonce, verifier string, choose bool) (string, error)
	// checkIssuer returns errWrongIssuer for an answer of another provider (RFC 9207).
	checkIssuer(ctx context.Context, iss []string) error
	// identify returns the person for an authorization code.
	identify(ctx context.Context, code, nonce, verifier string) (person, error)
	// recheck asks the provider again about a caller who has logged in. It may return
	// errNotVouched.
	recheck(ctx context.Context, caller string) (person, error)
}

var errWrongIssuer = errors.New("the answer comes from another login provider")

func newLogin(u Upstream, vault *credential.Vault, redirect string, now func() time.Time) (login, error) {
	if u.ClientID == "" {
		return nil, errors.New("auth.clientId is missing")
	}
	provider := &provider{upstream: u, vault: vault, http: &http.Client{
		Timeout:       upstreamTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	up := &provider.upstream
	switch u.Kind {
	case "oidc":
		if err := secureURL("auth.issuer", u.Issuer); err != nil {
			return nil, err
		}
		if len(u.Scopes) == 0 {
			up.Scopes = []string{"email", "profile"}
		}
		if !slices.Contains(up.Scopes, oidc.ScopeOpenID) {
			up.Scopes = append([]string{oidc.ScopeOpenID}, up.Scopes...)
		}
		return &oidcLogin{provider: provider, redirect: redirect, now: now}, nil
	case "oauth":
		for what, raw := range map[string]string{
			"auth.authorizationUrl": u.AuthorizationURL, "auth.tokenUrl": u.TokenURL, "auth.userInfoUrl": u.UserInfoURL,
		} {
			if err := secureURL(what, raw); err != nil {
				return nil, err
			}
		}
		if u.EmailsURL == "" {
			up.EmailsURL = strings.TrimRight(u.UserInfoURL, "/") + "/emails"
		} else if err := secureURL("auth.emailsUrl", u.EmailsURL); err != nil {
			return nil, err
		}
		if u.Issuer == "" {
			at, err := url.Parse(u.AuthorizationURL)
			if err != nil {
				return nil, err
			}
			up.Issuer = at.Scheme + "://" + at.Host
		}
		endpoint := oauth2.Endpoint{AuthURL: u.AuthorizationURL, TokenURL: u.TokenURL}
		return &plainLogin{provider: provider, tokens: provider.tokens(u.TokenURL), config: provider.config(endpoint, redirect)}, nil
	}
	return nil, fmt.Errorf(`auth.type: %q must be "oidc" or "oauth"`, u.Kind)
}

// plainLogin is OAuth 2 with a URL that returns the user of an access token.
type plainLogin struct {
	*provider
	tokens credential.Source
	config oauth2.Config
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
	token, err := l.exchange(ctx, l.config, code, verifier)
	if err != nil {
		return person{}, err
	}
	p, err := l.person(func(at string, v any) error { return l.get(ctx, at, "Bearer "+token.AccessToken, v) })
	p.token = token
	return p, err
}

func (l *plainLogin) recheck(ctx context.Context, caller string) (person, error) {
	return l.person(func(at string, v any) error { return l.getAs(ctx, l.tokens, caller, at, v) })
}

// person reads the user from the provider's URLs.
func (l *plainLogin) person(get func(at string, v any) error) (person, error) {
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
	if p.subject == "" { // GitHub's id is a number, which stays the same when a user changes names
		p.subject = strings.Trim(string(user.ID), `"`)
	}
	if p.subject == "" || p.subject == "null" || p.subject == "0" {
		return person{}, errors.New("the login provider's answer has neither sub nor id")
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

// userClaims are a provider's claims about a user.
type userClaims struct {
	Email           string `json:"email"`
	Verified        any    `json:"email_verified"` // some providers send a string
	Name            string `json:"name"`
	AuthorizedParty string `json:"azp"`
}

func (c userClaims) verifiedEmail() string {
	if c.Verified != true && c.Verified != "true" {
		return ""
	}
	return lower(c.Email)
}

// provider talks to the upstream provider.
type provider struct {
	upstream Upstream
	vault    *credential.Vault
	http     *http.Client
}

func (p *provider) config(endpoint oauth2.Endpoint, redirect string) oauth2.Config {
	return oauth2.Config{ClientID: p.upstream.ClientID, ClientSecret: p.upstream.ClientSecret.Reveal(),
		Endpoint: endpoint, RedirectURL: redirect, Scopes: p.upstream.Scopes}
}

// authOptions returns the PKCE challenge and, if requested, the option to choose an account.
func authOptions(verifier string, choose bool, more ...oauth2.AuthCodeOption) []oauth2.AuthCodeOption {
	if choose {
		more = append(more, oauth2.SetAuthURLParam("prompt", "select_account"))
	}
	return append(more, oauth2.S256ChallengeOption(verifier))
}

// exchange exchanges a code for a token. Its errors do not quote the provider's answer.
func (p *provider) exchange(ctx context.Context, config oauth2.Config, code, verifier string) (*oauth2.Token, error) {
	t, err := config.Exchange(context.WithValue(ctx, oauth2.HTTPClient, p.http), code, oauth2.VerifierOption(verifier))
	if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok && answer.Response != nil {
		return nil, fmt.Errorf("the login provider's token endpoint answered %d %.64q", answer.Response.StatusCode, answer.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("exchange the login's code: %w", err)
	}
	return t, nil
}

// tokens returns the source of the tokens that keepLogin stored, or nil without a vault.
func (p *provider) tokens(tokenURL string) credential.Source {
	if p.vault == nil {
		return nil
	}
	return p.vault.OAuth(credential.OAuthClient{Service: loginService, ClientID: p.upstream.ClientID,
		ClientSecret: p.upstream.ClientSecret, TokenURL: tokenURL}, p.http)
}

// getAs gets a URL with the caller's stored tokens. It returns errNotVouched if there are none, or
// if the provider does not accept them.
func (p *provider) getAs(ctx context.Context, tokens credential.Source, caller, at string, v any) error {
	if tokens == nil || at == "" {
		return errNotVouched
	}
	c, err := tokens.Credential(ctx, caller)
	if errors.Is(err, credential.ErrNotConnected) {
		return errNotVouched
	}
	if err != nil {
		return err
	}
	err = p.get(ctx, at, c.Value, v)
	if status, ok := errors.AsType[statusError](err); ok && status.refuses() {
		return errNotVouched
	}
	return err
}

// get decodes the JSON at a URL of the provider.
func (p *provider) get(ctx context.Context, at, authorization string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", authorization)
	req.Header.Set("Accept", "application/json")
	resp, err := p.http.Do(req)
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

// statusError is an answer of the provider with a status other than 200.
type statusError struct {
	at     string
	status int
}

func (e statusError) Error() string {
	return fmt.Sprintf("ask the login provider: %s answered %d %s", e.at, e.status, http.StatusText(e.status))
}

// refuses reports whether the provider rejected the token or its user.
func (e statusError) refuses() bool {
	return e.status == http.StatusUnauthorized || e.status == http.StatusForbidden || e.status == http.StatusNotFound
}
