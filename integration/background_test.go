//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mcp-code-sandbox/internal/store"
)

// runState is a plain caller's view of a background run.
type runState struct {
	Status    string          `json:"status"`
	RunID     string          `json:"run_id"`
	SessionID string          `json:"session_id"`
	Output    string          `json:"output"`
	Cursor    int64           `json:"cursor"`
	Result    json.RawMessage `json:"result"`

	QueuedBehind struct {
		RunID string `json:"run_id"`
		Tool  string
		Ahead int
	} `json:"queued_behind"`
}

// state calls a tool that answers with the state of a run.
func (s *server) state(t *testing.T, tool string, args map[string]any) runState {
	t.Helper()
	res := s.call(t, tool, args)
	if res.Error != nil || res.IsError || len(res.Content) != 1 {
		t.Fatalf("%s: %+v", tool, res)
	}
	var st runState
	if err := json.Unmarshal([]byte(res.Content[0].Text), &st); err != nil || st.RunID == "" {
		t.Fatalf("%s: %v in %s", tool, err, res.Content[0].Text)
	}
	return st
}

// refusal calls a tool that must refuse, and returns the error code or the message of a protocol
// error.
func (s *server) refusal(t *testing.T, tool string, args map[string]any) string {
	t.Helper()
	res := s.call(t, tool, args)
	if res.Error != nil {
		return fmt.Sprint(res.Error.Code, " ", res.Error.Message)
	}
	var e struct {
		Error string `json:"error"`
	}
	if !res.IsError || json.Unmarshal([]byte(res.Content[0].Text), &e) != nil {
		t.Fatalf("%s was not refused: %+v", tool, res)
	}
	return e.Error
}

func decode[T any](t *testing.T, raw json.RawMessage) (v T) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return v
}

// steps is Python code that prints a line whenever a file with its number appears, and ends after
// the third.
const steps = `import os, time
for i in (1, 2, 3):
    while not os.path.exists(f"/data/go{i}"): time.sleep(0.02)
    print("step", i, flush=True)
_ = open("/data/out.txt", "w").write("x")
`

// TestBackgroundRun starts runs with every run tool, reads them in steps, finds the session busy
// meanwhile, and finds the result afterwards and after a restart.
func TestBackgroundRun(t *testing.T) {
	s := serve(t)
	step := func(session string, n int) {
		t.Helper()
		if res := s.call(t, "upload_file", map[string]any{"session_id": session, "filename": fmt.Sprint("go", n), "content": ""}); res.IsError {
			t.Fatalf("%+v", res)
		}
	}
	ids := map[string]string{}
	for tool, args := range map[string]map[string]any{
		"run_code":   {"conversationId": "code", "language": "python"},
		"run_python": {"session_id": "python"},
		"run":        {"session": "cell", "env": "python"},
	} {
		args["code"], args["background"] = steps, true
		begin := time.Now()
		st := s.state(t, tool, args)
		if st.Status != "running" || st.Result != nil || time.Since(begin) > 10*time.Second {
			t.Fatalf("%s: %+v after %v", tool, st, time.Since(begin))
		}
		ids[tool] = st.RunID
		switch tool {
		case "run_python":
			if got := s.refusal(t, "run_python", map[string]any{"session_id": "python", "code": "1"}); got != "session_busy" {
				t.Errorf("while it runs: %s", got)
			}
		case "run":
			args["code"], args["background"] = "print('after it')", true
			ids["queued"] = s.state(t, "run", args).RunID
		}
		all, session := "", st.SessionID
		for n := 1; n <= 3; n++ {
			step(session, n)
			want := fmt.Sprintf("step %d\n", n)
			eventually(t, 20*time.Second, want, func() bool {
				st = s.state(t, "wait_run", map[string]any{"run_id": ids[tool], "cursor": st.Cursor, "timeout_seconds": 0.2})
				all += st.Output
				return strings.HasSuffix(all, want)
			})
		}
		if all != "step 1\nstep 2\nstep 3\n" {
			t.Errorf("%s: read in steps: %q", tool, all)
		}
		if st = s.state(t, "wait_run", map[string]any{"run_id": ids[tool], "cursor": st.Cursor}); st.Status != "completed" || st.Output != "" {
			t.Errorf("%s: %+v", tool, st)
		}
	}
	if r := decode[cellResult](t, s.state(t, "wait_run", map[string]any{"run_id": ids["queued"]}).Result); r.Stdout != "after it\n" {
		t.Errorf("a run that waited for its turn: %+v", r)
	}

	check := func(when string) {
		t.Helper()
		result := func(tool string) json.RawMessage {
			t.Helper()
			return s.state(t, "wait_run", map[string]any{"run_id": ids[tool]}).Result
		}
		const all = "step 1\nstep 2\nstep 3\n"
		if r := decode[runResult](t, result("run_code")); !r.Success || r.Output != all || len(r.Files) != 4 || r.RunID != ids["run_code"] {
			t.Errorf("run_code %s: %+v", when, r)
		}
		for _, tool := range []string{"run_python", "run"} {
			r := decode[cellResult](t, result(tool))
			// The files that were uploaded during the run are new as well.
			if r.Stdout != all || r.ExitCode != 0 || len(r.Artifacts) != 4 || (r.Session == "cell") != (tool == "run") || r.Artifacts[0].DownloadURL == "" {
				t.Errorf("%s %s: %+v", tool, when, r)
			}
		}
	}
	check("at its end")
	s.stop(t)
	s = serve(t, "SANDBOX_ROOT="+s.Root)
	check("after a restart")
	if got := s.refusal(t, "wait_run", map[string]any{"run_id": "run_20260206T123456Z_a1b2"}); got != "run_not_found" {
		t.Errorf("an unknown run: %s", got)
	}
}

// TestBackgroundRunEnds ends runs by cancel_run, by close_session, by stopping and by killing the
// server.
func TestBackgroundRunEnds(t *testing.T) {
	s := serve(t)
	begin := func(session string) (id, marker string) {
		t.Helper()
		marker = newMarker()
		st := s.state(t, "run_code", map[string]any{"conversationId": session, "language": "shell", "code": sleeper(marker), "background": true})
		eventually(t, 20*time.Second, "the run to start", func() bool { return len(marked(marker)) == 1 })
		return st.RunID, marker
	}
	ended := func(id, how string) {
		t.Helper()
		st := s.state(t, "wait_run", map[string]any{"run_id": id})
		if r := decode[runResult](t, st.Result); r.Success || r.Cause != how || r.ExitCode != -1 || r.Hint == "" {
			t.Errorf("%s: %s %+v", how, st.Status, r)
		}
	}
	id, marker := begin("a")
	start := time.Now()
	if st := s.state(t, "cancel_run", map[string]any{"run_id": id}); st.Status != "cancelled" || !strings.Contains(string(st.Result), "started") {
		t.Errorf("cancel_run: %s %s", st.Status, st.Result)
	}
	if d, left := time.Since(start), marked(marker); d > time.Second || len(left) > 0 {
		t.Errorf("cancel_run took %v and left %v", d, left)
	}
	ended(id, "cancelled")

	id, marker = begin("a")
	if res := s.call(t, "close_session", map[string]any{"session_id": "a"}); res.IsError {
		t.Fatalf("%+v", res)
	}
	if left := marked(marker); len(left) > 0 {
		t.Errorf("close_session left %v", left)
	}
	ended(id, "cancelled")

	id, marker = begin("b")
	cell := s.state(t, "run", map[string]any{"session": "nb", "env": "python", "code": "x = 1\n_ = open('/data/kept', 'w').write('x')\nprint('begun', flush=True)\nimport time; time.sleep(100)", "background": true})
	eventually(t, 20*time.Second, "the cell to start", func() bool {
		return s.state(t, "wait_run", map[string]any{"run_id": cell.RunID, "timeout_seconds": 0.2}).Output != ""
	})
	single := s.state(t, "run", map[string]any{"env": "shell", "code": "sleep 100", "background": true})
	s.stop(t)
	if left := marked(marker); len(left) > 0 {
		t.Errorf("the server left %v", left)
	}
	s = serve(t, "SANDBOX_ROOT="+s.Root)
	ended(id, "sandbox_lost")
	const facts = "[status: completed; cause: sandbox_lost; the interpreter has ended: its variables are lost, and the next run starts a new one; " +
		"The server stopped while the code was running, and ended it. Files in /data are kept: check them before you run it again.; files: kept <"
	if got := said(t, s.client(t, "2025-11-25"), "wait_run", map[string]any{"run_id": cell.RunID}); !strings.HasPrefix(got, "begun\n") || !strings.Contains(got, facts) {
		t.Errorf("a cell that the shutdown ended: %s", got)
	}
	if got := s.refusal(t, "list_artifacts", map[string]any{"session_id": single.SessionID}); got != "session_not_found" {
		t.Errorf("the session of a single run, after the shutdown: %s", got)
	}

	id, marker = begin("c")
	if err := s.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.done <- <-s.done
	eventually(t, 10*time.Second, "the run to end with its server", func() bool { return len(marked(marker)) == 0 })
	s = serve(t, "SANDBOX_ROOT="+s.Root)
	ended(id, "sandbox_lost")
}

// TestBackgroundRunFromElsewhere checks that nobody reaches another caller's run by its id, and
// that a run of another process can be seen.
func TestBackgroundRunFromElsewhere(t *testing.T) {
	s := serve(t)
	db, err := store.Open(t.Context(), filepath.Join(s.Root, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	foreign := store.Result{ID: "run_20260206T123456Z_a1b2", Caller: "ann", Session: "x", Started: time.Now(), Ended: time.Now(), Data: []byte(`{"Result":{"RunID":"run_20260206T123456Z_a1b2","Stdout":"c2VjcmV0"}}`)}
	if err := db.EndResult(t.Context(), foreign, 10); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"wait_run", "cancel_run"} {
		if got := s.refusal(t, tool, map[string]any{"run_id": foreign.ID}); got != "run_not_found" {
			t.Errorf("%s of another caller's: %s", tool, got)
		}
	}
	foreign.ID, foreign.Caller = "run_20260206T123456Z_a1b3", "local" // so that the refusal was for the caller
	if err := db.EndResult(t.Context(), foreign, 10); err != nil {
		t.Fatal(err)
	}
	if st := s.state(t, "wait_run", map[string]any{"run_id": foreign.ID}); st.Status != "completed" {
		t.Errorf("its own: %+v", st)
	}

	marker := newMarker()
	st := s.state(t, "run_code", map[string]any{"conversationId": "x", "language": "shell", "code": sleeper(marker), "background": true})
	eventually(t, 20*time.Second, "the run to start", func() bool { return len(marked(marker)) == 1 })
	neighbour := serve(t, "SANDBOX_ROOT="+s.Root)
	if got := neighbour.state(t, "wait_run", map[string]any{"run_id": st.RunID, "timeout_seconds": 0}); got.Status != "running" {
		t.Errorf("seen from another process: %+v", got)
	}
	if got := neighbour.refusal(t, "cancel_run", map[string]any{"run_id": st.RunID}); got != "run_elsewhere" {
		t.Errorf("cancelled from another process: %s", got)
	}
	if len(marked(marker)) != 1 {
		t.Error("the run has been ended by others")
	}
}

// TestHandover checks that run moves long code to the background, with the requested time, within
// bounds.
func TestHandover(t *testing.T) {
	s := serve(t, "SANDBOX_HANDOVER_S=1", "SANDBOX_EXEC_TIMEOUT_S=2", "SANDBOX_MAX_EXEC_TIMEOUT_S=5")
	code := map[string]any{"env": "python", "session": "x", "code": "import time\nprint('begun', flush=True)\ntime.sleep(3)\nprint('done')", "timeout_seconds": 5}
	s.cell(t, "x", "python", "1") // so that the second is not the sandbox's start
	start := time.Now()
	st := s.state(t, "run", code)
	if st.Status != "running" || st.Output != "begun\n" || time.Since(start) < time.Second {
		t.Fatalf("after %v: %+v", time.Since(start), st)
	}
	st = s.state(t, "wait_run", map[string]any{"run_id": st.RunID, "cursor": st.Cursor})
	if r := decode[cellResult](t, st.Result); st.Output != "done\n" || r.Stdout != "" || r.ExitCode != 0 || r.Cause != "" {
		t.Errorf("%+v", st)
	}
	delete(code, "timeout_seconds")
	st = s.state(t, "run", code)
	if r := decode[cellResult](t, s.state(t, "wait_run", map[string]any{"run_id": st.RunID}).Result); r.Cause != "timeout" || !strings.HasSuffix(r.Stderr, "timed out after 2 seconds") {
		t.Errorf("the default: %+v", r)
	}
	if r := s.run(t, "x", "shell", "sleep 30", func(a map[string]any) { a["timeout_seconds"] = 1 }); r.Cause != "timeout" || !strings.Contains(r.Hint, "5 at most") {
		t.Errorf("less than the default: %+v", r)
	}
	for tool, args := range map[string]map[string]any{
		"run": {"env": "python", "code": "1"}, "run_python": {"code": "1"}, "run_code": {"conversationId": "x", "language": "python", "code": "1"},
	} {
		for _, n := range []float64{0, -1, 5.5, 1e18} {
			args["timeout_seconds"] = n
			if got := s.refusal(t, tool, args); got != "-32602 timeout_seconds must be between 1 and 5" {
				t.Errorf("%s for %g s: %s", tool, n, got)
			}
		}
	}
}
