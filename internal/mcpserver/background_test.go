package mcpserver_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

func (e *fakeExecutor) WaitRun(_ context.Context, caller session.Caller, id string, req executor.WaitRequest) (executor.Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caller, e.request = caller, executor.Request{Session: id, Timeout: req.Timeout}
	return e.result, e.err
}

func (e *fakeExecutor) CancelRun(_ context.Context, caller session.Caller, id string) (executor.Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caller, e.request = caller, executor.Request{Session: id}
	return e.result, e.err
}

// TestLongWork: background runs, as plain callers and MCP clients see them.
func TestLongWork(t *testing.T) {
	p := newProduct(t)
	const goOn = "The code is still running, for at most 13 more seconds. Call wait_run with the run_id and the cursor for more output and the result, or cancel_run to end it."
	going := executor.Result{Running: true, RunID: "run_1", Session: "s", Runner: "python", Tool: "run_code", Timeout: time.Minute, TimeLeft: 12_100 * time.Millisecond,
		Recent: executor.Output{Data: []byte("so far\n"), Cursor: 7}}
	ended := executor.Result{RunID: "run_1", Session: "s", Tool: "run_code", Stdout: []byte("so far\nall\n"), Duration: time.Second,
		Recent: executor.Output{Data: []byte("all\n"), Cursor: 11}}
	beyond, foreground := ended, ended
	beyond.Recent.Data, foreground.Recent = nil, executor.Output{}
	cancelled := ended
	cancelled.Tool, cancelled.ExitCode, cancelled.Cause = "run_python", -1, sandbox.CauseCancelled
	queued := executor.Result{Running: true, RunID: "run_1", Session: "s", Runner: "python", Tool: "run", Timeout: time.Minute,
		Queued: &executor.Queue{RunID: "run_0", Tool: "run", Running: 12 * time.Second, Ahead: 2}}
	const waits = "The code waits for run_0 (run, running for 12 s) and 1 more. Then it runs for at most 60 seconds. " +
		"Call wait_run with the run_id and the cursor for its output and the result, or cancel_run to end it."
	runCode := `{"success":true,"output":"so far\nall\n","files":[],"exit_code":0,"run_id":"run_1","duration_ms":1000}`
	for _, tt := range []struct {
		name, tool, args string
		result           executor.Result
		err              error
		want             string
	}{
		{"started", "run_code", `{"conversationId":"s","language":"python","code":"1","background":true}`, going, nil,
			`{"status":"running","run_id":"run_1","session_id":"s","output":"so far\n","cursor":7,"message":"` + goOn + `","success":false,"files":[]}`},
		{"handed over", "run", `{"env":"python","code":"1","session":"s"}`, going, nil,
			`{"status":"running","run_id":"run_1","session_id":"s","output":"so far\n","cursor":7,"message":"` + goOn + `"}`},
		{"still going", "wait_run", `{"run_id":"run_1","cursor":3}`, going, nil,
			`{"status":"running","run_id":"run_1","session_id":"s","output":"so far\n","cursor":7,"message":"` + goOn + `"}`},
		{"queued", "wait_run", `{"run_id":"run_1"}`, queued, nil,
			`{"status":"queued","run_id":"run_1","session_id":"s","queued_behind":{"run_id":"run_0","tool":"run","running_seconds":12,"ahead":2},"output":"","cursor":0,"message":"` + waits + `"}`},
		{"ended", "wait_run", `{"run_id":"run_1"}`, ended, nil,
			`{"status":"completed","run_id":"run_1","session_id":"s","cursor":11,"result":` + runCode + `}`},
		{"the rest", "sandbox.wait_run", `{"run_id":"run_1","cursor":7}`, ended, nil,
			`{"status":"completed","run_id":"run_1","session_id":"s","output":"all\n","cursor":11,"message":"output contains what is new since the cursor; result does not repeat it.",` +
				`"result":` + strings.Replace(runCode, `so far\nall\n`, "", 1) + `}`},
		{"a cursor beyond the end", "wait_run", `{"run_id":"run_1","cursor":12}`, beyond, nil,
			`{"status":"completed","run_id":"run_1","session_id":"s","output":"","cursor":11,"message":"output contains what is new since the cursor; result does not repeat it.",` +
				`"result":` + strings.Replace(runCode, `so far\nall\n`, "", 1) + `,"warnings":["cursor 12 is beyond the output of this run, which ends at 11"]}`},
		{"a cursor of a run that was never in the background", "wait_run", `{"run_id":"run_1","cursor":12}`, foreground, nil,
			`{"status":"completed","run_id":"run_1","session_id":"s","cursor":0,"result":` + runCode + `}`},
		{"cancelled", "cancel_run", `{"run_id":"run_1"}`, cancelled, nil,
			`{"status":"cancelled","run_id":"run_1","session_id":"s","cursor":11,"result":{"session_id":"s","run_id":"run_1","exit_code":-1,"stdout":"so far\nall\n","stderr":"",` +
				`"stdout_truncated":false,"stderr_truncated":false,"artifacts":[],"duration_ms":1000,"cause":"cancelled"}}`},
		{"unknown", "wait_run", `{"run_id":"run_2"}`, executor.Result{}, &executor.Error{Code: executor.CodeRunNotFound, Message: "There is none."},
			`{"error":"run_not_found","message":"There is none."}`},
	} {
		p.executor.result, p.executor.err = tt.result, tt.err
		got, isError := compact(t, p.call(t, tt.tool, tt.args))
		if got != tt.want || isError != (tt.err != nil) {
			t.Errorf("%s: error %t, %s\nwant %s", tt.name, isError, got, tt.want)
		}
	}
	p.executor.err = nil

	for _, tt := range []struct{ tool, args, want string }{
		{"run_python", `{"code":"1","timeout_seconds":601}`, "timeout_seconds must be between 1 and 600"},
		{"run_code", `{"conversationId":"s","language":"python","code":"1","timeout_seconds":0}`, "timeout_seconds must be between 1 and 600"},
		{"run", `{"env":"python","code":"1","timeout_seconds":-1e300}`, "timeout_seconds must be between 1 and 600"},
		{"run", `{"env":"python","code":"1","timeout_seconds":"60"}`, "timeout_seconds must be a number"},
		{"run_python", `{"code":"1","background":"yes"}`, "background must be a boolean"},
		{"wait_run", `{}`, "run_id is required"},
		{"wait_run", `{"run_id":7}`, "run_id must be a string"},
		{"wait_run", `{"run_id":"r","timeout_seconds":51}`, "timeout_seconds must be between 0 and 50"},
		{"wait_run", `{"run_id":"r","cursor":-1}`, "cursor must be at least 0"},
		{"wait_run", `{"run_id":"r","cursor":1e99}`, "cursor must be an integer"},
		{"cancel_run", `{"run_id":""}`, "run_id is required"},
	} {
		if got := p.call(t, tt.tool, tt.args); !strings.Contains(got, `{"code":-32602,"message":"`+tt.want+`"`) {
			t.Errorf("%s %s: %s", tt.tool, tt.args, got)
		}
	}
	for args, want := range map[string]time.Duration{`{"run_id":"r"}`: 30 * time.Second, `{"run_id":"r","timeout_seconds":0}`: 0, `{"run_id":"r","timeout_seconds":0.5}`: 500 * time.Millisecond} {
		if p.call(t, "wait_run", args); p.executor.request.Timeout != want || p.executor.request.Session != "r" || p.executor.caller != session.Local {
			t.Errorf("wait_run %s: %+v, want %v", args, p.executor.request, want)
		}
	}
	p.call(t, "run_python", `{"code":"1","background":true,"timeout_seconds":90}`)
	if r := p.executor.request; !r.Background || r.Timeout != 90*time.Second || r.Tool != "run_python" {
		t.Errorf("asked of the executor: %+v", r)
	}

	// An MCP client gets plain text. The last line says how to continue.
	cs := p.connect(t, "http", "2025-11-25", nil)
	texts := func(name string, args map[string]any) (all []string) {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range res.Content {
			if text, ok := c.(*mcp.TextContent); ok {
				all = append(all, text.Text)
			}
		}
		return all
	}
	going.Tool, ended.Tool = "run", "run"
	p.executor.result = going
	if got := strings.Join(texts("run", map[string]any{"env": "python", "code": "1", "session": "s"}), "|"); got != "so far\n[status: running; run_id: run_1; session: s; cursor: 7. "+goOn+"]" {
		t.Errorf("a client's run: %q", got)
	}
	p.executor.result = queued
	if got := strings.Join(texts("wait_run", map[string]any{"run_id": "run_1"}), "|"); got != "[status: queued; run_id: run_1; session: s; cursor: 0. "+waits+"]" {
		t.Errorf("a client's queued run: %q", got)
	}
	p.executor.result = ended
	failed, missed, silent := ended, ended, ended
	failed.ExitCode, missed.Recent.Missed, silent.Recent.Data = 3, 5, nil
	stopped := ended
	stopped.Persistent, stopped.ExitCode, stopped.Cause, stopped.Hint = true, -1, sandbox.CauseCancelled, executor.CancelledHint
	for _, tt := range []struct {
		cursor int
		result executor.Result
		want   string
	}{
		{0, ended, "so far\nall\n[status: completed; run_1]"},
		{7, ended, "all\n[status: completed; run_1]"},
		{7, failed, "all\n[status: completed; exit code 3; run_1]"},
		{7, missed, "all\n[status: completed; 5 bytes before this output were skipped; run_1]"},
		{11, silent, "[status: completed; run_1]"},
		{12, silent, "[status: completed; cursor 12 is beyond the output of this run, which ends at 11; run_1]"},
		{7, stopped, "all\n[status: cancelled; the code was interrupted; the variables are kept; run_1]"}, // said once
	} {
		p.executor.result = tt.result
		if got := strings.Join(texts("wait_run", map[string]any{"run_id": "run_1", "cursor": tt.cursor}), "|"); got != tt.want {
			t.Errorf("a client's wait_run from %d: %q, want %q", tt.cursor, got, tt.want)
		}
	}
}
