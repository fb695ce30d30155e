package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	python = runner.Runner{Image: "jail:python", Definition: runner.Definition{
		Name: "python", File: "main.py", Argv: []string{"python3", "{file}"},
		Env: map[string]string{"MPLBACKEND": "Agg", "OVERRIDE": "runner"},
	}}
	shell = runner.Runner{Image: "jail:shell", Definition: runner.Definition{Name: "shell", Argv: []string{"bash", "{file}"}}}
)

// newManager returns a Manager on the fake backend that is closed with the test.
func newManager(tb testing.TB, b *sessiontest.Backend, change func(*session.Config)) *session.Manager {
	tb.Helper()
	cfg := session.Config{
		Root: tb.TempDir(), InstallationKey: []byte("0123456789abcdef0123456789abcdef"),
		Backend: b, Owner: workspace.Owner{UID: -1, GID: -1},
	}
	if change != nil {
		change(&cfg)
	}
	m := session.New(cfg)
	tb.Cleanup(func() { closeManager(tb, m, b) })
	return m
}

func closeManager(tb testing.TB, m *session.Manager, b *sessiontest.Backend) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		tb.Errorf("Close: %v", err)
	}
	if live := b.Live(); len(live) > 0 {
		tb.Errorf("%d sandboxes outlive the manager", len(live))
	}
}

func open(tb testing.TB, m *session.Manager, caller session.Caller, id string) *session.Session {
	tb.Helper()
	s, err := m.Open(caller, id)
	if err != nil {
		tb.Fatalf("Open(%q): %v", id, err)
	}
	return s
}

// run opens the session, runs code in it and releases it.
func run(tb testing.TB, m *session.Manager, id, code string) session.RunResult {
	tb.Helper()
	s := open(tb, m, session.Local, id)
	defer s.Release()
	res, err := s.Run(context.Background(), python, session.RunRequest{Code: code})
	if err != nil {
		tb.Errorf("Run in %q: %v", id, err)
	}
	return res
}

// total returns the gauges of all callers together.
func total(m *session.Manager) session.CallerStats {
	st := m.Stats()
	a, b := st.Local, st.Others
	return session.CallerStats{
		Sessions:      a.Sessions + b.Sessions,
		LiveSessions:  a.LiveSessions + b.LiveSessions,
		LiveSandboxes: a.LiveSandboxes + b.LiveSandboxes,
		Interpreters:  a.Interpreters + b.Interpreters,
		ActiveRuns:    a.ActiveRuns + b.ActiveRuns,
		Waiting:       a.Waiting + b.Waiting,
	}
}

func TestCheckID(t *testing.T) {
	for _, id := range []string{"a", "user-123-session-456", "ünïcödé", "日本", "a.b", "...", "%2e%2e", "-rf", strings.Repeat("é", 128)} {
		if err := session.CheckID(id); err != nil {
			t.Errorf("CheckID(%q): %v", id, err)
		}
	}
	for _, id := range []string{
		"", ".", "..", "a/b", "/", "../x", `a\b`, "a b", " ", "a\x00", "a\nb", "a\tb", "\x7f", "~", "~abc", "a\u00a0b", "a\u200bb",
		"a\u202eb", "\xff\xfe", "a\u2028", strings.Repeat("a", 129), strings.Repeat("é", 129), strings.Repeat("a", 1<<20),
	} {
		var idErr *session.IDError
		if err := session.CheckID(id); !errors.As(err, &idErr) {
			t.Errorf("CheckID(%.40q) = %v, want an *IDError", id, err)
		} else if len(err.Error()) > 300 {
			t.Errorf("CheckID(%.40q): a message of %d bytes", id, len(err.Error()))
		}
		m := newManager(t, &sessiontest.Backend{}, nil)
		if _, err := m.Open(session.Local, id); !errors.As(err, &idErr) {
			t.Errorf("Open(%.40q) = %v, want an *IDError", id, err)
		}
	}
	if id := session.NewID(); !strings.HasPrefix(id, "sess_") || len(id) != 17 || session.CheckID(id) != nil {
		t.Errorf("NewID() = %q", id)
	}
}

// TestSessionsApart: no two callers, and no two ids of one caller, share a directory or a sandbox.
func TestSessionsApart(t *testing.T) {
	var b sessiontest.Backend
	m := newManager(t, &b, nil)
	keys := map[string]string{}
	dirs := map[string]bool{}
	for _, who := range []struct{ caller, id string }{
		{"local", "x"}, {"alice", "x"}, {"", "x"}, {"a", "bc"}, {"ab", "c"}, {"x", "local"}, {"local", "X"},
		{"local", "é"}, {"local", "e\u0301"}, {"alicex", "x"}, {"local", "x."},
	} {
		s := open(t, m, session.Caller{ID: who.caller}, who.id)
		defer s.Release()
		name := who.caller + " " + who.id
		if other, ok := keys[s.Key()]; ok {
			t.Errorf("%q and %q have the same key", name, other)
		}
		keys[s.Key()] = name
		if _, err := s.Workspace().Write("secret.txt", strings.NewReader(name), workspace.WriteOptions{}); err != nil {
			t.Errorf("%q finds another's file: %v", name, err)
		}
		if _, err := s.Run(context.Background(), python, session.RunRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, sb := range b.Live() {
		if dirs[sb.Spec().Workspace] {
			t.Error("two sandboxes have the same workspace")
		}
		dirs[sb.Spec().Workspace] = true
	}
	if len(dirs) != len(keys) {
		t.Errorf("%d sandboxes for %d sessions", len(dirs), len(keys))
	}
	if _, err := m.Lookup(session.Caller{ID: "mallory"}, "x"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("Lookup of another caller's session: %v, want ErrNotFound", err)
	}
}

func TestKeyDependsOnInstallation(t *testing.T) {
	key := func(secret string) string {
		m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) { c.InstallationKey = []byte(secret) })
		s := open(t, m, session.Local, "x")
		defer s.Release()
		return s.Key()
	}
	if a, b := key("one"), key("two"); a == b || len(a) != 64 {
		t.Errorf("keys %q and %q", a, b)
	}
}

func TestDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b sessiontest.Backend
		root := t.TempDir()
		sameRoot := func(c *session.Config) { c.Root, c.CleanupInterval = root, time.Minute }
		m := newManager(t, &b, sameRoot)
		if _, err := m.Lookup(session.Local, "x"); !errors.Is(err, session.ErrNotFound) {
			t.Errorf("Lookup of nothing: %v, want ErrNotFound", err)
		}
		if entries, _ := os.ReadDir(root); len(entries) != 0 {
			t.Errorf("Lookup made %v", entries)
		}
		created := time.Now()
		s := open(t, m, session.Local, "x")
		dir := filepath.Join(root, s.Key())
		for _, d := range []string{dir, filepath.Join(dir, "files")} {
			if fi, err := os.Stat(d); err != nil || fi.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v, %v; want 0700", d, fi.Mode(), err)
			}
		}
		if _, err := s.Workspace().Write("a.txt", strings.NewReader("kept"), workspace.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		checkMeta(t, dir, created, created)
		s.Release()
		if st := total(m); st.Sessions != 0 {
			t.Errorf("%d sessions in memory after release, want none", st.Sessions)
		}

		// Its use is recorded with a delay. A damaged meta.json only loses the record.
		time.Sleep(2 * time.Minute)
		run(t, m, "x", "")
		used := time.Now()
		time.Sleep(90 * time.Second) // the clean-up comes once a minute
		synctest.Wait()
		checkMeta(t, dir, created, used)
		if err := os.WriteFile(filepath.Join(dir, "meta.json"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		closeManager(t, m, &b)
		m = newManager(t, &b, sameRoot) // a restart
		s, err := m.Lookup(session.Local, "x")
		if err != nil {
			t.Fatal(err)
		}
		f, _, err := s.Workspace().Open("a.txt")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		now := time.Now()
		open(t, m, session.Local, "x").Release()
		s.Release()
		checkMeta(t, dir, now, now)
	})
}

func checkMeta(t *testing.T, dir string, created, used time.Time) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "meta.json"))
	if err != nil {
		t.Error(err)
		return
	}
	var got struct {
		Caller, ID string
		Created    time.Time
		LastUsed   time.Time  `json:"last_used"`
		ClosedAt   *time.Time `json:"closed_at"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Errorf("meta.json %q: %v", b, err)
	}
	if got.Caller != "local" || got.ID != "x" || !got.Created.Equal(created) || !got.LastUsed.Equal(used) || got.ClosedAt != nil {
		t.Errorf("meta.json = %s, want created %v, last_used %v", b, created, used)
	}
}

func TestRunRequestReachesAgent(t *testing.T) {
	var got *sessiontest.Process
	b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
		got = p
		p.Stdout([]byte("out\xff"))
		p.Stderr([]byte("err"))
		p.Stdout([]byte("put"))
		return wire.Exit{Code: 3, UserUS: 2000, SysUS: 1000, MaxRSSB: 42}
	}}
	m := newManager(t, b, func(c *session.Config) { c.Limits.TmpBytes, c.Limits.FileBytes, c.Limits.PIDs = 1, 2, 3 })
	s := open(t, m, session.Local, "x")
	defer s.Release()
	var log []string
	names := map[session.Stream]string{session.Stdout: "stdout", session.Stderr: "stderr"}
	res, err := s.Run(context.Background(), python, session.RunRequest{
		Code: "co\x00de", Network: true, Env: map[string]string{"A": "1", "OVERRIDE": "caller"},
		Output: func(s session.Stream, p []byte) { log = append(log, names[s]+":"+string(p)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := session.RunResult{ExitCode: 3, Started: true, UserTime: 2 * time.Millisecond, SysTime: time.Millisecond, MaxRSSBytes: 42}
	if res != want {
		t.Errorf("result %+v, want %+v", res, want)
	}
	if s := strings.Join(log, " "); s != "stdout:out\xff stderr:err stdout:put" {
		t.Errorf("output %q", s)
	}
	if string(got.Code) != "co\x00de" || got.File != "main.py" || got.Argv[0] != "python3" || got.Limits != (wire.RunLimits{TmpBytes: 1, FileBytes: 2}) {
		t.Errorf("the agent got %+v", got.Run)
	}
	if len(got.Env) != 3 || got.Env["A"] != "1" || got.Env["OVERRIDE"] != "caller" || got.Env["MPLBACKEND"] != "Agg" {
		t.Errorf("environment %v", got.Env)
	}
	if !got.Spec.Network || got.Spec.Session != s.Key() || got.Spec.SessionID != "x" || got.Spec.Limits.PIDs != 3 || got.Spec.Image != "jail:python" {
		t.Errorf("the backend got %+v", got.Spec)
	}
}
