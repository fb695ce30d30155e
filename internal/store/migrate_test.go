package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/store/storetest"
)

// atVersion makes a database as an earlier, or a later, release left it.
func atVersion(t *testing.T, where string, version int) {
	t.Helper()
	s, err := connect(where)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = s.transact(t.Context(), func(x tx) error {
		for _, m := range migrations[:min(version, len(migrations))] {
			if err := x.exec(t.Context(), x.types(m)); err != nil {
				return err
			}
		}
		return x.setVersion(t.Context(), x, version)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMigrateForward(t *testing.T) { storetest.Each(t, testMigrateForward) }

func testMigrateForward(t *testing.T, where string) {
	ctx := t.Context()
	atVersion(t, where, 2)
	old, err := connect(where)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.BeginResult(ctx, Result{ID: "r1", Caller: "ann", Started: now, Data: []byte("old")}); err != nil {
		t.Fatal(err)
	}
	old.Close()
	if found, err := Check(ctx, where); err != nil || found.Version != 2 || found.Newest != len(migrations) {
		t.Errorf("before: %+v, %v", found, err)
	}
	s := open(t, where)
	if r, err := s.GetResult(ctx, "ann", "r1"); err != nil || string(r.Data) != "old" {
		t.Errorf("got %+v, %v", r, err)
	}
	if found, err := Check(ctx, where); err != nil || found.Version != len(migrations) || found.Where != s.String() {
		t.Errorf("after: %+v, %v", found, err)
	}
	for _, table := range tables {
		if _, err := queryOne(ctx, s.db, value[int], `SELECT count(*) FROM `+table); err != nil {
			t.Error(err)
		}
	}
}

// TestTablesAreComplete: Copy leaves out no table.
func TestTablesAreComplete(t *testing.T) {
	names, err := queryAll(t.Context(), open(t, storetest.SQLite(t)).db, value[string],
		`SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name`)
	if want := slices.Sorted(slices.Values(tables)); err != nil || !slices.Equal(names, want) {
		t.Errorf("the database has %q, %v; tables lists %q", names, err, want)
	}
}

func TestNewerDatabaseIsRefused(t *testing.T) { storetest.Each(t, testNewerDatabaseIsRefused) }

func testNewerDatabaseIsRefused(t *testing.T, where string) {
	atVersion(t, where, 999)
	_, opened := Open(t.Context(), where)
	_, checked := Check(t.Context(), where)
	for _, err := range []error{opened, checked} {
		e, ok := errors.AsType[*Error](err)
		if !ok || !strings.Contains(err.Error(), "newer release (version 999") || !strings.HasPrefix(e.Fix, "use that release, or another da") {
			t.Errorf("%v", err)
		}
	}
}

func TestPostgresRefuses(t *testing.T) {
	where := storetest.Postgres(t)
	foreign := storetest.Postgres(t)
	storetest.Exec(t, foreign, `CREATE TABLE users (id BIGINT)`)
	locked := storetest.Postgres(t)
	storetest.Exec(t, locked, `DO $$BEGIN
		IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'guest') THEN CREATE ROLE guest LOGIN PASSWORD 'x'; END IF;
		END$$; REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	latin := strings.Replace(where, "/test", "/latin", 1)
	storetest.Exec(t, where, `CREATE DATABASE `+latin[strings.LastIndex(latin, "/latin")+1:strings.Index(latin, "?")]+
		` TEMPLATE template0 ENCODING 'LATIN1'`)
	password := strings.ReplaceAll(storetest.Password, " ", "%20")
	for name, c := range map[string]struct{ where, want, fix string }{
		"wrong password":  {strings.Replace(where, password, "s3cret", 1), "password authentication failed", "correct the user or the password"},
		"no database":     {strings.Replace(where, "/test", "/missing", 1), "does not exist", "create it with createdb -O sandbox missing"},
		"no server":       {strings.Replace(where, "host=", "host=%2Fnowhere", 1), "no such file", "start Postgres"},
		"closed port":     {"postgres://ann:s3cret@127.0.0.1:1/db", "refused", "start Postgres"},
		"another program": {foreign, "tables of another program, such as users", "create a database"},
		"no right":        {strings.Replace(locked, "sandbox:"+password, "guest:x", 1), "permission denied", `OWNER TO "guest"`},
		"encoding":        {latin, "encoding is LATIN1", "createdb -E UTF8"},
		"no URL":          {"postgres://ann:s3cret@host:port/db", "not valid", "write it like postgres://"},
		"no number":       {"postgres://ann:s3cret@host/db?connect_timeout=s3cret", "not valid", "write it like postgres://"},
		"no certificate":  {"postgres://ann:s3cret@host/db?sslmode=verify-ca&sslrootcert=/nowhere", "/nowhere", "correct its path"},
	} {
		s, err := Open(t.Context(), c.where)
		if err == nil {
			s.Close()
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || !strings.Contains(err.Error(), c.want) || !strings.Contains(e.Fix, c.fix) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range []string{fmt.Sprint(err), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
			if strings.Contains(text, "s3cret") || strings.Contains(text, storetest.Password) || strings.Contains(text, password) {
				t.Errorf("%s: the error shows the password: %s", name, text)
			}
		}
	}
	if s := open(t, where); strings.Contains(s.String(), password) || !strings.HasPrefix(s.String(), "postgres://sandbox@/test") {
		t.Errorf("%s shows the password, or is not the database", s)
	}
}

// TestTextThatPostgresRefuses: what a client sends must not become a server's failure.
func TestTextThatPostgresRefuses(t *testing.T) { storetest.Each(t, testTextThatPostgresRefuses) }

func testTextThatPostgresRefuses(t *testing.T, where string) {
	s := open(t, where)
	for _, text := range []string{"a\x00b", "\xff", "\x00"} {
		if _, err := s.GetClient(t.Context(), text); err != ErrNotFound {
			t.Errorf("%q: %v", text, err)
		}
		if err := s.PutUser(t.Context(), User{ID: "user:" + text, Name: text}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if _, err := s.GetUser(t.Context(), "user:"+text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := s.BeginResult(t.Context(), Result{ID: "r", Data: nil}); IsURL(where) && err != nil {
		t.Error(err)
	}
}
