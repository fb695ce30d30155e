package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/session"
)

// authenticator tells who is calling from the Authorization header.
type authenticator struct {
	token [sha256.Size]byte
	set   bool
}

func newAuthenticator(token secret.Value) *authenticator {
	return &authenticator{token: sha256.Sum256([]byte(token.Reveal())), set: !token.IsZero()}
}

// caller returns who holds the request's token. Sums of equal length are compared, so that time tells
// neither the token's bytes nor its length.
func (a *authenticator) caller(r *http.Request) (c session.Caller, sent, ok bool) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return session.Caller{}, len(values) > 0, false
	}
	scheme, token, found := strings.Cut(values[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return session.Caller{}, true, false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	if subtle.ConstantTimeCompare(sum[:], a.token[:]) != 1 || !a.set {
		return session.Caller{}, true, false
	}
	return session.Local, true, true
}

// require lets only callers with a valid token pass, and tells next who they are: as the SDK's auth.TokenInfo, which
// the MCP server finds in each message it handles.
func (a *authenticator) require(next http.Handler) http.Handler {
	carry := auth.RequireBearerToken(func(ctx context.Context, _ string, r *http.Request) (*auth.TokenInfo, error) {
		c, _, ok := a.caller(r)
		if !ok {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: c.ID}, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, sent, ok := a.caller(r); !ok {
			challenge := `Bearer realm="` + ServerName + `"`
			message := "unauthorized: send the header Authorization: Bearer <MCP_API_TOKEN>"
			if sent {
				challenge += `, error="invalid_token", error_description="the token is not the server's MCP_API_TOKEN"`
				message = "unauthorized: the token is not the server's MCP_API_TOKEN"
			}
			w.Header().Set("WWW-Authenticate", challenge)
			writeError(w, r, http.StatusUnauthorized, message)
			return
		}
		carry.ServeHTTP(w, r)
	})
}
