package executor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// newNotebookRig has a runner that keeps state. Its runs end when end is closed or they are killed.
func newNotebookRig(t *testing.T, end <-chan struct{}) *rig {
	return newRig(t, func(p *sessiontest.Process) wire.Exit {
		select {
		case <-end:
			p.Stdout(p.Code)
			return wire.Exit{}
		case <-p.Done():
			return sessiontest.SIGKILL
		}
	}, keepState)
}

func notebookRequest(code string) Request {
	return Request{Session: "x", Runner: "python", Code: code, Persistent: true, Artifacts: true, Timeout: 10 * time.Minute, Tool: "run"}
}

// TestQueued: what results say about a run that waits for another one, from its start to its end.
func TestQueued(t *testing.T) {
	bubble(t, "in the background", func(t *testing.T) {
		end := make(chan struct{})
		r := newNotebookRig(t, end)
		first, second := notebookRequest("first"), notebookRequest("second")
		first.Background, second.Background = true, true
		one, err := r.Run(t.Context(), session.Local, first)
		if err != nil || one.Queued != nil {
			t.Fatalf("%+v, %v", one, err)
		}
		time.Sleep(5 * time.Minute)
		start := time.Now()
		ctx, gone := context.WithCancel(t.Context())
		two, err := r.Run(ctx, session.Local, second)
		if err != nil || !two.Running || two.Queued == nil || time.Since(start) != 0 {
			t.Fatalf("after %v: %+v, %v", time.Since(start), two, err)
		}
		if want := (Queue{RunID: one.RunID, Tool: "run", Running: 5 * time.Minute, Ahead: 1}); *two.Queued != want {
			t.Errorf("it waits for %+v, want %+v", *two.Queued, want)
		}
		if list := r.RecentRuns(session.Local, "x"); len(list) != 2 || list[0].ID != two.RunID || list[0].Queued == nil || list[1].Queued != nil {
			t.Errorf("the session's runs: %+v", list)
		}
		gone() // the connection
		var told []string
		hear := func(q *Queue) {
			if q == nil {
				told = append(told, "started")
			} else {
				told = append(told, q.RunID)
			}
		}
		res, err := r.WaitRun(t.Context(), session.Local, two.RunID, WaitRequest{Timeout: 4 * time.Minute, Queued: hear})
		if err != nil || !res.Running || res.Queued == nil || res.Queued.Running != 9*time.Minute || !slices.Equal(told, []string{one.RunID}) {
			t.Errorf("waited for: %+v, %v; told %v", res, err, told)
		}
		// The first run has used up its ten minutes; the second still has all of its time.
		told = nil
		res, err = r.WaitRun(t.Context(), session.Local, two.RunID, WaitRequest{Timeout: 10 * time.Minute, Queued: hear})
		if err != nil || !res.Running || res.Queued != nil || !slices.Equal(told, []string{one.RunID, "started"}) {
			t.Errorf("after its turn: %+v, %v; told %v", res, err, told)
		}
		if res, err := r.WaitRun(t.Context(), session.Local, one.RunID, WaitRequest{}); err != nil || res.Cause != sandbox.CauseTimeout {
			t.Errorf("the first: %+v, %v", res, err)
		}
		end <- struct{}{}
		res, err = r.WaitRun(t.Context(), session.Local, two.RunID, WaitRequest{Timeout: time.Second})
		if err != nil || res.Running || res.Cause != "" || string(res.Stdout) != "second" || res.Duration < 8*time.Minute || res.Duration > 9*time.Minute {
			t.Errorf("its end: %+v, %v", res, err)
		}
		again, err := r.storedResult(t.Context(), session.Local, two.RunID, 0)
		if err != nil || again.Queued != nil || string(again.Stdout) != "second" {
			t.Errorf("from the store: %+v, %v", again, err)
		}
	})

	bubble(t, "followed", func(t *testing.T) {
		end := make(chan struct{})
		r := newNotebookRig(t, end)
		first, second := notebookRequest("first"), notebookRequest("second")
		first.Background, second.Background, second.Followed = true, true, true
		if _, err := r.Run(t.Context(), session.Local, first); err != nil {
			t.Fatal(err)
		}
		two, err := r.Run(t.Context(), session.Local, second)
		if err != nil || two.Queued == nil {
			t.Fatalf("%+v, %v", two, err)
		}
		go func() { time.Sleep(time.Minute); end <- struct{}{} }()
		start := time.Now()
		res, err := r.WaitRun(t.Context(), session.Local, two.RunID, WaitRequest{Timeout: time.Hour, Follow: true})
		if err != nil || !res.Running || res.Queued != nil || time.Since(start) != time.Minute {
			t.Errorf("whoever follows hears of the start after %v: %+v, %v", time.Since(start), res, err)
		}
	})

	bubble(t, "handed over", func(t *testing.T) {
		end := make(chan struct{})
		r := newNotebookRig(t, end)
		first, second := notebookRequest("first"), notebookRequest("second")
		first.Background, second.Handover = true, 45*time.Second
		one := r.mustRun(t, session.Local, first)
		var told []*Queue
		second.Queued = func(q *Queue) { told = append(told, q) }
		start := time.Now()
		two, err := r.Run(t.Context(), session.Local, second)
		if err != nil || !two.Running || two.Queued == nil || two.Queued.RunID != one.RunID || time.Since(start) != 45*time.Second || len(told) != 1 {
			t.Fatalf("after %v: %+v, %v; told %v", time.Since(start), two, err, told)
		}
		// It survives the minute after which a waiting call is refused.
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		end <- struct{}{}
		end <- struct{}{}
		if res, err := r.WaitRun(t.Context(), session.Local, two.RunID, WaitRequest{Timeout: time.Second}); err != nil || string(res.Stdout) != "second" {
			t.Errorf("%+v, %v", res, err)
		}
	})

	bubble(t, "cancelled", func(t *testing.T) {
		end := make(chan struct{})
		r := newNotebookRig(t, end)
		first, second := notebookRequest("first"), notebookRequest("second")
		first.Background, second.Background = true, true
		one := r.mustRun(t, session.Local, first)
		two := r.mustRun(t, session.Local, second)
		time.Sleep(time.Minute)
		res, err := r.CancelRun(t.Context(), session.Local, two.RunID)
		if err != nil || res.Running || res.Cause != sandbox.CauseCancelled || !res.NotStarted || res.Duration != 0 || res.StateLost {
			t.Errorf("%+v, %v", res, err)
		}
		end <- struct{}{}
		if res, err := r.WaitRun(t.Context(), session.Local, one.RunID, WaitRequest{Timeout: time.Second}); err != nil || string(res.Stdout) != "first" {
			t.Errorf("the first: %+v, %v", res, err)
		}
		third := notebookRequest("third")
		go func() { end <- struct{}{} }()
		if res, err := r.Run(t.Context(), session.Local, third); err != nil || string(res.Stdout) != "third" {
			t.Errorf("the one after them: %+v, %v", res, err)
		}
	})

	bubble(t, "by a caller who waits", func(t *testing.T) {
		r := newNotebookRig(t, nil)
		first := notebookRequest("first")
		first.Background = true
		if _, err := r.Run(t.Context(), session.Local, first); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := r.Run(t.Context(), session.Local, notebookRequest("second")); codeOf(err) != CodeSessionBusy || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if res, err := r.Run(ctx, session.Local, notebookRequest("third")); err != nil || res.Cause != sandbox.CauseCancelled || !res.NotStarted {
			t.Errorf("a caller who left: %+v, %v", res, err)
		}
	})
}

// TestMaxSessionsMessage: contract 4's sentence is followed by details.
func TestMaxSessionsMessage(t *testing.T) {
	e := newRig(t, nil, nil)
	const contract = "Maximum 2 concurrent sessions reached. Close an existing session first. "
	for want, full := range map[string]session.MaxSessionsError{
		"2 sessions are running code (yours: a): try again when one of these runs has ended. To make room sooner, end a run of yours with cancel_run, which keeps its files; closing a session deletes them.": {Running: 2, RunningOwn: []string{"a"}},
		"1 session is running code and 7 sessions were used in the last 60 seconds (yours: a, b, c and 1 more): try again in 12 seconds, when the first of them can make room. Closing a session of yours makes room now, but deletes its files.": {
			Running: 1, Recent: 7, RecentOwn: []string{"a", "b", "c", "d"}, EvictIdle: time.Minute, RetryAfter: 11*time.Second + 1},
		"1 session was used in the last 1 second: try again in 1 second, when the first of them can make room. None of these sessions is yours, so you have none to close.": {
			Recent: 1, EvictIdle: time.Second, RetryAfter: 1},
	} {
		if err := e.wrap(&full); codeOf(err) != CodeMaxSessions || strings.TrimPrefix(err.Error(), contract) != want {
			t.Errorf("%+v: %v", full, err)
		}
	}
}

// TestBusyMessage: the message of an overloaded server says when to try again.
func TestBusyMessage(t *testing.T) {
	e := newRig(t, nil, nil)
	err := e.wrap(&session.OverloadError{RetryAfter: 5 * time.Second, Err: context.DeadlineExceeded})
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Code != CodeBusy || refusal.RetryAfter != 5*time.Second || !strings.Contains(refusal.Message, "Try again in 5 seconds") {
		t.Errorf("%#v", err)
	}
}
