package mcpserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
)

// TestSessionsAndFiles: the page's tools that are in no contract, for a plain caller.
func TestSessionsAndFiles(t *testing.T) {
	p := newProduct(t)
	at := time.Date(2026, 2, 6, 12, 34, 56, 789, time.FixedZone("", 3600))
	p.executor.sessions = []executor.SessionInfo{
		{ID: "new", LastUsed: at, Files: 2, Bytes: 10, Live: true}, {ID: "old", LastUsed: at, Files: 7, MoreFiles: true},
	}
	for _, tt := range []struct {
		tool, args string
		err        error
		want       string
	}{
		{"list_sessions", `{}`, nil, `{"sessions":[{"session_id":"new","last_used":"2026-02-06T11:34:56Z","files":2,"bytes":10,"live":true},` +
			`{"session_id":"old","last_used":"2026-02-06T11:34:56Z","files":7,"files_truncated":true,"bytes":0,"live":false}],"usage":{"sessions":2,"bytes":14,"closed_sessions":1,"closed_bytes":3,"files":7,"closed_files":1,"max_bytes":100,"max_files":50}}`},
		{"list_sessions", `{"limit":1}`, nil, `{"sessions":[{"session_id":"new","last_used":"2026-02-06T11:34:56Z","files":2,"bytes":10,"live":true}],"truncated":true,"usage":{"sessions":2,"bytes":14,"closed_sessions":1,"closed_bytes":3,"files":7,"closed_files":1,"max_bytes":100,"max_files":50}}`},
		{"sandbox.delete_file", `{"session_id":"s","filename":"/mnt/data/a/b.png"}`, nil, `{"deleted":true,"filename":"a/b.png","path":"/mnt/data/a/b.png","session_id":"s"}`},
		{"delete_file", `{"conversationId":"s","filename":"b.png"}`, nil, `{"deleted":true,"filename":"b.png","path":"/mnt/data/b.png","session_id":"s"}`},
		{"delete_file", `{"session_id":"s","filename":"b.png"}`, &executor.Error{Code: executor.CodeNotFound, Message: "No file at /mnt/data/b.png"},
			`{"error":"not_found","message":"No file at /mnt/data/b.png"}`},
	} {
		p.executor.err = tt.err
		if got, isError := compact(t, p.call(t, tt.tool, tt.args)); got != tt.want || isError != (tt.err != nil) {
			t.Errorf("%s %s: error %t, %s\nwant %s", tt.tool, tt.args, isError, got, tt.want)
		}
	}
	p.executor.err = nil
	for i := range p.executor.sessions {
		p.executor.sessions[i].Problem = "It cannot be used."
	}
	if got, isError := compact(t, p.call(t, "list_sessions", `{}`)); isError || !strings.Contains(got, `"warnings":["new, old: It cannot be used."]`) {
		t.Errorf("sessions that cannot be used: %s", got)
	}
	for _, tt := range []struct{ tool, args, want string }{
		{"list_sessions", `{"limit":0}`, "limit must be between 1 and 50"},
		{"list_sessions", `{"limit":51}`, "limit must be between 1 and 50"},
		{"list_sessions", `{"limit":"all"}`, "limit must be an integer"},
		{"delete_file", `{"session_id":"s"}`, "filename is required"},
		{"delete_file", `{"filename":"a"}`, "session_id is required"},
		{"delete_file", `{"session_id":"s","conversationId":"t","filename":"a"}`, "session_id and conversationId are the same argument; give one of them"},
	} {
		if got := p.call(t, tt.tool, tt.args); !strings.Contains(got, `{"code":-32602,"message":"`+tt.want+`"`) {
			t.Errorf("%s %s: %s", tt.tool, tt.args, got)
		}
	}
}

// TestDetails: a client that asks for details gets the run's id when it begins, the ranges of
// stderr, and how the run ended, from every run tool.
func TestDetails(t *testing.T) {
	forClients(t, func(t *testing.T, transport, version string) {
		p := newProduct(t)
		var progress []*mcp.ProgressNotificationParams
		heard := make(chan *mcp.ProgressNotificationParams, 10)
		p.executor.run = func(_ context.Context, req executor.Request) (executor.Result, error) {
			if (req.Begun != nil) != (req.Handover == 0 && req.Output != nil) {
				t.Errorf("asked of the executor: %+v", req)
			}
			if req.Begun != nil {
				req.Begun("run_1")
				progress = append(progress, <-heard)
				req.Output(executor.Stdout, []byte("a𝄞"))
				req.Output(executor.Stderr, []byte("wr"))
				req.Output(executor.Stderr, []byte("ong"))
				req.Output(executor.Stdout, []byte("!"))
				req.Output(executor.Stderr, []byte("é"))
				progress = append(progress, <-heard)
			}
			return executor.Result{
				RunID: "run_1", Session: "s", Runner: "python", Tool: req.Tool, ExitCode: 137, Signal: 9, Cause: sandbox.CauseOutOfMemory, Hint: "Use less.",
				Duration: 1500 * time.Millisecond, MaxRSSBytes: 5 << 20, Stdout: []byte("a𝄞!"), Stderr: []byte("wrong\xff"), StderrCut: &executor.Cut{Head: 3, Tail: 3, Omitted: 7},
				Persistent: req.Persistent, StateLost: req.Persistent,
				Displays: []executor.Display{
					{MIME: "text/html", Data: []byte("<b>1</b>")}, {MIME: "image/png", Data: []byte(pixel)},
					{MIME: "text/html", Data: make([]byte, 600<<10)}, {MIME: "image/svg+xml", Data: []byte("<svg/>"), File: ".plots/2.svg", URL: "u"},
					{MIME: "image/png", File: ".plots/3.png", URL: "v"}, {MIME: "image/png", Data: []byte(pixel)},
				},
			}, nil
		}
		cs := p.connect(t, transport, version, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { heard <- r.Params },
		})
		for name, args := range map[string]map[string]any{"run_code": runArgs, "run_python": {"code": "1"}, "run": {"env": "python", "code": "1", "session": "s"}} {
			progress = nil
			params := &mcp.CallToolParams{Name: name, Arguments: args, Meta: mcp.Meta{"mcp-code-sandbox/details": true}}
			params.SetProgressToken("tok")
			got, err := cs.CallTool(t.Context(), params)
			if err != nil {
				t.Fatal(err)
			}
			details, err := json.Marshal(got.Meta["mcp-code-sandbox/run"])
			if err != nil {
				t.Fatal(err)
			}
			var d map[string]any
			if err := json.Unmarshal(details, &d); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{
				"run_id": "run_1", "session_id": "s", "runner": "python", "status": "completed", "exit_code": 137.0, "signal": 9.0, "cause": "out_of_memory",
				"hint": "Use less.", "duration_ms": 1500.0, "memory_bytes": float64(5 << 20), "stdout": "a𝄞!", "stderr": "wrong\uFFFD", "stderr_truncated": true,
				"displays": []any{map[string]any{"mime_type": "text/html", "text": "<b>1</b>"}, map[string]any{"mime_type": "image/svg+xml", "text": "<svg/>"}}, "displays_truncated": true,
				"outputs": []any{
					map[string]any{"type": "stdout", "text": "a𝄞!"}, map[string]any{"type": "stderr", "text": "wro"},
					map[string]any{"type": "stderr", "omitted_bytes": 7.0}, map[string]any{"type": "stderr", "text": "ng\uFFFD"},
					map[string]any{"type": "display", "index": 0.0}, map[string]any{"type": "image", "index": 0.0},
					map[string]any{"type": "display", "index": 1.0, "file": ".plots/2.svg", "url": "u"},
					map[string]any{"type": "image", "file": ".plots/3.png", "url": "v"}, map[string]any{"type": "image", "index": 1.0},
				},
			}
			if name == "run" {
				want["state"] = "the interpreter has ended: its variables are lost, and the next run starts a new one"
			}
			if fmt.Sprint(d) != fmt.Sprint(want) {
				t.Errorf("%s: %s", name, details)
			}
			if len(progress) != 2 || progress[0].Message != "" || progress[0].Progress != 0 || progress[0].Meta["mcp-code-sandbox/run_id"] != "run_1" ||
				progress[1].Message != "a𝄞wrong!é" || fmt.Sprint(progress[1].Meta["mcp-code-sandbox/stderr"]) != "[[3 8] [9 10]]" {
				t.Errorf("%s: progress %+v", name, progress)
			}
			// Other clients get no details.
			if got, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args}); err != nil || got.Meta["mcp-code-sandbox/run"] != nil {
				t.Errorf("%s, not asked: %+v, %v", name, got, err)
			}
		}
	})
	p := newProduct(t)
	if got := p.post(t, `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"_meta":{"mcp-code-sandbox/details":true},"name":"run_python","arguments":{"code":"1"}}}`); strings.Contains(got, "_meta") {
		t.Errorf("a plain caller: %s", got)
	}
}
