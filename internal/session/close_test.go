package session_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/workspace"
)

// put writes a file into the session and makes the session if needed.
func put(tb testing.TB, m *session.Manager, id, name, content string) {
	tb.Helper()
	s := open(tb, m, session.Local, id)
	defer s.Release()
	if _, err := s.Workspace().Write(name, strings.NewReader(content), workspace.WriteOptions{Overwrite: true}); err != nil {
		tb.Fatal(err)
	}
}

// retained reads a file of a closed session; "" means that it does not exist.
func retained(tb testing.TB, m *session.Manager, caller session.Caller, id, name string) string {
	tb.Helper()
	f, _, err := m.OpenRetained(caller, id, name)
	return contentOf(tb, f, err)
}

// contentOf reads and closes an opened file; "" means that it does not exist.
func contentOf(tb testing.TB, f io.ReadCloser, err error) string {
	tb.Helper()
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

func closeSession(tb testing.TB, m *session.Manager, id string) {
	tb.Helper()
	if err := m.CloseSession(context.Background(), session.Local, id); err != nil {
		tb.Fatalf("CloseSession(%q): %v", id, err)
	}
}

func TestCloseSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{Program: forever}
		root := t.TempDir()
		m := newManager(t, b, func(c *session.Config) { c.Root, c.ClosedRetention = root, time.Hour })
		if err := m.CloseSession(t.Context(), session.Local, "x"); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("closing nothing: %v", err)
		}
		if err := m.CloseSession(t.Context(), session.Local, ".."); !errors.As(err, new(*session.IDError)) {
			t.Errorf("closing a bad id: %v", err)
		}
		put(t, m, "x", "a.txt", "first")
		put(t, m, "other", "a.txt", "other's")

		// Its runs are cancelled, including one that is about to start. A run of another session
		// goes on.
		held := open(t, m, session.Local, "x")
		defer held.Release()
		var wg sync.WaitGroup
		wg.Go(func() {
			if res, err := held.Run(context.Background(), python, session.RunRequest{}); err != nil ||
				res.Cause != sandbox.CauseCancelled || res.ExitCode != -1 {
				t.Errorf("the run: %+v, %v", res, err)
			}
		})
		ctx, stop := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() {
			s := open(t, m, session.Local, "other")
			defer s.Release()
			if res, err := s.Run(ctx, python, session.RunRequest{}); err != nil || ctx.Err() == nil {
				t.Errorf("another session's run: %+v, %v", res, err)
			}
		})
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel() // closing finishes nevertheless
		if err := m.CloseSession(gone, session.Local, "x"); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if n := len(b.Live()); n != 1 {
			t.Errorf("%d sandboxes are live, want the other session's", n)
		}
		if res, err := held.Run(t.Context(), python, session.RunRequest{}); err != nil ||
			res.Cause != sandbox.CauseCancelled || res.Started {
			t.Errorf("a run in the closed session: %+v, %v", res, err)
		}

		// The id is free again, and only its owner can read the old files.
		if _, err := m.Lookup(session.Local, "x"); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("Lookup: %v", err)
		}
		if err := m.CloseSession(t.Context(), session.Local, "x"); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("closing it again: %v", err)
		}
		s := open(t, m, session.Local, "x")
		if files, _, err := s.Workspace().List(0); len(files) != 0 || err != nil {
			t.Errorf("the new session has %v, %v", files, err)
		}
		s.Release()
		if got := retained(t, m, session.Local, "x", "a.txt"); got != "first" {
			t.Errorf("the retained file holds %q", got)
		}
		kept, _ := filepath.Glob(filepath.Join(root, "closed", s.Key(), "*", "meta.json"))
		if len(kept) != 1 {
			t.Fatalf("meta.json: %v", kept)
		}
		if b, err := os.ReadFile(kept[0]); err != nil || !strings.Contains(string(b), `"closed_at": "`+time.Now().UTC().Format(time.RFC3339Nano)) {
			t.Errorf("meta.json: %s, %v", b, err)
		}
		if got := retained(t, m, session.Caller{ID: "mallory"}, "x", "a.txt"); got != "" {
			t.Errorf("another caller reads %q", got)
		}
		stop()
		others.Wait()
	})
}

// TestRetention: closed sessions, and only those, are deleted in time, whatever hostile code has
// put there.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b sessiontest.Backend
		root, outside := t.TempDir(), t.TempDir()
		config := func(c *session.Config) {
			c.Root, c.ClosedRetention, c.CleanupInterval = root, 24*time.Hour, 5*time.Minute
		}
		m := newManager(t, &b, config)
		if err := os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		put(t, m, "live", "a.txt", "live")
		put(t, m, "x", "a.txt", "first")
		put(t, m, "x", "only.txt", "first")
		s := open(t, m, session.Local, "x")
		plant(t, filepath.Join(root, s.Key(), "files"), outside)
		s.Release()
		closeSession(t, m, "x")
		time.Sleep(time.Hour)
		put(t, m, "x", "a.txt", "second")
		closeSession(t, m, "x")
		put(t, m, "x", "a.txt", "third") // it is live again

		check := func(when, a, only string) {
			t.Helper()
			if got := retained(t, m, session.Local, "x", "a.txt"); got != a {
				t.Errorf("%s: a.txt holds %q, want %q", when, got, a)
			}
			if got := retained(t, m, session.Local, "x", "only.txt"); got != only {
				t.Errorf("%s: only.txt holds %q, want %q", when, got, only)
			}
		}
		check("closed", "second", "first")
		closeManager(t, m, &b)
		m = newManager(t, &b, config) // a restart
		time.Sleep(23*time.Hour - time.Second)
		check("just before the first is due", "second", "first")
		time.Sleep(time.Second)
		check("when it is due", "second", "") // before any purge
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if left, _ := filepath.Glob(filepath.Join(root, "closed", "*", "*")); len(left) != 1 {
			t.Errorf("after the first purge: %v", left)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		check("when all are due", "", "")
		if left, _ := filepath.Glob(filepath.Join(root, "closed", "*")); len(left) != 0 {
			t.Errorf("after all purges: %v", left)
		}
		time.Sleep(50 * time.Hour)
		synctest.Wait()
		for id, want := range map[string]string{"live": "live", "x": "third"} {
			s, err := m.Lookup(session.Local, id)
			if err != nil {
				t.Fatalf("session %s: %v", id, err)
			}
			f, _, err := s.Workspace().Open("a.txt")
			s.Release()
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := io.ReadAll(f); string(got) != want {
				t.Errorf("session %s has %q", id, got)
			}
			f.Close()
		}
		if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
			t.Error(err)
		}
	})
}

// plant makes files that are hard to delete and links that must not be followed.
func plant(t *testing.T, dir, outside string) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for range 3000 { // deeper than a path can be, and than many a limit of descriptors
		if err := root.Mkdir("d", 0o700); err != nil {
			t.Fatal(err)
		}
		sub, err := root.OpenRoot("d")
		if err != nil {
			t.Fatal(err)
		}
		root.Close()
		root = sub
	}
	for _, do := range []error{
		root.Symlink(outside, "link"), root.Symlink("..", "up"), root.WriteFile("file", nil, 0),
		os.Symlink(outside, filepath.Join(dir, "out")), os.Mkdir(filepath.Join(dir, "shut"), 0o700),
		os.WriteFile(filepath.Join(dir, "shut", "in"), nil, 0), os.Chmod(filepath.Join(dir, "shut"), 0),
	} {
		if do != nil {
			t.Fatal(do)
		}
	}
}

// TestTwoServersCloseOneSession: a server notices at the next use or clean-up that another one has
// closed a session.
func TestTwoServersCloseOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b1, b2 := &sessiontest.Backend{}, &sessiontest.Backend{Program: forever}
		root := t.TempDir()
		config := func(c *session.Config) {
			c.Root, c.ClosedRetention, c.CleanupInterval = root, time.Hour, time.Minute
		}
		one, two := newManager(t, b1, config), newManager(t, b2, config)
		put(t, two, "x", "a.txt", "old")
		var wg sync.WaitGroup
		start := func() {
			s := open(t, two, session.Local, "x")
			wg.Go(func() {
				defer s.Release()
				if res, err := s.Run(context.Background(), python, session.RunRequest{}); err != nil ||
					res.Cause != sandbox.CauseCancelled {
					t.Errorf("the run: %+v, %v", res, err)
				}
			})
			synctest.Wait()
		}
		start()
		closeSession(t, one, "x")
		if _, err := two.Lookup(session.Local, "x"); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("Lookup: %v", err)
		}
		wg.Wait()
		if got := retained(t, two, session.Local, "x", "a.txt"); got != "old" {
			t.Errorf("the retained file holds %q", got)
		}

		start()
		put(t, one, "x", "b.txt", "new")
		closeSession(t, one, "x")
		time.Sleep(2 * time.Minute)
		wg.Wait()
		if n := total(two).Sessions; n != 0 {
			t.Errorf("%d sessions after the clean-up", n)
		}
	})
}

// TestCloseRaces: if many close a session at once, one of them succeeds. Concurrent users get the
// old session or a new one.
func TestCloseRaces(t *testing.T) {
	var b sessiontest.Backend
	m := newManager(t, &b, func(c *session.Config) { c.ClosedRetention = time.Hour })
	for range 20 {
		put(t, m, "x", "a.txt", "")
		closed := make(chan error, 4)
		var wg sync.WaitGroup
		for range cap(closed) {
			wg.Go(func() { closed <- m.CloseSession(t.Context(), session.Local, "x") })
		}
		wg.Wait()
		won := 0
		for range cap(closed) {
			if err := <-closed; err == nil {
				won++
			} else if !errors.Is(err, session.ErrNotFound) {
				t.Error(err)
			}
		}
		if won != 1 {
			t.Errorf("%d closed the session", won)
		}
		wg.Go(func() { _ = m.CloseSession(t.Context(), session.Local, "y") })
		for range 4 {
			wg.Go(func() {
				s, err := m.Open(session.Local, "y")
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Release()
				if res, err := s.Run(t.Context(), python, session.RunRequest{}); err != nil || res.Cause != "" && res.Cause != sandbox.CauseCancelled {
					t.Errorf("%+v, %v", res, err)
				}
			})
		}
		wg.Wait()
	}
	if n := total(m).Sessions; n > 1 { // y may have a sandbox
		t.Errorf("%d sessions are left in memory", n)
	}
}

func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{Program: forever}
		m := newManager(t, b, nil)
		s, again := open(t, m, session.Local, "x"), open(t, m, session.Local, "x")
		defer s.Release()
		defer again.Release()
		release, err := s.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.Reserve(); !errors.Is(err, session.ErrBusy) {
			t.Errorf("a second reservation: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { // a run during the reservation is not affected, and outlasts it
			if res, err := again.Run(ctx, python, session.RunRequest{}); err != nil || ctx.Err() == nil {
				t.Errorf("%+v, %v", res, err)
			}
		})
		synctest.Wait()
		release()
		if _, err := s.Reserve(); !errors.Is(err, session.ErrBusy) {
			t.Errorf("a reservation during a run: %v", err)
		}
		cancel()
		wg.Wait()
		if release, err = s.Reserve(); err != nil {
			t.Fatal(err)
		}
		release()
	})
}
