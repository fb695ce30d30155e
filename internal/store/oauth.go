package store

import (
	"context"
	"errors"
	"time"
)

// oauthTables holds users, and what they have allowed which MCP client. The ids of codes, tokens,
// requests and browser sessions are digests, which are of no use to a reader of the database.
const oauthTables = `CREATE TABLE users (
		id      TEXT PRIMARY KEY,
		issuer  TEXT NOT NULL,
		subject TEXT NOT NULL,
		email   TEXT NOT NULL,
		name    TEXT NOT NULL,
		seen    INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE TABLE oauth_clients (
		id        TEXT PRIMARY KEY,
		name      TEXT NOT NULL,
		redirects TEXT NOT NULL,
		created   INTEGER NOT NULL,
		used      INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE INDEX oauth_clients_used ON oauth_clients (used, created);
	CREATE TABLE oauth_requests (
		id      TEXT PRIMARY KEY,
		kind    TEXT NOT NULL,
		browser TEXT NOT NULL,
		caller  TEXT NOT NULL,
		data    BLOB NOT NULL,
		expires INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE INDEX oauth_requests_expires ON oauth_requests (expires);
	CREATE TABLE browser_sessions (
		id      TEXT PRIMARY KEY,
		caller  TEXT NOT NULL,
		expires INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE TABLE oauth_consents (
		caller   TEXT NOT NULL,
		client   TEXT NOT NULL,
		redirect TEXT NOT NULL,
		scope    TEXT NOT NULL,
		granted  INTEGER NOT NULL,
		PRIMARY KEY (caller, client, redirect, scope)
	) STRICT, WITHOUT ROWID;
	CREATE TABLE oauth_codes (
		id        TEXT PRIMARY KEY,
		grant_id  TEXT NOT NULL,
		data      TEXT NOT NULL,
		expires   INTEGER NOT NULL,
		used      INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE TABLE oauth_grants (
		id          TEXT PRIMARY KEY,
		caller      TEXT NOT NULL,
		client      TEXT NOT NULL,
		client_name TEXT NOT NULL,
		resource    TEXT NOT NULL,
		scope       TEXT NOT NULL,
		created     INTEGER NOT NULL,
		used        INTEGER NOT NULL,
		expires     INTEGER NOT NULL,
		revoked     INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE INDEX oauth_grants_caller ON oauth_grants (caller, revoked, created);
	CREATE TABLE oauth_refresh_tokens (
		id       TEXT PRIMARY KEY,
		grant_id TEXT NOT NULL,
		expires  INTEGER NOT NULL,
		used     INTEGER NOT NULL
	) STRICT, WITHOUT ROWID;
	CREATE INDEX oauth_refresh_tokens_grant ON oauth_refresh_tokens (grant_id);`

// ErrFull says that no more rows of a kind are stored.
var ErrFull = errors.New("too many are already stored")

// User is a person who has logged in.
type User struct {
	ID              string // the caller
	Issuer, Subject string // the identity provider and its name for the user
	Email, Name     string
	Seen            time.Time
}

// PutUser stores a user. It replaces an earlier row.
func (s *Store) PutUser(ctx context.Context, u User) error {
	return s.exec(ctx,
		`INSERT INTO users (id, issuer, subject, email, name, seen) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET issuer = excluded.issuer, subject = excluded.subject,
			email = excluded.email, name = excluded.name, seen = excluded.seen`,
		u.ID, u.Issuer, u.Subject, u.Email, u.Name, nanos(u.Seen))
}

// GetUser returns a user, or [ErrNotFound].
func (s *Store) GetUser(ctx context.Context, id string) (User, error) {
	return queryOne(ctx, s.db, func(u *User) []any {
		return []any{&u.ID, &u.Issuer, &u.Subject, &u.Email, &u.Name, (*nanos)(&u.Seen)}
	}, `SELECT id, issuer, subject, email, name, seen FROM users WHERE id = ?`, id)
}

// Client is an MCP client that registered itself.
type Client struct {
	ID, Name  string
	Redirects []string
	Created   time.Time
	Used      time.Time // when a user last allowed it something; zero: never
}

// AddClient stores a client. It deletes unused clients: those made before unusedSince, and at the
// limit the oldest. It returns [ErrFull] if the limit is reached with clients that are in use.
func (s *Store) AddClient(ctx context.Context, c Client, limit int, unusedSince time.Time) error {
	return s.transact(ctx, func(t tx) error {
		if err := t.lockTable(ctx, t, `oauth_clients`); err != nil { // nobody else counts
			return err
		}
		if err := t.exec(ctx, `DELETE FROM oauth_clients WHERE used = 0 AND created < ?`, nanos(unusedSince)); err != nil {
			return err
		}
		if err := t.trim(ctx, `oauth_clients`, `used = 0`, `created`, limit-1); err != nil {
			return err
		}
		n, err := queryOne(ctx, t, value[int], `SELECT count(*) FROM oauth_clients`)
		if err != nil {
			return err
		}
		if n >= limit {
			return ErrFull
		}
		return t.exec(ctx, `INSERT INTO oauth_clients (id, name, redirects, created, used) VALUES (?, ?, ?, ?, 0)`,
			c.ID, c.Name, jsonText{c.Redirects}, nanos(c.Created))
	})
}

// trim deletes the first rows of a table that match where, in the order of a column, until at most
// keep rows of the whole table are left.
func (t tx) trim(ctx context.Context, table, where, order string, keep int) error {
	n, err := queryOne(ctx, t, value[int], `SELECT count(*) FROM `+table)
	if err != nil || n <= keep {
		return err
	}
	return t.exec(ctx, `DELETE FROM `+table+` WHERE id IN
		(SELECT id FROM `+table+` WHERE `+where+` ORDER BY `+order+` LIMIT ?)`, n-keep)
}

// GetClient returns a client, or [ErrNotFound].
func (s *Store) GetClient(ctx context.Context, id string) (Client, error) {
	return queryOne(ctx, s.db, func(c *Client) []any {
		return []any{&c.ID, &c.Name, jsonText{&c.Redirects}, (*nanos)(&c.Created), (*nanos)(&c.Used)}
	}, `SELECT id, name, redirects, created, used FROM oauth_clients WHERE id = ?`, id)
}

// Request is a step of a browser that waits for the next one: a login, a consent, a new connection.
type Request struct {
	ID      string // digest
	Kind    string
	Browser string // digest of a secret that only the browser knows
	Caller  string // empty before a login
	Data    []byte
	Expires time.Time
}

// AddRequest stores a request. It deletes expired ones, and at the limit those that expire first.
func (s *Store) AddRequest(ctx context.Context, r Request, now time.Time, limit int) error {
	return s.transact(ctx, func(t tx) error {
		if err := t.lockTable(ctx, t, `oauth_requests`); err != nil { // nobody else counts
			return err
		}
		if err := t.exec(ctx, `DELETE FROM oauth_requests WHERE expires <= ?`, nanos(now)); err != nil {
			return err
		}
		if err := t.trim(ctx, `oauth_requests`, `1 = 1`, `expires`, limit-1); err != nil {
			return err
		}
		return t.exec(ctx, `INSERT INTO oauth_requests (id, kind, browser, caller, data, expires) VALUES (?, ?, ?, ?, ?, ?)`,
			r.ID, r.Kind, r.Browser, r.Caller, r.Data, nanos(r.Expires))
	})
}

// TakeRequest deletes a browser's request and returns it. A request that is unknown, used, expired,
// of another kind or of another browser is [ErrNotFound], and stays.
func (s *Store) TakeRequest(ctx context.Context, kind, id, browser string, now time.Time) (Request, error) {
	return queryOne(ctx, s.db, func(r *Request) []any {
		return []any{&r.ID, &r.Kind, &r.Browser, &r.Caller, &r.Data, (*nanos)(&r.Expires)}
	}, `DELETE FROM oauth_requests WHERE id = ? AND kind = ? AND browser = ? AND expires > ?
		RETURNING id, kind, browser, caller, data, expires`, id, kind, browser, nanos(now))
}

// BrowserSession is a browser in which a user is logged in.
type BrowserSession struct {
	ID      string // digest
	Caller  string
	Expires time.Time
}

// AddBrowserSession stores a session.
func (s *Store) AddBrowserSession(ctx context.Context, b BrowserSession) error {
	return s.exec(ctx, `INSERT INTO browser_sessions (id, caller, expires) VALUES (?, ?, ?)`, b.ID, b.Caller, nanos(b.Expires))
}

// GetBrowserSession returns a session that has not expired, or [ErrNotFound].
func (s *Store) GetBrowserSession(ctx context.Context, id string, now time.Time) (BrowserSession, error) {
	return queryOne(ctx, s.db, func(b *BrowserSession) []any {
		return []any{&b.ID, &b.Caller, (*nanos)(&b.Expires)}
	}, `SELECT id, caller, expires FROM browser_sessions WHERE id = ? AND expires > ?`, id, nanos(now))
}

// DeleteBrowserSession ends a session.
func (s *Store) DeleteBrowserSession(ctx context.Context, id string) error {
	return s.exec(ctx, `DELETE FROM browser_sessions WHERE id = ?`, id)
}
