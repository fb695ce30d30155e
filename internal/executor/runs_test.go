package executor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
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

// stepper is a program that prints a line per step, creates a file, and ends after the last step.
func stepper(steps <-chan string) func(*sessiontest.Process) wire.Exit {
	return func(p *sessiontest.Process) wire.Exit {
		for {
			select {
			case line, ok := <-steps:
				if !ok {
					_ = os.WriteFile(filepath.Join(p.Spec.Workspace, "made.txt"), []byte("x"), 0o600)
					return wire.Exit{Code: 3}
				}
				p.Stdout([]byte(line))
			case <-p.Done():
				return sessiontest.SIGKILL
			}
		}
	}
}

// bubble runs a test under a fake clock.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func TestBackground(t *testing.T) {
	bubble(t, "in steps", func(t *testing.T) {
		steps := make(chan string)
		r := newRig(t, stepper(steps), nil)
		start := time.Now()
		ctx, gone := context.WithCancel(t.Context())
		res, err := r.Run(ctx, session.Local, Request{Session: "x", Runner: "python", Code: "secret", Env: map[string]string{"A": "secret"}, Background: true, Tool: "run_code"})
		if err != nil || !res.Running || res.RunID == "" || res.Session != "x" || time.Since(start) > 0 {
			t.Fatalf("started after %v: %+v, %v", time.Since(start), res, err)
		}
		gone() // the connection
		id := res.RunID
		wait := func(caller session.Caller, cursor int64) (Result, error) {
			return r.WaitRun(t.Context(), caller, id, WaitRequest{Timeout: 10 * time.Second, Cursor: cursor})
		}
		steps <- "one\n"
		synctest.Wait()
		first, err := wait(session.Local, 0)
		if err != nil || !first.Running || string(first.Recent.Data) != "one\n" || time.Since(start) != 10*time.Second {
			t.Fatalf("after one step and %v: %+v, %v", time.Since(start), first, err)
		}
		if res.TimeLeft != res.Timeout || res.Timeout == 0 || first.TimeLeft != max(0, res.Timeout-10*time.Second) {
			t.Errorf("of %v, there are left %v at the start, and %v after 10 s", res.Timeout, res.TimeLeft, first.TimeLeft)
		}
		var streamed strings.Builder
		go func() { time.Sleep(time.Second); steps <- "two\n"; close(steps) }() // while it is waited for
		last, err := r.WaitRun(t.Context(), session.Local, id, WaitRequest{Timeout: time.Hour, Cursor: first.Recent.Cursor,
			Output: func(_ Stream, p []byte) { streamed.Write(p) }})
		if err != nil || last.Running || string(last.Recent.Data) != "two\n" || string(last.Stdout) != "one\ntwo\n" || streamed.String() != "two\n" ||
			last.ExitCode != 3 || len(last.Files) != 1 || last.Tool != "run_code" {
			t.Errorf("its end: %+v, %v; streamed %q", last, err, streamed.String())
		}
		if n := len(r.runs.byID); n != 0 {
			t.Errorf("%d runs are still held in memory", n)
		}
		for range 2 { // from the store
			again, err := wait(session.Local, first.Recent.Cursor)
			if err != nil || again.Running || string(again.Stdout) != "one\ntwo\n" || string(again.Recent.Data) != "two\n" || again.ExitCode != 3 ||
				len(again.Files) != 1 || again.Files[0].URL != last.Files[0].URL || again.Tool != "run_code" || !again.Started.Equal(last.Started) {
				t.Errorf("from the store: %+v, %v", again, err)
			}
		}
		if res, err := r.CancelRun(t.Context(), session.Local, id); err != nil || res.ExitCode != 3 || res.Cause != "" {
			t.Errorf("cancelled after its end: %+v, %v", res, err)
		}
		if row, err := r.store.GetResult(t.Context(), "local", id); err != nil || strings.Contains(string(row.Data), "secret") || strings.Contains(string(row.Data), "sig=") {
			t.Errorf("the store holds %s, %v", row.Data, err)
		}
	})

	bubble(t, "of somebody else", func(t *testing.T) {
		r := newRig(t, stepper(nil), nil)
		res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Background: true})
		foreign := func(when string) {
			t.Helper()
			for _, id := range []string{res.RunID, "", "run_1", strings.Repeat("x", 1<<16)} {
				caller := mallory
				if id != res.RunID {
					caller = session.Local
				}
				if res, err := r.WaitRun(t.Context(), caller, id, WaitRequest{}); codeOf(err) != CodeRunNotFound {
					t.Errorf("%s: waited: %+v, %v", when, res, err)
				}
				if res, err := r.CancelRun(t.Context(), caller, id); codeOf(err) != CodeRunNotFound {
					t.Errorf("%s: cancelled: %+v, %v", when, res, err)
				}
			}
		}
		foreign("while it runs")
		if err := r.CloseSession(t.Context(), mallory, "x"); codeOf(err) != CodeSessionNotFound {
			t.Errorf("closed: %v", err)
		}
		if got, err := r.WaitRun(t.Context(), session.Local, res.RunID, WaitRequest{}); err != nil || !got.Running {
			t.Errorf("after the attempts: %+v, %v", got, err)
		}
		got, err := r.CancelRun(t.Context(), session.Local, res.RunID)
		if err != nil || got.Running || got.Cause != sandbox.CauseCancelled || got.ExitCode != -1 {
			t.Errorf("cancelled: %+v, %v", got, err)
		}
		foreign("after its end")
	})

	bubble(t, "bounded", func(t *testing.T) {
		r := newRig(t, stepper(nil), nil) // two runs per session, two sessions
		var ids []string
		for range 2 {
			res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Background: true})
			ids = append(ids, res.RunID)
		}
		for name, req := range map[string]Request{
			"run_code": {Session: "x", Runner: "python"}, "a third": {Session: "x", Runner: "python", Background: true}, "run_python": {Session: "x", Runner: "python", Artifacts: true},
			"run_python in the background": {Session: "x", Runner: "python", Artifacts: true, Background: true},
		} {
			_, err := r.Run(t.Context(), session.Local, req)
			if codeOf(err) != CodeSessionBusy {
				t.Errorf("%s: %v", name, err)
			} else if limited := strings.HasSuffix(err.Error(), "Wait for it to complete. A session may have at most 2 runs at a time."); limited != (name != "run_python") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := r.CloseSession(t.Context(), session.Local, "x"); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if res, err := r.WaitRun(t.Context(), session.Local, id, WaitRequest{Timeout: time.Second}); err != nil || res.Cause != sandbox.CauseCancelled {
				t.Errorf("after its session was closed: %+v, %v", res, err)
			}
		}
	})

	bubble(t, "a single run", func(t *testing.T) {
		steps := make(chan string)
		r := newRig(t, stepper(steps), nil)
		res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Background: true, Once: true})
		close(steps)
		if res, err := r.WaitRun(t.Context(), session.Local, res.RunID, WaitRequest{Timeout: time.Second}); err != nil || res.ExitCode != 3 || !res.Once {
			t.Errorf("%+v, %v", res, err)
		}
		if err := r.CloseSession(t.Context(), session.Local, "x"); codeOf(err) != CodeSessionNotFound {
			t.Errorf("its session is still there: %v", err)
		}
	})

	bubble(t, "refused late", func(t *testing.T) {
		r := newRig(t, nil, nil)
		r.backend.OnStart = func(context.Context, sandbox.Spec) error {
			time.Sleep(5 * time.Second) // the fake clock's
			return &sandbox.Error{Op: "start", Err: errors.New("no"), Fix: "run this"}
		}
		res, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python", Background: true})
		if err != nil || !res.Running {
			t.Fatalf("%+v, %v", res, err)
		}
		for _, from := range []string{"memory", "the store"} {
			if _, err := r.WaitRun(t.Context(), session.Local, res.RunID, WaitRequest{Timeout: time.Minute}); codeOf(err) != CodeBackendUnavailable || !strings.Contains(err.Error(), "run this") {
				t.Errorf("from %s: %v", from, err)
			}
		}
	})
}

func TestHandover(t *testing.T) {
	bubble(t, "goes on", func(t *testing.T) {
		steps := make(chan string, 1)
		steps <- "so far"
		r := newRig(t, stepper(steps), nil)
		start := time.Now()
		ctx, gone := context.WithCancel(t.Context())
		var mu sync.Mutex
		var streamed string
		res, err := r.Run(ctx, session.Local, Request{Session: "x", Runner: "python", Handover: 45 * time.Second,
			Output: func(_ Stream, p []byte) { mu.Lock(); streamed += string(p); mu.Unlock() }})
		if err != nil || !res.Running || string(res.Recent.Data) != "so far" || time.Since(start) != 45*time.Second {
			t.Fatalf("after %v: %+v, %v", time.Since(start), res, err)
		}
		gone()
		steps <- ", and more"
		close(steps)
		if res, err = r.WaitRun(t.Context(), session.Local, res.RunID, WaitRequest{Timeout: time.Second}); err != nil || string(res.Stdout) != "so far, and more" || res.Cause != "" {
			t.Errorf("%+v, %v", res, err)
		}
		if streamed != "so far" {
			t.Errorf("streamed %q: nobody listens after the handover", streamed)
		}
	})
	bubble(t, "not before its time", func(t *testing.T) {
		r := newRig(t, stepper(nil), nil)
		ctx, cancel := context.WithTimeout(t.Context(), 44*time.Second)
		defer cancel()
		if res, err := r.Run(ctx, session.Local, Request{Session: "x", Runner: "python", Handover: 45 * time.Second}); err != nil || res.Running || res.Cause != sandbox.CauseCancelled {
			t.Errorf("a closed connection: %+v, %v", res, err)
		}
	})
	bubble(t, "never", func(t *testing.T) {
		r := newRig(t, stepper(nil), nil)
		if res, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python"}); err != nil || res.Running || res.Cause != sandbox.CauseTimeout {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestTimeout(t *testing.T) {
	bubble(t, "asked for", func(t *testing.T) {
		r := newRig(t, stepper(nil), func(c *Config) { c.MaxExecTimeout = 10 * time.Minute })
		for _, want := range []time.Duration{time.Second, time.Minute, 10 * time.Minute} {
			start, req := time.Now(), Request{Session: "x", Runner: "python", Timeout: want}
			if want == time.Minute {
				req.Timeout = 0 // the default
			}
			if res, err := r.Run(t.Context(), session.Local, req); err != nil || res.Cause != sandbox.CauseTimeout || res.Timeout != want || time.Since(start) != want {
				t.Errorf("%v: %+v, %v after %v", want, res, err, time.Since(start))
			}
		}
		if _, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python", Timeout: 10*time.Minute + 1}); codeOf(err) != CodeInvalidTimeout {
			t.Errorf("more than there is: %v", err)
		}
		r.cfg.MaxExecTimeout = 2_000_000 * time.Second
		_, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python", Timeout: r.cfg.MaxExecTimeout + 1})
		if err == nil || err.Error() != "A run may take 2000000 seconds at most." {
			t.Errorf("a large limit: %v", err)
		}
		if hint := r.causeHint(Result{Cause: sandbox.CauseTimeout}, sandbox.Limits{}); !strings.Contains(hint, "(2000000 at most)") {
			t.Error(hint)
		}
	})
}

// TestResultsOutliveTheExecutor: another process, or a later one, knows a run's result.
func TestResultsOutliveTheExecutor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alive := true
		one := newRig(t, stepper(nil), func(c *Config) { c.Instance = "one" })
		two := newRig(t, nil, func(c *Config) {
			c.Instance, c.Store, c.Alive = "two", one.store, func(id string) bool { return id == "one" && alive }
		})
		var ids []string
		for range 2 {
			res := one.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Background: true, Tool: "run_code"})
			ids = append(ids, res.RunID)
		}
		fresh := two.mustRun(t, session.Local, Request{Session: "y", Runner: "python", Code: "hello"})
		// Before it can be in the store:
		if res, err := two.WaitRun(t.Context(), session.Local, fresh.RunID, WaitRequest{}); err != nil || string(res.Stdout) != "hello" {
			t.Errorf("an ordinary run, at once: %+v, %v", res, err)
		}
		if _, err := two.WaitRun(t.Context(), ann, fresh.RunID, WaitRequest{}); codeOf(err) != CodeRunNotFound {
			t.Errorf("another caller's run, at once: %v", err)
		}
		if err := two.Close(t.Context()); err != nil { // its records are written
			t.Fatal(err)
		}
		if res, err := one.WaitRun(t.Context(), session.Local, fresh.RunID, WaitRequest{}); err != nil || string(res.Stdout) != "hello" {
			t.Errorf("an ordinary run, later: %+v, %v", res, err)
		}

		start := time.Now()
		res, err := two.WaitRun(t.Context(), session.Local, ids[0], WaitRequest{Timeout: 5 * time.Second})
		if err != nil || !res.Running || res.Tool != "run_code" || time.Since(start) != 5*time.Second {
			t.Errorf("a run of another process: %+v, %v", res, err)
		}
		if _, err := two.CancelRun(t.Context(), session.Local, ids[0]); codeOf(err) != CodeRunElsewhere {
			t.Errorf("cancelled from elsewhere: %v", err)
		}
		go func() { _, _ = one.CancelRun(context.WithoutCancel(t.Context()), session.Local, ids[0]) }()
		if res, err := two.WaitRun(t.Context(), session.Local, ids[0], WaitRequest{Timeout: 5 * time.Second}); err != nil || res.Cause != sandbox.CauseCancelled {
			t.Errorf("its end, seen from elsewhere: %+v, %v", res, err)
		}
		alive = false
		if res, err := two.WaitRun(t.Context(), session.Local, ids[1], WaitRequest{Timeout: time.Hour}); err != nil || res.Running || res.Cause != sandbox.CauseLost ||
			res.ExitCode != -1 || res.Hint == "" || res.Tool != "run_code" || res.Success() {
			t.Errorf("lost with its server: %+v, %v", res, err)
		}
		if err := one.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if res, err := two.WaitRun(t.Context(), session.Local, ids[1], WaitRequest{}); err != nil || res.Cause != sandbox.CauseLost || !strings.HasPrefix(res.Hint, "The server stopped while") {
			t.Errorf("ended by a shutdown: %+v, %v", res, err)
		}
		if _, err := one.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python", Background: true}); codeOf(err) != CodeBackendUnavailable {
			t.Errorf("started after the shutdown: %v", err)
		}
	})
}

// TestEndOfAnotherServer: a run is not lost if its server stores its end and exits during a request
// for it.
func TestEndOfAnotherServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newRig(t, stepper(nil), func(c *Config) { c.Instance = "one" })
		two := newRig(t, nil, func(c *Config) {
			c.Instance, c.Store = "two", one.store
			c.Alive = func(string) bool {
				if err := one.Close(context.Background()); err != nil {
					t.Error(err)
				}
				return false
			}
		})
		started := one.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Background: true})
		if res, err := two.WaitRun(t.Context(), session.Local, started.RunID, WaitRequest{}); err != nil || !res.Stopped {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// TestPanic: a bug during a run costs that run, not the server.
func TestPanic(t *testing.T) {
	r := newRig(t, nil, nil)
	_, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python", Code: "print", Output: func(Stream, []byte) { panic("a defect") }})
	if err == nil {
		t.Fatal("the run panicked and nobody was told")
	}
	if res, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python", Code: "print"}); err != nil || !res.Success() {
		t.Errorf("the next run: %+v, %v", res, err)
	}
}
