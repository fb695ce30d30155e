package tools

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
)

const (
	defaultWait = 30 * time.Second
	maxWait     = 50 * time.Second // many clients time out after a minute
)

type waitRunArguments struct {
	RunID          string   `json:"run_id" jsonschema:"The run_id of a result with the status running or queued"`
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty" jsonschema:"Seconds to wait for the end (default: 30)"`
	Cursor         int64    `json:"cursor,omitempty" jsonschema:"The cursor of the last answer (default: the beginning)"`
}

func (t *toolset) waitRunTool() *tool {
	tool := newTool[waitRunArguments, runStateJSON](mcp.Tool{
		Name:  "wait_run",
		Title: "Wait for a run",
		Description: "Wait for a run in the background. Returns its output since the cursor and, once it has ended, the result in the form of the tool that started it. " +
			"While the status is queued (another run of the session is first) or running, call it again with the cursor of the last answer. Results are kept for a day.",
		Annotations: &readOnly,
	}, t.waitRun)
	tool.input.Properties["cursor"].Minimum = new(0.0)
	return tool.limit("timeout_seconds", 0, maxWait.Seconds())
}

func (t *toolset) waitRun(ctx context.Context, c *call, in waitRunArguments) (*mcp.CallToolResult, error) {
	req := executor.WaitRequest{Timeout: defaultWait, Cursor: in.Cursor, Follow: c.wantsDetails()}
	if in.TimeoutSeconds != nil {
		req.Timeout = time.Duration(*in.TimeoutSeconds * float64(time.Second))
	}
	progress := startProgress(ctx, c)
	defer progress.stop()
	req.Output, req.Queued = progress.hooks()
	res, err := t.executor.WaitRun(ctx, c.caller, in.RunID, req)
	if err != nil {
		return nil, err
	}
	t.log.Info("[MCP] wait_run: "+statusOf(res), "run_id", res.RunID, "session_id", logSession(res.Session))
	if req.Follow {
		return t.followedResult(c, res), nil
	}
	return t.stateResult(c, res, req.Cursor), nil
}

type cancelRunArguments struct {
	RunID string `json:"run_id" jsonschema:"The run_id of a result with the status running or queued"`
}

func (t *toolset) cancelRunTool() *tool {
	annotations := destructive
	annotations.IdempotentHint = true
	return newTool[cancelRunArguments, runStateJSON](mcp.Tool{
		Name:  "cancel_run",
		Title: "Cancel a run",
		Description: "Stop a run in the background and get its result, with the output so far. A session's interpreter is interrupted first, " +
			"so that its variables survive. A run that has ended is not changed.",
		Annotations: &annotations,
	}, t.cancelRun)
}

func (t *toolset) cancelRun(ctx context.Context, c *call, in cancelRunArguments) (*mcp.CallToolResult, error) {
	res, err := t.executor.CancelRun(ctx, c.caller, in.RunID)
	if err != nil {
		return nil, err
	}
	t.log.Info("[MCP] cancel_run: "+statusOf(res), "run_id", res.RunID, "session_id", logSession(res.Session))
	t.addDetails(c, res)
	return t.stateResult(c, res, 0), nil
}

// runStateJSON is the state of a background run.
type runStateJSON struct {
	Status       string     `json:"status" jsonschema:"queued, running, completed or cancelled"`
	RunID        string     `json:"run_id"`
	SessionID    string     `json:"session_id"`
	QueuedBehind *queueJSON `json:"queued_behind,omitempty" jsonschema:"The run that it waits for while it is queued"`
	Output       *string    `json:"output,omitempty" jsonschema:"What the code printed since the cursor"`
	OutputMissed int64      `json:"output_missed_bytes,omitempty" jsonschema:"Bytes before output that were skipped"`
	Cursor       int64      `json:"cursor" jsonschema:"For the next call of wait_run"`
	Message      string     `json:"message,omitempty"`
	Result       any        `json:"result,omitempty" jsonschema:"The result of the tool that started the run, once the code has ended"`
	warned
}

// stateResult returns the state of a background run, with its result if it has ended. Output before
// the cursor is not repeated.
func (t *toolset) stateResult(c *call, res executor.Result, cursor int64) *mcp.CallToolResult {
	end := res.Recent.Cursor // 0 if the run printed nothing, or was never in the background
	resumed := !res.Running && cursor > 0 && end > 0
	if cursor > end && (res.Running || resumed) {
		c.warnings = append(c.warnings, fmt.Sprintf("cursor %d is beyond the output of this run, which ends at %d", cursor, end))
	}
	if c.wantsText(res) {
		return t.stateText(c, res, resumed)
	}
	out := t.stateJSON(c, res)
	if res.Running {
		return textResult(out)
	}
	if resumed {
		out.Message = "output contains what is new since the cursor; result does not repeat it."
		res.Stdout, res.StdoutCut, res.Stderr, res.StderrCut = nil, nil, nil, nil
	} else {
		out.Output, out.OutputMissed = nil, 0 // the result has all output
	}
	images, warnings := t.imagesFor(c, res)
	out.Result = c.finishedJSON(res, warnings)
	return t.withFiles(c, res, out, images)
}

func (t *toolset) stateJSON(c *call, res executor.Result) runStateJSON {
	out := runStateJSON{
		Status: statusOf(res), RunID: res.RunID, SessionID: res.Session, QueuedBehind: queueOf(res.Queued),
		Output: new(recentText(res)), OutputMissed: res.Recent.Missed, Cursor: res.Recent.Cursor,
		warned: warned{c.warnings},
	}
	if res.Running {
		out.Message = t.nextStep(res)
	}
	return out
}

// recentText returns what a run printed since the cursor.
func recentText(res executor.Result) string {
	var text []byte
	for _, p := range res.RecentPieces() {
		text = append(text, p.Text...)
	}
	return validUTF8(text)
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

// nextStep tells the model how to get the rest of a run that continues in the background.
func (t *toolset) nextStep(res executor.Result) string {
	cancel := ""
	if t.offers("cancel_run") {
		cancel = ", or cancel_run to end it"
	}
	if res.Queued != nil {
		return fmt.Sprintf("The code waits for %s. Then it runs for at most %s seconds. Call wait_run with the run_id and the cursor for its output and the result%s.",
			queueOf(res.Queued), decimal(res.Timeout.Seconds()), cancel)
	}
	return fmt.Sprintf("The code is still running, for at most %s more seconds. Call wait_run with the run_id and the cursor for more output and the result%s.",
		decimal(max(1, math.Ceil(res.TimeLeft.Seconds()))), cancel)
}
