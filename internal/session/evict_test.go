package session_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

var (
	notebook = func() runner.Runner { r := python; r.Persistent = []string{"driver"}; return r }()
	ann, bob = session.Caller{ID: "ann"}, session.Caller{ID: "bob"}
)

// interpreters is a program that knows whether its sandbox has had a cell of that interpreter
// before. It can take long.
type interpreters struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (i *interpreters) program(p *sessiontest.Process) wire.Exit {
	i.mu.Lock()
	if i.seen == nil {
		i.seen = map[string]bool{}
	}
	key := p.Sandbox.ID() + p.Interpreter
	fresh := p.Interpreter != "" && !i.seen[key]
	i.seen[key] = true
	i.mu.Unlock()
	if string(p.Code) == "forever" {
		<-p.Done()
		return sessiontest.SIGKILL
	}
	return wire.Exit{Fresh: fresh}
}

// cell runs code in the caller's notebook with that id.
func cell(t *testing.T, m *session.Manager, caller session.Caller, id, code string) (session.RunResult, error) {
	t.Helper()
	s := open(t, m, caller, id)
	defer s.Release()
	return s.Run(t.Context(), notebook, session.RunRequest{ID: "run of " + id, Code: code, Persistent: true})
}

func mustCell(t *testing.T, m *session.Manager, caller session.Caller, id string) session.RunResult {
	t.Helper()
	res, err := cell(t, m, caller, id, "")
	if err != nil {
		t.Fatalf("a cell of %s's %s: %v", caller.ID, id, err)
	}
	return res
}

func newNotebooks(t *testing.T, change func(*session.Config)) (*session.Manager, *sessiontest.Backend) {
	b := &sessiontest.Backend{Program: new(interpreters).program}
	return newManager(t, b, func(c *session.Config) {
		c.EvictIdle = time.Minute
		change(c)
	}), b
}

// TestEvictNotebook: ten notebooks exclude others for no longer than the idle time. The evicted one
// reports that once, in whichever server.
func TestEvictNotebook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cfg session.Config
		m, b := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 10; cfg = *c })
		for i := range 10 {
			mustCell(t, m, ann, fmt.Sprint("n", i))
			time.Sleep(time.Second)
		}
		mustCell(t, m, ann, "n0") // now n1 is the longest idle, for 9 s
		_, err := cell(t, m, ann, "n10", "")
		var full *session.MaxSessionsError
		if !errors.As(err, &full) || !errors.Is(err, session.ErrMaxSessions) || full.Running != 0 || full.Recent != 10 ||
			full.RetryAfter != 51*time.Second || full.EvictIdle != time.Minute || len(full.RecentOwn) != 10 {
			t.Fatalf("an eleventh notebook too soon: %+v, %v", full, err)
		}
		time.Sleep(full.RetryAfter)
		if res := mustCell(t, m, ann, "n10"); !res.Fresh || res.Forgotten || res.Evicted {
			t.Errorf("the eleventh: %+v", res)
		}
		if got := liveIDs(b); len(got) != 10 || got["n1"] || !got["n10"] {
			t.Errorf("live: %v, want all but n1", got)
		}
		time.Sleep(time.Minute)
		if res := mustCell(t, m, ann, "n1"); !res.Fresh || !res.Forgotten || !res.Evicted {
			t.Errorf("the evicted one's next call: %+v", res)
		}
		if res := mustCell(t, m, ann, "n1"); res.Fresh || res.Forgotten || res.Evicted {
			t.Errorf("the one after that: %+v", res)
		}

		// n2 made room for n1. Another server on the same root reports it, once.
		synctest.Wait()
		other := newManager(t, b, func(c *session.Config) { *c = cfg })
		if res := mustCell(t, other, ann, "n2"); !res.Evicted {
			t.Errorf("in another server: %+v", res)
		}
		closeManager(t, m, &sessiontest.Backend{})
		if res := mustCell(t, other, ann, "n1"); !res.Forgotten || res.Evicted {
			t.Errorf("one whose server has ended: %+v", res)
		}
	})
}

// TestEvictionRule: which session is evicted first.
func TestEvictionRule(t *testing.T) {
	live := func(t *testing.T, b *sessiontest.Backend, want ...string) {
		t.Helper()
		var got []string
		for id := range liveIDs(b) {
			got = append(got, id)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("live: %v, want %v", got, want)
		}
	}
	for name, test := range map[string]func(t *testing.T){
		"stateless first": func(t *testing.T) {
			m, b := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 3 })
			mustCell(t, m, session.Local, "old")
			time.Sleep(time.Hour)
			run(t, m, "plain1", "")
			run(t, m, "plain2", "")
			mustCell(t, m, session.Local, "new")
			live(t, b, "new", "old", "plain2")
		},
		"of the caller with most": func(t *testing.T) {
			m, b := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 5 })
			mustCell(t, m, bob, "b1") // the longest idle, but bob holds two
			time.Sleep(time.Second)
			for _, id := range []string{"a1", "a2", "a3"} {
				mustCell(t, m, ann, id)
				time.Sleep(time.Second)
			}
			mustCell(t, m, bob, "b2")
			time.Sleep(time.Hour)
			mustCell(t, m, bob, "b3")
			live(t, b, "a2", "a3", "b1", "b2", "b3")
			mustCell(t, m, session.Local, "c1") // now bob holds three
			live(t, b, "a2", "a3", "b2", "b3", "c1")
			mustCell(t, m, ann, "a4") // as many as bob: the one who asks gives
			live(t, b, "a3", "a4", "b2", "b3", "c1")
		},
		"not of a caller with less": func(t *testing.T) {
			m, b := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 3 })
			mustCell(t, m, bob, "b1")
			time.Sleep(time.Hour)
			mustCell(t, m, ann, "a1")
			mustCell(t, m, ann, "a2") // ann's have just been used
			var full *session.MaxSessionsError
			if _, err := cell(t, m, ann, "a3", ""); !errors.As(err, &full) || full.Recent != 3 || full.RetryAfter != time.Minute {
				t.Errorf("ann's third: %+v, %v; she has to wait for her own", full, err)
			}
			live(t, b, "a1", "a2", "b1")
			mustCell(t, m, carol, "c1") // ann has two, so she gives
			live(t, b, "a2", "b1", "c1")
			wantFull(t, m, ann) // not from an equal, either
			time.Sleep(time.Hour)
			mustCell(t, m, ann, "a4")
			live(t, b, "a4", "b1", "c1")
			mustCell(t, m, session.Local, "l1") // of equals, the longest idle
			live(t, b, "a4", "c1", "l1")
		},
		"not even when all of the caller with most run": func(t *testing.T) {
			m, b := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 10 })
			mustCell(t, m, bob, "b")
			mustCell(t, m, session.Local, "l")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			results := endless(t, ctx, m, ann, 8, func(int) bool { return true })
			time.Sleep(time.Minute)
			wantFull(t, m, ann)
			for caller, id := range map[session.Caller]string{bob: "b", session.Local: "l"} {
				if res := mustCell(t, m, caller, id); res.Fresh || res.Evicted {
					t.Errorf("%s lost its notebook: %+v", caller.ID, res)
				}
			}
			if err := m.CloseSession(ctx, bob, "b"); err != nil {
				t.Error(err)
			}
			run(t, m, "plain", "")
			mustCell(t, m, ann, "more") // an idle sandbox without an interpreter loses nothing
			if got := liveIDs(b); got["plain"] || !got["more"] || !got["l"] {
				t.Errorf("live: %v", got)
			}
			cancel()
			for range 8 {
				<-results
			}
		},
		"never one with a run": func(t *testing.T) {
			m, b := newNotebooks(t, func(c *session.Config) { c.MaxSessions, c.EvictIdle = 3, 0 })
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for _, id := range []string{"r1", "r2"} {
				s := open(t, m, ann, id)
				for range 2 { // the second waits for the first
					wg.Go(func() {
						res, err := s.Run(ctx, notebook, session.RunRequest{Code: "forever", Persistent: true, KeepWaiting: func() bool { return true }})
						if err != nil || res.Cause != sandbox.CauseCancelled {
							t.Errorf("%s: %+v, %v", id, res, err)
						}
					})
				}
				defer s.Release()
			}
			synctest.Wait()
			time.Sleep(time.Hour)
			mustCell(t, m, ann, "idle")
			mustCell(t, m, bob, "next") // no idle time is asked for here
			live(t, b, "next", "r1", "r2")

			s := open(t, m, bob, "next")
			defer s.Release()
			wg.Go(func() { _, _ = s.Run(ctx, notebook, session.RunRequest{Code: "forever", Persistent: true}) })
			synctest.Wait()
			var full *session.MaxSessionsError
			if _, err := cell(t, m, bob, "more", ""); !errors.As(err, &full) || full.Running != 3 || full.Recent != 0 || full.RetryAfter != 0 ||
				!slices.Equal(full.RunningOwn, []string{"next"}) {
				t.Errorf("when all run: %+v, %v", full, err)
			}
			cancel()
			wg.Wait()
		},
		"nor one whose next run is about to begin": func(t *testing.T) {
			m, _ := newNotebooks(t, func(c *session.Config) { c.MaxSessions, c.EvictIdle = 1, 0 })
			s := open(t, m, ann, "x")
			defer s.Release()
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = s.Run(ctx, notebook, session.RunRequest{Code: "forever", Persistent: true}) })
			synctest.Wait()
			wg.Go(func() {
				res, err := s.Run(t.Context(), notebook, session.RunRequest{Persistent: true, Queued: func(b *session.Behind) {
					if b != nil {
						cancel()
						return
					}
					var full *session.MaxSessionsError // no run is going at this moment
					if _, err := cell(t, m, bob, "y", ""); !errors.As(err, &full) || full.Running != 1 || full.RetryAfter != 0 {
						t.Errorf("between two runs: %+v, %v", full, err)
					}
				}})
				if err != nil || res.Fresh {
					t.Errorf("the next run: %+v, %v", res, err)
				}
			})
			wg.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// TestEvictedAtOnce: the next call of an evicted session reports it even before anything has been
// written.
func TestEvictedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newNotebooks(t, func(c *session.Config) { c.MaxSessions, c.EvictIdle = 1, 0 })
		mustCell(t, m, ann, "a")
		mustCell(t, m, ann, "b")
		for range 20 { // they take the only place from each other
			for _, id := range []string{"a", "b"} {
				if res := mustCell(t, m, ann, id); !res.Evicted || !res.Fresh {
					t.Fatalf("%s: %+v", id, res)
				}
			}
		}
	})
}
