package tools

import (
	"context"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/workspace"
)

type deleteJSON struct {
	Deleted   bool     `json:"deleted"`
	Filename  string   `json:"filename"`
	Path      string   `json:"path"`
	SessionID string   `json:"session_id"`
	Warnings  []string `json:"warnings,omitempty"`
}

func deleteFileTool() *mcp.Tool {
	text := &jsonschema.Schema{Type: "string"}
	return &mcp.Tool{
		Name:        "delete_file",
		Title:       "Delete a file",
		Description: "Delete one file of the session's /mnt/data, for good. Links to it stop working. To delete many, or directories, use code.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)},
		InputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"session_id": sessionSchema("The session that has the file"),
				"filename":   {Type: "string", Description: "Path of the file, such as plots/old.png or /mnt/data/plots/old.png"},
			},
			PropertyOrder: []string{"session_id", "filename"},
			Required:      []string{"session_id", "filename"},
		},
		OutputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"deleted": {Type: "boolean"}, "filename": text, "path": text, "session_id": text,
			},
			PropertyOrder: []string{"deleted", "filename", "path", "session_id"},
			Required:      []string{"deleted", "filename", "path", "session_id"},
		},
	}
}

func (t *toolset) deleteFile(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	id := c.args.required("session_id")
	name := c.args.required("filename")
	if c.args.err != nil {
		return nil, c.args.err
	}
	t.log.Info(fmt.Sprintf("[MCP] delete_file: session_id=%s, filename=%s", logSession(id), logFile(name)), "session_id", logSession(id))
	if err := t.executor.DeleteFile(ctx, c.caller, id, name); err != nil {
		return nil, err
	}
	clean, err := workspace.CleanName(name)
	if err != nil {
		return nil, err // the executor has accepted it
	}
	return structuredResult(c.client, deleteJSON{Deleted: true, Filename: clean, Path: executor.DataPath(clean), SessionID: id, Warnings: c.args.warnings}), nil
}
