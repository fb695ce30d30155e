package mcpserver_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

// TestFollowRun: a client that asks wait_run for details gets the new output with the ranges of
// stderr, and hints that name no argument.
func TestFollowRun(t *testing.T) {
	p := newProduct(t)
	cs := p.connect(t, "http", "2025-11-25", nil)
	meta := func(tool string, args map[string]any, key string) string {
		t.Helper()
		got, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args, Meta: mcp.Meta{"mcp-code-sandbox/details": true}})
		if err != nil || got.IsError {
			t.Fatalf("%s: %+v, %v", tool, got, err)
		}
		text, err := json.Marshal(got.Meta[key])
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, tt := range []struct {
		name   string
		result executor.Result
		want   []string
	}{
		{"what is new", executor.Result{
			Running: true, RunID: "run_1", Recent: executor.Output{Data: []byte("a𝄞er\xffb"), Stderr: [][2]int{{5, 8}}, Missed: 12, Cursor: 21},
		}, []string{`"status":"running"`, `"output":"a𝄞er` + "\uFFFD" + `b"`, `"output_stderr":[[3,6]]`, `"output_missed_bytes":12`, `"cursor":21`, `"stdout":""`}},
		{"a time limit", executor.Result{
			RunID: "run_1", Cause: sandbox.CauseTimeout, Timeout: time.Minute, Hint: "ask for more time with timeout_seconds", Stdout: []byte("all"),
			Recent: executor.Output{Cursor: 3},
		}, []string{`"status":"completed"`, `"hint":"Do less in one run, raise the time limit in the settings (at most 600 seconds), or`, `"stdout":""`}},
		{"a run of which nothing was kept in order", executor.Result{RunID: "run_1", Stdout: []byte("all")}, []string{`"stdout":"all"`, `"cursor":0`}},
		{"no network", executor.Result{RunID: "run_1", ExitCode: 1, Hint: executor.NoNetworkHint}, []string{`"hint":"This run had no network access. It can be turned on in the settings."`}},
	} {
		p.executor.result = tt.result
		got := meta("wait_run", map[string]any{"run_id": "run_1", "cursor": 9}, "mcp-code-sandbox/run")
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s has no %s", tt.name, got, want)
			}
		}
	}
	list, err := cs.ListTools(t.Context(), &mcp.ListToolsParams{Meta: mcp.Meta{"mcp-code-sandbox/details": true}})
	if err != nil || list.Meta["mcp-code-sandbox/details"] != true {
		t.Errorf("the list of tools: %+v, %v", list, err)
	}
	p.executor.recent = []executor.RunInfo{
		{ID: "run_2", Runner: "python", Tag: "t", Started: time.Unix(1, 0), Running: true},
		{ID: "run_1", Runner: "shell", Started: time.Unix(0, 0), Duration: time.Second, ExitCode: -1, Cause: sandbox.CauseCancelled},
	}
	want := `[{"exit_code":0,"run_id":"run_2","runner":"python","started":"1970-01-01T00:00:01Z","status":"running","tag":"t"},` +
		`{"cause":"cancelled","duration_ms":1000,"exit_code":-1,"run_id":"run_1","runner":"shell","started":"1970-01-01T00:00:00Z","status":"cancelled"}]`
	if got := meta("list_artifacts", map[string]any{"session_id": "s"}, "mcp-code-sandbox/runs"); got != want {
		t.Errorf("runs of a session: %s", got)
	}
}

// TestActivity: only clients that declare the capability are notified when runs start and end.
func TestActivity(t *testing.T) {
	p := newProduct(t)
	heard := make(chan string, 1000)
	connect := func(name string, caps *mcp.ClientCapabilities) {
		p.connect(t, "http", "2025-11-25", &mcp.ClientOptions{
			Capabilities:               caps,
			ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { heard <- name },
		})
	}
	connect("page", &mcp.ClientCapabilities{Experimental: map[string]any{"mcp-code-sandbox/activity": map[string]any{}}})
	connect("model", nil)
	next := func(change func()) string {
		t.Helper()
		// The clients may not have opened their streams yet.
		deadline, tick := time.After(10*time.Second), time.NewTicker(20*time.Millisecond)
		defer tick.Stop()
		for {
			change()
			select {
			case name := <-heard:
				return name
			case <-tick.C:
			case <-deadline:
				t.Fatal("no notification")
			}
		}
	}
	runs := func() {
		for _, changed := range p.executor.runWatchers {
			changed(session.Local)
		}
	}
	var all []string
	for range 10 {
		all = append(all, next(runs))
	}
	if slices.Contains(all, "model") {
		t.Errorf("of runs hear %q", all)
	}
	for next(func() { p.executor.change("local") }) != "model" {
	}
}
