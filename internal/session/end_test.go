package session_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
)

// TestSlowEnds: sandboxes that end slowly delay only their own caller, which cannot have more of
// them than the server allows.
func TestSlowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := &sessiontest.Backend{Program: new(interpreters).program, OnClose: func(spec sandbox.Spec) {
			if strings.HasPrefix(spec.SessionID, "ann") {
				<-release
			}
		}}
		m := newManager(t, b, func(c *session.Config) { c.MaxSessions, c.EvictIdle = 4, time.Minute })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		results := endless(t, ctx, m, ann, 4, func(int) bool { return true })
		for _, caller := range []session.Caller{bob, session.Local} {
			began := time.Now()
			mustCell(t, m, caller, "n")
			if took := time.Since(began); took != 3*time.Second {
				t.Errorf("%s waited for %v", caller.ID, took)
			}
			if got := <-results; got.res.Cause != sandbox.CausePreempted {
				t.Errorf("%+v", got)
			}
		}
		cancel() // the two that are left end as slowly
		for range 2 {
			<-results
		}
		for i := range 4 {
			began := time.Now()
			if err := m.CloseSession(t.Context(), ann, fmt.Sprint("ann", i)); err != nil || time.Since(began) > time.Second {
				t.Errorf("closing took %v: %v", time.Since(began), err)
			}
		}

		// Four of ann's remain, and two of the others: she waits for three before her next one
		// starts.
		ran := make(chan session.RunResult, 1)
		go func() {
			res, err := cell(t, m, ann, "ann-next", "")
			if err != nil {
				t.Error(err)
			}
			ran <- res
		}()
		synctest.Wait()
		began := time.Now()
		mustCell(t, m, carol, "c") // nobody else waits
		if took := time.Since(began); took != 0 {
			t.Errorf("carol waited for %v", took)
		}
		for i := range 3 {
			if got := liveIDs(b); len(ran) != 0 || got["ann-next"] {
				t.Fatalf("after %d ends: %v", i, got)
			}
			time.Sleep(10 * time.Second)
			release <- struct{}{}
			synctest.Wait()
		}
		if res := <-ran; !res.Fresh {
			t.Errorf("%+v", res)
		}
		close(release)
	})
}

// TestSlowEndOfTheOwn: a caller that evicts its own idle session waits until it is gone; a run that
// is cancelled meanwhile does not.
func TestSlowEndOfTheOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := &sessiontest.Backend{Program: new(interpreters).program, OnClose: func(sandbox.Spec) { <-release }}
		m := newManager(t, b, func(c *session.Config) { c.MaxSessions, c.EvictIdle = 1, 0 })
		mustCell(t, m, ann, "a")
		s := open(t, m, ann, "b")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		res, err := s.Run(ctx, notebook, session.RunRequest{Persistent: true})
		if err != nil || res.Cause != sandbox.CauseCancelled || res.Started || b.Started() != 1 {
			t.Errorf("while another one ends: %+v, %v", res, err)
		}
		s.Release()
		if err := m.CloseSession(t.Context(), ann, "b"); err != nil {
			t.Error(err)
		}
		var busy *session.OverloadError
		began := time.Now()
		if _, err := cell(t, m, ann, "c", ""); !errors.As(err, &busy) || time.Since(began) > time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		close(release)
		mustCell(t, m, ann, "c")
	})
}
