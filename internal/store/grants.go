package store

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// ErrReused says that something for one use was used again. The grant of its first use was revoked.
var ErrReused = errors.New("used before")

// Consent is what a user has allowed a client, and the redirect URI that gets the answer.
type Consent struct{ Caller, Client, Redirect, Scope string }

// HasConsent reports whether the user has given that consent since a time.
func (s *Store) HasConsent(ctx context.Context, c Consent, since time.Time) (bool, error) {
	n, err := queryOne(ctx, s.db, value[int],
		`SELECT count(*) FROM oauth_consents WHERE caller = ? AND client = ? AND redirect = ? AND scope = ? AND granted >= ?`,
		c.Caller, c.Client, c.Redirect, c.Scope, nanos(since))
	return n > 0, err
}

// AddConsent stores a user's consent.
func (s *Store) AddConsent(ctx context.Context, c Consent, now time.Time) error {
	return s.exec(ctx,
		`INSERT INTO oauth_consents (caller, client, redirect, scope, granted) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (caller, client, redirect, scope) DO UPDATE SET granted = excluded.granted`,
		c.Caller, c.Client, c.Redirect, c.Scope, nanos(now))
}

// Code is an authorization code.
type Code struct {
	ID          string    `json:"-"` // digest
	Grant       string    `json:"-"` // the id of its future grant
	Expires     time.Time `json:"-"`
	Caller      string
	Client      string
	ClientName  string
	RedirectURI string
	Challenge   string // of PKCE, S256
	Resource    string
	Scope       string
}

// AddCode stores a code, and records that its client is in use.
func (s *Store) AddCode(ctx context.Context, c Code, now time.Time) error {
	return s.transact(ctx, func(t tx) error {
		if err := t.exec(ctx, `INSERT INTO oauth_codes (id, grant_id, data, expires, used) VALUES (?, ?, ?, ?, 0)`,
			c.ID, c.Grant, jsonText{c}, nanos(c.Expires)); err != nil {
			return err
		}
		return t.exec(ctx, `UPDATE oauth_clients SET used = ? WHERE id = ?`, nanos(now), c.Client)
	})
}

// Grant is a client's right to act for a user, from the use of a code until it is revoked or
// expires.
type Grant struct {
	ID, Caller, Client, ClientName, Resource, Scope string
	Created, Used, Expires                          time.Time
	Email                                           string // the user's
}

// RefreshToken continues a grant, once.
type RefreshToken struct {
	ID      string // digest
	Expires time.Time
}

// RedeemCode uses up a code and makes its grant with a first refresh token, unless check returns an
// error. An unknown or expired code is [ErrNotFound]. One that was used before is [ErrReused]: it
// was stolen, so its grant is revoked.
func (s *Store) RedeemCode(
	ctx context.Context, id string, now, expires time.Time, first RefreshToken, check func(Code) error,
) (g Grant, err error) {
	var refused error
	err = s.transact(ctx, func(t tx) error {
		refused = nil
		type row struct {
			Code
			used bool
		}
		c, err := queryOne(ctx, t, func(r *row) []any {
			return []any{&r.ID, &r.Grant, jsonText{&r.Code}, (*nanos)(&r.Expires), (*isSet)(&r.used)}
		}, `SELECT id, grant_id, data, expires, used FROM oauth_codes WHERE id = ?`+t.forUpdate(`oauth_codes`), id)
		if err != nil {
			return err
		}
		if c.used {
			refused = ErrReused
			return t.revokeGrant(ctx, c.Grant, now)
		}
		if err := t.exec(ctx, `UPDATE oauth_codes SET used = ? WHERE id = ?`, nanos(now), id); err != nil {
			return err
		}
		if !now.Before(c.Expires) {
			refused = ErrNotFound
			return nil
		}
		if refused = check(c.Code); refused != nil {
			return nil
		}
		g = Grant{ID: c.Grant, Caller: c.Caller, Client: c.Client, ClientName: c.ClientName,
			Resource: c.Resource, Scope: c.Scope, Created: now, Used: now, Expires: expires}
		if err := t.exec(ctx,
			`INSERT INTO oauth_grants (id, caller, client, client_name, resource, scope, created, used, expires, revoked)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)`,
			g.ID, g.Caller, g.Client, g.ClientName, g.Resource, g.Scope, nanos(now), nanos(now), nanos(expires)); err != nil {
			return err
		}
		return t.addRefreshToken(ctx, g.ID, first)
	})
	return grantOr(g, err, refused)
}

// RotateRefreshToken uses up a client's refresh token and stores the next one. An unknown or
// expired token, or one of a grant that has ended, is [ErrNotFound]. One that was used before, or
// that another client sends, is [ErrReused]: it was stolen, so the grant is revoked.
func (s *Store) RotateRefreshToken(
	ctx context.Context, id, client string, next RefreshToken, now time.Time,
) (g Grant, err error) {
	var refused error
	err = s.transact(ctx, func(t tx) error {
		refused = nil
		type row struct {
			grant   string
			expires time.Time
			used    bool
		}
		token, err := queryOne(ctx, t, func(r *row) []any {
			return []any{&r.grant, (*nanos)(&r.expires), (*isSet)(&r.used)}
		}, `SELECT grant_id, expires, used FROM oauth_refresh_tokens WHERE id = ?`+t.forUpdate(`oauth_refresh_tokens`), id)
		if err != nil {
			return err
		}
		if g, err = queryOne(ctx, t, (*Grant).columns, selectGrant+t.forUpdate(`g`), token.grant, nanos(now)); err != nil {
			return err
		}
		switch {
		case token.used || g.Client != client:
			refused = ErrReused
			return t.revokeGrant(ctx, g.ID, now)
		case !now.Before(token.expires):
			return ErrNotFound
		}
		if err := t.exec(ctx, `UPDATE oauth_refresh_tokens SET used = ? WHERE id = ?`, nanos(now), id); err != nil {
			return err
		}
		if err := t.exec(ctx, `UPDATE oauth_grants SET used = ? WHERE id = ?`, nanos(now), g.ID); err != nil {
			return err
		}
		return t.addRefreshToken(ctx, g.ID, next)
	})
	return grantOr(g, err, refused)
}

// grantOr returns the grant, or the first error.
func grantOr(g Grant, errs ...error) (Grant, error) {
	if err := cmp.Or(errs...); err != nil {
		return Grant{}, err
	}
	return g, nil
}

func (t tx) addRefreshToken(ctx context.Context, grant string, r RefreshToken) error {
	return t.exec(ctx, `INSERT INTO oauth_refresh_tokens (id, grant_id, expires, used) VALUES (?, ?, ?, 0)`,
		r.ID, grant, nanos(r.Expires))
}

const (
	grants = `SELECT g.id, g.caller, g.client, g.client_name, g.resource, g.scope, g.created, g.used, g.expires, u.email
		FROM oauth_grants g JOIN users u ON u.id = g.caller WHERE `
	selectGrant = grants + `g.id = ? AND g.revoked = 0 AND g.expires > ?`
)

func (g *Grant) columns() []any {
	return []any{&g.ID, &g.Caller, &g.Client, &g.ClientName, &g.Resource, &g.Scope,
		(*nanos)(&g.Created), (*nanos)(&g.Used), (*nanos)(&g.Expires), &g.Email}
}

// GetGrant returns a grant that is neither revoked nor expired, or [ErrNotFound].
func (s *Store) GetGrant(ctx context.Context, id string, now time.Time) (Grant, error) {
	return queryOne(ctx, hot{s}, (*Grant).columns, selectGrant, id, nanos(now))
}

// ListGrants returns a user's grants that are neither revoked nor expired, newest first.
func (s *Store) ListGrants(ctx context.Context, caller string, now time.Time) ([]Grant, error) {
	return queryAll(ctx, s.db, (*Grant).columns,
		grants+`g.caller = ? AND g.revoked = 0 AND g.expires > ? ORDER BY g.created DESC LIMIT 100`, caller, nanos(now))
}

// RevokeGrant revokes a user's grant and the consent to it. Another user's grant is [ErrNotFound].
func (s *Store) RevokeGrant(ctx context.Context, caller, id string, now time.Time) error {
	return s.transact(ctx, func(t tx) error {
		g, err := queryOne(ctx, t, (*Grant).columns, selectGrant+t.forUpdate(`g`), id, nanos(now))
		if err != nil {
			return err
		}
		if g.Caller != caller {
			return ErrNotFound
		}
		if err := t.exec(ctx, `DELETE FROM oauth_consents WHERE caller = ? AND client = ?`, g.Caller, g.Client); err != nil {
			return err
		}
		return t.revokeGrant(ctx, id, now)
	})
}

// RefreshTokenCaller returns the caller of a refresh token's grant, even if it has ended, or
// [ErrNotFound].
func (s *Store) RefreshTokenCaller(ctx context.Context, id string) (caller string, err error) {
	return queryOne(ctx, s.db, value[string],
		`SELECT g.caller FROM oauth_refresh_tokens r JOIN oauth_grants g ON g.id = r.grant_id WHERE r.id = ?`, id)
}

// RevokeGrantByRefreshToken revokes the grant of a client's refresh token, used or not. The token
// of another client is [ErrNotFound].
func (s *Store) RevokeGrantByRefreshToken(ctx context.Context, id, client string, now time.Time) error {
	return s.transact(ctx, func(t tx) error {
		grant, err := queryOne(ctx, t, value[string],
			`SELECT g.id FROM oauth_refresh_tokens r JOIN oauth_grants g ON g.id = r.grant_id
			WHERE r.id = ? AND g.client = ?`, id, client)
		if err != nil {
			return err
		}
		return t.revokeGrant(ctx, grant, now)
	})
}

func (t tx) revokeGrant(ctx context.Context, id string, now time.Time) error {
	return t.exec(ctx, `UPDATE oauth_grants SET revoked = ? WHERE id = ? AND revoked = 0`, nanos(now), id)
}

// PurgeOAuth deletes expired sessions and requests; codes, refresh tokens and grants that expired
// or ended before a time; and clients and consents that were last used before clientsBefore.
func (s *Store) PurgeOAuth(ctx context.Context, now, before, clientsBefore time.Time) error {
	return s.transact(ctx, func(t tx) error {
		n, b, c := nanos(now), nanos(before), nanos(clientsBefore)
		for _, stmt := range []struct {
			query string
			args  []any
		}{
			{`DELETE FROM browser_sessions WHERE expires <= ?`, []any{n}},
			{`DELETE FROM oauth_requests WHERE expires <= ?`, []any{n}},
			{`DELETE FROM oauth_codes WHERE expires < ?`, []any{b}},
			{`DELETE FROM oauth_refresh_tokens WHERE expires < ? OR (used > 0 AND used < ?)`, []any{b, b}},
			{`DELETE FROM oauth_grants WHERE expires < ? OR (revoked > 0 AND revoked < ?)`, []any{b, b}},
			{`DELETE FROM oauth_refresh_tokens WHERE grant_id NOT IN (SELECT id FROM oauth_grants)`, nil},
			{`DELETE FROM oauth_clients WHERE used < ? AND created < ? AND id NOT IN (SELECT client FROM oauth_grants)`, []any{c, c}},
			{`DELETE FROM oauth_consents WHERE granted < ?`, []any{c}},
		} {
			if err := t.exec(ctx, stmt.query, stmt.args...); err != nil {
				return err
			}
		}
		return nil
	})
}
