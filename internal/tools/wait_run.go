package tools

import (
	"context"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
)

func waitRunTool() *mcp.Tool {
	return &mcp.Tool{
		Name:  "wait_run",
		Title: "Wait for a run",
		Description: "Wait for code that goes on running in the background: get what it has printed since the cursor and, once it has ended, its result, as the tool " +
			"that started it would give it, without the output before the cursor. Call it again, with the cursor of the answer, for as long as the status is queued (it waits for another run of the session) or running. Results can be had for a day.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
		InputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"run_id": {Type: "string", Description: "The run_id of the result that said status: running or queued"},
				"timeout_seconds": {Type: "number", Minimum: new(0.0), Maximum: new(maxWait.Seconds()),
					Description: "How long to wait for the end before answering with the output so far (default: 30)"},
				"cursor": {Type: "integer", Minimum: new(0.0), Description: "The cursor of the last answer; without it output comes from the beginning"},
			},
			PropertyOrder: []string{"run_id", "timeout_seconds", "cursor"},
			Required:      []string{"run_id"},
		},
	}
}

func (t *toolset) waitRun(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	id := c.args.required("run_id")
	req := executor.WaitRequest{Cursor: c.args.cursor(), Follow: c.wantsDetails()}
	timeout, given := c.args.seconds("timeout_seconds", 0, maxWait)
	if req.Timeout = timeout; !given {
		req.Timeout = defaultWait
	}
	if c.args.err != nil {
		return nil, c.args.err
	}
	progress := startProgress(ctx, c)
	defer progress.stop()
	req.Output, req.Queued = progress.output(), progress.queued()
	res, err := t.executor.WaitRun(ctx, c.caller, id, req)
	if err != nil {
		return nil, err
	}
	t.log.Info("[MCP] wait_run: "+statusOf(res), "run_id", res.RunID, "session_id", logSession(res.Session))
	if req.Follow {
		return t.followed(res), nil
	}
	return t.state(c, res, req.Cursor), nil
}
