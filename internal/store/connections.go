package store

import (
	"context"
	"errors"
	"time"
)

// connectionsTables holds callers' connections to services, and the check of the root key.
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

// Connection is a caller's connection to a service. Its content is sealed.
type Connection struct {
	Caller, Service string
	ID              string // new whenever the caller connects again
	KeyID           string // of the key that sealed Wrapped
	Wrapped         []byte // the key of this row
	Sealed          []byte // the content
	Updated         time.Time
}

const connectionColumns = `caller, service, id, key_id, wrapped, sealed, updated`

func (c *Connection) columns() []any {
	return []any{&c.Caller, &c.Service, &c.ID, &c.KeyID, &c.Wrapped, &c.Sealed, (*nanos)(&c.Updated)}
}

// KeyCheck is a known text sealed with the root key. It tells the right root key from a wrong one.
type KeyCheck struct {
	KeyID  string
	Sealed []byte
}

// FirstKeyCheck stores c if no key check is stored yet, and returns the stored one.
func (s *Store) FirstKeyCheck(ctx context.Context, c KeyCheck) (stored KeyCheck, err error) {
	err = s.transact(ctx, func(t tx) error {
		if err := t.exec(ctx, `INSERT INTO key_check (one, key_id, sealed) VALUES (1, ?, ?) ON CONFLICT DO NOTHING`,
			c.KeyID, c.Sealed); err != nil {
			return err
		}
		stored, err = queryOne(ctx, t, func(c *KeyCheck) []any {
			return []any{&c.KeyID, &c.Sealed}
		}, `SELECT key_id, sealed FROM key_check`)
		return err
	})
	return stored, err
}

// Rekey replaces the key check, if it is still that of the key old, and the key of every
// connection, all or nothing. There may be many, so the transaction has no timeout.
func (s *Store) Rekey(ctx context.Context, old string, c KeyCheck, rewrap func(Connection) (Connection, error)) error {
	return s.transactWithin(ctx, 0, func(t tx) error {
		_, err := queryOne(ctx, t, value[string],
			`UPDATE key_check SET key_id = ?, sealed = ? WHERE key_id = ? RETURNING key_id`, c.KeyID, c.Sealed, old)
		if errors.Is(err, ErrNotFound) {
			return nil // another process was first
		}
		if err != nil {
			return err
		}
		all, err := queryAll(ctx, t, (*Connection).columns, `SELECT `+connectionColumns+` FROM connections`+t.forUpdate(`connections`))
		if err != nil {
			return err
		}
		for _, row := range all {
			if row, err = rewrap(row); err != nil {
				return err
			}
			if err := t.exec(ctx, `UPDATE connections SET key_id = ?, wrapped = ?, sealed = ? WHERE caller = ? AND service = ?`,
				row.KeyID, row.Wrapped, row.Sealed, row.Caller, row.Service); err != nil {
				return err
			}
		}
		return nil
	})
}

// PutConnection stores a connection. It replaces an earlier one of the caller to the service.
func (s *Store) PutConnection(ctx context.Context, c Connection) error {
	return s.exec(ctx,
		`INSERT INTO connections (`+connectionColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (caller, service) DO UPDATE SET id = excluded.id, key_id = excluded.key_id,
			wrapped = excluded.wrapped, sealed = excluded.sealed, updated = excluded.updated,
			lease_owner = '', lease_until = 0`,
		c.Caller, c.Service, c.ID, c.KeyID, c.Wrapped, c.Sealed, nanos(c.Updated))
}

// GetConnection returns a caller's connection to a service, or [ErrNotFound].
func (s *Store) GetConnection(ctx context.Context, caller, service string) (Connection, error) {
	return queryOne(ctx, s.db, (*Connection).columns,
		`SELECT `+connectionColumns+` FROM connections WHERE caller = ? AND service = ?`, caller, service)
}

// DeleteConnection deletes a caller's connection to a service and returns it, or [ErrNotFound].
func (s *Store) DeleteConnection(ctx context.Context, caller, service string) (Connection, error) {
	return queryOne(ctx, s.db, (*Connection).columns,
		`DELETE FROM connections WHERE caller = ? AND service = ? RETURNING `+connectionColumns, caller, service)
}

// LeaseConnection gives owner the exclusive right to update a connection until a time, and returns
// the connection. It returns [ErrNotFound] if it does not exist or another owner has the lease.
func (s *Store) LeaseConnection(
	ctx context.Context, caller, service, owner string, now, until time.Time,
) (Connection, error) {
	return queryOne(ctx, s.db, (*Connection).columns,
		`UPDATE connections SET lease_owner = ?, lease_until = ?
		WHERE caller = ? AND service = ? AND lease_until <= ? RETURNING `+connectionColumns,
		owner, nanos(until), caller, service, nanos(now))
}

// UpdateConnection stores c, for which owner has the lease, and ends the lease. It returns
// [ErrNotFound] if the connection was deleted or made again, or owner has lost the lease.
func (s *Store) UpdateConnection(ctx context.Context, c Connection, owner string) error {
	return s.execOne(ctx,
		`UPDATE connections SET key_id = ?, wrapped = ?, sealed = ?, updated = ?, lease_owner = '', lease_until = 0
		WHERE caller = ? AND service = ? AND id = ? AND lease_owner = ?`,
		c.KeyID, c.Wrapped, c.Sealed, nanos(c.Updated), c.Caller, c.Service, c.ID, owner)
}

// DropConnection deletes the connection c if owner has its lease.
func (s *Store) DropConnection(ctx context.Context, c Connection, owner string) error {
	return s.exec(ctx, `DELETE FROM connections WHERE caller = ? AND service = ? AND id = ? AND lease_owner = ?`,
		c.Caller, c.Service, c.ID, owner)
}

// ReleaseConnection ends owner's lease.
func (s *Store) ReleaseConnection(ctx context.Context, caller, service, owner string) error {
	return s.exec(ctx,
		`UPDATE connections SET lease_owner = '', lease_until = 0 WHERE caller = ? AND service = ? AND lease_owner = ?`,
		caller, service, owner)
}
