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

// noArguments is the schema of a tool without arguments. It has properties, since some clients read them unasked.
func noArguments() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}}
}

func listRunnersTool(withRun bool) *mcp.Tool {
	text := &jsonschema.Schema{Type: "string"}
	persistent := "It can keep variables between runs"
	if withRun {
		persistent = "The tool run, given a session, keeps variables between calls"
	}
	return &mcp.Tool{
		Name:        "list_runners",
		Title:       "List runners",
		Description: "List all available code execution runners and their images",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
		InputSchema: noArguments(),
		OutputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{"languages": {
				Type: "array",
				Items: &jsonschema.Schema{
					Type: "object",
					Properties: map[string]*jsonschema.Schema{
						"language": text, "image": text, "version": text, "title": text, "libraries": {Type: "array", Items: text},
						"persistent": {Type: "boolean", Description: persistent},
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
	for _, r := range t.executor.Runners() {
		entry := runnerJSON{Language: r.Name, Image: r.Image, Version: r.Version}
		if !c.client.plain {
			entry.Title, entry.Libraries, entry.Persistent = r.Title, r.Libraries, len(r.Persistent) > 0
		}
		out.Languages = append(out.Languages, entry)
	}
	return structuredResult(c.client, out), nil
}
