package session_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

// forever is a program that runs until it is killed.
func forever(p *sessiontest.Process) wire.Exit {
	<-p.Done()
	return sessiontest.SIGKILL
}

func TestCause(t *testing.T) {
	const outputLimit = 300_000
	flood := func(p *sessiontest.Process) wire.Exit {
		for p.Stdout(bytes.Repeat([]byte("x"), 100_000)) {
		}
		return sessiontest.SIGKILL
	}
	tests := []struct {
		name    string
		program func(*sessiontest.Process) wire.Exit
		exit    sandbox.Exit // the sandbox's
		want    session.RunResult
	}{
		{"success", func(*sessiontest.Process) wire.Exit { return wire.Exit{} }, sandbox.Exit{}, session.RunResult{Started: true}},
		{"failure", func(*sessiontest.Process) wire.Exit { return wire.Exit{Code: 1} }, sandbox.Exit{},
			session.RunResult{ExitCode: 1, Started: true}},
		{"own signal", func(*sessiontest.Process) wire.Exit { return wire.Exit{Code: 139, Signal: 11} }, sandbox.Exit{},
			session.RunResult{ExitCode: 139, Signal: 11, Started: true}},
		{"SIGKILL", func(*sessiontest.Process) wire.Exit { return sessiontest.SIGKILL }, sandbox.Exit{},
			session.RunResult{ExitCode: 137, Signal: 9, Cause: sandbox.CauseKilled, Started: true}},
		{"memory", func(p *sessiontest.Process) wire.Exit { p.Sandbox.OOMKills.Add(1); return sessiontest.SIGKILL }, sandbox.Exit{},
			session.RunResult{ExitCode: 137, Signal: 9, Cause: sandbox.CauseOutOfMemory, Started: true}},
		{"a shell's child's memory", func(p *sessiontest.Process) wire.Exit { p.Sandbox.OOMKills.Add(1); return wire.Exit{Code: 137} }, sandbox.Exit{},
			session.RunResult{ExitCode: 137, Cause: sandbox.CauseOutOfMemory, Started: true}},
		{"file size", func(*sessiontest.Process) wire.Exit { return wire.Exit{Code: 153, Signal: 25} }, sandbox.Exit{},
			session.RunResult{ExitCode: 153, Signal: 25, Cause: sandbox.CauseDiskQuota, Started: true}},
		{"a shell's child's file size", func(*sessiontest.Process) wire.Exit { return wire.Exit{Code: 153} }, sandbox.Exit{},
			session.RunResult{ExitCode: 153, Cause: sandbox.CauseDiskQuota, Started: true}},
		{"a child's memory, coped with", func(p *sessiontest.Process) wire.Exit { p.Sandbox.OOMKills.Add(1); return wire.Exit{} }, sandbox.Exit{},
			session.RunResult{Started: true, OOMKilled: true}},
		{"a worker's memory", func(p *sessiontest.Process) wire.Exit { p.Sandbox.OOMKills.Add(1); return wire.Exit{Code: 1} }, sandbox.Exit{},
			session.RunResult{ExitCode: 1, Started: true, OOMKilled: true}},
		{"a worker's memory, waited for", func(p *sessiontest.Process) wire.Exit { p.Sandbox.OOMKills.Add(1); return forever(p) }, sandbox.Exit{},
			session.RunResult{ExitCode: -1, Signal: 9, Cause: sandbox.CauseTimeout, Started: true, OOMKilled: true}},
		{"processes", func(p *sessiontest.Process) wire.Exit { p.Sandbox.PIDsRefused.Add(9); return wire.Exit{Code: 1} }, sandbox.Exit{},
			session.RunResult{ExitCode: 1, Cause: sandbox.CausePIDsLimit, Started: true}},
		{"processes, coped with", func(p *sessiontest.Process) wire.Exit { p.Sandbox.PIDsRefused.Add(9); return wire.Exit{} }, sandbox.Exit{},
			session.RunResult{Started: true}},
		{"not started", func(*sessiontest.Process) wire.Exit { return wire.Exit{Code: 127, Error: "no such file"} }, sandbox.Exit{},
			session.RunResult{ExitCode: 127}},
		{"flood", flood, sandbox.Exit{}, session.RunResult{ExitCode: -1, Signal: 9, Cause: sandbox.CauseOutputLimit, Started: true}},
		{"timeout", forever, sandbox.Exit{}, session.RunResult{ExitCode: -1, Signal: 9, Cause: sandbox.CauseTimeout, Started: true}},
		{"agent dies", func(p *sessiontest.Process) wire.Exit { p.Sandbox.Die(); return wire.Exit{} }, sandbox.Exit{},
			session.RunResult{ExitCode: -1, Cause: sandbox.CauseLost, Started: true}},
		{"sandbox dies of memory", func(p *sessiontest.Process) wire.Exit { p.Sandbox.Die(); return wire.Exit{} },
			sandbox.Exit{Cause: sandbox.CauseOutOfMemory}, session.RunResult{ExitCode: -1, Cause: sandbox.CauseOutOfMemory, Started: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &sessiontest.Backend{Program: tt.program, Exit: tt.exit}
				m := newManager(t, b, func(c *session.Config) { c.OutputLimit = outputLimit })
				s := open(t, m, session.Local, "x")
				defer s.Release()
				var out bytes.Buffer
				got, err := s.Run(context.Background(), python, session.RunRequest{
					Timeout: time.Minute, Output: func(_ session.Stream, p []byte) { out.Write(p) }})
				if err != nil || got != tt.want {
					t.Errorf("Run = %+v, %v, want %+v", got, err, tt.want)
				}
				if tt.want.Cause == sandbox.CauseOutputLimit && out.Len() != outputLimit {
					t.Errorf("%d bytes of output, want the limit's %d", out.Len(), outputLimit)
				}
				if !tt.want.Started && tt.want.Cause == "" && !strings.Contains(out.String(), "no such file") {
					t.Errorf("output %q does not say why the program was not started", out.String())
				}

				// The next run always works, in the same sandbox unless that was lost.
				b.Program = nil
				if res := run(t, m, "x", ""); res != (session.RunResult{Started: true}) {
					t.Errorf("the next run: %+v", res)
				}
				want := 1
				if tt.want.Cause == sandbox.CauseLost || tt.exit.Cause != "" {
					want = 2
				}
				if b.Started() != want {
					t.Errorf("%d sandboxes started, want %d", b.Started(), want)
				}
			})
		})
	}
}

// TestRunEndsInTime: a run ends in time even if the agent ignores the server.
func TestRunEndsInTime(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		for _, cancelled := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				b := &sessiontest.Backend{Program: forever, IgnoreKill: deaf}
				m := newManager(t, b, nil)
				s := open(t, m, session.Local, "x")
				defer s.Release()
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				req := session.RunRequest{Timeout: time.Minute}
				most := 2 * time.Second
				want := session.RunResult{ExitCode: -1, Signal: 9, Cause: sandbox.CauseTimeout, Started: true}
				if cancelled {
					time.AfterFunc(time.Minute, cancel)
					req.Timeout = time.Hour
					most = time.Second
					want.Cause = sandbox.CauseCancelled
				}
				if deaf {
					want.Signal = 0
				}
				began := time.Now()
				res, err := s.Run(ctx, python, req)
				if took := time.Since(began) - time.Minute; took < 0 || took > most {
					t.Errorf("deaf %t, cancelled %t: over after %v", deaf, cancelled, took)
				}
				if err != nil || res != want {
					t.Errorf("deaf %t, cancelled %t: Run = %+v, %v", deaf, cancelled, res, err)
				}
				synctest.Wait()
				if live := len(b.Live()); live == 1 == deaf {
					t.Errorf("deaf %t: %d sandboxes left", deaf, live)
				}
			})
		}
	}
}

func TestFirstCauseWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, &sessiontest.Backend{Program: forever, IgnoreKill: true}, nil)
		s := open(t, m, session.Local, "x")
		defer s.Release()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Millisecond)
		defer cancel()
		res, err := s.Run(ctx, python, session.RunRequest{Timeout: time.Minute})
		if err != nil || res.Cause != sandbox.CauseTimeout {
			t.Errorf("%+v, %v, want a timeout", res, err)
		}
	})
}

// mute is a backend whose agent says hello and then neither reads nor writes.
type mute struct {
	sessiontest.Backend // for its methods
	closed              chan struct{}
}

type muteSandbox struct {
	server, agent net.Conn
	backend       *mute
}

func (b *mute) Start(context.Context, sandbox.Spec) (sandbox.Sandbox, error) {
	sb := &muteSandbox{backend: b}
	sb.server, sb.agent = net.Pipe()
	return sb, nil
}

func (s *muteSandbox) ID() string               { return "mute" }
func (s *muteSandbox) Conn() io.ReadWriteCloser { return s.server }
func (s *muteSandbox) Close(context.Context) error {
	close(s.backend.closed)
	return s.server.Close()
}
func (s *muteSandbox) Wait(context.Context) (sandbox.Exit, error) { return sandbox.Exit{}, nil }

// TestMuteAgent: an agent that does not read can neither delay a run nor make it look started.
func TestMuteAgent(t *testing.T) {
	for _, cause := range []sandbox.Cause{sandbox.CauseTimeout, sandbox.CauseCancelled} {
		synctest.Test(t, func(t *testing.T) {
			b := &mute{closed: make(chan struct{})}
			m := newManager(t, &b.Backend, func(c *session.Config) { c.Backend = b })
			s := open(t, m, session.Local, "x")
			defer s.Release()
			ctx, req := context.Background(), session.RunRequest{Timeout: time.Second}
			if cause == sandbox.CauseCancelled {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Second)
				defer cancel()
				req.Timeout = 0
			}
			began := time.Now()
			res, err := s.Run(ctx, python, req)
			if err != nil || res != (session.RunResult{ExitCode: -1, Cause: cause}) {
				t.Errorf("Run = %+v, %v", res, err)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("%s: over after %v", cause, took)
			}
			<-b.closed
		})
	}
}

// TestStartIsShared: many runs that need one sandbox wait for one start. One that gives up does not
// end it for the others.
func TestStartIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{OnStart: func(ctx context.Context, _ sandbox.Spec) error {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			return nil
		}}
		m := newManager(t, b, nil)
		s := open(t, m, session.Local, "x")
		defer s.Release()
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if res, err := s.Run(ctx, python, session.RunRequest{}); err != nil || res.Cause != sandbox.CauseCancelled || res.Started {
				t.Errorf("the impatient one: %+v, %v", res, err)
			}
		})
		synctest.Wait() // it has begun the start
		for range 10 {
			wg.Go(func() { run(t, m, "x", "") })
		}
		wg.Wait()
		if b.Started() != 1 {
			t.Errorf("%d starts, want 1", b.Started())
		}
		// Another runner, or the same one with network, has another sandbox.
		if _, err := s.Run(context.Background(), shell, session.RunRequest{}); err != nil {
			t.Error(err)
		}
		if _, err := s.Run(context.Background(), python, session.RunRequest{Network: true}); err != nil {
			t.Error(err)
		}
		if b.Started() != 3 {
			t.Errorf("%d starts, want 3", b.Started())
		}
	})
}

func TestStartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cannot := &sandbox.Error{Op: "start bubblewrap", Err: errors.New("no user namespaces"), Fix: "sysctl …"}
		b := &sessiontest.Backend{OnStart: func(context.Context, sandbox.Spec) error { return cannot }}
		m := newManager(t, b, func(c *session.Config) { c.MaxSessions = 1 })
		s := open(t, m, session.Local, "x")
		if _, err := s.Run(context.Background(), python, session.RunRequest{}); !errors.Is(err, cannot) {
			t.Errorf("Run: %v, want the backend's error", err)
		}
		var timeout *session.OverloadError
		b.OnStart = func(ctx context.Context, _ sandbox.Spec) error { <-ctx.Done(); return ctx.Err() }
		if _, err := s.Run(context.Background(), python, session.RunRequest{}); !errors.As(err, &timeout) {
			t.Errorf("Run on a backend that hangs: %v, want an *OverloadError", err)
		}
		s.Release()
		synctest.Wait()
		if st := total(m); st != (session.CallerStats{}) {
			t.Errorf("left: %+v", st)
		}
		b.OnStart = nil
		run(t, m, "y", "") // the failures count against nothing
	})
}

// TestDeadSandboxIsReplaced: a sandbox that died while idle is replaced, and code is executed once.
func TestDeadSandboxIsReplaced(t *testing.T) {
	executed := 0
	b := &sessiontest.Backend{Program: func(*sessiontest.Process) wire.Exit { executed++; return wire.Exit{} }}
	m := newManager(t, b, nil)
	for range 5 {
		if res := run(t, m, "x", ""); res != (session.RunResult{Started: true}) {
			t.Fatalf("%+v", res)
		}
		for _, sb := range b.Live() {
			sb.Die()
			if _, err := sb.Wait(t.Context()); err != nil { // the server has noticed
				t.Fatal(err)
			}
		}
	}
	if executed != 5 || b.Started() != 5 {
		t.Errorf("%d runs in %d sandboxes, want 5 in 5", executed, b.Started())
	}
}

// TestRunnerInstalledAnew: a sandbox is replaced after its runner was reinstalled, which emptied
// the mounted directory.
func TestRunnerInstalledAnew(t *testing.T) {
	libraries := filepath.Join(t.TempDir(), "libraries")
	if err := os.Mkdir(libraries, 0o700); err != nil {
		t.Fatal(err)
	}
	r := python
	r.Mounts = []sandbox.Mount{{Source: libraries, Target: "/opt/libraries"}}
	b := &sessiontest.Backend{}
	m := newManager(t, b, nil)
	s := open(t, m, session.Local, "x")
	defer s.Release()
	for i, want := range []int{1, 1, 2, 2} {
		if i == 2 {
			if err := errors.Join(os.Rename(libraries, libraries+"-old"), os.Mkdir(libraries, 0o700)); err != nil {
				t.Fatal(err)
			}
		}
		if res, err := s.Run(t.Context(), r, session.RunRequest{}); err != nil || res != (session.RunResult{Started: true}) {
			t.Errorf("%+v, %v", res, err)
		}
		if b.Started() != want {
			t.Errorf("run %d: %d sandboxes started, want %d", i, b.Started(), want)
		}
	}
}

func TestDiskQuota(t *testing.T) {
	write := func(p *sessiontest.Process, name string, n int) {
		if err := os.WriteFile(filepath.Join(p.Spec.Workspace, name), make([]byte, n), 0o600); err != nil {
			t.Error(err)
		}
	}
	quota := workspace.Usage{Bytes: 1 << 20, Files: 50}
	tests := []struct {
		name    string
		program func(*sessiontest.Process) wire.Exit
		want    session.RunResult
	}{
		{"bytes", func(p *sessiontest.Process) wire.Exit { write(p, "big", 2<<20); return forever(p) },
			session.RunResult{ExitCode: -1, Signal: 9, Cause: sandbox.CauseDiskQuota, Started: true}},
		{"bytes at the end", func(p *sessiontest.Process) wire.Exit { write(p, "big", 2<<20); return wire.Exit{} },
			session.RunResult{Cause: sandbox.CauseDiskQuota, Started: true}},
		{"files", func(p *sessiontest.Process) wire.Exit {
			for i := range 60 {
				write(p, strings.Repeat("f", i+1), 1)
			}
			return forever(p)
		}, session.RunResult{ExitCode: -1, Signal: 9, Cause: sandbox.CauseDiskQuota, Started: true}},
		{"within", func(p *sessiontest.Process) wire.Exit { write(p, "small", 1000); return wire.Exit{} },
			session.RunResult{Started: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &sessiontest.Backend{Program: tt.program}
				m := newManager(t, b, func(c *session.Config) { c.Quota = quota })
				if res := run(t, m, "x", ""); res != tt.want {
					t.Errorf("Run = %+v, want %+v", res, tt.want)
				}
				if tt.want.Cause == "" {
					return
				}
				// The session exceeds its quota: code may delete files, and write only a small
				// temporary one.
				b.Program = func(p *sessiontest.Process) wire.Exit {
					if p.Limits.FileBytes != 1<<20 {
						t.Errorf("code in a full workspace may write files of %d bytes", p.Limits.FileBytes)
					}
					select { // long enough for several walks
					case <-time.After(time.Minute):
					case <-p.Done():
						return sessiontest.SIGKILL
					}
					entries, _ := os.ReadDir(p.Spec.Workspace)
					for _, e := range entries {
						os.Remove(filepath.Join(p.Spec.Workspace, e.Name()))
					}
					return wire.Exit{}
				}
				if res := run(t, m, "x", ""); res != (session.RunResult{Started: true}) {
					t.Errorf("deleting files: %+v", res)
				}
				b.Program = func(p *sessiontest.Process) wire.Exit { return wire.Exit{Code: int(p.Limits.FileBytes)} }
				if res := run(t, m, "x", ""); res != (session.RunResult{Started: true}) {
					t.Errorf("after that: %+v", res)
				}
			})
		})
	}
}

// TestDiskQuotaOvershoot: runs that are each stopped for filling a full workspace cannot make it
// grow without end.
func TestDiskQuotaOvershoot(t *testing.T) {
	program := func(p *sessiontest.Process) wire.Exit {
		if err := os.WriteFile(filepath.Join(p.Spec.Workspace, rand.Text()), make([]byte, 40<<20), 0o600); err != nil {
			t.Error(err)
		}
		return wire.Exit{}
	}
	for _, persistent := range []bool{false, true} {
		m := newManager(t, &sessiontest.Backend{Program: program}, func(c *session.Config) { c.Quota = workspace.Usage{Bytes: 1 << 20} })
		s := open(t, m, session.Local, "x")
		defer s.Release()
		for i := range 5 {
			_, err := s.Run(t.Context(), notebook, session.RunRequest{Persistent: persistent})
			if refused := errors.Is(err, workspace.ErrQuota); refused != (i >= 2) || err != nil && !refused {
				t.Errorf("persistent %v, run %d: %v", persistent, i, err)
			}
		}
		files, _, err := s.Workspace().List(0)
		if err != nil || len(files) != 2 {
			t.Fatalf("persistent %v: %d files, %v", persistent, len(files), err)
		}
		if err := s.Workspace().Remove(files[0].Name); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Run(t.Context(), notebook, session.RunRequest{Persistent: persistent}); err != nil {
			t.Errorf("persistent %v, after a file was deleted: %v", persistent, err)
		}
	}
}

// TestDisplayBudget: the displays of a run are bounded together.
func TestDisplayBudget(t *testing.T) {
	b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
		for _, size := range []int{5 << 20, 5 << 20, 5 << 20, 16 << 20, 5} {
			if !p.Display("text/html", make([]byte, size)) {
				t.Error("a display could not be sent")
			}
		}
		return wire.Exit{}
	}}
	s := open(t, newManager(t, b, nil), session.Local, "x")
	defer s.Release()
	var sizes []int
	size, beyond, most := 0, 0, 0
	show := func(part session.Display) {
		size += len(part.Data)
		most = max(most, size)
		switch {
		case part.More:
			return
		case part.Beyond:
			beyond++
		default:
			sizes = append(sizes, size)
		}
		size = 0
	}
	if _, err := s.Run(t.Context(), notebook, session.RunRequest{Display: show}); err != nil {
		t.Fatal(err)
	}
	if want := []int{5 << 20, 5 << 20, 5 << 20}; !slices.Equal(sizes, want) {
		t.Errorf("displays of %v bytes, want %v", sizes, want)
	}
	if beyond != 2 || most > 5<<20 {
		t.Errorf("%d beyond the limit, want 2; %d bytes of one", beyond, most)
	}
}

// TestDiskQuotaMadeRoom: a workspace is no longer full after its files were deleted from outside.
func TestDiskQuotaMadeRoom(t *testing.T) {
	b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
		if err := os.WriteFile(filepath.Join(p.Spec.Workspace, "big"), make([]byte, 2<<20), 0o600); err != nil {
			t.Error(err)
		}
		return wire.Exit{}
	}}
	m := newManager(t, b, func(c *session.Config) { c.Quota = workspace.Usage{Bytes: 1 << 20} })
	s := open(t, m, session.Local, "x")
	defer s.Release()
	if res := run(t, m, "x", ""); res.Cause != sandbox.CauseDiskQuota {
		t.Errorf("filling it: %+v", res)
	}
	if err := s.Workspace().Remove("big"); err != nil {
		t.Fatal(err)
	}
	b.Program = func(p *sessiontest.Process) wire.Exit { return wire.Exit{Code: int(p.Limits.FileBytes)} }
	if res := run(t, m, "x", ""); res != (session.RunResult{Started: true}) {
		t.Errorf("after that: %+v", res)
	}
}

// TestDiskQuotaHidden: a workspace that cannot be measured counts as full: the next run may only
// clean up.
func TestDiskQuotaHidden(t *testing.T) {
	for _, quota := range []workspace.Usage{{Bytes: 2 << 20}, {Files: 1000}} {
		synctest.Test(t, func(t *testing.T) { testDiskQuotaHidden(t, quota) })
	}
}

func testDiskQuotaHidden(t *testing.T, quota workspace.Usage) {
	b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
		// Deeper than a walk goes.
		if err := os.MkdirAll(filepath.Join(p.Spec.Workspace, strings.Repeat("d/", 300)), 0o700); err != nil {
			t.Error(err)
		}
		return wire.Exit{}
	}}
	m := newManager(t, b, func(c *session.Config) { c.Quota = quota })
	if res := run(t, m, "x", ""); res.Cause != sandbox.CauseDiskQuota {
		t.Errorf("hiding: %+v", res)
	}
	b.Program = func(p *sessiontest.Process) wire.Exit {
		select {
		case <-time.After(10 * time.Second):
			t.Error("the next run goes on")
		case <-p.Done():
		}
		return sessiontest.SIGKILL
	}
	if res := run(t, m, "x", ""); res.Cause != sandbox.CauseDiskQuota {
		t.Errorf("the next run: %+v", res)
	}
	// It still has time to clean up.
	b.Program = func(p *sessiontest.Process) wire.Exit {
		select {
		case <-time.After(3 * time.Second):
		case <-p.Done():
			return sessiontest.SIGKILL
		}
		if err := os.RemoveAll(filepath.Join(p.Spec.Workspace, "d")); err != nil {
			t.Error(err)
		}
		return wire.Exit{}
	}
	if res := run(t, m, "x", ""); res != (session.RunResult{Started: true}) {
		t.Errorf("cleaning up: %+v", res)
	}
}
