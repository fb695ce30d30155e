package oauth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"time"

	"golang.org/x/oauth2"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/store"
)

// loginPage starts a login that leads to the connections page.
func (s *Server) loginPage(w http.ResponseWriter, r *http.Request, v visit) error {
	if v.isUser() {
		redirect(w, s.path("/connections"))
		return nil
	}
	return s.startLogin(w, r, v, "/connections", false)
}

// startLogin sends the browser to the upstream provider; next is the path to which it returns
// afterwards. State, nonce and PKCE verifier are bound to the browser. With choose, the person may
// switch accounts.
func (s *Server) startLogin(w http.ResponseWriter, r *http.Request, v visit, next string, choose bool) error {
	if !s.limits.requests.Allow(r) {
		return errBusy
	}
	v = s.withSecret(w, v)
	state, err := s.remember(r.Context(), v, kindLogin, []byte(next))
	if err != nil {
		return err
	}
	to, err := s.login.authURL(r.Context(), state, v.derive("nonce", state), v.derive("pkce", state), choose)
	if err != nil {
		return s.upstreamFailed(err)
	}
	redirect(w, to)
	return nil
}

func (s *Server) upstreamFailed(err error) error {
	s.log.Error("login failed", "error", err)
	return &pageError{http.StatusBadGateway, "The login provider does not answer as it should",
		"Try again later. The server's log says more."}
}

// loginCallback handles the upstream provider's answer and logs the person in.
func (s *Server) loginCallback(w http.ResponseWriter, r *http.Request, v visit) error {
	if !s.limits.requests.Allow(r) {
		return errBusy
	}
	ctx := r.Context()
	q := r.URL.Query()
	step, state, err := s.recallAnswer(ctx, v, kindLogin, q)
	if err != nil {
		return err
	}
	if err := s.login.checkIssuer(ctx, q["iss"]); errors.Is(err, errWrongIssuer) {
		s.log.Warn("the answer to a login came from another provider", "error", err)
		return errForeign
	} else if err != nil {
		return s.upstreamFailed(err)
	}
	if q.Has("error") || q.Get("code") == "" {
		return &pageError{http.StatusForbidden, "You were not logged in",
			"The login provider refused, or you canceled. Go back to where you started to try again."}
	}
	p, err := s.login.identify(ctx, q.Get("code"), v.derive("nonce", state), v.derive("pkce", state))
	if err != nil {
		return s.upstreamFailed(err)
	}
	if !s.allow.email(p.email) {
		s.log.Warn("login refused: not on the list of allowed people", "user", p.email, "subject", p.subject)
		text := p.email + " is not on this server's list. Ask its operator, or log in with another account."
		if p.email == "" {
			text = "The login provider does not vouch for an e-mail address of yours. Verify one there, and try again."
		}
		return &pageError{http.StatusForbidden, "You have no access", text}
	}
	caller := p.caller()
	u := store.User{ID: caller, Issuer: p.issuer, Subject: p.subject, Email: p.email, Name: p.name, Seen: s.now()}
	if err := s.store.PutUser(ctx, u); err != nil {
		return err
	}
	if err := s.keepLogin(ctx, caller, p.token); err != nil {
		return err
	}
	if err := s.startSession(ctx, w, v, caller); err != nil {
		return err
	}
	s.log.Info("user logged in", "user", p.email, "caller", caller)
	redirect(w, s.path(string(step.Data)))
	return nil
}

// keepLogin stores the provider's tokens for recheck. Some providers send a refresh token only at
// the first login, so an earlier one is kept.
func (s *Server) keepLogin(ctx context.Context, caller string, t *oauth2.Token) error {
	if s.cfg.Vault == nil || t == nil {
		return nil
	}
	kept := credential.Token{Access: t.AccessToken, Refresh: t.RefreshToken, Expires: s.store.At(t.Expiry)}
	if kept.Refresh == "" {
		old, err := s.cfg.Vault.Get(ctx, caller, loginService)
		if err != nil && !errors.Is(err, credential.ErrNotConnected) {
			return err
		}
		kept.Refresh = old.Refresh
	}
	return s.cfg.Vault.Put(ctx, caller, loginService, kept)
}

// A user whom the provider no longer knows loses access within an hour. Sessions and refresh tokens
// work only if the provider vouched for the user within recheckAfter, or was down for less than
// recheckLimit.
const (
	recheckAfter = 30 * time.Minute
	recheckLimit = time.Hour - accessTTL
)

// errNotVouched means that the provider does not vouch for a user, or can no longer be asked. The
// person must log in again.
var errNotVouched = errors.New("the login provider no longer vouches for the user")

// vouched asks the provider about a user, unless it did recently. It returns errNotVouched, or the
// error of asking if that has failed for recheckLimit.
func (s *Server) vouched(ctx context.Context, u store.User) error {
	now := s.now()
	age := now.Sub(u.Seen)
	if age < recheckAfter {
		return nil
	}
	p, err := s.login.recheck(ctx, u.ID)
	switch {
	case err == nil && p.subject != u.Subject, errors.Is(err, errNotVouched):
		s.log.Info("user must log in again: the login provider does not vouch for them", "user", u.Email)
		return errNotVouched
	case err != nil && age < recheckLimit:
		s.log.Warn("the login provider did not answer about a user; trying again later", "user", u.Email, "error", err)
		return nil
	case err != nil:
		return err
	}
	u.Seen = now
	if p.email != "" {
		u.Email = p.email
	}
	if !s.allow.email(u.Email) {
		return errNotVouched
	}
	return s.store.PutUser(ctx, u)
}

// tokenLogin logs in the holder of the API token. Only wrong tokens are rate-limited, so that
// guesses never keep the holder out.
func (s *Server) tokenLogin(w http.ResponseWriter, r *http.Request, v visit) error {
	got, want := sha256.Sum256([]byte(r.PostForm.Get("token"))), sha256.Sum256([]byte(s.cfg.APIToken.Reveal()))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || s.cfg.APIToken.IsZero() {
		if !s.limits.passwords.Allow(r) {
			return errBusy
		}
		s.log.Warn("login with a wrong API token")
		return &pageError{http.StatusForbidden, "That is not the API token",
			"Use the value of MCP_API_TOKEN, or of the file that the server names when it starts."}
	}
	if err := s.startSession(r.Context(), w, v, localCaller); err != nil {
		return err
	}
	redirect(w, s.path("/connections"))
	return nil
}

func (s *Server) logout(w http.ResponseWriter, r *http.Request, v visit) error {
	if err := s.endSession(r.Context(), w, v); err != nil {
		return err
	}
	redirect(w, s.path("/connections"))
	return nil
}
