package oauth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/untrusted"
)

// token exchanges a code or a refresh token.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	form, bad := s.apiForm(w, r)
	if bad != nil {
		writeError(w, bad)
		return
	}
	now := s.now()
	next := newSecret()
	refresh := store.RefreshToken{ID: digest(next), Expires: now.Add(refreshTTL)}
	var g store.Grant
	var err error
	switch form.Get("grant_type") {
	case "authorization_code":
		g, err = s.store.RedeemCode(r.Context(), digest(form.Get("code")), now, now.Add(grantTTL), refresh,
			func(c store.Code) error { return s.checkCode(c, form) })
	case "refresh_token":
		if !s.rightResource(form["resource"]) {
			err = &apiError{http.StatusBadRequest, "invalid_target", "resource must be " + s.cfg.Resource}
			break
		}
		// Before the token is used up: who is put off needs it again.
		if err = s.checkRefresh(r.Context(), digest(form.Get("refresh_token"))); err != nil {
			break
		}
		g, err = s.store.RotateRefreshToken(r.Context(), digest(form.Get("refresh_token")), form.Get("client_id"), refresh, now)
	default:
		err = &apiError{http.StatusBadRequest, "unsupported_grant_type", "grant_type must be authorization_code or refresh_token"}
	}
	if err == nil {
		err = s.checkUser(r, g)
	}
	var known *apiError
	switch {
	case errors.Is(err, store.ErrReused):
		s.log.Warn("a code or refresh token was used twice, or by another client: the grant is revoked", "client_id", untrusted.Clip(form.Get("client_id"), 200))
		writeError(w, &apiError{http.StatusBadRequest, "invalid_grant", "it was used before; everything that came of it is revoked: authorize again"})
		return
	case errors.Is(err, store.ErrNotFound):
		writeError(w, &apiError{http.StatusBadRequest, "invalid_grant", "it is unknown, expired or revoked: authorize again"})
		return
	case errors.As(err, &known):
		writeError(w, known)
		return
	case err != nil:
		s.fail(w, "exchanging a token", err)
		return
	}
	access, expires, err := s.accessToken(g, now)
	if err != nil {
		s.fail(w, "making an access token", err)
		return
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
}

// checkCode tells whether the one who sends a code is the one for whom it was made.
func (s *Server) checkCode(c store.Code, form url.Values) error {
	refuse := func(code, text string) error { return &apiError{http.StatusBadRequest, code, text} }
	switch {
	case c.Client != form.Get("client_id"):
		return refuse("invalid_grant", "the code was made for another client")
	case c.RedirectURI != form.Get("redirect_uri"):
		return refuse("invalid_grant", "redirect_uri is not the one of the authorization request")
	case !rightVerifier(form.Get("code_verifier"), c.Challenge):
		return refuse("invalid_grant", "code_verifier does not fit the code_challenge")
	case !s.rightResource(form["resource"]) || c.Resource != s.cfg.Resource:
		return refuse("invalid_target", "resource must be "+s.cfg.Resource)
	}
	return nil
}

func rightVerifier(verifier, challenge string) bool {
	if len(verifier) < 43 || len(verifier) > 128 {
		return false
	}
	sum := sha256.Sum256([]byte(verifier))
	return subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum[:])), []byte(challenge)) == 1
}

// checkUser ends the grant of somebody whom the operator no longer lets in.
func (s *Server) checkUser(r *http.Request, g store.Grant) error {
	u, err := s.store.GetUser(r.Context(), g.Caller)
	if err != nil {
		return err
	}
	if s.allow.email(u.Email) {
		return nil
	}
	if err := s.store.RevokeGrant(r.Context(), g.Caller, g.ID, s.now()); err != nil {
		return err
	}
	return &apiError{http.StatusBadRequest, "invalid_grant", "the user is no longer allowed here"}
}

// checkRefresh asks the provider whether it still knows the user of a refresh token. One that nobody has is not its business.
func (s *Server) checkRefresh(ctx context.Context, token string) error {
	caller, err := s.store.RefreshTokenCaller(ctx, token)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	u, err := s.store.GetUser(ctx, caller)
	if err == nil {
		err = s.vouched(ctx, u)
	}
	switch {
	case errors.Is(err, errNotVouched):
		return &apiError{http.StatusBadRequest, "invalid_grant", "the login provider does not vouch for the user any more: authorize again"}
	case err != nil:
		s.log.Error("the login provider cannot be asked about a user", "error", err)
		return &apiError{http.StatusServiceUnavailable, "temporarily_unavailable", "the login provider cannot be asked about the user, try again later"}
	}
	return nil
}

// revoke ends a grant by one of its tokens (RFC 7009). A token that is not ours, or not the client's, is as good as revoked.
func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	form, bad := s.apiForm(w, r)
	if bad != nil {
		writeError(w, bad)
		return
	}
	token, ctx := form.Get("token"), r.Context()
	var err error
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
		s.fail(w, "revoking a token", err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
}

// apiForm reads what a client sends, from the body alone. The client says who it is and proves nothing: no client has a secret.
func (s *Server) apiForm(w http.ResponseWriter, r *http.Request) (url.Values, *apiError) {
	if !s.limits.tokens.Allow(r) { // whatever is sent, the database is asked, and others wait for it
		w.Header().Set("Retry-After", "5")
		return nil, &apiError{http.StatusTooManyRequests, "temporarily_unavailable", "too many requests, try again in a few seconds"}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, &apiError{http.StatusBadRequest, "invalid_request", "send the parameters as application/x-www-form-urlencoded"}
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		return nil, &apiError{http.StatusBadRequest, "invalid_request", "the parameters cannot be read"}
	}
	for name, values := range r.PostForm {
		if len(values) > 1 && name != "resource" {
			return nil, &apiError{http.StatusBadRequest, "invalid_request", "a parameter is repeated"}
		}
	}
	switch {
	case r.Header.Get("Authorization") != "": // nothing is used up: some clients try this first
		w.Header().Set("WWW-Authenticate", "Basic")
		return nil, &apiError{http.StatusUnauthorized, "invalid_client", "send client_id as a parameter, and no secret (token_endpoint_auth_method none)"}
	case r.PostForm.Get("client_id") == "":
		return nil, &apiError{http.StatusBadRequest, "invalid_request", "client_id is missing"}
	}
	return r.PostForm, nil
}
