package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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

func TestTickets(t *testing.T) {
	ctx := t.Context()
	// This path means something else unless it is escaped.
	s := open(t, filepath.Join(t.TempDir(), "a b?mode=ro&c#d%41.db"))
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

func TestTicketIsTakenOnce(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "state.db")
	stores := []*Store{open(t, path), open(t, path)} // as two processes would
	for round := range 5 {
		id := fmt.Sprint("t", round)
		if err := stores[round%2].AddTicket(ctx, Ticket{ID: id, Expires: now.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		var wins atomic.Int32
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range 50 {
			wg.Go(func() {
				<-begin
				switch _, err := stores[i%2].TakeTicket(ctx, id, now); err {
				case nil:
					wins.Add(1)
				case ErrNotFound:
				default:
					t.Error(err)
				}
			})
		}
		close(begin)
		wg.Wait()
		if n := wins.Load(); n != 1 {
			t.Errorf("round %d: %d took the ticket, want 1", round, n)
		}
	}
}

func TestRuns(t *testing.T) {
	ctx := t.Context()
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
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

// Processes that start at once on a new root all get the same, complete database.
func TestOpenByManyProcesses(t *testing.T) {
	if path := os.Getenv("STORE_TEST_PATH"); path != "" {
		s, err := Open(context.Background(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for i := range 20 {
			if err := s.Record(context.Background(), []Run{Run{ID: fmt.Sprint(os.Getpid(), "-", i), Started: now}}, nil, 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	path := filepath.Join(t.TempDir(), "state.db")
	const processes = 6
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOpenByManyProcesses$")
			cmd.Env = append(os.Environ(), "STORE_TEST_PATH="+path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	for range 4 { // and handles of one process
		wg.Go(func() {
			s, err := Open(t.Context(), path)
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	wg.Wait()
	var n int
	if err := open(t, path).db.QueryRow(`SELECT count(*) FROM runs`).Scan(&n); n != processes*20 || err != nil {
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

func TestOpenRefuses(t *testing.T) {
	ctx := t.Context()
	newer := filepath.Join(t.TempDir(), "newer.db")
	s := open(t, newer)
	if _, err := s.db.Exec(`PRAGMA user_version = 999`); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(t.TempDir(), "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("not a database\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		newer:   "newer release",
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
