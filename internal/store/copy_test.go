package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/store/storetest"
)

// fill stores rows in every table.
func fill(t *testing.T, where string) {
	t.Helper()
	ctx := t.Context()
	s, err := Open(ctx, where)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	granted(t, s, "a")
	var runs []Run
	for i := range 2*copyBatch + 1 {
		runs = append(runs, Run{ID: fmt.Sprint("r", i), Caller: "ann", Session: "图", Started: now, Duration: -1, ExitCode: -1})
	}
	_, err = s.FirstKeyCheck(ctx, KeyCheck{KeyID: "k", Sealed: []byte{0, 255}})
	if err := errors.Join(err,
		s.Record(ctx, runs, []Result{{ID: "r0", Caller: "ann", Started: now, Ended: now, Data: []byte("\x00\xff'?$1")}}, 10, nil),
		s.AddTicket(ctx, Ticket{ID: "t", Overwrite: true, Expires: now}),
		s.AddExecutionTokens(ctx, executionToken("j", nil)),
		s.PutConnection(ctx, Connection{Caller: "ann", Service: "s", Wrapped: []byte{}, Sealed: []byte("x")}),
		s.PutUser(ctx, User{ID: "user:bob", Name: "B\x00b"}), // which Postgres does not store
		s.AddClient(ctx, Client{ID: "c", Redirects: []string{"https://c/cb"}, Created: now}, 10, now),
		s.AddRequest(ctx, Request{ID: "q", Data: []byte{}, Expires: now}, now, 10),
		s.AddBrowserSession(ctx, BrowserSession{ID: "b", Expires: now}),
		s.AddConsent(ctx, Consent{Caller: "ann", Client: "c"}, now),
	); err != nil {
		t.Fatal(err)
	}
}

// both copies to and from Postgres.
func both(t *testing.T, test func(t *testing.T, from, to string)) {
	t.Run("to postgres", func(t *testing.T) { test(t, storetest.SQLite(t), storetest.Postgres(t)) })
	t.Run("to sqlite", func(t *testing.T) { test(t, storetest.Postgres(t), storetest.SQLite(t)) })
}

func rows(t *testing.T, where string) (n int) {
	t.Helper()
	s, err := Open(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, table := range tables {
		in, err := queryOne(t.Context(), s.db, value[int], `SELECT count(*) FROM `+table)
		if err != nil {
			t.Fatal(err)
		}
		n += in
	}
	return n
}

func TestCopy(t *testing.T) { both(t, testCopy) }

func testCopy(t *testing.T, from, to string) {
	ctx := t.Context()
	fill(t, from)
	var first, again []Contents
	if _, err := Copy(ctx, from, to, func(c Contents) { first = append(first, c) }); err != nil {
		t.Fatal(err)
	}
	if len(first) != len(tables) {
		t.Errorf("%d tables were copied", len(first))
	}
	for _, c := range first {
		if c.Rows == 0 {
			t.Errorf("%s: the test has no rows of it", c.Table)
		}
	}
	if _, err := Copy(ctx, from, to, func(c Contents) { again = append(again, c) }); err != nil || fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("the second time: %v, %v", again, err)
	}
	s, err := Open(ctx, to)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.GetResult(ctx, "ann", "r0")
	if err != nil || string(r.Data) != "\x00\xff'?$1" || !r.Started.Equal(now) {
		t.Errorf("%+v, %v", r, err)
	}
	if tok, err := s.UseExecutionToken(ctx, "j", now); err != nil || tok.Used != 1 {
		t.Errorf("%+v, %v", tok, err)
	}
	s.Close()

	// The copy has now been used: neither direction loses that.
	for _, way := range [][2]string{{from, to}, {to, from}} {
		_, err := Copy(ctx, way[0], way[1], func(Contents) {})
		e, ok := errors.AsType[*Error](err)
		if !ok || !strings.Contains(err.Error(), "not empty: it has other execution_tokens") || !strings.HasPrefix(e.Fix, "use an empty database") {
			t.Errorf("to a database with other rows: %v", err)
		}
	}
	back := storetest.SQLite(t)
	if _, err := Copy(ctx, to, back, func(Contents) {}); err != nil || rows(t, back) != rows(t, to) {
		t.Errorf("back: %v", err)
	}
}

// TestCopyInterrupted: a copy that is interrupted, or whose process is killed, leaves the target
// empty and can be repeated.
func TestCopyInterrupted(t *testing.T) {
	if ways := os.Getenv("STORE_TEST_COPY"); ways != "" {
		from, to, _ := strings.Cut(ways, "\n")
		_, _ = Copy(context.Background(), from, to, func(c Contents) {
			if c.Table == "runs" {
				os.Exit(7) // Go runs no deferred function, as after a kill
			}
		})
		return
	}
	both(t, testCopyInterrupted)
}

func testCopyInterrupted(t *testing.T, from, to string) {
	fill(t, from)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Copy(ctx, from, to, func(c Contents) {
		if c.Table == "oauth_clients" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || rows(t, to) != 0 {
		t.Errorf("interrupted: %v, %d rows", err, rows(t, to))
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCopyInterrupted$")
	cmd.Env = append(os.Environ(), "STORE_TEST_COPY="+from+"\n"+to)
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 7 {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := rows(t, to); n != 0 {
		t.Errorf("%d rows after a crash", n)
	}
	if _, err := Copy(t.Context(), from, to, func(Contents) {}); err != nil || rows(t, to) != rows(t, from) {
		t.Errorf("repeated: %v", err)
	}
}

// TestCopyOfLiveDatabase: a database that a server has open is not copied, in either direction. A
// server that starts during a copy must not write either.
func TestCopyOfLiveDatabase(t *testing.T) { both(t, testCopyOfLiveDatabase) }

func testCopyOfLiveDatabase(t *testing.T, from, to string) {
	ctx := t.Context()
	fill(t, from)
	for _, where := range []string{from, to} {
		s := open(t, where)
		_, err := copyAll(ctx, from, to, time.Millisecond, func(Contents) {})
		if e, ok := errors.AsType[*Error](err); !errors.Is(err, ErrInUse) || !ok || !strings.Contains(e.Fix, "stop the servers") {
			t.Errorf("%s: %v", s, err)
		}
		s.Close()
	}
	_, err := Copy(ctx, from, to, func(c Contents) {
		if c.Table != "runs" {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		s, err := Open(ctx, from)
		if err == nil {
			defer s.Close()
			err = s.Record(ctx, []Run{{ID: "late"}}, nil, 0, nil)
		}
		if err == nil {
			t.Error("a server wrote to the source")
		}
	})
	if err != nil || rows(t, from) != rows(t, to) {
		t.Errorf("copy: %v", err)
	}
	_, err = copyAll(ctx, from, from, time.Millisecond, func(Contents) {})
	if !errors.Is(err, ErrInUse) && (err == nil || !strings.Contains(err.Error(), "both")) {
		t.Errorf("to itself: %v", err)
	}
}

func TestCopyOfNothing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.db")
	empty := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const nothing = "is empty: there is nothing to copy"
	for from, want := range map[string]string{missing: "there is no file " + missing + ": give the path", empty: nothing, storetest.Postgres(t): nothing} {
		if _, err := Copy(t.Context(), from, storetest.SQLite(t), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the source was made")
	}
}

// TestMistakenURL: a URL of another kind, or libpq's keywords, are not taken for a path, which an
// error would show with the password.
func TestMistakenURL(t *testing.T) {
	ctx, from := t.Context(), storetest.SQLite(t)
	fill(t, from)
	for _, where := range []string{
		"POSTGRES://ann:s3cret@h/db", " postgres://ann:s3cret@h/db", "mysql://ann:s3cret@h/db", "host=h password=s3cret", "host=h PASSWORD = s3cret",
	} {
		_, opened := Open(ctx, where)
		_, checked := Check(ctx, where)
		_, copied := Copy(ctx, where, storetest.SQLite(t), func(Contents) {})
		_, stored := Copy(ctx, from, where, func(Contents) {})
		for _, err := range []error{opened, checked, copied, stored} {
			if err != errURL {
				t.Errorf("%q: %v", where, err)
			}
		}
	}
}

// TestUnencodedPassword: a password with an @, /, ? or # that is not encoded is refused before
// anything connects. Otherwise its parts would be the host and the database, which errors show.
func TestUnencodedPassword(t *testing.T) {
	for _, where := range []string{
		"postgres://sandbox:p@ss/w:rd#1@127.0.0.1:1/sandbox", "postgresql://sandbox:p@ss/w@127.0.0.1:1/sandbox", "postgres://sandbox:p@ss/@127.0.0.1:1/sandbox",
		"postgres://sandbox:p@ss?w@127.0.0.1:1/sandbox", "postgres://sandbox:p@ss?w=rd@127.0.0.1:1/sandbox", "postgres://sandbox:p@ss?w=1&rd@127.0.0.1:1/sandbox",
		"postgres://sandbox:p@ss#w@127.0.0.1:1/sandbox", "postgres://sandbox:p@ss#?user=w@127.0.0.1:1/sandbox", "postgres://sandbox:p@@/@127.0.0.1:1/sandbox",
		"postgres://sandbox:12/34@127.0.0.1:1/sandbox", "postgres://sandbox:12#34@127.0.0.1:1/sandbox", "postgres://sandbox:12?34@127.0.0.1:1/sandbox",
		"postgres://sandbox:p@ss@127.0.0.1:1/sandbox", "postgres://sandbox:p@ss@", "postgres://sandbox:p@ss#w", "postgres://127.0.0.1?sslpassword=p@ss",
		"postgres://:p@ss/w@/sandbox", "postgres://sandbox:geheim#1@127.0.0.1/sandbox", "postgres://sandbox:ge%heim@127.0.0.1/sandbox", "postgres://sandbox:gehe/im@127.0.0.1/sandbox",
	} {
		if err := CheckURL(where); err != errURL {
			t.Errorf("%s: %v", where, err)
		}
		if found, err := Check(t.Context(), where); err != errURL || found != (Found{}) {
			t.Errorf("%s: %+v %v", where, found, err)
		}
		if _, err := Open(t.Context(), where); err != errURL {
			t.Errorf("%s: %v", where, err)
		}
	}
}

// TestValidURL: what an encoded password, parameters and sockets need is not refused.
func TestValidURL(t *testing.T) {
	for where, password := range map[string]string{
		"postgres://sandbox:p%40ss%2Fw:rd%231@127.0.0.1:1/sandbox":                                       "p@ss/w:rd#1",
		"postgres://sandbox:p@127.0.0.1/sandbox?sslmode=disable&application_name=me@here":                "p",
		"postgres://sandbox:p@127.0.0.1?sslpassword=s@s":                                                 "p",
		"postgres:///sandbox?host=/run/a@b&user=ann@corp&password=p@ss":                                  "p@ss",
		"postgres://h/d?user=ann%40corp&password=p%40ss&options=-c%20search_path%3Da&connect_timeout=10": "p@ss",
		"postgres://u:p@h/a%40b": "p",
	} {
		cfg, err := parseURL(where)
		if err != nil || cfg.Password != password {
			t.Errorf("%s: %v", where, err)
		}
	}
}
