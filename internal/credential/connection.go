package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
)

const (
	// refreshEarly is how long before its expiry a token is refreshed, so that it lasts for the
	// request.
	refreshEarly = 30 * time.Second
	// refreshTimeout bounds one refresh. The lease is longer, so that refreshes never overlap.
	refreshTimeout = 20 * time.Second
	leaseTime      = refreshTimeout + 10*time.Second
	// leasePoll is the interval at which a process checks whether another one has refreshed the
	// token.
	leasePoll = 50 * time.Millisecond
	// storeTimeout bounds storing a new token, which must succeed even if the request was canceled.
	// storeRetry is the time between two attempts.
	storeTimeout = 10 * time.Second
	storeRetry   = 200 * time.Millisecond
)

// OAuthClient is this server's registration at a service's authorization server.
type OAuthClient struct {
	Service, ClientID                         string
	ClientSecret                              secret.Value // zero: a public client
	AuthorizationURL, TokenURL, RevocationURL string       // RevocationURL may be empty
	Scopes                                    []string
	// Parameters are added to the authorization request, such as "audience" or "access_type".
	Parameters map[string]string
}

// Connection connects callers to one service by OAuth. It is safe for concurrent use.
type Connection struct {
	vault  *Vault
	client OAuthClient
	http   *http.Client
	style  atomic.Int64       // the oauth2.AuthStyle that worked; zero: unknown
	flight singleflight.Group // one refresh per caller in this process
}

var _ Source = (*Connection)(nil)

// OAuth returns the connections to a service. If client is nil, it uses one with a timeout that
// follows no redirect.
func (v *Vault) OAuth(c OAuthClient, client *http.Client) *Connection {
	if client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy = nil // only the settings decide where secrets go
		client = &http.Client{
			Transport:     transport,
			Timeout:       refreshTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	conn := &Connection{vault: v, client: c, http: client}
	if c.ClientSecret.IsZero() {
		conn.style.Store(int64(oauth2.AuthStyleInParams))
	}
	return conn
}

func (c *Connection) oauth(style oauth2.AuthStyle) *oauth2.Config {
	return &oauth2.Config{
		ClientID: c.client.ClientID, ClientSecret: c.client.ClientSecret.Reveal(), Scopes: c.client.Scopes,
		Endpoint: oauth2.Endpoint{AuthURL: c.client.AuthorizationURL, TokenURL: c.client.TokenURL, AuthStyle: style},
	}
}

// fetch gets a token with f and finds out how the service expects the client's secret: in the
// header or in the form. Unlike package oauth2 it does not try again if the service says that the
// grant has ended.
func (c *Connection) fetch(ctx context.Context, f func(context.Context, *oauth2.Config) (*oauth2.Token, error)) (*oauth2.Token, error) {
	ctx = context.WithValue(ctx, oauth2.HTTPClient, c.http)
	if style := oauth2.AuthStyle(c.style.Load()); style != 0 {
		return f(ctx, c.oauth(style))
	}
	t, err := f(ctx, c.oauth(oauth2.AuthStyleInHeader))
	style := oauth2.AuthStyleInHeader
	if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok && answer.ErrorCode != invalidGrant && answer.Response.StatusCode < 500 {
		t, err = f(ctx, c.oauth(oauth2.AuthStyleInParams))
		style = oauth2.AuthStyleInParams
	}
	if err == nil {
		c.style.Store(int64(style))
	}
	return t, err
}

// invalidGrant is RFC 6749's error code for a grant that has ended.
const invalidGrant = "invalid_grant"

// AuthorizeURL returns the URL on which a person allows this server to use the service. verifier is
// for PKCE.
func (c *Connection) AuthorizeURL(state, verifier, redirect string) string {
	opts := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("redirect_uri", redirect)}
	for k, v := range c.client.Parameters {
		opts = append(opts, oauth2.SetAuthURLParam(k, v))
	}
	return c.oauth(0).AuthCodeURL(state, opts...)
}

// Exchange exchanges the service's code for a token and stores it.
func (c *Connection) Exchange(ctx context.Context, caller, code, verifier, redirect string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
	defer cancel()
	t, err := c.fetch(ctx, func(ctx context.Context, cfg *oauth2.Config) (*oauth2.Token, error) {
		return cfg.Exchange(ctx, code, oauth2.VerifierOption(verifier), oauth2.SetAuthURLParam("redirect_uri", redirect))
	})
	if err != nil {
		return c.failed("exchange the code", err)
	}
	return c.vault.Put(ctx, caller, c.client.Service, c.tokenOf(t))
}

// Connected reports whether the caller has a connection, without asking the service.
func (c *Connection) Connected(ctx context.Context, caller string) (bool, error) {
	t, err := c.vault.Get(ctx, caller, c.client.Service)
	switch {
	case errors.Is(err, ErrNotConnected):
		return false, nil
	case err != nil:
		return false, err
	}
	return t.usable(c.vault.now()) || t.Refresh != "", nil
}

// Disconnect deletes the caller's connection and revokes it at the service, if that has a
// RevocationURL. It deletes the connection even if the revocation fails, and then returns that
// error.
func (c *Connection) Disconnect(ctx context.Context, caller string) error {
	t, err := c.vault.Delete(ctx, caller, c.client.Service)
	if errors.Is(err, ErrNotConnected) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.revoke(ctx, t)
}

// revoke implements RFC 7009. It revokes the refresh token first, and with it the grant.
func (c *Connection) revoke(ctx context.Context, t Token) error {
	if c.client.RevocationURL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
	defer cancel()
	var errs []error
	for _, token := range []struct{ text, kind string }{{t.Refresh, "refresh_token"}, {t.Access, "access_token"}} {
		if token.text == "" {
			continue
		}
		form := url.Values{"token": {token.text}, "token_type_hint": {token.kind}}
		inForm := oauth2.AuthStyle(c.style.Load()) == oauth2.AuthStyleInParams
		if inForm {
			form.Set("client_id", c.client.ClientID)
			if !c.client.ClientSecret.IsZero() {
				form.Set("client_secret", c.client.ClientSecret.Reveal())
			}
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.client.RevocationURL, strings.NewReader(form.Encode()))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if !inForm {
			req.SetBasicAuth(url.QueryEscape(c.client.ClientID), url.QueryEscape(c.client.ClientSecret.Reveal()))
		}
		resp, err := c.http.Do(req)
		if err != nil {
			errs = append(errs, c.failed("revoke a token", err))
			continue
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
		resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			errs = append(errs, fmt.Errorf("service %s: revoke a token: it answered %s", c.client.Service, resp.Status))
		}
	}
	return errors.Join(errs...)
}

// Credential implements [Source]. It refreshes a token that is about to expire; of concurrent
// callers in all processes, one does. If the service says that the grant has ended, it deletes the
// connection.
func (c *Connection) Credential(ctx context.Context, caller string) (Credential, error) {
	t, err := c.vault.Get(ctx, caller, c.client.Service)
	if err != nil {
		return Credential{}, err
	}
	if !t.fresh(c.vault.now()) {
		if t, err = c.refresh(ctx, caller, t); err != nil {
			return Credential{}, err
		}
	}
	return bearer(t.Access, t.Expires), nil
}

// refresh waits for this process's refresh, which continues even if ctx is canceled.
func (c *Connection) refresh(ctx context.Context, caller string, old Token) (Token, error) {
	if old.Refresh == "" {
		if old.usable(c.vault.now()) {
			return old, nil
		}
		return Token{}, ErrNotConnected
	}
	done := c.flight.DoChan(caller, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseTime+refreshTimeout)
		defer cancel()
		return c.refreshLeased(ctx, caller)
	})
	select {
	case r := <-done:
		switch {
		case r.Err == nil:
			return r.Val.(Token), nil
		case errors.Is(r.Err, ErrNotConnected):
			return Token{}, r.Err
		case old.usable(c.vault.now()): // temporary, and the token still works
			return old, nil
		}
		return Token{}, r.Err
	case <-ctx.Done():
		return Token{}, context.Cause(ctx)
	}
}

// refreshLeased waits for the lease, or until another process has refreshed the token.
func (c *Connection) refreshLeased(ctx context.Context, caller string) (Token, error) {
	st, owner, service := c.vault.store, c.vault.owner, c.client.Service
	for {
		now := c.vault.now()
		row, err := st.LeaseConnection(ctx, caller, service, owner, now, now.Add(leaseTime))
		if err == nil {
			return c.refreshRow(ctx, row)
		}
		if !errors.Is(err, store.ErrNotFound) {
			return Token{}, err
		}
		t, err := c.vault.Get(ctx, caller, service) // deleted, or leased to another process
		if err != nil || t.fresh(now) {
			return t, err
		}
		select {
		case <-time.After(leasePoll):
		case <-ctx.Done():
			return Token{}, fmt.Errorf("service %s: another process is still refreshing the token", service)
		}
	}
}

// refreshRow refreshes a row that this process has leased.
func (c *Connection) refreshRow(ctx context.Context, row store.Connection) (t Token, err error) {
	st, owner := c.vault.store, c.vault.owner
	defer func() {
		if err != nil { // also if the new token could not be stored
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
			defer cancel()
			_ = st.ReleaseConnection(ctx, row.Caller, row.Service, owner)
		}
	}()
	old, err := c.vault.open(row)
	if err != nil {
		return Token{}, err
	}
	if old.fresh(c.vault.now()) {
		return old, st.ReleaseConnection(ctx, row.Caller, row.Service, owner)
	}
	asking, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	got, err := c.fetch(asking, func(ctx context.Context, cfg *oauth2.Config) (*oauth2.Token, error) {
		return cfg.TokenSource(ctx, &oauth2.Token{RefreshToken: old.Refresh}).Token()
	})
	ctx, cancelStore := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancelStore()
	if err != nil {
		if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok && answer.ErrorCode == invalidGrant {
			if err := st.DropConnection(ctx, row, owner); err != nil {
				return Token{}, err
			}
			return Token{}, ErrNotConnected
		}
		return Token{}, c.failed("refresh the token", err)
	}
	t = c.tokenOf(got)
	if t.Refresh == "" {
		t.Refresh = old.Refresh
	}
	sealed, err := c.vault.seal(row, t)
	if err != nil {
		return Token{}, err
	}
	if err := c.update(ctx, sealed); errors.Is(err, store.ErrNotFound) {
		// The caller has disconnected meanwhile: revoke the new token as well.
		return Token{}, errors.Join(ErrNotConnected, c.revoke(ctx, t))
	} else if err != nil {
		return Token{}, err
	}
	return t, nil
}

// update stores a leased row, and tries again while the database does not answer: the service may
// have ended the old refresh token. It returns [store.ErrNotFound] as UpdateConnection does.
func (c *Connection) update(ctx context.Context, row store.Connection) error {
	st := c.vault.store
	err := st.UpdateConnection(ctx, row, c.vault.owner)
	for st.IsDown(err) {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(storeRetry):
		}
		// An attempt without an answer may have stored the row, and ended the lease.
		if got, gotErr := st.GetConnection(ctx, row.Caller, row.Service); gotErr == nil && bytes.Equal(got.Sealed, row.Sealed) {
			return nil
		}
		err = st.UpdateConnection(ctx, row, c.vault.owner)
	}
	return err
}

// failed returns an error that does not quote the service's answer.
func (c *Connection) failed(what string, err error) error {
	if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok && answer.Response != nil {
		return fmt.Errorf("service %s: %s: its token endpoint answered %d %.64q",
			c.client.Service, what, answer.Response.StatusCode, answer.ErrorCode)
	}
	if at, ok := errors.AsType[*url.Error](err); ok {
		err = at.Err // without the URL, which may have a query
	}
	return fmt.Errorf("service %s: %s: %w", c.client.Service, what, err)
}

// tokenOf converts a new token, which expires by the process's clock.
func (c *Connection) tokenOf(t *oauth2.Token) Token {
	return Token{Access: t.AccessToken, Refresh: t.RefreshToken, Expires: c.vault.store.At(t.Expiry)}
}

// fresh reports whether the token need not be refreshed.
func (t Token) fresh(now time.Time) bool {
	return t.Expires.IsZero() || now.Add(refreshEarly).Before(t.Expires)
}

// usable reports whether the token has not expired.
func (t Token) usable(now time.Time) bool { return t.Expires.IsZero() || now.Before(t.Expires) }
