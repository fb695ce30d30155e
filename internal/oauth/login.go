package oauth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"

	"mcp-code-sandbox/internal/store"
)

// startPage begins a login that leads to the connections page.
func (s *Server) startPage(w http.ResponseWriter, r *http.Request, v visit) error {
	if v.isUser() {
		redirect(w, s.path("/connections"))
		return nil
	}
	return s.startLogin(w, r, v, "/connections", false)
}

// startLogin sends the browser to the upstream provider; next is where, on this server, it goes on afterwards. State, nonce and PKCE's
// verifier are bound to the browser.
func (s *Server) startLogin(w http.ResponseWriter, r *http.Request, v visit, next string, choose bool) error {
	if !s.limits.requests.Allow(r) {
		return errBusy
	}
	v = s.known(w, v)
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
	return &pageError{http.StatusBadGateway, "The login provider does not answer as it should", "Try again later. The server's log says more."}
}

// loginCallback takes the upstream provider's answer.
func (s *Server) loginCallback(w http.ResponseWriter, r *http.Request, v visit) error {
	if !s.limits.requests.Allow(r) {
		return errBusy
	}
	ctx := r.Context()
	q := r.URL.Query()
	if len(q["state"]) != 1 || len(q["code"]) > 1 {
		return errForeign
	}
	state := q.Get("state")
	step, err := s.recall(ctx, v, kindLogin, state)
	if err != nil {
		return err
	}
	if err := s.login.checkIssuer(ctx, q["iss"]); errors.Is(err, errWrongIssuer) {
		s.log.Warn("an answer to a login came from another provider", "error", err)
		return errForeign
	} else if err != nil {
		return s.upstreamFailed(err)
	}
	if q.Has("error") || q.Get("code") == "" {
		return &pageError{http.StatusForbidden, "You were not logged in", "The login provider refused, or you cancelled. Go back to where you started to try again."}
	}
	p, err := s.login.identify(ctx, q.Get("code"), v.derive("nonce", state), v.derive("pkce", state))
	if err != nil {
		return s.upstreamFailed(err)
	}
	if !s.allow.email(p.email) {
		s.log.Warn("login refused: not on the list of allowed people", "user", p.email, "subject", p.subject)
		if p.email == "" {
			return &pageError{http.StatusForbidden, "You cannot come in", "The login provider does not vouch for an e-mail address of yours. Verify one there, and try again."}
		}
		return &pageError{http.StatusForbidden, "You cannot come in", p.email + " is not on this server's list. Ask its operator, or log in with another account."}
	}
	caller := p.caller()
	if err := s.store.PutUser(ctx, store.User{ID: caller, Issuer: p.issuer, Subject: p.subject, Email: p.email, Name: p.name, Seen: s.now()}); err != nil {
		return err
	}
	if err := s.keepLogin(ctx, caller, p.token); err != nil {
		return err
	}
	if err := s.enter(ctx, w, v, caller); err != nil {
		return err
	}
	s.log.Info("user logged in", "user", p.email, "caller", caller)
	redirect(w, s.path(string(step.Data)))
	return nil
}

// tokenLogin lets the holder of the API token in. Only wrong tokens count and are put off: guesses of somebody else's never keep
// the holder out.
func (s *Server) tokenLogin(w http.ResponseWriter, r *http.Request, v visit) error {
	got, want := sha256.Sum256([]byte(r.PostForm.Get("token"))), sha256.Sum256([]byte(s.cfg.APIToken.Reveal()))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || s.cfg.APIToken.IsZero() {
		if !s.limits.passwords.Allow(r) {
			return errBusy
		}
		s.log.Warn("login with a wrong API token")
		return &pageError{http.StatusForbidden, "That is not the API token", "It is what MCP_API_TOKEN says, or in the file that the first lines of the server name."}
	}
	if err := s.enter(r.Context(), w, v, localCaller); err != nil {
		return err
	}
	redirect(w, s.path("/connections"))
	return nil
}

func (s *Server) logout(w http.ResponseWriter, r *http.Request, v visit) error {
	if err := s.leave(r.Context(), w, v); err != nil {
		return err
	}
	redirect(w, s.path("/connections"))
	return nil
}
