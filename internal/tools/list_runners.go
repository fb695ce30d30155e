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
					Type:          "object",
					Properties:    map[string]*jsonschema.Schema{"language": text, "image": text, "version": text},
					PropertyOrder: []string{"language", "image", "version"},
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
		out.Languages = append(out.Languages, runnerJSON{Language: r.Name, Image: r.Image, Version: r.Version})
	}
	return structuredResult(c.client, out), nil
}
