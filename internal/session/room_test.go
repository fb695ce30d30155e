package session_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
)

var carol = session.Caller{ID: "carol"}

// wantFull checks that a cell of a new notebook is refused at once.
func wantFull(t *testing.T, m *session.Manager, caller session.Caller) {
	t.Helper()
	began := time.Now()
	if _, err := cell(t, m, caller, "one-too-many", ""); !errors.Is(err, session.ErrMaxSessions) {
		t.Errorf("%s: %v, want max_sessions", caller.ID, err)
	}
	if took := time.Since(began); took != 0 {
		t.Errorf("%s waited %v for a refusal", caller.ID, took)
	}
}

// TestIdleNotebooksLockNobodyOut: one caller's notebooks, just used, make room at once for callers
// that hold less, down to an equal share.
func TestIdleNotebooksLockNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 10 })
		began := time.Now()
		for i := range 10 { // a lone caller may have everything
			mustCell(t, m, ann, fmt.Sprint("a", i))
		}
		wantFull(t, m, ann)
		for i := range 5 {
			mustCell(t, m, bob, fmt.Sprint("b", i))
		}
		wantFull(t, m, bob)
		wantFull(t, m, ann)
		live := liveIDs(b)
		for i := range 5 {
			if live[fmt.Sprint("a", i)] || !live[fmt.Sprint("a", i+5)] || !live[fmt.Sprint("b", i)] {
				t.Fatalf("live: %v, want bob's five and ann's five that were used last", live)
			}
		}
		for i := range 3 { // a third one takes from both
			mustCell(t, m, carol, fmt.Sprint("c", i))
		}
		wantFull(t, m, carol)
		wantFull(t, m, ann)
		wantFull(t, m, bob)
		st := m.Stats()
		if st.Others.LiveSessions != 10 || st.Others.Interpreters != 10 ||
			st.Others.Evictions != 8 || st.Others.Refusals != 6 || st.Others.Preemptions != 0 {
			t.Errorf("%+v", st)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("somebody waited: %v", took)
		}
		time.Sleep(time.Minute)
		if res := mustCell(t, m, ann, "a0"); !res.Evicted {
			t.Errorf("ann's first is not told that it was evicted: %+v", res)
		}
	})
}

// TestOperatorsNotebooks: shares do not bind the operator. It gets a place from every caller that
// has two, and loses only what has been idle for EvictIdle.
func TestOperatorsNotebooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 4 })
		for i := range 4 {
			mustCell(t, m, ann, fmt.Sprint("a", i))
		}
		for i := range 3 {
			mustCell(t, m, session.Local, fmt.Sprint("l", i))
		}
		wantFull(t, m, session.Local)
		wantFull(t, m, bob)
		for i := range 3 {
			if res := mustCell(t, m, session.Local, fmt.Sprint("l", i)); res.Fresh {
				t.Errorf("the operator lost %d: %+v", i, res)
			}
		}
		time.Sleep(time.Minute)
		mustCell(t, m, bob, "b0")
		if st := m.Stats(); st.Local.LiveSessions != 2 || st.Local.Evictions != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// ended is how a run of endless ended.
type ended struct {
	id  string
	res session.RunResult
	err error
}

// endless starts runs of a caller, a second apart, that last until they are stopped.
func endless(t *testing.T, ctx context.Context, m *session.Manager, caller session.Caller, n int, background func(int) bool) <-chan ended {
	results := make(chan ended, n)
	for i := range n {
		s := open(t, m, caller, fmt.Sprint(caller.ID, i))
		if i%2 == 0 {
			mustCell(t, m, caller, s.ID())
		}
		go func() {
			res, err := s.Run(ctx, notebook, session.RunRequest{
				Code: "forever", Persistent: i%2 == 0, Background: func() bool { return background(i) },
			})
			s.Release() // before the test deletes the directory, to which it writes
			results <- ended{s.ID(), res, err}
		}()
		synctest.Wait()
		time.Sleep(time.Second)
	}
	return results
}

// TestEndlessRunsLockNobodyOut: a caller whose runs never end loses those beyond an equal share:
// background runs first, then the newest. The operator's are never stopped.
func TestEndlessRunsLockNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 10 })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		results := endless(t, ctx, m, ann, 10, func(i int) bool { return i < 2 })
		wantFull(t, m, ann) // her own excess stops nothing
		for i, want := range []struct {
			caller session.Caller
			id     string
		}{{bob, "ann1"}, {session.Local, "ann0"}, {carol, "ann9"}, {session.Local, "ann8"}} {
			began := time.Now()
			mustCell(t, m, want.caller, fmt.Sprint("n", i))
			if took := time.Since(began); took != 2*time.Second {
				t.Errorf("%s waited for %v", want.caller.ID, took)
			}
			got := <-results
			if got.id != want.id || got.err != nil ||
				got.res.Cause != sandbox.CausePreempted || !got.res.Started || got.res.ExitCode != -1 ||
				got.res.Preemption == nil || *got.res.Preemption != (session.Preemption{Held: 10 - i, Of: 10}) {
				t.Errorf("%s was stopped: %+v, %+v; want %s", got.id, got.res, got.err, want.id)
			}
		}
		if st := m.Stats(); st.Others.Preemptions != 4 || st.Others.LiveSessions != 8 || st.Local.LiveSessions != 2 {
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Minute) // the others hold less: they keep their notebooks
		wantFull(t, m, ann)
		cancel()
		for range 6 {
			if got := <-results; got.res.Cause != sandbox.CauseCancelled {
				t.Errorf("%+v", got)
			}
		}
		if res := mustCell(t, m, ann, "ann8"); !res.Fresh || !res.Forgotten || !res.Evicted {
			t.Errorf("the next run of a stopped session: %+v", res)
		}
	})
}

// TestOperatorsRunsGoOn: the operator's runs are never preempted.
func TestOperatorsRunsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 3 })
		ctx, cancel := context.WithCancel(t.Context())
		results := endless(t, ctx, m, session.Local, 3, func(int) bool { return true })
		wantFull(t, m, bob)
		wantFull(t, m, session.Local)
		cancel()
		for range 3 {
			if got := <-results; got.res.Cause != sandbox.CauseCancelled {
				t.Errorf("%+v", got)
			}
		}
	})
}

// TestRoomWithoutPreemption: a session that ends makes room for a waiting caller, and not for a new
// session of the largest holder.
func TestRoomWithoutPreemption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 4 })
		ctx, cancel := context.WithCancel(t.Context())
		results := endless(t, ctx, m, ann, 3, func(int) bool { return true })
		s := open(t, m, ann, "short")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer s.Release()
			_, _ = s.Run(ctx, python, session.RunRequest{Code: "forever"})
		}()
		synctest.Wait()
		began := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { mustCell(t, m, bob, "b0") })
		synctest.Wait()
		if st := m.Stats(); st.Others.Waiting != 1 {
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Second)
		if err := m.CloseSession(ctx, ann, "short"); err != nil {
			t.Error(err)
		}
		wantFull(t, m, ann)
		<-ended
		wg.Wait()
		if took := time.Since(began); took >= 2*time.Second {
			t.Errorf("bob waited for %v", took)
		}
		if st := m.Stats(); st.Others.Preemptions != 0 || st.Others.Waiting != 0 {
			t.Errorf("%+v", st)
		}
		cancel()
		for range 3 {
			<-results
		}
	})
}

// TestWaitersInOrder: waiters get room in the order of what they hold, however often they ask. One
// that leaves, or is no longer entitled, delays nobody.
func TestWaitersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 6 })
		ctx, cancel := context.WithCancel(t.Context())
		results := endless(t, ctx, m, ann, 6, func(int) bool { return true })
		var mu sync.Mutex
		got := map[string]int{}
		var wg sync.WaitGroup
		ask := func(ctx context.Context, caller session.Caller, id string) {
			s := open(t, m, caller, id)
			wg.Go(func() {
				defer s.Release()
				_, err := s.Run(ctx, notebook, session.RunRequest{Code: "forever", Persistent: true, Started: func() {
					mu.Lock()
					defer mu.Unlock()
					got[caller.ID]++
				}})
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					got[caller.ID+" refused"]++
				}
			})
			synctest.Wait()
		}
		gone, leave := context.WithCancel(t.Context())
		ask(gone, bob, "gone")
		for i := range 4 {
			ask(ctx, bob, fmt.Sprint("b", i))
		}
		ask(ctx, carol, "c0")
		leave()
		time.Sleep(3 * time.Second)
		mu.Lock()
		// In the order of arrival, bob would have got three before carol.
		if !maps.Equal(got, map[string]int{"bob": 2, "carol": 1, "bob refused": 2}) {
			t.Errorf("served: %v", got)
		}
		mu.Unlock()
		cancel()
		wg.Wait()
		for range 6 {
			<-results
		}
	})
}

// TestCloseWhileWaiting: closing the manager ends the waits.
func TestCloseWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := newNotebooks(t, func(c *session.Config) { c.MaxSessions = 2 })
		results := endless(t, t.Context(), m, ann, 2, func(int) bool { return true })
		errs := make(chan error, 1)
		go func() { _, err := cell(t, m, bob, "b0", ""); errs <- err }()
		synctest.Wait()
		closeManager(t, m, &sessiontest.Backend{})
		if err := <-errs; !errors.Is(err, session.ErrClosed) {
			t.Errorf("%v", err)
		}
		<-results
		<-results
		if n := len(b.Live()); n != 0 {
			t.Errorf("%d live", n)
		}
	})
}
