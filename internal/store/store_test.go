package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/store/storetest"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

var now = time.Unix(1_700_000_000, 123456789)

func TestTickets(t *testing.T) { storetest.Each(t, testTickets) }

func testTickets(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	want := Ticket{ID: "t1", Caller: "local", Session: "c", Name: "a/图.png", Overwrite: true, Expires: now.Add(time.Minute)}
	if err := s.AddTicket(ctx, want); err != nil {
		t.Fatal(err)
	}
	if err := s.AddTicket(ctx, want); err == nil {
		t.Error("the same ticket was added twice")
	}
	if err := s.AddTicket(ctx, Ticket{ID: "t2", Expires: now}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", "unknown", "t2", "' OR 1=1 --", "%"} {
		if _, err := s.TakeTicket(ctx, id, now); err != ErrNotFound {
			t.Errorf("TakeTicket(%q): %v", id, err)
		}
	}
	got, err := s.TakeTicket(ctx, "t1", now)
	if err != nil || !got.Expires.Equal(want.Expires) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got.Expires = want.Expires; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := s.TakeTicket(ctx, "t1", now); err != ErrNotFound {
		t.Errorf("taken twice: %v", err)
	}
	for _, other := range []Ticket{{ID: "t3", Caller: "local", Session: "c"}, {ID: "t4", Caller: "local", Session: "d"}, {ID: "t5", Caller: "ann", Session: "c"}} {
		other.Expires = now.Add(time.Minute)
		if err := s.AddTicket(ctx, other); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DropTickets(ctx, "local", "c"); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]error{"t3": ErrNotFound, "t4": nil, "t5": nil} {
		if _, err := s.TakeTicket(ctx, id, now); err != want {
			t.Errorf("%s after the drop: %v", id, err)
		}
	}
}

func TestTicketIsTakenOnce(t *testing.T) { storetest.Each(t, testTicketIsTakenOnce) }

func testTicketIsTakenOnce(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	for round := range 5 {
		id := fmt.Sprint("t", round)
		if err := s.AddTicket(ctx, Ticket{ID: id, Expires: now.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		n := atOnce(t, where, ErrNotFound, func(s *Store, _ int) error {
			_, err := s.TakeTicket(ctx, id, now)
			return err
		})
		if n != 1 {
			t.Errorf("round %d: %d took the ticket, want 1", round, n)
		}
	}
}

func TestRuns(t *testing.T) { storetest.Each(t, testRuns) }

func testRuns(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	want := Run{ID: "r1", Caller: "local", Session: "c", Runner: "python", Started: now, Duration: 1234567 * time.Nanosecond, ExitCode: -1, Cause: "timeout"}
	if err := s.Record(ctx, []Run{want}, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	got, err := s.GetRun(ctx, "r1")
	if err != nil || !got.Started.Equal(now) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got.Started = now; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := s.GetRun(ctx, "r2"); err != ErrNotFound {
		t.Errorf("unknown run: %v", err)
	}
	// A second run with the same id changes nothing, and the rest of its batch is recorded.
	if err := s.Record(ctx, []Run{{ID: "r1", Started: now}, {ID: "r3", Started: now.Add(-time.Second)}}, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := s.GetRun(ctx, "r1"); err != nil || got.Caller != "local" {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := s.GetRun(ctx, "r3"); err != nil {
		t.Errorf("recorded in addition to an existing one: %v", err)
	}
	if err := s.AddTicket(ctx, Ticket{ID: "t1", Expires: now}); err != nil {
		t.Fatal(err)
	}

	if err := s.Purge(ctx, now); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetRun(ctx, "r1"); err != nil {
		t.Errorf("purged too early: %v", err)
	}
	if err := s.Purge(ctx, now.Add(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetRun(ctx, "r1"); err != ErrNotFound {
		t.Errorf("not purged: %v", err)
	}
	if _, err := s.TakeTicket(ctx, "t1", now.Add(-time.Hour)); err != ErrNotFound {
		t.Errorf("ticket not purged: %v", err)
	}
}

// Processes that start at once on a new database all get the same, complete one.
func TestOpenByManyProcesses(t *testing.T) {
	if where := os.Getenv("STORE_TEST_DATABASE"); where != "" {
		s, err := Open(context.Background(), where)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for i := range 20 {
			if err := s.Record(context.Background(), []Run{{ID: fmt.Sprint(os.Getpid(), "-", i), Started: now}}, nil, 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	storetest.Each(t, testOpenByManyProcesses)
}

func testOpenByManyProcesses(t *testing.T, where string) {
	const processes = 6
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOpenByManyProcesses$")
			cmd.Env = append(os.Environ(), "STORE_TEST_DATABASE="+where)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	for range 4 { // and handles of one process
		wg.Go(func() {
			s, err := Open(t.Context(), where)
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	wg.Wait()
	var n int
	if err := open(t, where).pool.QueryRow(`SELECT count(*) FROM runs`).Scan(&n); n != processes*20 || err != nil {
		t.Errorf("%d runs were recorded, %v; want %d", n, err, processes*20)
	}
}

func TestFilesAreForTheOwnerAlone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes mean nothing on Windows")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	if err := os.WriteFile(path, nil, 0o644); err != nil { // as an older release, or a careless copy, left it
		t.Fatal(err)
	}
	s := open(t, path)
	if err := s.Record(t.Context(), []Run{Run{ID: "r", Started: now}}, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 2 {
		t.Fatalf("want the database and its WAL, got %v, %v", entries, err)
	}
	for _, e := range entries {
		if fi, err := e.Info(); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", e.Name(), fi.Mode(), err)
		}
	}
}

// TestForeignFiles: what is not a database keeps its mode.
func TestForeignFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes mean nothing on Windows")
	}
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "passwd")
	if err := errors.Join(os.WriteFile(file, []byte("root:x:0:0::/:/bin/sh\n"), 0o644), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	full := storetest.SQLite(t)
	fill(t, full)
	for path, mode := range map[string]fs.FileMode{file: 0o644, dir: 0o755} {
		_, opened := Open(t.Context(), path)
		_, checked := Check(t.Context(), path)
		_, from := Copy(t.Context(), path, storetest.SQLite(t), nil)
		_, to := Copy(t.Context(), full, path, func(Contents) {})
		for _, err := range []error{opened, checked, from, to} {
			if err == nil || !strings.Contains(err.Error(), "is not a") {
				t.Errorf("%s: %v", path, err)
			}
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, fi.Mode(), err)
		}
	}
}

// A path may have characters that mean something else in a URL.
func TestOpenAnyPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?mode=ro&c#d%41.db")
	s := open(t, path)
	if err := s.AddTicket(t.Context(), Ticket{ID: "t"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil || s.String() != path {
		t.Errorf("%s: %v", s, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	ctx := t.Context()
	garbage := filepath.Join(t.TempDir(), "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("not a database\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		garbage: "not a database",
		filepath.Join(t.TempDir(), "missing", "x.db"): "opening the database",
	} {
		s, err := Open(ctx, path)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := Open(cancelled, filepath.Join(t.TempDir(), "x.db")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
