// Package store keeps what must outlive a process and be shared by several on one root: upload tickets, the record of
// runs and, for a time, their results, in one SQLite file.
//
// It never sees code or environment, and credentials only sealed. It knows rows, and nothing of what they are used for.
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
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// ErrNotFound says that there is no such row, or that it may no longer be used.
var ErrNotFound = errors.New("not found")

// busyTimeout is how long a process waits for another one's write. Writes take about a millisecond.
const busyTimeout = 5 * time.Second

// Store is an open database. It is safe for concurrent use, and any number of processes may have the same file open.
type Store struct {
	db       *sql.DB
	prepared sync.Map // *sql.Stmt by its text, for what is asked often
}

// Ticket is the right to upload one file, once.
type Ticket struct {
	ID, Caller, Session, Name string
	Overwrite                 bool
	Expires                   time.Time
}

// Run is the record of one execution.
type Run struct {
	ID, Caller, Session, Runner string
	Started                     time.Time
	Duration                    time.Duration
	ExitCode                    int
	Cause                       string
}

// Open opens the database at path, makes it if need be (readable by its owner alone), and brings its tables up to date.
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
	// SQLite has one writer at a time anyway. With one connection, writers of this process queue here, in order,
	// and only processes compete for the file's lock.
	db.SetMaxOpenConns(1)
	s := &Store{db: db}
	if err := s.prepare(ctx); err != nil {
		db.Close()
		return nil, fmt.Errorf("preparing the database %s: %w", path, err)
	}
	return s, nil
}

// makePrivate sees to it that the file is there and its owner's alone. SQLite gives its -wal and -shm files the same mode.
// It never opens the file itself: closing it would end the locks that another Store of this process holds on it.
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

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// statement prepares a statement once.
func (s *Store) statement(ctx context.Context, text string) (*sql.Stmt, error) {
	if stmt, ok := s.prepared.Load(text); ok {
		return stmt.(*sql.Stmt), nil
	}
	stmt, err := s.db.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	if first, there := s.prepared.LoadOrStore(text, stmt); there {
		stmt.Close()
		return first.(*sql.Stmt), nil
	}
	return stmt, nil
}

func dsn(path string) string {
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // C:/…
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		// immediate: a transaction takes the write lock when it begins, where waiting for it is possible.
		"_txlock":       {"immediate"},
		"_busy_timeout": {fmt.Sprint(busyTimeout.Milliseconds())},
		"_synchronous":  {"NORMAL"},
	}.Encode()}
	return u.String()
}

// prepare switches to WAL and migrates. When several processes do that to a new file at once, SQLite refuses some of them
// without waiting for its busy timeout, or finds that another has removed the journal before it could, so those try again.
func (s *Store) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	for {
		err := s.tryPrepare(ctx)
		if !contended(err) {
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
	var mode string
	if err := s.db.QueryRowContext(ctx, `PRAGMA journal_mode = WAL`).Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("its file system does not support SQLite's WAL mode (got %q): put it on a local disk", mode)
	}
	return migrate(ctx, s.db)
}

func contended(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && (e.Code()&0xff == sqlite3.SQLITE_BUSY || e.Code() == sqlite3.SQLITE_IOERR_DELETE_NOENT)
}

// AddTicket stores a ticket.
func (s *Store) AddTicket(ctx context.Context, t Ticket) error {
	_, err := s.db.ExecContext(ctx,
		`INSERT INTO tickets (id, caller, session, name, overwrite, expires) VALUES (?, ?, ?, ?, ?, ?)`,
		t.ID, t.Caller, t.Session, t.Name, t.Overwrite, t.Expires.UnixNano())
	return err
}

// TakeTicket returns a ticket and uses it up, in one step: of all who try, in whatever process, one succeeds. A ticket
// that is unknown, used or expired is [ErrNotFound].
func (s *Store) TakeTicket(ctx context.Context, id string, now time.Time) (Ticket, error) {
	var t Ticket
	var expires int64
	err := s.db.QueryRowContext(ctx,
		`DELETE FROM tickets WHERE id = ? AND expires > ? RETURNING id, caller, session, name, overwrite, expires`,
		id, now.UnixNano()).Scan(&t.ID, &t.Caller, &t.Session, &t.Name, &t.Overwrite, &expires)
	if err != nil {
		return Ticket{}, notFound(err)
	}
	t.Expires = time.Unix(0, expires)
	return t, nil
}

// DropTickets deletes the unused tickets of a caller's session.
func (s *Store) DropTickets(ctx context.Context, caller, session string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM tickets WHERE caller = ? AND session = ?`, caller, session)
	return err
}

// AddRun records a run.
func (s *Store) AddRun(ctx context.Context, r Run) error {
	return s.Record(ctx, []Run{r}, nil, 0, nil)
}

// GetRun returns the record of a run, or [ErrNotFound]. Whether the asker may see it is for the asker to check.
func (s *Store) GetRun(ctx context.Context, id string) (Run, error) {
	var r Run
	var started int64
	err := s.db.QueryRowContext(ctx,
		`SELECT id, caller, session, runner, started, duration, exit_code, cause FROM runs WHERE id = ?`, id).
		Scan(&r.ID, &r.Caller, &r.Session, &r.Runner, &started, &r.Duration, &r.ExitCode, &r.Cause)
	if err != nil {
		return Run{}, notFound(err)
	}
	r.Started = time.Unix(0, started)
	return r, nil
}

// Purge deletes tickets that expired, and runs that started, before the given time.
func (s *Store) Purge(ctx context.Context, before time.Time) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, stmt := range []string{`DELETE FROM tickets WHERE expires < ?`, `DELETE FROM runs WHERE started < ?`} {
		if _, err := tx.ExecContext(ctx, stmt, before.UnixNano()); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func notFound(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}
