package session_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

// TestUsageAfterTheSandbox: deleted files that a run holds open count while it runs, and not after
// the session was closed or the sandbox lost.
func TestUsageAfterTheSandbox(t *testing.T) {
	for _, how := range []string{"closed", "lost"} {
		t.Run(how, func(t *testing.T) {
			lose := make(chan struct{})
			b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
				p.Sandbox.HeldBytes.Store(32 << 20)
				select {
				case <-p.Done():
				case <-lose:
					_ = p.Sandbox.Close(t.Context())
				}
				return sessiontest.SIGKILL
			}}
			m := newManager(t, b, func(c *session.Config) { c.Quota, c.ClosedRetention = workspace.Usage{Bytes: 1 << 30}, 1<<62 })
			if err := store(t, m, annie, "x", 1<<20); err != nil {
				t.Fatal(err)
			}
			s := open(t, m, annie, "x")
			ended := make(chan error, 1)
			go func() {
				_, err := s.Run(t.Context(), shell, session.RunRequest{})
				ended <- err
			}()
			deadline := time.After(30 * time.Second)
			for m.Storage(annie).Bytes < 32<<20 {
				select {
				case <-deadline:
					t.Fatalf("deleted files do not count: %+v", m.Storage(annie))
				case <-time.After(10 * time.Millisecond):
				}
			}
			if how == "closed" {
				if err := m.CloseSession(t.Context(), annie, "x"); err != nil {
					t.Fatal(err)
				}
				if st := m.Storage(annie); st.ClosedSessions != 1 || st.ClosedBytes > 2<<20 || st.Sessions != 0 {
					t.Errorf("when it was closed: %+v", st)
				}
				if err := store(t, m, annie, "x", 1); err != nil { // another one, which the end of the run must not touch
					t.Fatal(err)
				}
			} else {
				close(lose)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			s.Release()
			st := m.Storage(annie)
			if st.Bytes+st.ClosedBytes < 1<<20 || st.Bytes+st.ClosedBytes > 2<<20 || st.Sessions != 1 || how == "closed" && st.Bytes > 1<<19 {
				t.Errorf("after the run: %+v", st)
			}
		})
	}
}

// TestQuietRunsAreMeasuredRarely: a run is measured once a second, and more often only while the
// disk loses space or the workspace exceeds its quota.
func TestQuietRunsAreMeasuredRarely(t *testing.T) {
	for _, tt := range []struct {
		name      string
		quota     workspace.Usage
		lasts     time.Duration
		min, most int64
	}{
		{"short", workspace.Usage{Bytes: 1 << 40}, 900 * time.Millisecond, 0, 0},
		{"long", workspace.Usage{Bytes: 1 << 40}, 10*time.Second + time.Millisecond, 7, 10},
		{"full", workspace.Usage{Bytes: 1}, 900 * time.Millisecond, 3, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
					time.Sleep(tt.lasts)
					if n := p.Sandbox.Measured.Load(); n < tt.min || n > tt.most {
						t.Errorf("measured %d times in %v", n, tt.lasts)
					}
					return wire.Exit{}
				}}
				m := newManager(t, b, func(c *session.Config) { c.Quota = tt.quota })
				s := open(t, m, session.Local, "a")
				_, err := s.Write("file", strings.NewReader("more than one byte"), workspace.WriteOptions{})
				if s.Release(); err != nil {
					t.Fatal(err)
				}
				run(t, m, "a", "x")
			})
		})
	}
}
