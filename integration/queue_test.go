//go:build linux

package integration

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// untilGo is a cell that prints "begun" and ends when a file appears.
const untilGo = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('/data/go'): time.sleep(0.02)"

// TestQueuedRun checks that a client's call that waits for another run is told at once, is told
// when it begins, and gets a run_id if it waits too long. wait_run and cancel_run know it as
// queued.
func TestQueuedRun(t *testing.T) {
	s := serve(t, "SANDBOX_HANDOVER_S=2")
	progress := make(chan string, 100)
	client := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1.0.0"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { progress <- req.Params.Message },
	})
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.Token)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	begin := func(code, token string) <-chan string {
		done := make(chan string, 1)
		params := &mcp.CallToolParams{Name: "run", Arguments: map[string]any{"env": "python", "session": "q", "code": code}}
		params.SetProgressToken(token)
		go func() {
			res, err := session.CallTool(t.Context(), params)
			var all strings.Builder
			if err != nil {
				all.WriteString(err.Error())
			} else {
				for _, c := range res.Content {
					if text, ok := c.(*mcp.TextContent); ok {
						all.WriteString(text.Text)
					}
				}
			}
			done <- all.String()
		}()
		return done
	}
	heard := func(want string) string {
		t.Helper()
		for timeout := time.After(30 * time.Second); ; {
			select {
			case got := <-progress:
				if strings.Contains(got, want) {
					return got
				}
				t.Fatalf("heard %q instead of %q", got, want)
			case <-timeout:
				t.Fatalf("never heard %q", want)
			}
		}
	}

	first := s.state(t, "run", map[string]any{"env": "python", "session": "q", "code": untilGo, "background": true})
	if first.Status != "running" {
		t.Fatalf("%+v", first)
	}
	second := begin("print('second')", "second")
	if got := heard("[queued behind "); !regexp.MustCompile(`^\[queued behind ` + first.RunID + ` \(run, running for \d+ s\)\]\n$`).MatchString(got) {
		t.Errorf("the second hears %q", got)
	}
	facts := <-second // after the handover
	m := regexp.MustCompile(`^\[status: queued; run_id: (run_\w+); session: q; cursor: 0\. The code waits for ` + first.RunID + ` \(run, running for \d+ s\)`).FindStringSubmatch(facts)
	if m == nil {
		t.Fatalf("handed over: %s", facts)
	}

	third := s.state(t, "run", map[string]any{"env": "python", "session": "q", "code": "print('third')", "background": true})
	waiting := s.state(t, "wait_run", map[string]any{"run_id": third.RunID, "timeout_seconds": 0})
	if third.Status != "queued" || waiting.Status != "queued" || waiting.QueuedBehind.RunID != first.RunID || waiting.QueuedBehind.Tool != "run" || waiting.QueuedBehind.Ahead != 2 {
		t.Errorf("a third: %+v, then %+v", third, waiting)
	}
	cancelled := s.state(t, "cancel_run", map[string]any{"run_id": third.RunID})
	if r := decode[cellResult](t, cancelled.Result); cancelled.Status != "cancelled" || r.Stdout != "" || !strings.Contains(r.State, "not started") {
		t.Errorf("cancelled: %+v, %+v", cancelled, r)
	}

	// Another client's wait is told when the run begins.
	params := &mcp.CallToolParams{Name: "wait_run", Arguments: map[string]any{"run_id": m[1], "timeout_seconds": 40}}
	params.SetProgressToken("wait")
	done := make(chan *mcp.CallToolResult, 1)
	go func() {
		res, err := session.CallTool(t.Context(), params)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	heard("[queued behind " + first.RunID)
	s.upload(t, "q", "go", "x")
	heard("[started]")
	if res := <-done; res == nil || !strings.HasPrefix(res.Content[0].(*mcp.TextContent).Text, "second\n[status: completed; ") {
		t.Errorf("its end: %+v", res)
	}
}
