package tools

import (
	"context"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func cancelRunTool() *mcp.Tool {
	return &mcp.Tool{
		Name:  "cancel_run",
		Title: "Cancel a run",
		Description: "End code that goes on running in the background and get its result, with the output so far. An interpreter that keeps state is interrupted first, " +
			"so that its variables survive. A run that has ended already is left as it is.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), IdempotentHint: true, OpenWorldHint: new(false)},
		InputSchema: &jsonschema.Schema{
			Type:       "object",
			Properties: map[string]*jsonschema.Schema{"run_id": {Type: "string", Description: "The run_id of the result that said status: running or queued"}},
			Required:   []string{"run_id"},
		},
	}
}

func (t *toolset) cancelRun(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	id := c.args.required("run_id")
	if c.args.err != nil {
		return nil, c.args.err
	}
	res, err := t.executor.CancelRun(ctx, c.caller, id)
	if err != nil {
		return nil, err
	}
	t.log.Info("[MCP] cancel_run: "+statusOf(res), "run_id", res.RunID, "session_id", logSession(res.Session))
	return t.detailed(c, t.state(c, res, 0), res), nil
}
