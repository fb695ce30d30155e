package oauth

import (
	"context"
	"errors"
	"time"

	"golang.org/x/oauth2"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/store"
)

// A user whom the provider no longer knows loses access within an hour: an access token is given,
// and a browser is believed, only when the provider has vouched for the user in the last
// vouchAgain, or could not be asked for less than vouchLimit.
const (
	vouchAgain = 30 * time.Minute
	vouchLimit = time.Hour - accessTTL

	// loginService is the name under which the provider's tokens are kept. No service can have it.
	loginService = "~login"
)

// errNotVouched says that the provider does not vouch for a user, or can no longer be asked: the
// person has to log in again.
var errNotVouched = errors.New("the login provider does not vouch for the user any more")

// vouched asks the provider about a user, unless it was asked a short while ago. It returns
// errNotVouched, or what kept it from asking once that has gone on for too long.
func (s *Server) vouched(ctx context.Context, u store.User) error {
	now := s.now()
	age := now.Sub(u.Seen)
	if age < vouchAgain {
		return nil
	}
	p, err := s.login.recheck(ctx, u.ID)
	switch {
	case err == nil && p.subject != u.Subject, errors.Is(err, errNotVouched):
		s.log.Info("user has to log in again: the login provider does not vouch for them", "user", u.Email)
		return errNotVouched
	case err != nil && age < vouchLimit:
		s.log.Warn("the login provider could not be asked about a user; trying again later", "user", u.Email, "error", err)
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

// keepLogin keeps the provider's tokens, to ask it again. Some give a refresh token only at the
// first login.
func (s *Server) keepLogin(ctx context.Context, caller string, t *oauth2.Token) error {
	if s.cfg.Vault == nil || t == nil {
		return nil
	}
	kept := credential.Token{Access: t.AccessToken, Refresh: t.RefreshToken, Expires: t.Expiry}
	if kept.Refresh == "" {
		old, err := s.cfg.Vault.Get(ctx, caller, loginService)
		if err != nil && !errors.Is(err, credential.ErrNotConnected) {
			return err
		}
		kept.Refresh = old.Refresh
	}
	return s.cfg.Vault.Put(ctx, caller, loginService, kept)
}

// loginConnection is the way to the provider's tokens; nil without a vault.
func loginConnection(v *credential.Vault, u Upstream, tokenURL string, login *loginHTTP) credential.Source {
	if v == nil {
		return nil
	}
	return v.OAuth(credential.OAuthClient{Service: loginService, ClientID: u.ClientID, ClientSecret: u.ClientSecret, TokenURL: tokenURL}, login.Client)
}

// askWho has the provider tell, with the tokens it gave at the login, who the caller is.
func (h *loginHTTP) askWho(ctx context.Context, source credential.Source, caller, at string, v any) error {
	if source == nil || at == "" {
		return errNotVouched
	}
	c, err := source.Credential(ctx, caller)
	if errors.Is(err, credential.ErrNotConnected) {
		return errNotVouched
	}
	if err != nil {
		return err
	}
	err = h.get(ctx, at, c.Value, v)
	var status statusError
	if errors.As(err, &status) && status.refuses() {
		return errNotVouched
	}
	return err
}
