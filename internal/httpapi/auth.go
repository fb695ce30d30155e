package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/ratelimit"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/session"
)

// authenticator tells who is calling from the Authorization header.
type authenticator struct {
	token [sha256.Size]byte
	set   bool
	users Users // nil: nobody but the token's holder
	wrong *ratelimit.Limiter
}

func newAuthenticator(token secret.Value, users Users, wrong *ratelimit.Limiter) *authenticator {
	return &authenticator{token: sha256.Sum256([]byte(token.Reveal())), set: !token.IsZero(), users: users, wrong: wrong}
}

// newWrongTokens is the budget of wrong tokens: thirty at once and then one a second from each address. The one for all is large, so
// that nobody who guesses uses up the budget of those whose tokens have expired.
func newWrongTokens() *ratelimit.Limiter {
	return ratelimit.New(rate.Every(time.Second), 30, rate.Every(time.Millisecond), 1000, nil)
}

// Why somebody is not let in.
var (
	errNoToken    = errors.New("no token")
	errWrongToken = errors.New("wrong token")
	// ErrTokenEnded is what Users.Verify returns for a token that was valid once. Whoever sends it is not guessing.
	ErrTokenEnded = errors.New("the token has expired or was revoked")
)

// caller returns who holds the request's token. Sums of equal length are compared, so that time tells
// neither the API token's bytes nor its length. Errors are errNoToken, errWrongToken and ErrTokenEnded.
func (a *authenticator) caller(r *http.Request) (*auth.TokenInfo, error) {
	values := r.Header.Values("Authorization")
	switch len(values) {
	case 0:
		return nil, errNoToken
	case 1:
	default:
		return nil, errWrongToken
	}
	scheme, token, found := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if !found || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return nil, errWrongToken
	}
	sum := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(sum[:], a.token[:]) == 1 && a.set {
		return &auth.TokenInfo{UserID: session.Local.ID}, nil
	}
	if a.users == nil {
		return nil, errWrongToken
	}
	caller, expires, err := a.users.Verify(r.Context(), token)
	switch {
	case errors.Is(err, ErrTokenEnded):
		return nil, ErrTokenEnded
	case err != nil || caller == "" || caller == session.Local.ID || !time.Now().Before(expires):
		return nil, errWrongToken
	}
	return &auth.TokenInfo{UserID: caller, Expiration: expires}, nil
}

// require lets only callers with a valid token pass, and tells next who they are: as the SDK's auth.TokenInfo, which
// the MCP server finds in each message it handles.
func (a *authenticator) require(next http.Handler) http.Handler {
	// The SDK's middleware is the only one who can put it where its server looks.
	carry := auth.RequireBearerToken(func(_ context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
		info, ok := r.Context().Value(infoKey{}).(*auth.TokenInfo)
		if !ok {
			return nil, auth.ErrInvalidToken
		}
		return info, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := a.caller(r)
		switch {
		case err == errWrongToken && !a.wrong.Allow(r):
			a.throttle(w, r)
			return
		case err != nil:
			a.refuse(w, r, err != errNoToken)
			return
		}
		connOf(r).claim(info.UserID)
		carry.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), infoKey{}, info)))
	})
}

type infoKey struct{}

// throttle answers an address that has sent too many wrong tokens. A right one from there is never put off, so this does not
// come before the check. The connection ends: the next guess costs a new one.
func (a *authenticator) throttle(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "10")
	w.Header().Set("Connection", "close")
	writeError(w, r, http.StatusTooManyRequests, "too many wrong tokens from this address; check the token, and try again in 10 seconds")
}

func (a *authenticator) refuse(w http.ResponseWriter, r *http.Request, sent bool) {
	how, message := "", "unauthorized: send the header Authorization: Bearer <MCP_API_TOKEN>"
	if a.users == nil {
		message = "unauthorized: " + noLogins
	}
	wrong := "the token is not the server's MCP_API_TOKEN"
	if a.users != nil {
		if how = a.users.Challenge(); how != "" {
			message += ", or log in by OAuth"
			wrong = "the token is neither a valid access token nor the server's MCP_API_TOKEN"
			how = ", " + how
		}
	}
	challenge := `Bearer realm="` + ServerName + `"`
	if sent {
		challenge += `, error="invalid_token", error_description="` + wrong + `"`
		message = "unauthorized: " + wrong
	}
	w.Header().Set("WWW-Authenticate", challenge+how)
	writeError(w, r, http.StatusUnauthorized, message)
}

// noLogins tells a person what a client without the token cannot find out by itself.
const noLogins = "this server has no logins; send its API token, MCP_API_TOKEN, as the header Authorization: Bearer <token>"

// loginPaths are where clients look for a way to log in, and register, after a 401.
var loginPaths = []string{
	"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/",
	"/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server/",
	"/.well-known/openid-configuration", "/.well-known/openid-configuration/",
	"/register", "/authorize", "/token", "/oauth/register", "/oauth/authorize", "/oauth/token",
}

// refuseLogin answers such a client in the shape of an OAuth error, whose description clients show. The code is none of those
// upon which they try again.
func refuseLogin(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusNotFound, struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}{"invalid_request", noLogins})
}
