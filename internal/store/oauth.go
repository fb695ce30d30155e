package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"
)

// oauthTables holds who has logged in, and what they allowed which MCP client. Ids of codes, tokens, requests and browser sessions are
// digests: whoever reads the database cannot use them.
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

// ErrFull says that no more rows of a kind are kept.
var ErrFull = errors.New("too many are stored already")

// User is somebody who has logged in.
type User struct {
	ID              string // the caller
	Issuer, Subject string // who vouches for them, and under which name
	Email, Name     string
	Seen            time.Time
}

// PutUser stores a user, in place of what was known.
func (s *Store) PutUser(ctx context.Context, u User) error {
	_, err := s.db.ExecContext(ctx,
		`INSERT OR REPLACE INTO users (id, issuer, subject, email, name, seen) VALUES (?, ?, ?, ?, ?, ?)`,
		u.ID, u.Issuer, u.Subject, u.Email, u.Name, u.Seen.UnixNano())
	return err
}

// GetUser returns a user, or [ErrNotFound].
func (s *Store) GetUser(ctx context.Context, id string) (User, error) {
	var u User
	var seen int64
	err := s.db.QueryRowContext(ctx, `SELECT id, issuer, subject, email, name, seen FROM users WHERE id = ?`, id).
		Scan(&u.ID, &u.Issuer, &u.Subject, &u.Email, &u.Name, &seen)
	if err != nil {
		return User{}, notFound(err)
	}
	u.Seen = time.Unix(0, seen)
	return u, nil
}

// Client is an MCP client that registered itself.
type Client struct {
	ID, Name  string
	Redirects []string
	Created   time.Time
	Used      time.Time // when somebody last allowed it something; zero: never
}

// AddClient stores a client. Of those that nobody ever used, it forgets the ones made before unusedSince, and the oldest when there are
// limit clients. It returns [ErrFull] when limit of them are in use.
func (s *Store) AddClient(ctx context.Context, c Client, limit int, unusedSince time.Time) error {
	redirects, err := json.Marshal(c.Redirects)
	if err != nil {
		return err
	}
	return s.transact(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM oauth_clients WHERE used = 0 AND created < ?`, unusedSince.UnixNano()); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx,
			`DELETE FROM oauth_clients WHERE id IN (SELECT id FROM oauth_clients WHERE used = 0 ORDER BY created
			LIMIT max(0, (SELECT count(*) FROM oauth_clients) - ?))`, limit-1); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM oauth_clients`).Scan(&n); err != nil {
			return err
		}
		if n >= limit {
			return ErrFull
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO oauth_clients (id, name, redirects, created, used) VALUES (?, ?, ?, ?, 0)`,
			c.ID, c.Name, string(redirects), c.Created.UnixNano())
		return err
	})
}

// GetClient returns a client, or [ErrNotFound].
func (s *Store) GetClient(ctx context.Context, id string) (Client, error) {
	var c Client
	var redirects string
	var created, used int64
	err := s.db.QueryRowContext(ctx, `SELECT id, name, redirects, created, used FROM oauth_clients WHERE id = ?`, id).
		Scan(&c.ID, &c.Name, &redirects, &created, &used)
	if err != nil {
		return Client{}, notFound(err)
	}
	if err := json.Unmarshal([]byte(redirects), &c.Redirects); err != nil {
		return Client{}, err
	}
	c.Created = time.Unix(0, created)
	if used > 0 {
		c.Used = time.Unix(0, used)
	}
	return c, nil
}

// Request is a step of a browser's that waits for the next one: a login, a consent, a connection being made.
type Request struct {
	ID      string // digest
	Kind    string
	Browser string // digest of what only that browser knows
	Caller  string // empty before a login
	Data    []byte
	Expires time.Time
}

// AddRequest stores a request, and forgets those that expired, and the ones that expire first when there are limit of them.
func (s *Store) AddRequest(ctx context.Context, r Request, now time.Time, limit int) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM oauth_requests WHERE expires <= ?`, now.UnixNano()); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx,
			`DELETE FROM oauth_requests WHERE id IN (SELECT id FROM oauth_requests ORDER BY expires
			LIMIT max(0, (SELECT count(*) FROM oauth_requests) - ?))`, limit-1); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO oauth_requests (id, kind, browser, caller, data, expires) VALUES (?, ?, ?, ?, ?, ?)`,
			r.ID, r.Kind, r.Browser, r.Caller, r.Data, r.Expires.UnixNano())
		return err
	})
}

// TakeRequest returns a browser's request and uses it up, in one step. One that is unknown, used, expired, of another kind or of
// another browser is [ErrNotFound], and stays.
func (s *Store) TakeRequest(ctx context.Context, kind, id, browser string, now time.Time) (Request, error) {
	r := Request{ID: id, Kind: kind, Browser: browser}
	var expires int64
	err := s.db.QueryRowContext(ctx,
		`DELETE FROM oauth_requests WHERE id = ? AND kind = ? AND browser = ? AND expires > ? RETURNING caller, data, expires`,
		id, kind, browser, now.UnixNano()).Scan(&r.Caller, &r.Data, &expires)
	if err != nil {
		return Request{}, notFound(err)
	}
	r.Expires = time.Unix(0, expires)
	return r, nil
}

// BrowserSession is a browser in which somebody is logged in.
type BrowserSession struct {
	ID      string // digest
	Caller  string
	Expires time.Time
}

// AddBrowserSession stores a session.
func (s *Store) AddBrowserSession(ctx context.Context, b BrowserSession) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO browser_sessions (id, caller, expires) VALUES (?, ?, ?)`,
		b.ID, b.Caller, b.Expires.UnixNano())
	return err
}

// GetBrowserSession returns a session that has not expired, or [ErrNotFound].
func (s *Store) GetBrowserSession(ctx context.Context, id string, now time.Time) (BrowserSession, error) {
	b := BrowserSession{ID: id}
	var expires int64
	err := s.db.QueryRowContext(ctx, `SELECT caller, expires FROM browser_sessions WHERE id = ? AND expires > ?`, id, now.UnixNano()).
		Scan(&b.Caller, &expires)
	if err != nil {
		return BrowserSession{}, notFound(err)
	}
	b.Expires = time.Unix(0, expires)
	return b, nil
}

// DeleteBrowserSession ends a session.
func (s *Store) DeleteBrowserSession(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM browser_sessions WHERE id = ?`, id)
	return err
}

// transact does several statements as one.
func (s *Store) transact(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}
