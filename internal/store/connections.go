package store

import (
	"context"
	"database/sql"
	"time"
)

// connectionsTables holds callers' connections to services, and what tells the right root key from a wrong one.
const connectionsTables = `CREATE TABLE connections (
		caller      TEXT NOT NULL,
		service     TEXT NOT NULL,
		id          TEXT NOT NULL,
		key_id      TEXT NOT NULL,
		wrapped     BLOB NOT NULL,
		sealed      BLOB NOT NULL,
		updated     INTEGER NOT NULL,
		lease_owner TEXT NOT NULL DEFAULT '',
		lease_until INTEGER NOT NULL DEFAULT 0,
		PRIMARY KEY (caller, service)
	) STRICT, WITHOUT ROWID;
	CREATE TABLE key_check (
		one    INTEGER PRIMARY KEY CHECK (one = 1),
		key_id TEXT NOT NULL,
		sealed BLOB NOT NULL
	) STRICT;`

// Connection is a caller's connection to a service, sealed by whoever stored it.
type Connection struct {
	Caller, Service string
	ID              string // a new one whenever the person connects anew
	KeyID           string // of the key that Wrapped is sealed with
	Wrapped         []byte // the row's own key
	Sealed          []byte // the content
	Updated         time.Time
}

// KeyCheck is a known text sealed with the root key.
type KeyCheck struct {
	KeyID  string
	Sealed []byte
}

// FirstKeyCheck stores c if there is none yet, and returns the one that is stored.
func (s *Store) FirstKeyCheck(ctx context.Context, c KeyCheck) (KeyCheck, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return KeyCheck{}, err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, `INSERT INTO key_check (one, key_id, sealed) VALUES (1, ?, ?) ON CONFLICT DO NOTHING`, c.KeyID, c.Sealed); err != nil {
		return KeyCheck{}, err
	}
	if err := tx.QueryRowContext(ctx, `SELECT key_id, sealed FROM key_check`).Scan(&c.KeyID, &c.Sealed); err != nil {
		return KeyCheck{}, err
	}
	return c, tx.Commit()
}

// Rekey replaces the key check, if it still is that of the key old, and every connection's key, in one step.
func (s *Store) Rekey(ctx context.Context, old string, c KeyCheck, rewrap func(Connection) (Connection, error)) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	res, err := tx.ExecContext(ctx, `UPDATE key_check SET key_id = ?, sealed = ? WHERE key_id = ?`, c.KeyID, c.Sealed, old)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); n == 0 || err != nil {
		return err // another process was first
	}
	all, err := connections(tx.QueryContext(ctx, `SELECT `+connectionColumns+` FROM connections`))
	if err != nil {
		return err
	}
	for _, row := range all {
		if row, err = rewrap(row); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE connections SET key_id = ?, wrapped = ?, sealed = ? WHERE caller = ? AND service = ?`,
			row.KeyID, row.Wrapped, row.Sealed, row.Caller, row.Service); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// PutConnection stores a connection in place of the caller's earlier one to the service.
func (s *Store) PutConnection(ctx context.Context, c Connection) error {
	_, err := s.db.ExecContext(ctx,
		`INSERT INTO connections (caller, service, id, key_id, wrapped, sealed, updated) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET id = excluded.id, key_id = excluded.key_id, wrapped = excluded.wrapped, sealed = excluded.sealed,
			updated = excluded.updated, lease_owner = '', lease_until = 0`,
		c.Caller, c.Service, c.ID, c.KeyID, c.Wrapped, c.Sealed, c.Updated.UnixNano())
	return err
}

// GetConnection returns a caller's connection to a service, or [ErrNotFound].
func (s *Store) GetConnection(ctx context.Context, caller, service string) (Connection, error) {
	return connection(s.db.QueryRowContext(ctx,
		`SELECT `+connectionColumns+` FROM connections WHERE caller = ? AND service = ?`, caller, service))
}

// DeleteConnection forgets a caller's connection to a service and returns what it was, or [ErrNotFound].
func (s *Store) DeleteConnection(ctx context.Context, caller, service string) (Connection, error) {
	return connection(s.db.QueryRowContext(ctx,
		`DELETE FROM connections WHERE caller = ? AND service = ? RETURNING `+connectionColumns, caller, service))
}

// LeaseConnection makes owner the only one who may update a connection, until the given time, and returns it as it is now.
// [ErrNotFound] says that there is no such connection, or that somebody else has the lease.
func (s *Store) LeaseConnection(ctx context.Context, caller, service, owner string, now, until time.Time) (Connection, error) {
	return connection(s.db.QueryRowContext(ctx,
		`UPDATE connections SET lease_owner = ?, lease_until = ? WHERE caller = ? AND service = ? AND lease_until <= ? RETURNING `+connectionColumns,
		owner, until.UnixNano(), caller, service, now.UnixNano()))
}

// UpdateConnection stores c, of which owner has the lease, and ends the lease. [ErrNotFound] says that the connection was
// deleted or made anew, or that the lease went to somebody else.
func (s *Store) UpdateConnection(ctx context.Context, c Connection, owner string) error {
	return affected(s.db.ExecContext(ctx,
		`UPDATE connections SET key_id = ?, wrapped = ?, sealed = ?, updated = ?, lease_owner = '', lease_until = 0
		WHERE caller = ? AND service = ? AND id = ? AND lease_owner = ?`,
		c.KeyID, c.Wrapped, c.Sealed, c.Updated.UnixNano(), c.Caller, c.Service, c.ID, owner))
}

// DropConnection forgets the connection of that id, of which owner has the lease. Any other is left alone.
func (s *Store) DropConnection(ctx context.Context, c Connection, owner string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM connections WHERE caller = ? AND service = ? AND id = ? AND lease_owner = ?`,
		c.Caller, c.Service, c.ID, owner)
	return err
}

// ReleaseConnection ends owner's lease.
func (s *Store) ReleaseConnection(ctx context.Context, caller, service, owner string) error {
	_, err := s.db.ExecContext(ctx, `UPDATE connections SET lease_owner = '', lease_until = 0 WHERE caller = ? AND service = ? AND lease_owner = ?`,
		caller, service, owner)
	return err
}

const connectionColumns = `caller, service, id, key_id, wrapped, sealed, updated`

func connection(row interface{ Scan(...any) error }) (Connection, error) {
	var c Connection
	var updated int64
	if err := row.Scan(&c.Caller, &c.Service, &c.ID, &c.KeyID, &c.Wrapped, &c.Sealed, &updated); err != nil {
		return Connection{}, notFound(err)
	}
	c.Updated = time.Unix(0, updated)
	return c, nil
}

func connections(rows *sql.Rows, err error) ([]Connection, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []Connection
	for rows.Next() {
		c, err := connection(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, rows.Err()
}

// affected is [ErrNotFound] for a statement that changed nothing.
func affected(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); n > 0 || err != nil {
		return err
	}
	return ErrNotFound
}
