package tools

import (
	"context"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type runnersJSON struct {
	Languages []runnerJSON `json:"languages"`
}

type runnerJSON struct {
	Language string `json:"language"`
	Image    string `json:"image"`
	Version  string `json:"version,omitempty"`
	// For MCP clients:
	Title      string   `json:"title,omitempty"`
	Libraries  []string `json:"libraries,omitempty"`
	Persistent bool     `json:"persistent,omitempty"` // run with a session keeps its state
}

func listRunnersTool() *mcp.Tool {
	text := &jsonschema.Schema{Type: "string"}
	return &mcp.Tool{
		Name:        "list_runners",
		Title:       "List runners",
		Description: "List all available code execution runners and their images",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
		InputSchema: &jsonschema.Schema{Type: "object"},
		OutputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{"languages": {
				Type: "array",
				Items: &jsonschema.Schema{
					Type: "object",
					Properties: map[string]*jsonschema.Schema{
						"language": text, "image": text, "version": text, "title": text, "libraries": {Type: "array", Items: text},
						"persistent": {Type: "boolean", Description: "The tool run, given a session, keeps variables between calls"},
					},
					PropertyOrder: []string{"language", "image", "version", "title", "libraries", "persistent"},
					Required:      []string{"language", "image"},
				},
			}},
			Required: []string{"languages"},
		},
	}
}

func (t *toolset) listRunners(_ context.Context, c call) (*mcp.CallToolResult, error) {
	out := runnersJSON{Languages: []runnerJSON{}}
	for _, r := range t.engine.Runners() {
		entry := runnerJSON{Language: r.Name, Image: r.Image, Version: r.Version}
		if !c.client.plain {
			entry.Title, entry.Libraries, entry.Persistent = r.Title, r.Libraries, len(r.Persistent) > 0
		}
		out.Languages = append(out.Languages, entry)
	}
	return structuredResult(c.client, out), nil
}
