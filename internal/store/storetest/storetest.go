// Package storetest gives tests of the store, and of what uses it, new databases of both kinds. It
// starts one Postgres per test program, in a temporary directory, as an ordinary user and without a
// port. It does not know the store's tables.
package storetest

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

// User and Password are in the URL of every database.
const (
	User     = "sandbox"
	Password = "pass-word of 9 tests"
)

// Each runs a test on SQLite and on Postgres. where is a new database, as store.Open wants it.
func Each(t *testing.T, test func(t *testing.T, where string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, SQLite(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, Postgres(t)) })
}

// SQLite returns the path of a file that does not exist yet.
func SQLite(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "state.db")
}

// instance is the running server.
type instance struct {
	dir      string // of its socket
	script   int    // the process that stops and starts it
	commands io.Writer
}

var (
	server    = sync.OnceValues(startServer)
	databases atomic.Int64
)

// Postgres returns the URL of a new, empty database. Without Postgres the test is skipped, or with
// REQUIRE_ALL it fails.
func Postgres(tb testing.TB) string {
	tb.Helper()
	s, err := server()
	switch {
	case err != nil && os.Getenv("REQUIRE_ALL") != "":
		tb.Fatalf("REQUIRE_ALL is set, and Postgres cannot be started: %v", err)
	case err != nil:
		tb.Skipf("Postgres cannot be started: %v", err)
	}
	name := fmt.Sprint("test", databases.Add(1))
	Exec(tb, URL(s.dir, "postgres"), "CREATE DATABASE "+name+" TEMPLATE template0")
	return URL(s.dir, name)
}

// URL returns the URL of a database of the server that has its socket in dir.
func URL(dir, database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(User, Password), Path: "/" + database,
		RawQuery: url.Values{"host": {dir}}.Encode(),
	}
	return u.String()
}

// Exec executes statements in a Postgres database.
func Exec(tb testing.TB, where, statements string) {
	tb.Helper()
	ctx := context.Background() // also in a cleanup
	db, err := pgx.Connect(ctx, where)
	if err != nil {
		tb.Fatal(err)
	}
	defer db.Close(ctx)
	if _, err := db.Exec(ctx, statements); err != nil {
		tb.Fatal(err)
	}
}
