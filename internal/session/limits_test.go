package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// liveIDs returns the ids of the sessions that have a sandbox.
func liveIDs(b *sessiontest.Backend) map[string]bool {
	ids := map[string]bool{}
	for _, sb := range b.Live() {
		ids[sb.Spec().SessionID] = true
	}
	return ids
}

func TestMaxSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
			if string(p.Code) == "forever" {
				return forever(p)
			}
			return wire.Exit{}
		}}
		most := 0
		b.OnStart = func(context.Context, sandbox.Spec) error { most = max(most, len(b.Live())+1); return nil }
		m := newManager(t, b, func(c *session.Config) { c.MaxSessions, c.MaxRunsPerSession = 3, 2 })
		for _, id := range []string{"a", "b", "c", "a", "d"} {
			run(t, m, id, "")
		}
		if got := liveIDs(b); len(got) != 3 || got["b"] {
			t.Errorf("live: %v, want all but b, the least recently used", got)
		}

		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for _, id := range []string{"a", "c", "d", "d"} {
			s := open(t, m, session.Local, id)
			wg.Go(func() {
				defer s.Release()
				if res, err := s.Run(ctx, python, session.RunRequest{Code: "forever"}); err != nil || res.Cause != sandbox.CauseCancelled {
					t.Errorf("%s: %+v, %v", id, res, err)
				}
			})
		}
		synctest.Wait()
		for id, want := range map[string]error{"d": session.ErrBusy, "e": session.ErrMaxSessions} {
			s := open(t, m, session.Local, id)
			if _, err := s.Run(ctx, python, session.RunRequest{}); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", id, err, want)
			}
			s.Release()
		}
		if st := total(m); st.ActiveRuns != 4 || st.LiveSandboxes != 3 || st.Sessions != 3 {
			t.Errorf("stats %+v", st)
		}
		cancel()
		wg.Wait()
		run(t, m, "e", "")
		if most > 3 {
			t.Errorf("%d sandboxes at one time, want at most 3", most)
		}
	})
}

func TestIdleTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b sessiontest.Backend
		m := newManager(t, &b, func(c *session.Config) { c.IdleTTL, c.CleanupInterval = 10*time.Minute, time.Hour })
		run(t, m, "a", "")
		time.Sleep(5 * time.Minute)
		run(t, m, "b", "")
		run(t, m, "c", "")
		open(t, m, session.Local, "b").Release() // an upload, say: now c is the least recently used
		time.Sleep(5*time.Minute + time.Second)
		synctest.Wait()
		if got := liveIDs(&b); len(got) != 2 || got["a"] {
			t.Errorf("live after 10 minutes: %v, want b and c", got)
		}
		open(t, m, session.Local, "b").Release()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := liveIDs(&b); len(got) != 1 || !got["b"] {
			t.Errorf("live after 15 minutes: %v, want b", got)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if st := total(m); st != (session.CallerStats{}) {
			t.Errorf("left: %+v", st)
		}
		s, err := m.Lookup(session.Local, "a") // its files are still there
		if err != nil {
			t.Fatal(err)
		}
		s.Release()

		// A session with a run is not idle, however long the run takes.
		b.Program = func(p *sessiontest.Process) wire.Exit {
			select {
			case <-time.After(time.Hour):
			case <-p.Done():
				return sessiontest.SIGKILL
			}
			return wire.Exit{}
		}
		if res := run(t, m, "a", ""); res != (session.RunResult{Started: true}) {
			t.Errorf("a long run: %+v", res)
		}
	})
}

func TestMaxLifetime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b sessiontest.Backend
		m := newManager(t, &b, func(c *session.Config) { c.MaxLifetime = 10 * time.Minute })
		for range 11 {
			run(t, m, "a", "")
			time.Sleep(time.Minute)
		}
		if b.Started() != 2 {
			t.Errorf("%d sandboxes in 11 minutes of use, want 2", b.Started())
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if live := b.Live(); len(live) != 0 {
			t.Errorf("%d sandboxes after their lifetime", len(live))
		}

		// A run in progress may finish, but its old sandbox gets no new run.
		release := make(chan struct{})
		b.Program = func(p *sessiontest.Process) wire.Exit {
			if string(p.Code) == "wait" {
				<-release
			}
			return wire.Exit{}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if res := run(t, m, "a", "wait"); res != (session.RunResult{Started: true}) {
				t.Errorf("the old run: %+v", res)
			}
		})
		time.Sleep(11 * time.Minute)
		run(t, m, "a", "")
		if live := b.Live(); len(live) != 2 {
			t.Errorf("%d sandboxes, want 2", len(live))
		}
		close(release)
		wg.Wait()
		synctest.Wait()
		if live := b.Live(); len(live) != 1 {
			t.Errorf("%d sandboxes, want 1", len(live))
		}
	})
}

// TestManySessions: many sessions leave no goroutine, no sandbox and no memory behind.
func TestManySessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b sessiontest.Backend
		m := newManager(t, &b, func(c *session.Config) { c.IdleTTL, c.MaxSessions = time.Minute, 150 })
		synctest.Wait()
		before := goroutines()
		var wg sync.WaitGroup
		for worker := range 50 { // fewer than the limit: they never find all sessions busy
			wg.Go(func() {
				for i := range 4 {
					run(t, m, fmt.Sprint("s", worker), "")
					run(t, m, fmt.Sprint("s", 50*i+worker), "")
				}
			})
		}
		wg.Wait()
		if live := len(liveIDs(&b)); live != 150 {
			t.Errorf("%d sessions live, want 150", live)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st := total(m); st != (session.CallerStats{}) {
			t.Errorf("left: %+v", st)
		}
		if n := goroutines(); n != before {
			stacks := make([]byte, 1<<20)
			t.Errorf("%d goroutines, before %d\n%s", n, before, stacks[:runtime.Stack(stacks, true)])
		}
	})
}

// goroutines counts those of sandboxes and their connections, since the runtime has others.
func goroutines() int {
	buf := make([]byte, 4<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	n := 0
	for stack := range strings.SplitSeq(stacks, "\n\n") {
		if strings.Contains(stack, "session.(*Manager)") || strings.Contains(stack, "wire.(*") {
			n++
		}
	}
	return n
}

func TestCloseEndsRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{Program: forever}
		m := newManager(t, b, nil)
		s := open(t, m, session.Local, "x")
		defer s.Release()
		var wg sync.WaitGroup
		wg.Go(func() {
			res, err := s.Run(context.Background(), python, session.RunRequest{})
			if err != nil || res.Cause != sandbox.CauseCancelled {
				t.Errorf("the run: %+v, %v", res, err)
			}
		})
		synctest.Wait()
		closeManager(t, m, b)
		wg.Wait()
		if _, err := s.Run(context.Background(), python, session.RunRequest{}); !errors.Is(err, session.ErrClosed) {
			t.Errorf("Run after Close: %v", err)
		}
		if _, err := m.Open(session.Local, "x"); !errors.Is(err, session.ErrClosed) {
			t.Errorf("Open after Close: %v", err)
		}
	})
}

func TestDial(t *testing.T) {
	var b sessiontest.Backend
	m := newManager(t, &b, func(c *session.Config) {
		c.Dial = func(_ context.Context, id, _ string, s net.Conn) { _, _ = io.WriteString(s, id) }
	})
	run(t, m, "x", "")
	sb := b.Live()[0]
	s, err := sb.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := io.ReadAll(s)
	if err != nil || string(got) != sb.ID() || !sb.Spec().Forward {
		t.Errorf("the stream says %q, %v; want the sandbox's id %q", got, err, sb.ID())
	}
}

// readyBackend returns sandboxes that it started earlier, with their own ids.
type readyBackend struct{ *sessiontest.Backend }

func (b readyBackend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	spec.ID = "ready-" + spec.ID[:8]
	return b.Backend.Start(ctx, spec)
}

// TestReadySandbox: connections carry the id of the sandbox, not that of the Spec.
func TestReadySandbox(t *testing.T) {
	var b sessiontest.Backend
	m := newManager(t, &b, func(c *session.Config) {
		c.Backend = readyBackend{&b}
		c.Dial = func(_ context.Context, id, _ string, s net.Conn) { _, _ = io.WriteString(s, id) }
	})
	s := open(t, m, session.Local, "x")
	defer s.Release()
	var granted string
	_, err := s.Run(t.Context(), python, session.RunRequest{Grant: func(_ context.Context, id string) (map[string]string, error) {
		granted = id
		return nil, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	sb := b.Live()[0]
	stream, err := sb.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if dialled, err := io.ReadAll(stream); err != nil || string(dialled) != sb.ID() || granted != sb.ID() {
		t.Errorf("the stream is from %q, the grant for %q, the sandbox %q: %v", dialled, granted, sb.ID(), err)
	}
}

// BenchmarkRun: the overhead of a run does not grow with the number of open sessions.
func BenchmarkRun(b *testing.B) {
	for _, sessions := range []int{1, 1000} {
		b.Run(fmt.Sprintf("sessions=%d", sessions), func(b *testing.B) {
			m := newManager(b, &sessiontest.Backend{}, func(c *session.Config) { c.MaxSessions = sessions })
			for i := range sessions {
				run(b, m, fmt.Sprint("s", i), "x")
			}
			s := open(b, m, session.Local, "s0")
			defer s.Release()
			b.ReportAllocs()
			for b.Loop() {
				if res, err := s.Run(context.Background(), python, session.RunRequest{Code: "x", Timeout: time.Minute}); err != nil || res.ExitCode != 0 {
					b.Fatal(res, err)
				}
			}
		})
	}
}
