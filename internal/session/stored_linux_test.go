package session_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

var (
	annie = session.Caller{ID: "annie"}
	bobby = session.Caller{ID: "bobby"}
)

// store uploads a file of n bytes.
func store(tb testing.TB, m *session.Manager, caller session.Caller, id string, n int) error {
	tb.Helper()
	s, err := m.Open(caller, id)
	if err != nil {
		return err
	}
	defer s.Release()
	_, err = s.Write("f", strings.NewReader(strings.Repeat("x", n)), workspace.WriteOptions{Overwrite: true})
	return err
}

// TestCallerBytes: concurrent uploads do not exceed the caller's bytes, and closed sessions make
// room, oldest first.
func TestCallerBytes(t *testing.T) {
	const limit = 8 << 20
	m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) { c.CallerBytes, c.ClosedRetention = limit, 1<<62 })
	var wg sync.WaitGroup
	var mu sync.Mutex
	stored := 0
	for i := range 16 {
		wg.Go(func() {
			err := store(t, m, annie, fmt.Sprint("s", i), 1<<20)
			var full *session.CallerError
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				stored++
			case !errors.As(err, &full) || !errors.Is(err, workspace.ErrQuota):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if st := m.Storage(annie); st.Bytes > limit || stored == 0 || st.MaxBytes != limit {
		t.Errorf("%d uploads, %+v", stored, st)
	}
	for _, c := range []session.Caller{bobby, session.Local} {
		if err := store(t, m, c, "x", 4<<20); err != nil {
			t.Errorf("%s: %v", c.ID, err)
		}
	}
	if err := store(t, m, session.Local, "y", 2*limit); err != nil {
		t.Errorf("the operator: %v", err)
	}

	// Bobby's closed sessions make way for his open ones, oldest first.
	for _, id := range []string{"a", "b"} {
		if err := store(t, m, bobby, id, 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := m.CloseSession(t.Context(), bobby, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := store(t, m, bobby, "c", 3<<20-64<<10); err != nil {
		t.Errorf("with closed sessions to delete: %v", err)
	}
	if f, _, err := m.OpenRetained(bobby, "a", "f"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the oldest closed session is still there: %v %v", f, err)
	}
	f, _, err := m.OpenRetained(bobby, "b", "f")
	if err != nil {
		t.Errorf("the other closed session: %v", err)
	}
	f.Close()
}

// TestCallerSessions: the number of a caller's sessions is limited, also by a later server on the
// same root.
func TestCallerSessions(t *testing.T) {
	root := t.TempDir()
	limit := func(c *session.Config) {
		c.Root, c.CallerSessions, c.CallerBytes, c.ClosedRetention = root, 3, 8<<20, 1<<62
	}
	m := newManager(t, &sessiontest.Backend{}, limit)
	for i := range 3 {
		if err := store(t, m, annie, fmt.Sprint(i), 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	var full *session.CallerError
	if _, err := m.Open(annie, "more"); !errors.As(err, &full) || !full.TooManySessions {
		t.Errorf("a fourth session: %v", err)
	}
	open(t, m, annie, "1").Release()
	open(t, m, session.Local, "more").Release()
	if err := m.CloseSession(t.Context(), annie, "0"); err != nil {
		t.Fatal(err)
	}
	before := m.Storage(annie)
	later := newManager(t, &sessiontest.Backend{}, limit)
	if after := later.Storage(annie); after != before ||
		after.Sessions != 2 || after.ClosedSessions != 1 || after.ClosedBytes < 1<<20 || after.Bytes < 2<<20 {
		t.Errorf("a later server: %+v, want %+v", after, before)
	}
	if err := store(t, later, annie, "more", 1); err != nil { // the closed one makes room
		t.Error(err)
	}
	if st := later.Storage(annie); st.Sessions != 3 || st.ClosedSessions != 0 {
		t.Errorf("after that: %+v", st)
	}
}

// TestRefusedCallLeavesNothing: a session whose first call is refused does not exist afterwards and
// does not count. A successful call at the same time keeps the session.
func TestRefusedCallLeavesNothing(t *testing.T) {
	root := t.TempDir()
	begun := make(chan struct{})
	b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit { close(begun); return forever(p) }}
	m := newManager(t, b, func(c *session.Config) { c.Root, c.MaxSessions, c.CallerBytes, c.CallerSessions = root, 1, 1<<20, 2 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	busy := open(t, m, annie, "busy")
	done := make(chan error, 1)
	go func() {
		_, err := busy.Run(ctx, python, session.RunRequest{})
		busy.Release()
		done <- err
	}()
	<-begun
	check := func(what string, caller session.Caller, id string, sessions int) {
		t.Helper()
		if _, err := m.Lookup(caller, id); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("%s: Lookup: %v", what, err)
		}
		if st := m.Storage(caller); st.Sessions != sessions || len(m.IDs(caller)) != sessions {
			t.Errorf("%s: %+v, %q", what, st, m.IDs(caller))
		}
		if _, err := os.Lstat(filepath.Join(root, m.Key(caller, id))); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the directory: %v", what, err)
		}
	}
	for i := range 5 {
		id := fmt.Sprint("s", i)
		if err := runAs(m, annie, id); !errors.Is(err, session.ErrMaxSessions) {
			t.Fatalf("a run: %v", err)
		}
		check("a run without room", annie, id, 1)
		if err := store(t, m, annie, id, 2<<20); !errors.Is(err, workspace.ErrQuota) {
			t.Fatalf("an upload: %v", err)
		}
		check("an upload that is too large", annie, id, 1)
	}
	open(t, m, bobby, "x").Release()
	check("nothing at all", bobby, "x", 0)

	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if i%2 == 0 { // as a refused call does
				open(t, m, bobby, "y").Release()
			} else if err := store(t, m, bobby, "y", 1); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if st := m.Storage(bobby); st.Sessions != 1 || st.Bytes == 0 {
		t.Errorf("after uploads at once: %+v", st)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := m.Lookup(annie, "busy"); err != nil {
		t.Errorf("a session that ran code: %v", err)
	}
}

// TestHeldFiles: deleted files that are open, as the agent reports them, count towards the quota.
func TestHeldFiles(t *testing.T) {
	b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
		p.Sandbox.HeldBytes.Store(2 << 20)
		<-p.Done()
		return sessiontest.SIGKILL
	}}
	m := newManager(t, b, func(c *session.Config) { c.Quota = workspace.Usage{Bytes: 1 << 20} })
	if res := run(t, m, "x", ""); res.Cause != sandbox.CauseDiskQuota {
		t.Errorf("%+v", res)
	}
}

// TestFullWorkspaceIsPatient: in a full workspace, neither the metadata of files nor a process that
// hides for a moment, while others write to the disk, stops a run. One that hides on is stopped.
func TestFullWorkspaceIsPatient(t *testing.T) {
	const patience = 700 * time.Millisecond // for three walks
	for name, tt := range map[string]struct {
		grows  int
		hides  int64 // answers; the server asks twice in a walk
		others int   // bytes that others write
		want   sandbox.Cause
	}{
		"metadata":            {grows: 4 << 10},
		"growth":              {grows: 1 << 20, want: sandbox.CauseDiskQuota},
		"hides for a moment":  {hides: 2, others: 8 << 20},
		"hides, nobody wrote": {hides: 1000},
		"hides":               {hides: 1000, others: 8 << 20, want: sandbox.CauseDiskQuota},
	} {
		synctest.Test(t, func(t *testing.T) {
			root := t.TempDir()
			if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=8g"); err != nil {
				sandboxtest.Skip(t, fmt.Sprintf("cannot mount a disk: %v", err))
			}
			t.Cleanup(func() { _ = syscall.Unmount(root, syscall.MNT_DETACH) })
			b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
				p.Sandbox.Hidden.Store(tt.hides)
				if err := errors.Join(
					os.WriteFile(filepath.Join(p.Spec.Workspace, "more"), make([]byte, tt.grows), 0o600),
					os.WriteFile(filepath.Join(root, "others"), make([]byte, tt.others), 0o600),
				); err != nil {
					t.Error(err)
				}
				select {
				case <-p.Done():
					return sessiontest.SIGKILL
				case <-time.After(patience):
				}
				if err := os.Remove(filepath.Join(p.Spec.Workspace, "full")); err != nil {
					t.Error(err)
				}
				return wire.Exit{}
			}}
			m := newManager(t, b, func(c *session.Config) { c.Root, c.Quota = root, workspace.Usage{Bytes: 2 << 20} })
			s := open(t, m, annie, "x")
			defer s.Release()
			if _, err := s.Write("full", bytes.NewReader(make([]byte, 3<<20)), workspace.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			res, err := s.Run(t.Context(), shell, session.RunRequest{})
			if err != nil || res.Cause != tt.want {
				t.Errorf("%s: %+v, %v; want the cause %q", name, res, err, tt.want)
			}
		})
	}
}

// TestUploadReserve: an upload leaves the disk's reserve free.
func TestUploadReserve(t *testing.T) {
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=64m"); err != nil {
		sandboxtest.Skip(t, fmt.Sprintf("cannot mount a small disk: %v", err))
	}
	t.Cleanup(func() { _ = syscall.Unmount(root, syscall.MNT_DETACH) })
	m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) { c.Root = root })
	if err := store(t, m, annie, "x", 64<<20); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("an upload as large as the disk: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "*", "files", ".upload-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.WriteFile(filepath.Join(root, "ballast"), make([]byte, 61<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := store(t, m, annie, "x", 1); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("an upload on a full disk: %v", err)
	}
	if err := store(t, m, session.Local, "x", 1<<20); err != nil {
		t.Errorf("the operator's upload of half of what is left: %v", err)
	}
}

// storeFiles uploads n files.
func storeFiles(tb testing.TB, m *session.Manager, caller session.Caller, id string, n int) error {
	tb.Helper()
	s, err := m.Open(caller, id)
	if err != nil {
		return err
	}
	defer s.Release()
	for i := range n {
		if _, err := s.Write(fmt.Sprint(i), strings.NewReader("x"), workspace.WriteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// TestCallerFiles: a caller's files are counted like its bytes, also by later servers, and closed
// sessions make room.
func TestCallerFiles(t *testing.T) {
	root := t.TempDir()
	limit := func(c *session.Config) { c.Root, c.CallerFiles, c.ClosedRetention = root, 600, 1<<62 }
	m := newManager(t, &sessiontest.Backend{}, limit)
	for i := range 3 {
		if err := storeFiles(t, m, annie, fmt.Sprint(i), 200); err != nil {
			t.Fatal(err)
		}
	}
	var full *session.CallerError
	if err := store(t, m, annie, "more", 1); !errors.As(err, &full) || !full.TooManyFiles || full.Files != 600 || full.MaxFiles != 600 {
		t.Errorf("a file too many: %v", err)
	}
	s := open(t, m, annie, "more")
	if _, err := s.Run(t.Context(), shell, session.RunRequest{}); !errors.As(err, &full) || !full.TooManyFiles {
		t.Errorf("a run in an empty session: %v", err)
	}
	s.Release()
	for _, c := range []session.Caller{bobby, session.Local} {
		if err := store(t, m, c, "x", 1); err != nil {
			t.Errorf("%s: %v", c.ID, err)
		}
	}
	if err := m.CloseSession(t.Context(), annie, "0"); err != nil {
		t.Fatal(err)
	}
	later := newManager(t, &sessiontest.Backend{}, limit)
	if st := later.Storage(annie); st.Files != 400 || st.ClosedFiles != 200 {
		t.Errorf("a later server: %+v", st)
	}
	if err := store(t, later, annie, "more", 1); err != nil {
		t.Errorf("with a closed session to delete: %v", err)
	}
	if st := later.Storage(annie); st.Files != 401 || st.ClosedFiles != 0 {
		t.Errorf("after that: %+v", st)
	}
}

// TestUploadReserveFiles: uploads of users leave the reserve of inodes free; the operator's need
// not.
func TestUploadReserveFiles(t *testing.T) {
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=64m,nr_inodes=400"); err != nil {
		sandboxtest.Skip(t, fmt.Sprintf("cannot mount a small disk: %v", err))
	}
	t.Cleanup(func() { _ = syscall.Unmount(root, syscall.MNT_DETACH) })
	m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) { c.Root = root })
	var err error
	n := 0
	for ; err == nil && n < 400; n++ {
		s := open(t, m, annie, "x")
		_, err = s.Write(fmt.Sprint(n), strings.NewReader("x"), workspace.WriteOptions{})
		s.Release()
	}
	if !errors.Is(err, syscall.ENOSPC) || n < 300 || n > 360 {
		t.Errorf("after %d uploads: %v", n, err)
	}
	if err := store(t, m, session.Local, "x", 1); err != nil {
		t.Errorf("the operator's upload: %v", err)
	}
}

// TestUnmeasured: a session that cannot be measured has no size and a reason, and counts as full.
// The next server measures it again.
func TestUnmeasured(t *testing.T) {
	const why = "128 levels"
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		server := func() (*session.Manager, func()) {
			b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
				if err := os.MkdirAll(filepath.Join(p.Spec.Workspace, string(p.Code)), 0o700); err != nil {
					t.Error(err)
				}
				return wire.Exit{}
			}}
			m := newManager(t, b, func(c *session.Config) {
				c.Root, c.Quota, c.CallerBytes = root, workspace.Usage{Bytes: 1 << 30, Files: 1000}, 1<<30
			})
			synctest.Wait()
			return m, func() { closeManager(t, m, b) }
		}
		check := func(when string, m *session.Manager) {
			t.Helper()
			synctest.Wait()
			if st := m.Storage(annie); st.Unmeasured != 1 || st.Sessions != 2 || st.Bytes >= 1<<20 || st.Files >= 100 {
				t.Errorf("%s: %+v", when, st)
			}
			full, ok := errors.AsType[*session.CallerError](store(t, m, annie, "other", 1))
			if !ok || full.Unmeasured != 1 {
				t.Errorf("%s: it does not count: %v", when, full)
			}
			infos, err := session.Stored(root)
			for _, info := range append(infos, m.Infos()...) {
				if info.ID == "deep" && info.Bytes != nil {
					t.Errorf("%s: %d bytes", when, *info.Bytes)
				}
			}
			if err != nil || len(infos) != 2 {
				t.Errorf("%s: %+v, %v", when, infos, err)
			}
		}
		m, stop := server()
		if err := store(t, m, annie, "other", 1); err != nil {
			t.Fatal(err)
		}
		s := open(t, m, annie, "deep")
		res, err := s.Run(t.Context(), python, session.RunRequest{Code: strings.Repeat("d/", 130)})
		if err != nil || res.Cause != sandbox.CauseDiskQuota || !strings.Contains(res.Unmeasured, why) || !strings.Contains(s.Unmeasured(), why) {
			t.Errorf("%+v, %v", res, err)
		}
		persistent := python
		persistent.Persistent = []string{"driver"}
		_, err = s.Run(t.Context(), persistent, session.RunRequest{Persistent: true})
		if text := fmt.Sprint(err); !errors.Is(err, workspace.ErrQuota) || !strings.Contains(text, why) || strings.Contains(text, "without code") {
			t.Error(err)
		}
		check("at first", m)
		s.Release()
		stop()

		m, stop = server()
		check("after a restart", m)
		stop()
		if err := os.RemoveAll(filepath.Join(root, m.Key(annie, "deep"), "files", "d")); err != nil {
			t.Fatal(err)
		}
		m, _ = server()
		synctest.Wait()
		if st := m.Storage(annie); st.Unmeasured != 0 || st.Bytes >= 1<<20 {
			t.Errorf("without the directories: %+v", st)
		}
		if err := store(t, m, annie, "other", 1); err != nil {
			t.Error(err)
		}
	})
}
