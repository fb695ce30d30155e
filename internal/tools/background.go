package tools

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/engine"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

const (
	defaultMaxTimeout = 10 * time.Minute
	minTimeout        = time.Second
	defaultWait       = 30 * time.Second
	maxWait           = 50 * time.Second // clients give up after a minute
)

// Runs is what is needed of the engine for runs that go on in the background.
type Runs interface {
	// WaitRun waits for a run of the caller's, for a time. Its Result may say that the run is still going.
	WaitRun(ctx context.Context, caller session.Caller, id string, req engine.WaitRequest) (engine.Result, error)
	// CancelRun ends a run of the caller's.
	CancelRun(ctx context.Context, caller session.Caller, id string) (engine.Result, error)
	// RecentRuns lists the last runs of a session, newest first.
	RecentRuns(caller session.Caller, sessionID string) []engine.RunInfo
	// WatchRuns has changed called when runs of a caller's have started or ended.
	WatchRuns(changed func(session.Caller))
}

// runStateJSON is what is known of a run that goes on in the background, and of one that did.
type runStateJSON struct {
	Status       string     `json:"status"` // queued, running, completed or cancelled
	RunID        string     `json:"run_id"`
	SessionID    string     `json:"session_id"`
	QueuedBehind *queueJSON `json:"queued_behind,omitempty"` // while it is queued
	Output       *string    `json:"output,omitempty"`
	OutputMissed int64      `json:"output_missed_bytes,omitempty"`
	Cursor       int64      `json:"cursor"`
	Message      string     `json:"message,omitempty"`
	Result       any        `json:"result,omitempty"` // as of the tool that started it
}

// withLongWork adds to a run tool the arguments of runs that take long.
func (t *toolset) withLongWork(tool *mcp.Tool) *mcp.Tool {
	schema := *tool.InputSchema.(*jsonschema.Schema)
	schema.Properties = maps.Clone(schema.Properties)
	schema.PropertyOrder = slices.Clone(schema.PropertyOrder)
	add := func(name string, s *jsonschema.Schema) {
		schema.Properties[name] = s
		schema.PropertyOrder = append(schema.PropertyOrder, name)
	}
	add("timeout_seconds", &jsonschema.Schema{
		Type: "number", Minimum: new(minTimeout.Seconds()), Maximum: new(t.maxTimeout.Seconds()),
		Description: "Longest time that the code may take, where the server's default is not enough",
	})
	if !t.noBackground {
		add("background", &jsonschema.Schema{Type: "boolean", Description: "Return at once and let the code go on; wait_run gets its output and result by the run_id (default: false)"})
	}
	longer := *tool
	longer.InputSchema = &schema
	return &longer
}

// longWork reads the arguments that withLongWork adds.
func (t *toolset) longWork(a *arguments, req *engine.Request) {
	req.Timeout, _ = a.seconds("timeout_seconds", minTimeout, t.maxTimeout)
	if req.Background = a.flag("background"); req.Background && t.noBackground {
		a.fail("background cannot be used: this server does not offer wait_run")
	}
}

// perform runs code, with its output as progress.
func (t *toolset) perform(ctx context.Context, c call, req engine.Request) (engine.Result, error) {
	progress := startProgress(ctx, c)
	defer progress.stop()
	req.Output, req.Queued = progress.output(), progress.queued()
	if c.wantsDetails() {
		req.Handover, req.Followed = 0, req.Background // it waits or follows, and shows what comes
		if progress != nil {
			req.Begun = func(runID string) {
				_ = c.req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: c.req.Params.GetProgressToken(), Meta: mcp.Meta{runIDKey: runID},
				}) // a client that is gone shows in the next one
			}
		}
	}
	res, err := t.engine.Run(ctx, c.caller, req)
	res.Tool, res.Once = req.Tool, req.Once
	return res, err
}

// seconds returns an argument that is a number of seconds, and whether it was given.
func (a *arguments) seconds(name string, low, high time.Duration) (time.Duration, bool) {
	var n float64
	if !a.get(name, "a number", &n) {
		return 0, false
	}
	if n < low.Seconds() || n > high.Seconds() {
		a.fail("%s must be between %g and %g", name, low.Seconds(), high.Seconds())
		return 0, false
	}
	return time.Duration(n * float64(time.Second)), true
}

// cursor returns the place in a run's output to go on from.
func (a *arguments) cursor() (n int64) {
	if a.get("cursor", "an integer", &n); n < 0 {
		a.fail("cursor must not be negative")
	}
	return n
}

// shape is a finished run's JSON as the tool that started it gives it.
func shape(res engine.Result) any {
	switch res.Tool {
	case "run_code":
		return runCodeResult(res)
	case "run":
		out := runJSON{runPythonJSON: runPythonResult(res), State: stateOf(res)}
		if !res.Once {
			out.Session = res.Session
		}
		return out
	}
	return runPythonResult(res)
}

// result is a finished run as the tool that started it gives it.
func (t *toolset) result(c client, res engine.Result) *mcp.CallToolResult {
	if res.Tool == "run" && !c.plain {
		return t.runResult(c, res)
	}
	return t.withFiles(c, textResult(shape(res)), res)
}

// withFiles adds what a run showed and made, as far as the client knows such things.
func (t *toolset) withFiles(c client, out *mcp.CallToolResult, res engine.Result) *mcp.CallToolResult {
	if !c.plain {
		out.Content = append(out.Content, t.images.images(res.Displays)...)
	}
	if c.atLeast(version20250618) {
		out.Content = append(out.Content, links(res.Files)...)
	}
	return out
}

// state is a run that is going, or a finished one for who waited for it. To say again what all its output was is left to the result.
func (t *toolset) state(c client, res engine.Result, cursor int64) *mcp.CallToolResult {
	if res.Tool == "run" && !c.plain {
		return t.runState(c, res)
	}
	out := runStateJSON{Status: statusOf(res), RunID: res.RunID, SessionID: res.Session, QueuedBehind: queueOf(res.Queued), Cursor: res.Recent.Cursor}
	if res.Running || cursor > 0 {
		out.Output, out.OutputMissed = new(validUTF8(res.Recent.Data)), res.Recent.Missed
	}
	if res.Running {
		out.Message = howToGoOn(res)
		return textResult(out)
	}
	out.Result = shape(res)
	return t.withFiles(c, textResult(out), res)
}

// runState is state for an MCP client's run: plain output, and a line of facts.
func (t *toolset) runState(c client, res engine.Result) *mcp.CallToolResult {
	if !res.Running {
		out := t.runResult(c, res)
		if factsOf(res) == "" {
			out.Content = append(out.Content, &mcp.TextContent{Text: fmt.Sprintf("[status: %s; %s]", statusOf(res), res.RunID)})
		}
		return out
	}
	out := &mcp.CallToolResult{}
	if len(res.Recent.Data) > 0 {
		out.Content = append(out.Content, &mcp.TextContent{Text: validUTF8(res.Recent.Data)})
	}
	missed := ""
	if n := res.Recent.Missed; n > 0 {
		missed = fmt.Sprintf("; %d bytes before this output were skipped", n)
	}
	out.Content = append(out.Content, &mcp.TextContent{Text: fmt.Sprintf("[status: %s; run_id: %s; session: %s; cursor: %d%s. %s]",
		statusOf(res), res.RunID, res.Session, res.Recent.Cursor, missed, howToGoOn(res))})
	return out
}

func statusOf(res engine.Result) string {
	switch {
	case res.Running && res.Queued != nil:
		return "queued"
	case res.Running:
		return "running"
	case res.Cause == sandbox.CauseCancelled:
		return "cancelled"
	}
	return "completed"
}

func howToGoOn(res engine.Result) string {
	if res.Queued != nil {
		return fmt.Sprintf("The code waits for %s, then it runs for %g seconds at most. Call wait_run with the run_id and the cursor for its output and the result, or cancel_run to end it.",
			queueOf(res.Queued), res.Timeout.Seconds())
	}
	return fmt.Sprintf("The code goes on running, for %g seconds at most. Call wait_run with the run_id and the cursor for more output and the result, or cancel_run to end it.",
		res.Timeout.Seconds())
}
