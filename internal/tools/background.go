package tools

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

const (
	defaultMaxTimeout = 10 * time.Minute
	minTimeout        = time.Second
	defaultWait       = 30 * time.Second
	maxWait           = 50 * time.Second // clients give up after a minute
)

// Runs is what is needed of the executor for runs that go on in the background.
type Runs interface {
	// WaitRun waits for a run of the caller's, for a time. Its Result may say that the run is still going.
	WaitRun(ctx context.Context, caller session.Caller, id string, req executor.WaitRequest) (executor.Result, error)
	// CancelRun ends a run of the caller's.
	CancelRun(ctx context.Context, caller session.Caller, id string) (executor.Result, error)
	// RecentRuns lists the last runs of a session, newest first.
	RecentRuns(caller session.Caller, sessionID string) []executor.RunInfo
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
	Warnings     []string   `json:"warnings,omitempty"`
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
	if t.offers("wait_run") {
		add("background", &jsonschema.Schema{Type: "boolean", Description: "Return at once and let the code go on; wait_run gets its output and result by the run_id (default: false)"})
	}
	longer := *tool
	longer.InputSchema = &schema
	return &longer
}

// longWork reads the arguments that withLongWork adds.
func (t *toolset) longWork(a *arguments, req *executor.Request) {
	req.Timeout, _ = a.seconds("timeout_seconds", minTimeout, t.maxTimeout)
	if req.Background = a.flag("background"); req.Background && !t.offers("wait_run") {
		a.fail("background cannot be used: this server lets no code go on in the background")
	}
}

// perform runs code, with its output as progress.
func (t *toolset) perform(ctx context.Context, c call, req executor.Request) (executor.Result, error) {
	progress := startProgress(ctx, c)
	defer progress.stop()
	req.Output, req.Queued = progress.output(), progress.queued()
	if c.wantsDetails() {
		req.Handover, req.Followed = 0, req.Background // it waits or follows, and shows what comes
		req.Tag = c.tag()
		if progress != nil {
			req.Begun = func(runID string) {
				_ = c.req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: c.req.Params.GetProgressToken(), Meta: mcp.Meta{runIDKey: runID},
				}) // a client that is gone shows in the next one
			}
		}
	}
	req.Observer = &runLog{log: t.log, req: req}
	res, err := t.executor.Run(ctx, c.caller, req)
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

// handoverFor is when run_code and run_python let their code go on in the background. A plain caller knows contracts 1 and 4,
// where they answer at the end.
func (t *toolset) handoverFor(c client) time.Duration {
	if c.plain {
		return 0
	}
	return t.handover
}

// shape is a finished run's JSON as the tool that started it gives it.
func shape(res executor.Result, warnings []string) any {
	switch res.Tool {
	case "run_code":
		out := runCodeResult(res)
		out.Warnings = warnings
		return out
	case "run":
		out := runJSON{Notice: noticeOf(res), runPythonJSON: runPythonResult(res), State: stateOf(res)}
		if !res.Once {
			out.Session = res.Session
		}
		out.Warnings = warnings
		return out
	}
	out := runPythonResult(res)
	out.Warnings = warnings
	return out
}

// result is a finished run as the tool that started it gives it.
func (t *toolset) result(c call, res executor.Result) *mcp.CallToolResult {
	if res.Tool == "run" && !c.client.plain {
		return t.runResult(c, res)
	}
	images, warnings := t.imagesFor(c, res)
	return t.withFiles(c, textResult(shape(res, append(warnings, c.args.warnings...))), res, images)
}

// imagesFor are the images that a run showed, none for a plain caller, and a warning that names those that are left out.
func (t *toolset) imagesFor(c call, res executor.Result) (images []mcp.Content, warnings []string) {
	if c.client.plain {
		return nil, nil
	}
	images, missing := t.images.images(res.Displays)
	for _, warning := range []string{missing, droppedOf(res)} {
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return images, warnings
}

// withFiles adds what a run showed and made, as far as the client knows such things.
func (t *toolset) withFiles(c call, out *mcp.CallToolResult, res executor.Result, images []mcp.Content) *mcp.CallToolResult {
	out.Content = append(append(out.Content, images...), t.links(c, res)...)
	return out
}

// runCodeStartedJSON is run_code's answer while the code runs: the state of the run, and what contract 1 requires. That the code
// has succeeded is not claimed before it is known.
type runCodeStartedJSON struct {
	runStateJSON
	Success bool       `json:"success"`
	Files   []fileJSON `json:"files"`
}

// runPythonStartedJSON is the same of run_python and contract 4.
type runPythonStartedJSON struct {
	runStateJSON
	ExitCode        int            `json:"exit_code"`
	Stdout          string         `json:"stdout"`
	Stderr          string         `json:"stderr"`
	StdoutTruncated bool           `json:"stdout_truncated"`
	StderrTruncated bool           `json:"stderr_truncated"`
	Artifacts       []artifactJSON `json:"artifacts"`
	DurationMS      int64          `json:"duration_ms"`
}

// started is the answer of a run tool whose code goes on in the background.
func (t *toolset) started(c call, res executor.Result) *mcp.CallToolResult {
	if res.Tool == "run" {
		return t.state(c, res, 0)
	}
	state := t.stateJSON(c, res)
	if res.Tool == "run_code" {
		return textResult(runCodeStartedJSON{runStateJSON: state, Files: []fileJSON{}})
	}
	state.Output = nil
	stdout, stderr := streams(res.Recent)
	return textResult(runPythonStartedJSON{
		runStateJSON: state, ExitCode: -1, Stdout: stdout, Stderr: stderr, StdoutTruncated: res.Recent.Missed > 0, StderrTruncated: res.Recent.Missed > 0,
		Artifacts: []artifactJSON{}, DurationMS: time.Since(res.Started).Milliseconds(),
	})
}

// streams takes the two streams of an output apart.
func streams(recent executor.Output) (stdout, stderr string) {
	var out, err []byte
	at := 0
	for _, part := range recent.Stderr {
		out, err, at = append(out, recent.Data[at:part[0]]...), append(err, recent.Data[part[0]:part[1]]...), part[1]
	}
	return validUTF8(append(out, recent.Data[at:]...)), validUTF8(err)
}

// state is a run that is going, or a finished one, for who follows it. What comes before the cursor is not said again.
func (t *toolset) state(c call, res executor.Result, cursor int64) *mcp.CallToolResult {
	// A cursor beyond the end is not one of this run's, or the run was not followed, so that no place in its output is known.
	resumed := !res.Running && cursor > 0 && cursor <= res.Recent.Cursor
	if res.Tool == "run" && !c.client.plain {
		return t.runState(c, res, resumed)
	}
	out := t.stateJSON(c, res)
	if res.Running {
		return textResult(out)
	}
	if resumed {
		out.Message = "output is what is new since the cursor; result does not repeat it."
		res.Stdout, res.StdoutTruncated, res.Stderr, res.StderrTruncated = nil, false, nil, false
	} else {
		out.Output, out.OutputMissed = nil, 0 // the result has all
	}
	images, warnings := t.imagesFor(c, res)
	out.Result = shape(res, warnings)
	return t.withFiles(c, textResult(out), res, images)
}

func (t *toolset) stateJSON(c call, res executor.Result) runStateJSON {
	out := runStateJSON{
		Status: statusOf(res), RunID: res.RunID, SessionID: res.Session, QueuedBehind: queueOf(res.Queued), Cursor: res.Recent.Cursor,
		Output: new(validUTF8(res.Recent.Data)), OutputMissed: res.Recent.Missed, Warnings: c.args.warnings,
	}
	if res.Running {
		out.Message = t.nextStep(res)
	}
	return out
}

// runState is state for an MCP client's run: plain output, and a line of facts.
func (t *toolset) runState(c call, res executor.Result, resumed bool) *mcp.CallToolResult {
	facts := []string{"status: " + statusOf(res)}
	skipped := ""
	if n := res.Recent.Missed; n > 0 {
		skipped = fmt.Sprintf("%d bytes before this output were skipped", n)
	}
	if res.Running {
		facts = append(facts, "run_id: "+res.RunID, "session: "+res.Session, fmt.Sprintf("cursor: %d", res.Recent.Cursor))
		if skipped != "" {
			facts = append(facts, skipped)
		}
		facts = append(facts, c.args.warnings...)
		facts[len(facts)-1] += ". " + t.nextStep(res)
		return t.runText(c, res, validUTF8(res.Recent.Data), facts)
	}
	output := combine(res.Stdout, res.Stderr)
	if resumed {
		if output = validUTF8(res.Recent.Data); skipped != "" {
			facts = append(facts, skipped)
		}
	}
	facts = append(append(facts, factsOf(res)...), c.args.warnings...)
	return t.runText(c, res, output, append(facts, res.RunID))
}

func statusOf(res executor.Result) string {
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

// nextStep says how to get the rest of a run that goes on in the background.
func (t *toolset) nextStep(res executor.Result) string {
	cancel := ""
	if t.offers("cancel_run") {
		cancel = ", or cancel_run to end it"
	}
	if res.Queued != nil {
		return fmt.Sprintf("The code waits for %s, then it runs for %g seconds at most. Call wait_run with the run_id and the cursor for its output and the result%s.",
			queueOf(res.Queued), res.Timeout.Seconds(), cancel)
	}
	return fmt.Sprintf("The code goes on running, for %g seconds at most. Call wait_run with the run_id and the cursor for more output and the result%s.",
		max(1, math.Ceil(res.TimeLeft.Seconds())), cancel)
}
