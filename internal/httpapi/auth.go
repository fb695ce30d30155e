package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/ratelimit"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/session"
)

// authenticator finds the caller by the Authorization header.
type authenticator struct {
	token [sha256.Size]byte
	set   bool
	users Users // nil: only the token's holder may call
	wrong *ratelimit.Limiter
	log   *slog.Logger
}

func newAuthenticator(token secret.Value, users Users, wrong *ratelimit.Limiter, log *slog.Logger) *authenticator {
	return &authenticator{token: sha256.Sum256([]byte(token.Reveal())), set: !token.IsZero(), users: users, wrong: wrong, log: log}
}

// newWrongTokens returns the budget of wrong tokens: 30 at once and then one a second per address.
// The total is large, so that an attacker cannot use up the budget of clients with expired tokens.
func newWrongTokens() *ratelimit.Limiter {
	return ratelimit.New(rate.Every(time.Second), 30, rate.Every(time.Millisecond), 1000, nil)
}

// Reasons to refuse a request.
var (
	errNoToken    = errors.New("no token")
	errWrongToken = errors.New("wrong token")
	// ErrTokenEnded is the error of Users.Verify for a token that was valid once. Sending it is not
	// guessing.
	ErrTokenEnded = errors.New("the token has expired or was revoked")
	// ErrUnchecked is the error of Users.Verify for a token about which it cannot ask the database.
	ErrUnchecked = errors.New("the token cannot be checked")
)

// require passes only requests with a valid token to next. It identifies the caller by the SDK's
// auth.TokenInfo, which the MCP server finds in each message.
func (a *authenticator) require(next http.Handler) http.Handler {
	// Only the SDK's middleware can put it where the SDK's server looks.
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
			// The check comes first, so that a valid token always works. Each guess costs a
			// connection.
			writeRetry(w, r, http.StatusTooManyRequests, "too many wrong tokens from this address; check the token, and try again in 10 seconds")
			return
		case errors.Is(err, ErrUnchecked):
			// After a 401, clients would forget a login that is still valid.
			if r.Context().Err() == nil { // otherwise the client has left
				a.log.Warn("logins cannot be checked", "error", err)
			}
			writeRetry(w, r, http.StatusServiceUnavailable, "logins cannot be checked now; try again in 10 seconds")
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

// caller returns the holder of the request's token. It compares hashes, so that its time reveals
// neither the API token's bytes nor its length. Errors are errNoToken, errWrongToken,
// ErrTokenEnded, and what wraps ErrUnchecked.
func (a *authenticator) caller(r *http.Request) (*auth.TokenInfo, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return nil, errNoToken
	}
	scheme, token, found := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if len(values) > 1 || !found || !strings.EqualFold(scheme, "Bearer") || token == "" {
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
	case errors.Is(err, ErrUnchecked):
		return nil, err
	case err != nil || caller == "" || caller == session.Local.ID || !time.Now().Before(expires):
		return nil, errWrongToken
	}
	return &auth.TokenInfo{UserID: caller, Expiration: expires}, nil
}

// refuse answers a request without a valid token. sent means that it had one.
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

// noLogins tells people without a token in their client what to do.
const noLogins = "this server has no logins; send its API token, MCP_API_TOKEN, as the header Authorization: Bearer <token>"

// loginPaths are where clients look for a way to log in and to register after a 401.
var loginPaths = []string{
	"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/",
	"/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server/",
	"/.well-known/openid-configuration", "/.well-known/openid-configuration/",
	"/register", "/authorize", "/token", "/oauth/register", "/oauth/authorize", "/oauth/token",
}

// refuseLogin answers with an OAuth error. Clients show its description, and do not retry after
// this code.
func refuseLogin(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusNotFound, struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}{"invalid_request", noLogins})
}
