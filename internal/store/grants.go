package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"
)

// ErrReused says that something meant for one use was used again. What came of its first use has been revoked.
var ErrReused = errors.New("used before")

// Consent is what a user has allowed a client, and where the answer goes.
type Consent struct{ Caller, Client, Redirect, Scope string }

// HasConsent reports whether the user has allowed that since the given time.
func (s *Store) HasConsent(ctx context.Context, c Consent, since time.Time) (bool, error) {
	var n int
	err := s.db.QueryRowContext(ctx,
		`SELECT count(*) FROM oauth_consents WHERE caller = ? AND client = ? AND redirect = ? AND scope = ? AND granted >= ?`,
		c.Caller, c.Client, c.Redirect, c.Scope, since.UnixNano()).Scan(&n)
	return n > 0, err
}

// AddConsent remembers what a user has allowed.
func (s *Store) AddConsent(ctx context.Context, c Consent, now time.Time) error {
	_, err := s.db.ExecContext(ctx,
		`INSERT OR REPLACE INTO oauth_consents (caller, client, redirect, scope, granted) VALUES (?, ?, ?, ?, ?)`,
		c.Caller, c.Client, c.Redirect, c.Scope, now.UnixNano())
	return err
}

// Code is an authorization code.
type Code struct {
	ID          string    `json:"-"` // digest
	Grant       string    `json:"-"` // the id of the grant that it becomes
	Expires     time.Time `json:"-"`
	Caller      string
	Client      string
	ClientName  string
	RedirectURI string
	Challenge   string // PKCE's, S256
	Resource    string
	Scope       string
}

// AddCode stores a code, and notes that its client is in use.
func (s *Store) AddCode(ctx context.Context, c Code, now time.Time) error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return s.transact(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO oauth_codes (id, grant_id, data, expires, used) VALUES (?, ?, ?, ?, 0)`,
			c.ID, c.Grant, string(data), c.Expires.UnixNano()); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE oauth_clients SET used = ? WHERE id = ?`, now.UnixNano(), c.Client)
		return err
	})
}

// Grant is a client's right to act for a user, from the use of a code until it is revoked or ends.
type Grant struct {
	ID, Caller, Client, ClientName, Resource, Scope string
	Created, Used, Expires                          time.Time
	Email                                           string // the user's
}

// RefreshToken is what continues a grant, once.
type RefreshToken struct {
	ID      string // digest
	Expires time.Time
}

// RedeemCode uses a code up, whatever comes of it, and makes its grant with a first refresh token. A code that check refuses makes
// none, and check's error is returned. An unknown or expired code is [ErrNotFound]. One that was used before is
// [ErrReused]: somebody has stolen it, so the grant that came of it ends.
func (s *Store) RedeemCode(ctx context.Context, id string, now, expires time.Time, first RefreshToken, check func(Code) error) (Grant, error) {
	var g Grant
	var refused error
	err := s.transact(ctx, func(tx *sql.Tx) error {
		c := Code{ID: id}
		var data string
		var codeExpires, used int64
		err := tx.QueryRowContext(ctx, `SELECT grant_id, data, expires, used FROM oauth_codes WHERE id = ?`, id).
			Scan(&c.Grant, &data, &codeExpires, &used)
		if err != nil {
			return notFound(err)
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			return err
		}
		if used > 0 {
			refused = ErrReused
			return revokeGrant(ctx, tx, c.Grant, now)
		}
		if _, err := tx.ExecContext(ctx, `UPDATE oauth_codes SET used = ? WHERE id = ?`, now.UnixNano(), id); err != nil {
			return err
		}
		if now.UnixNano() >= codeExpires {
			refused = ErrNotFound
			return nil
		}
		if refused = check(c); refused != nil {
			return nil
		}
		g = Grant{ID: c.Grant, Caller: c.Caller, Client: c.Client, ClientName: c.ClientName, Resource: c.Resource, Scope: c.Scope,
			Created: now, Used: now, Expires: expires}
		if _, err := tx.ExecContext(ctx,
			`INSERT INTO oauth_grants (id, caller, client, client_name, resource, scope, created, used, expires, revoked)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)`,
			g.ID, g.Caller, g.Client, g.ClientName, g.Resource, g.Scope, now.UnixNano(), now.UnixNano(), expires.UnixNano()); err != nil {
			return err
		}
		return addRefreshToken(ctx, tx, g.ID, first)
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return Grant{}, err
	}
	return g, nil
}

// RotateRefreshToken uses a refresh token of a client's up and puts the next one in its place. An unknown or expired token, or one of a
// grant that has ended, is [ErrNotFound]. One that was used before, or that another client sends, is [ErrReused]: it was
// stolen, from or by whom nobody can tell, so the grant ends.
func (s *Store) RotateRefreshToken(ctx context.Context, id, client string, next RefreshToken, now time.Time) (Grant, error) {
	var g Grant
	var refused error
	err := s.transact(ctx, func(tx *sql.Tx) error {
		var grant string
		var expires, used int64
		err := tx.QueryRowContext(ctx, `SELECT grant_id, expires, used FROM oauth_refresh_tokens WHERE id = ?`, id).
			Scan(&grant, &expires, &used)
		if err != nil {
			return notFound(err)
		}
		if g, err = getGrant(ctx, tx, grant, now); err != nil {
			return err
		}
		switch {
		case used > 0 || g.Client != client:
			refused = ErrReused
			return revokeGrant(ctx, tx, grant, now)
		case now.UnixNano() >= expires:
			return ErrNotFound
		}
		if _, err := tx.ExecContext(ctx, `UPDATE oauth_refresh_tokens SET used = ? WHERE id = ?`, now.UnixNano(), id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE oauth_grants SET used = ? WHERE id = ?`, now.UnixNano(), grant); err != nil {
			return err
		}
		return addRefreshToken(ctx, tx, grant, next)
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return Grant{}, err
	}
	return g, nil
}

func addRefreshToken(ctx context.Context, tx *sql.Tx, grant string, t RefreshToken) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO oauth_refresh_tokens (id, grant_id, expires, used) VALUES (?, ?, ?, 0)`,
		t.ID, grant, t.Expires.UnixNano())
	return err
}

// GetGrant returns a grant that is alive, or [ErrNotFound].
func (s *Store) GetGrant(ctx context.Context, id string, now time.Time) (Grant, error) {
	stmt, err := s.statement(ctx, selectGrant) // asked at every call of a user's
	if err != nil {
		return Grant{}, err
	}
	return scanGrant(id, stmt.QueryRowContext(ctx, id, now.UnixNano()))
}

const selectGrant = `SELECT g.caller, g.client, g.client_name, g.resource, g.scope, g.created, g.used, g.expires, u.email
	FROM oauth_grants g JOIN users u ON u.id = g.caller WHERE g.id = ? AND g.revoked = 0 AND g.expires > ?`

func getGrant(ctx context.Context, tx *sql.Tx, id string, now time.Time) (Grant, error) {
	return scanGrant(id, tx.QueryRowContext(ctx, selectGrant, id, now.UnixNano()))
}

func scanGrant(id string, row *sql.Row) (Grant, error) {
	g := Grant{ID: id}
	var created, used, expires int64
	err := row.Scan(&g.Caller, &g.Client, &g.ClientName, &g.Resource, &g.Scope, &created, &used, &expires, &g.Email)
	if err != nil {
		return Grant{}, notFound(err)
	}
	g.Created, g.Used, g.Expires = time.Unix(0, created), time.Unix(0, used), time.Unix(0, expires)
	return g, nil
}

// ListGrants returns a user's grants that are alive, the newest first.
func (s *Store) ListGrants(ctx context.Context, caller string, now time.Time) ([]Grant, error) {
	rows, err := s.db.QueryContext(ctx,
		`SELECT id, client, client_name, resource, scope, created, used, expires FROM oauth_grants
		WHERE caller = ? AND revoked = 0 AND expires > ? ORDER BY created DESC LIMIT 100`, caller, now.UnixNano())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []Grant
	for rows.Next() {
		g := Grant{Caller: caller}
		var created, used, expires int64
		if err := rows.Scan(&g.ID, &g.Client, &g.ClientName, &g.Resource, &g.Scope, &created, &used, &expires); err != nil {
			return nil, err
		}
		g.Created, g.Used, g.Expires = time.Unix(0, created), time.Unix(0, used), time.Unix(0, expires)
		list = append(list, g)
	}
	return list, rows.Err()
}

// RevokeGrant ends a user's grant, and forgets that the user allowed it. A grant of somebody else's is [ErrNotFound].
func (s *Store) RevokeGrant(ctx context.Context, caller, id string, now time.Time) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		g, err := getGrant(ctx, tx, id, now)
		if err != nil {
			return err
		}
		if g.Caller != caller {
			return ErrNotFound
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM oauth_consents WHERE caller = ? AND client = ?`, g.Caller, g.Client); err != nil {
			return err
		}
		return revokeGrant(ctx, tx, id, now)
	})
}

// RefreshTokenCaller returns whose grant a refresh token continues, whatever its state, or [ErrNotFound].
func (s *Store) RefreshTokenCaller(ctx context.Context, id string) (caller string, err error) {
	err = s.db.QueryRowContext(ctx,
		`SELECT g.caller FROM oauth_refresh_tokens r JOIN oauth_grants g ON g.id = r.grant_id WHERE r.id = ?`, id).Scan(&caller)
	return caller, notFound(err)
}

// RevokeGrantByRefreshToken ends the grant that a client's refresh token continues, or continued. Another client's is [ErrNotFound].
func (s *Store) RevokeGrantByRefreshToken(ctx context.Context, id, client string, now time.Time) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		var grant string
		err := tx.QueryRowContext(ctx,
			`SELECT g.id FROM oauth_refresh_tokens r JOIN oauth_grants g ON g.id = r.grant_id WHERE r.id = ? AND g.client = ?`, id, client).
			Scan(&grant)
		if err != nil {
			return notFound(err)
		}
		return revokeGrant(ctx, tx, grant, now)
	})
}

func revokeGrant(ctx context.Context, tx *sql.Tx, id string, now time.Time) error {
	_, err := tx.ExecContext(ctx, `UPDATE oauth_grants SET revoked = ? WHERE id = ? AND revoked = 0`, now.UnixNano(), id)
	return err
}

// PurgeOAuth forgets what can no longer matter: sessions and requests that expired; codes and refresh tokens that did so, or were
// used, before the given time; grants that ended before it, with all that hangs on them; clients that nobody used since.
func (s *Store) PurgeOAuth(ctx context.Context, now, before, clientsBefore time.Time) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		n, b, c := now.UnixNano(), before.UnixNano(), clientsBefore.UnixNano()
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
			{`DELETE FROM oauth_clients WHERE max(used, created) < ? AND id NOT IN (SELECT client FROM oauth_grants)`, []any{c}},
			{`DELETE FROM oauth_consents WHERE granted < ?`, []any{c}},
		} {
			if _, err := tx.ExecContext(ctx, stmt.query, stmt.args...); err != nil {
				return err
			}
		}
		return nil
	})
}
