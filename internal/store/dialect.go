package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// dialect is what SQLite and Postgres do not have in common.
type dialect interface {
	fmt.Stringer // the path or the URL, without a password

	// patience is how long Open tries.
	patience() time.Duration
	// prepare makes a new connection usable, and migrates.
	prepare(ctx context.Context, s *Store) error
	// fix returns what to do about an error; "" if that is not known.
	fix(err error) string

	// ping returns an error if the database does not answer, or is read-only.
	ping(ctx context.Context, q querier) error
	// isDown reports whether an error says that the database did not answer. A context's errors are
	// not its concern.
	isDown(err error) bool

	// bind returns a statement and its arguments as the database wants them.
	bind(query string, args []any) (string, []any)
	// types returns a statement of a migration with the database's types.
	types(ddl string) string
	// forUpdate is the end of a SELECT whose row the transaction is going to change. Of a join it
	// locks the row of one table.
	forUpdate(table string) string
	// lockTable keeps other transactions from changing a table until t ends.
	lockTable(ctx context.Context, t tx, table string) error
	// lost reports that a transaction failed because of another one, and may be repeated.
	lost(err error) bool

	// version returns how many migrations were applied. No other process migrates until t ends.
	version(ctx context.Context, t tx) (int, error)
	setVersion(ctx context.Context, t tx, version int) error
	// elsewhere is what to use instead of a database of a newer release.
	elsewhere() string
	// exclude returns [ErrInUse] if another process has the database open. One that has just closed
	// it may have up to patience to end.
	exclude(ctx context.Context, s *Store, patience time.Duration) error
}

var (
	_ dialect = (*sqliteDialect)(nil)
	_ dialect = (*postgresDialect)(nil)
)

// conn is a *sql.DB or *sql.Tx that speaks a dialect. timeout bounds each statement, and each
// transaction; 0: nothing does.
type conn struct {
	raw interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	}
	dialect
	timeout time.Duration
}

// bounded returns the context of a statement.
func (c conn) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return bounded(ctx, c.timeout)
}

// bounded returns a context with a timeout, unless that is 0.
func bounded(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, timeout)
}

func (c conn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	query, args = c.bind(query, args)
	return c.raw.QueryRowContext(ctx, query, args...)
}

func (c conn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	query, args = c.bind(query, args)
	return c.raw.QueryContext(ctx, query, args...)
}

func (c conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	query, args = c.bind(query, args)
	return c.raw.ExecContext(ctx, query, args...)
}

// exec executes a statement.
func (c conn) exec(ctx context.Context, query string, args ...any) error {
	_, err := c.ExecContext(ctx, query, args...)
	return err
}
