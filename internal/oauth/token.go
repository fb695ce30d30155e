package oauth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/untrusted"
)

// token exchanges a code or a refresh token for an access token and a new refresh token.
func (s *Server) token(w http.ResponseWriter, r *http.Request) error {
	form, err := s.apiForm(w, r)
	if err != nil {
		return err
	}
	now := s.now()
	next := newSecret()
	g, err := s.redeem(r.Context(), form, store.RefreshToken{ID: digest(next), Expires: now.Add(refreshTTL)}, now)
	if err == nil {
		err = s.checkUser(r.Context(), g)
	}
	switch {
	case errors.Is(err, store.ErrReused):
		s.log.Warn("grant revoked: a code or refresh token was used twice, or by another client",
			"client_id", untrusted.Clip(form.Get("client_id"), 200))
		return badRequest("invalid_grant", "it was used before; everything that came of it is revoked: authorize again")
	case errors.Is(err, store.ErrNotFound):
		return badRequest("invalid_grant", "it is unknown, expired or revoked: authorize again")
	case err != nil:
		return fmt.Errorf("exchange a token: %w", err)
	}
	access, expires, err := s.accessToken(g, now)
	if err != nil {
		return fmt.Errorf("make an access token: %w", err)
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Pragma", "no-cache")
	writeJSON(w, http.StatusOK, struct {
		AccessToken  string `json:"access_token"`
		TokenType    string `json:"token_type"`
		ExpiresIn    int64  `json:"expires_in"`
		RefreshToken string `json:"refresh_token"`
		Scope        string `json:"scope"`
	}{access, "Bearer", int64(expires.Sub(now) / time.Second), next, g.Scope})
	return nil
}

// redeem uses up the form's code or refresh token and stores next. The error may be an *apiError,
// store.ErrReused or store.ErrNotFound.
func (s *Server) redeem(ctx context.Context, form url.Values, next store.RefreshToken, now time.Time) (store.Grant, error) {
	switch form.Get("grant_type") {
	case "authorization_code":
		return s.store.RedeemCode(ctx, digest(form.Get("code")), now, now.Add(grantTTL), next,
			func(c store.Code) error { return s.checkCode(c, form) })
	case "refresh_token":
		if !s.isResource(form["resource"]) {
			return store.Grant{}, s.wrongResource()
		}
		// Check before the token is used up: a client that is told to retry needs it again.
		old := digest(form.Get("refresh_token"))
		if err := s.checkRefresh(ctx, old); err != nil {
			return store.Grant{}, err
		}
		return s.store.RotateRefreshToken(ctx, old, form.Get("client_id"), next, now)
	}
	return store.Grant{}, badRequest("unsupported_grant_type", "grant_type must be authorization_code or refresh_token")
}

// checkCode checks that the sender of a code is the client for which it was issued.
func (s *Server) checkCode(c store.Code, form url.Values) error {
	switch {
	case c.Client != form.Get("client_id"):
		return badRequest("invalid_grant", "the code was made for another client")
	case c.RedirectURI != form.Get("redirect_uri"):
		return badRequest("invalid_grant", "redirect_uri is not the one of the authorization request")
	case !verifiesChallenge(form.Get("code_verifier"), c.Challenge):
		return badRequest("invalid_grant", "code_verifier does not fit the code_challenge")
	case !s.isResource(form["resource"]) || c.Resource != s.cfg.Resource:
		return s.wrongResource()
	}
	return nil
}

func verifiesChallenge(verifier, challenge string) bool {
	if len(verifier) < 43 || len(verifier) > 128 {
		return false
	}
	sum := sha256.Sum256([]byte(verifier))
	return subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum[:])), []byte(challenge)) == 1
}

// isResource reports whether a client asks for this server's only resource, or names no resource.
func (s *Server) isResource(list []string) bool {
	for _, raw := range list {
		u, err := url.Parse(raw)
		if err != nil || strings.Contains(raw, "#") || u.User != nil || u.RawQuery != "" ||
			!strings.EqualFold(u.Scheme, s.resource.Scheme) || !strings.EqualFold(u.Host, s.resource.Host) ||
			strings.TrimSuffix(u.EscapedPath(), "/") != strings.TrimSuffix(s.resource.EscapedPath(), "/") {
			return false
		}
	}
	return true
}

func (s *Server) wrongResource() *apiError {
	return badRequest("invalid_target", "resource must be %s", s.cfg.Resource)
}

// checkUser revokes the grant of a user who is no longer on the operator's list. The code or
// refresh token is used up, so it reads the user only if the grant does not have the address.
func (s *Server) checkUser(ctx context.Context, g store.Grant) error {
	if g.Email == "" {
		u, err := s.store.GetUser(ctx, g.Caller)
		if err != nil {
			return err
		}
		g.Email = u.Email
	}
	if s.allow.email(g.Email) {
		return nil
	}
	if err := s.store.RevokeGrant(ctx, g.Caller, g.ID, s.now()); err != nil {
		return err
	}
	return badRequest("invalid_grant", "the user is no longer allowed here")
}

// checkRefresh asks the provider whether it still knows the user of a refresh token. It ignores
// unknown tokens.
func (s *Server) checkRefresh(ctx context.Context, token string) error {
	caller, err := s.store.RefreshTokenCaller(ctx, token)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	u, err := s.store.GetUser(ctx, caller)
	if err != nil {
		return err
	}
	switch err := s.vouched(ctx, u); {
	case errors.Is(err, errNotVouched):
		return badRequest("invalid_grant", "the login provider no longer vouches for the user: authorize again")
	case s.store.IsDown(err) && s.store.Ping(ctx) != nil: // the provider's errors are also the network's
		return err
	case err != nil:
		s.log.Error("the login provider did not answer about a user", "error", err)
		return &apiError{http.StatusServiceUnavailable, "temporarily_unavailable",
			"the login provider cannot be asked about the user, try again later"}
	}
	return nil
}

// revoke revokes a grant by one of its tokens (RFC 7009). It succeeds for a token that is not the
// client's, without revoking anything.
func (s *Server) revoke(w http.ResponseWriter, r *http.Request) error {
	form, err := s.apiForm(w, r)
	if err != nil {
		return err
	}
	token, ctx := form.Get("token"), r.Context()
	if strings.HasPrefix(token, accessPrefix+".") {
		var g store.Grant
		g, _, err = s.grantOf(ctx, token)
		if err == nil && g.Client == form.Get("client_id") {
			err = s.store.RevokeGrant(ctx, g.Caller, g.ID, s.now())
		}
	} else {
		err = s.store.RevokeGrantByRefreshToken(ctx, digest(token), form.Get("client_id"), s.now())
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, ErrInvalidToken) {
		return fmt.Errorf("revoke a token: %w", err)
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	return nil
}

// apiForm reads a client's parameters from the body. The client proves nothing: no client has a
// secret.
func (s *Server) apiForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	if !s.limits.tokens.Allow(r) { // every request reads the database that others need
		return nil, tooManyRequests(w, "5", "too many requests, try again in a few seconds")
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, badRequest("invalid_request", "send the parameters as application/x-www-form-urlencoded")
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return nil, badRequest("invalid_request", "the parameters cannot be read")
	}
	for name, values := range r.PostForm {
		if len(values) > 1 && name != "resource" {
			return nil, badRequest("invalid_request", "a parameter is repeated")
		}
	}
	switch {
	case r.Header.Get("Authorization") != "": // use nothing up: some clients try this first
		w.Header().Set("WWW-Authenticate", "Basic")
		return nil, &apiError{http.StatusUnauthorized, "invalid_client",
			"send client_id as a parameter, and no secret (token_endpoint_auth_method none)"}
	case r.PostForm.Get("client_id") == "":
		return nil, badRequest("invalid_request", "client_id is missing")
	}
	return r.PostForm, nil
}
