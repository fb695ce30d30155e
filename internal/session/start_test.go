package session_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
)

// runAs runs code in a new session of a caller.
func runAs(m *session.Manager, caller session.Caller, id string) error {
	s, err := m.Open(caller, id)
	if err != nil {
		return err
	}
	defer s.Release()
	_, err = s.Run(context.Background(), python, session.RunRequest{Code: "x"})
	return err
}

// TestStartsAreFair: a hundred starts of one caller delay another caller's first start by one, not
// by a hundred.
func TestStartsAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		ended := 0 // starts of ann's
		b := &sessiontest.Backend{OnStart: func(_ context.Context, spec sandbox.Spec) error {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			if spec.SessionID[0] == 'a' {
				ended++
			}
			return nil
		}}
		m := newManager(t, b, nil)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { _ = runAs(m, ann, fmt.Sprint("a", i)) })
		}
		synctest.Wait()
		atOnce := int(m.Starts().Stats().Capacity)
		if st := m.Starts().Stats(); st.Waiting != 100-atOnce {
			t.Errorf("%d starts wait, want %d", st.Waiting, 100-atOnce)
		}
		if err := runAs(m, bob, "b"); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if ended > 2*atOnce {
			t.Errorf("bob's first run waited for %d starts of ann's, with %d at a time", ended, atOnce)
		}
		mu.Unlock()
		wg.Wait()
	})
}

// TestQueueIsNoStartTime: a start succeeds even if it waits for its turn longer than a start may
// take. One that waits too long returns an OverloadError.
func TestQueueIsNoStartTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{OnStart: func(context.Context, sandbox.Spec) error {
			time.Sleep(25 * time.Second)
			return nil
		}}
		m := newManager(t, b, nil)
		n := 4 * int(m.Starts().Stats().Capacity) // in four waves: 0, 25, 50 and 75 s
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { errs[i] = runAs(m, session.Local, fmt.Sprint(i)) })
		}
		wg.Wait()
		busy := 0
		for _, err := range errs {
			var overload *session.OverloadError
			switch {
			case errors.As(err, &overload) && overload.RetryAfter > 0:
				busy++
			case err != nil:
				t.Error(err)
			}
		}
		if busy != n/4 {
			t.Errorf("%d of %d were told to try again, want the last wave", busy, n)
		}
	})
}

// TestSlowStart: a start that takes too long is tried once more, and then returns an OverloadError,
// whichever timeout it was.
func TestSlowStart(t *testing.T) {
	slow := fmt.Errorf("the agent did not answer: %w", context.DeadlineExceeded)
	for name, onStart := range map[string]func(context.Context, sandbox.Spec) error{
		"backend": func(context.Context, sandbox.Spec) error { return slow },
		"session": func(ctx context.Context, _ sandbox.Spec) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts, fails := 0, 1
				b := &sessiontest.Backend{}
				b.OnStart = func(ctx context.Context, spec sandbox.Spec) error {
					if attempts++; attempts > fails {
						return nil
					}
					return onStart(ctx, spec)
				}
				m := newManager(t, b, nil)
				if err := runAs(m, ann, "a"); err != nil {
					t.Errorf("after one slow start: %v", err)
				}
				attempts, fails = 0, 10
				var overload *session.OverloadError
				if err := runAs(m, ann, "b"); !errors.As(err, &overload) || attempts != 2 {
					t.Errorf("after %d slow starts: %v, want an *OverloadError after 2", attempts, err)
				}
			})
		})
	}
}

// TestCloseWhileQueued: closing a session ends its wait for a turn to start.
func TestCloseWhileQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{OnStart: func(context.Context, sandbox.Spec) error { time.Sleep(20 * time.Second); return nil }}
		m := newManager(t, b, nil)
		var wg sync.WaitGroup
		for i := range m.Starts().Stats().Capacity {
			wg.Go(func() { _ = runAs(m, ann, fmt.Sprint(i)) })
		}
		synctest.Wait()
		s := open(t, m, ann, "queued")
		defer s.Release()
		var res session.RunResult
		var err error
		wg.Go(func() { res, err = s.Run(context.Background(), python, session.RunRequest{Code: "x"}) })
		synctest.Wait()
		began := time.Now()
		if err := m.CloseSession(context.Background(), ann, "queued"); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("closing it took %v", took)
		}
		wg.Wait()
		if err != nil || res.Cause != sandbox.CauseCancelled {
			t.Errorf("its run: %+v, %v", res, err)
		}
	})
}
