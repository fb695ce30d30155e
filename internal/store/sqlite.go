package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// busyTimeout is how long a process waits for another one's write. Writes take about a millisecond.
const busyTimeout = 5 * time.Second

// sqliteDialect is SQLite. Its transactions take the only write lock when they begin, so they need
// no others.
type sqliteDialect struct{ path string }

func connectSQLite(path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := makeFile(path); err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	pool, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, err
	}
	// SQLite has one writer at a time. With one connection, writers of this process queue here, in
	// order, and only processes compete for the file's lock.
	pool.SetMaxOpenConns(1)
	return newStore(pool, &sqliteDialect{path}), nil
}

// makeFile makes the file, if needed, for its owner only. It never opens an existing one: closing
// it would end the locks that another Store of this process holds on it.
func makeFile(path string) error {
	switch fi, err := os.Stat(path); {
	case err == nil && !fi.Mode().IsRegular():
		return fmt.Errorf("%s is not a file", path)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// makePrivate makes a database, which SQLite has read, accessible to its owner only.
func (d *sqliteDialect) makePrivate(ctx context.Context, s *Store) error {
	if _, err := queryOne(ctx, s.db, value[int], `PRAGMA schema_version`); err != nil {
		return err
	}
	for _, path := range []string{d.path, d.path + "-wal", d.path + "-shm"} {
		if err := os.Chmod(path, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func dsn(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/…
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		// immediate: a transaction takes the write lock when it begins, where it can wait for it.
		"_txlock":       {"immediate"},
		"_busy_timeout": {fmt.Sprint(busyTimeout.Milliseconds())},
		"_synchronous":  {"NORMAL"},
	}.Encode()}
	return u.String()
}

func (d *sqliteDialect) String() string { return d.path }

func (*sqliteDialect) patience() time.Duration { return busyTimeout }

// prepare switches to WAL and migrates. If several processes do that to a new file at once, SQLite
// refuses some of them without waiting, or fails since another one has deleted the journal. Those
// try again.
func (d *sqliteDialect) prepare(ctx context.Context, s *Store) error {
	for {
		err := d.tryPrepare(ctx, s)
		if !isContended(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (d *sqliteDialect) tryPrepare(ctx context.Context, s *Store) error {
	if err := d.makePrivate(ctx, s); err != nil {
		return err
	}
	mode, err := queryOne(ctx, s.db, value[string], `PRAGMA journal_mode = WAL`)
	if err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("its file system does not support SQLite's WAL mode (got %q): put it on a local disk", mode)
	}
	if err := s.migrate(ctx); err != nil {
		return err
	}
	for _, query := range hotQueries {
		if s.hot[query], err = s.pool.PrepareContext(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

func isContended(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) &&
		(e.Code()&0xff == sqlite3.SQLITE_BUSY || e.Code() == sqlite3.SQLITE_IOERR_DELETE_NOENT)
}

func (*sqliteDialect) fix(error) string { return "" }

func (*sqliteDialect) ping(ctx context.Context, q querier) error {
	_, err := queryOne(ctx, q, value[int], `PRAGMA user_version`)
	return err
}

func (*sqliteDialect) isDown(err error) bool { return isContended(err) }

func (*sqliteDialect) bind(query string, args []any) (string, []any) { return query, args }

func (*sqliteDialect) types(ddl string) string { return ddl }

func (*sqliteDialect) forUpdate(string) string { return "" }

func (*sqliteDialect) lockTable(context.Context, tx, string) error { return nil }

func (*sqliteDialect) lost(error) bool { return false }

func (*sqliteDialect) version(ctx context.Context, t tx) (int, error) {
	return queryOne(ctx, t, value[int], `PRAGMA user_version`)
}

func (*sqliteDialect) setVersion(ctx context.Context, t tx, version int) error {
	return t.exec(ctx, fmt.Sprintf(`PRAGMA user_version = %d`, version))
}

func (*sqliteDialect) elsewhere() string { return "another data directory" }

// exclude leaves WAL mode, which SQLite allows only to the last connection. Until the next Open, a
// transaction then keeps all others out: they cannot return to WAL mode.
func (d *sqliteDialect) exclude(ctx context.Context, s *Store, _ time.Duration) error {
	_, err := queryOne(ctx, s.db, value[string], `PRAGMA journal_mode = DELETE`)
	if isContended(err) {
		return ErrInUse
	}
	return err
}
