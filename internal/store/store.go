// Package store keeps what must outlive a process and what several processes on one root share:
// upload tickets, runs and their results, execution tokens, connections and logins, in one SQLite
// file.
//
// It never sees code or environments, and credentials only sealed. It knows rows, not what they are
// for.
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

// Store is an open database. It is safe for concurrent use, and any number of processes may have
// the same file open.
type Store struct {
	db  *sql.DB
	hot map[string]*sql.Stmt // prepared statements of hotQueries
}

// Open opens the database at path and brings its tables up to date. It makes a missing file, which
// only its owner can read.
func Open(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := makePrivate(path); err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		return nil, err
	}
	// SQLite has one writer at a time. With one connection, writers of this process queue here, in
	// order, and only processes compete for the file's lock.
	db.SetMaxOpenConns(1)
	s := &Store{db: db, hot: map[string]*sql.Stmt{}}
	if err := s.prepare(ctx); err != nil {
		db.Close()
		return nil, fmt.Errorf("preparing the database %s: %w", path, err)
	}
	return s, nil
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// makePrivate makes the file, if needed, accessible to its owner only. SQLite gives its -wal and
// -shm files the same mode. makePrivate never opens an existing file: closing it would end the
// locks that another Store of this process holds on it.
func makePrivate(path string) error {
	err := os.Chmod(path, 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
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

// prepare switches to WAL and migrates. If several processes do that to a new file at once, SQLite
// refuses some of them without waiting, or fails since another one has deleted the journal. Those
// try again.
func (s *Store) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	for {
		err := s.tryPrepare(ctx)
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

func (s *Store) tryPrepare(ctx context.Context) error {
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
		if s.hot[query], err = s.db.PrepareContext(ctx, query); err != nil {
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
