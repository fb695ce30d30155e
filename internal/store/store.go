// Package store keeps what must outlive a process and what several processes share: upload tickets,
// runs and their results, execution tokens, connections and logins, in one SQLite file or in a
// Postgres database.
//
// It never sees code or environments, and credentials only sealed. It knows rows, not what they are
// for. Statements are written once, for SQLite; a dialect has what Postgres needs differently.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Store is an open database. It is safe for concurrent use, and any number of processes may have
// the same database open.
type Store struct {
	pool *sql.DB
	db   conn                 // the pool, in its dialect
	hot  map[string]*sql.Stmt // prepared statements of hotQueries, on SQLite

	process func() time.Time        // the process's clock
	reading atomic.Pointer[reading] // of the database's clock; nil: it is the process's
	stop    func()                  // ends the goroutine that reads that clock
}

// Open opens a database and brings its tables up to date. where is the URL of a Postgres database
// (see [IsURL]), or the path of an SQLite file. Open makes a missing file, which only its owner can
// read.
func Open(ctx context.Context, where string) (*Store, error) {
	return OpenWithClock(ctx, where, time.Now)
}

// OpenWithClock is Open in a process that has another clock than time.Now.
func OpenWithClock(ctx context.Context, where string, process func() time.Time) (*Store, error) {
	s, err := connect(where)
	if err != nil {
		return nil, err
	}
	s.process = process
	ctx, cancel := context.WithTimeout(ctx, s.db.patience())
	defer cancel()
	if err := s.db.prepare(ctx, s); err != nil {
		s.Close()
		return nil, s.explain("preparing", err)
	}
	return s, nil
}

// connect returns a Store whose tables may not exist yet.
func connect(where string) (*Store, error) {
	switch {
	case IsURL(where):
		return connectPostgres(where)
	case otherURL.MatchString(where):
		return nil, errURL
	}
	return connectSQLite(where)
}

// newStore returns the Store of a pool.
func newStore(pool *sql.DB, d dialect) *Store {
	return &Store{pool: pool, db: conn{raw: pool, dialect: d}, hot: map[string]*sql.Stmt{}, process: time.Now, stop: func() {}}
}

// Close closes the database.
func (s *Store) Close() error {
	s.stop()
	return s.pool.Close()
}

// String returns the path or the URL of the database, without a password.
func (s *Store) String() string { return s.db.String() }

// Ping returns an error if the database does not answer, or is read-only.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.db.ping(ctx, s.db); err != nil {
		return s.explain("reaching", err)
	}
	return nil
}

// IsDown reports whether an error of a Store says that the database did not answer. The same call
// may work later. Nobody knows whether a statement with this error was executed.
func (s *Store) IsDown(err error) bool {
	return err != nil && !errors.Is(err, context.Canceled) &&
		(errors.Is(err, context.DeadlineExceeded) || s.db.isDown(err))
}

// ErrInUse says that another process has the database open.
var ErrInUse = errors.New("it is in use")

// explain adds to an error what was done with which database, and the fix.
func (s *Store) explain(doing string, err error) error {
	if known, ok := errors.AsType[*Error](err); ok {
		return &Error{fmt.Errorf("%s the database %s: %w", doing, s, known.Err), known.Fix}
	}
	return &Error{fmt.Errorf("%s the database %s: %w", doing, s, err), s.db.fix(err)}
}

// Error is a database that cannot be used. Fix says what to do, if that is known.
type Error struct {
	Err error
	Fix string
}

func (e *Error) Error() string {
	if e.Fix == "" {
		return e.Problem()
	}
	return e.Problem() + ": " + e.Fix
}

// Problem is the error without its fix, in one line. The Postgres driver's errors have a line for
// each attempt, with and without TLS.
func (e *Error) Problem() string {
	var lines []string
	for line := range strings.Lines(e.Err.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

func (e *Error) Unwrap() error { return e.Err }
