package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"mcp-code-sandbox/internal/store/storetest"
)

// TestPostgresStops: while Postgres is down, every call says so, and the same Store works when it
// is back.
func TestPostgresStops(t *testing.T) {
	ctx := t.Context()
	s := open(t, storetest.Postgres(t))
	calls := map[string]func() error{
		"ping":      func() error { return s.Ping(ctx) },
		"row":       func() error { _, err := s.GetResult(ctx, "ann", "r"); return err },
		"rows":      func() error { _, err := s.RecentSessions(ctx, "ann", 1); return err },
		"statement": func() error { return s.PutUser(ctx, User{ID: "ann"}) },
		"record":    func() error { return s.EndResult(ctx, Result{ID: "r", Caller: "ann", Ended: now}, 1) },
	}
	begun := make(chan struct{})
	stopped := make(chan struct{})
	inTransaction := make(chan error)
	go func() {
		inTransaction <- s.transact(ctx, func(x tx) error {
			close(begun)
			<-stopped
			return x.exec(ctx, `SELECT 1`)
		})
	}()
	<-begun
	start := storetest.Stop(t)
	close(stopped)
	if err := <-inTransaction; !s.IsDown(err) {
		t.Errorf("in a transaction: %v", err)
	}
	for range 2 {
		for name, call := range calls {
			if err := call(); !s.IsDown(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Ping(cancelled); err == nil || s.IsDown(err) {
		t.Errorf("a cancelled call: %v", err)
	}
	start()
	for _, name := range []string{"ping", "record", "row", "rows", "statement"} {
		if err := calls[name](); err != nil {
			t.Errorf("%s afterwards: %v", name, err)
		}
	}
}

func TestIsDown(t *testing.T) {
	postgres := newStore(nil, &postgresDialect{})
	for _, code := range []string{"08006", "53100", "53300", "57P01", "57P03"} {
		if err := fmt.Errorf("record: %w", &pgconn.PgError{Code: code}); !postgres.IsDown(err) {
			t.Errorf("%v is an outage", err)
		}
	}
	for _, err := range []error{nil, ErrNotFound, context.Canceled, sql.ErrNoRows, errURL, &pgconn.PgError{Code: "22021"}, &pgconn.PgError{}} {
		if postgres.IsDown(err) {
			t.Errorf("%v is not an outage", err)
		}
	}
	for _, err := range []error{sql.ErrTxDone, context.DeadlineExceeded} {
		if !postgres.IsDown(err) {
			t.Errorf("%v is an outage", err)
		}
	}
}

// TestSQLiteIsDown: a file that another process has locked is one that does not answer.
func TestSQLiteIsDown(t *testing.T) {
	where := storetest.SQLite(t)
	s, other := open(t, where), open(t, where)
	if _, err := s.pool.Exec(`PRAGMA busy_timeout = 1`); err != nil {
		t.Fatal(err)
	}
	err := other.transact(t.Context(), func(tx) error {
		if err := s.PutUser(t.Context(), User{ID: "ann"}); !s.IsDown(err) {
			t.Errorf("locked: %v", err)
		}
		return nil
	})
	if err != nil || s.Ping(t.Context()) != nil || s.IsDown(ErrNotFound) {
		t.Error(err, s.Ping(t.Context()))
	}
}

// TestReadOnlyPostgres: a standby, for example, is refused at the start, and not well later.
func TestReadOnlyPostgres(t *testing.T) {
	where := storetest.Postgres(t)
	s := open(t, where)
	s.pool.SetMaxOpenConns(1)
	name := where[strings.LastIndex(where, "/test")+1 : strings.Index(where, "?")]
	storetest.Exec(t, where, `ALTER DATABASE `+name+` SET default_transaction_read_only = on`)
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("a connection that can write: %v", err)
	}
	if _, err := s.pool.Exec(`SET default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	_, opened := Open(t.Context(), where)
	_, checked := Check(t.Context(), where)
	for _, err := range []error{opened, checked, s.Ping(t.Context())} {
		e, ok := errors.AsType[*Error](err)
		if !ok || !strings.Contains(err.Error(), "it is read-only") || !strings.Contains(e.Fix, "target_session_attrs=read-write") {
			t.Errorf("%v", err)
		}
	}
	writable, err := Open(t.Context(), strings.Replace(where, "?", "?options=-c%20default_transaction_read_only%3Doff&", 1))
	if err != nil {
		t.Fatal(err)
	}
	writable.Close()
}

// TestIsolation: the administrator's default does not change how transactions see each other.
func TestIsolation(t *testing.T) {
	where := storetest.Postgres(t)
	name := where[strings.LastIndex(where, "/test")+1 : strings.Index(where, "?")]
	storetest.Exec(t, where, `ALTER DATABASE `+name+` SET default_transaction_isolation = 'serializable'`)
	s := open(t, where)
	if got, err := queryOne(t.Context(), s.db, value[string], `SHOW transaction_isolation`); err != nil || got != "read committed" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestRekeyTakesItsTime: the timeout of ordinary transactions does not bound a Rekey of many
// connections.
func TestRekeyTakesItsTime(t *testing.T) {
	ctx := t.Context()
	s := open(t, storetest.Postgres(t))
	s.stop() // it reads s.db
	if _, err := s.FirstKeyCheck(ctx, KeyCheck{KeyID: "old"}); err != nil {
		t.Fatal(err)
	}
	if err := s.PutConnection(ctx, Connection{Caller: "ann", Service: "s", KeyID: "old"}); err != nil {
		t.Fatal(err)
	}
	s.db.timeout = time.Second
	err := s.Rekey(ctx, "old", KeyCheck{KeyID: "new"}, func(c Connection) (Connection, error) {
		time.Sleep(s.db.timeout)
		c.KeyID = "new"
		return c, nil
	})
	if err != nil {
		t.Error(err)
	}
	s.db.timeout = time.Minute
	if c, err := s.GetConnection(ctx, "ann", "s"); err != nil || c.KeyID != "new" {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestCopyOfLargeRows: a batch of rows fits into memory, however large they are.
func TestCopyOfLargeRows(t *testing.T) {
	s := open(t, storetest.SQLite(t))
	for i := range 5 {
		r := Result{ID: fmt.Sprint(i), Caller: "ann", Started: now, Ended: now, Data: make([]byte, copyBytes/2)}
		if err := s.EndResult(t.Context(), r, 10); err != nil {
			t.Fatal(err)
		}
	}
	var batches []int
	err := s.transact(t.Context(), func(x tx) error {
		_, err := x.contents(t.Context(), "results", func(_ []string, rows [][]any) error {
			batches = append(batches, len(rows))
			return nil
		})
		return err
	})
	if err != nil || fmt.Sprint(batches) != "[2 2 1]" {
		t.Errorf("batches of %d rows, %v", batches, err)
	}
}
