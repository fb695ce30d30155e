package tools

import (
	"context"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	defaultSessions = 20
	maxSessions     = 50
)

type sessionsJSON struct {
	Sessions  []sessionJSON `json:"sessions"`
	Truncated bool          `json:"truncated,omitempty"`
	Usage     usageJSON     `json:"usage"`
	Warnings  []string      `json:"warnings,omitempty"`
}

// usageJSON is what all sessions of the caller hold together.
type usageJSON struct {
	Sessions       int   `json:"sessions"`
	Bytes          int64 `json:"bytes"`
	ClosedSessions int   `json:"closed_sessions"`
	ClosedBytes    int64 `json:"closed_bytes"`
	Files          int   `json:"files"`
	ClosedFiles    int   `json:"closed_files"`
	MaxSessions    int   `json:"max_sessions,omitempty"`
	MaxBytes       int64 `json:"max_bytes,omitempty"`
	MaxFiles       int   `json:"max_files,omitempty"`
}

type sessionJSON struct {
	SessionID      string `json:"session_id"`
	LastUsed       string `json:"last_used"`
	Files          int    `json:"files"`
	FilesTruncated bool   `json:"files_truncated,omitempty"`
	Bytes          int64  `json:"bytes"`
	Live           bool   `json:"live"`
}

func listSessionsTool() *mcp.Tool {
	text := &jsonschema.Schema{Type: "string"}
	return &mcp.Tool{
		Name:        "list_sessions",
		Title:       "List sessions",
		Description: "List your sessions, last used first, with how many files each has. Use it to find an earlier session's id.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
		InputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"limit": {Type: "integer", Minimum: new(1.0), Maximum: new(float64(maxSessions)), Description: "How many to list at most (default: 20)"},
			},
		},
		OutputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"sessions": {
					Type: "array",
					Items: &jsonschema.Schema{
						Type: "object",
						Properties: map[string]*jsonschema.Schema{
							"session_id": text, "last_used": text, "files": {Type: "integer"},
							"files_truncated": {Type: "boolean", Description: "There are more files than were counted"},
							"bytes":           {Type: "integer"},
							"live":            {Type: "boolean", Description: "It has a sandbox now: variables of earlier runs may be there"},
						},
						PropertyOrder: []string{"session_id", "last_used", "files", "files_truncated", "bytes", "live"},
						Required:      []string{"session_id", "last_used", "files", "bytes", "live"},
					},
				},
				"truncated": {Type: "boolean", Description: "There may be more sessions than these"},
				"usage": {
					Type: "object", Description: "What all your sessions take up on the server's disk, as last measured",
					Properties: map[string]*jsonschema.Schema{
						"sessions": {Type: "integer"}, "bytes": {Type: "integer"},
						"closed_sessions": {Type: "integer", Description: "Closed, and kept for a while for links to their files"},
						"closed_bytes":    {Type: "integer"},
						"files":           {Type: "integer", Description: "Directories included"},
						"closed_files":    {Type: "integer"},
						"max_sessions":    {Type: "integer", Description: "The most that you may have; the oldest closed ones go first"},
						"max_bytes":       {Type: "integer"},
						"max_files":       {Type: "integer"},
					},
					PropertyOrder: []string{"sessions", "bytes", "closed_sessions", "closed_bytes", "files", "closed_files", "max_sessions", "max_bytes", "max_files"},
				},
			},
			PropertyOrder: []string{"sessions", "truncated", "usage"},
			Required:      []string{"sessions"},
		},
	}
}

func (t *toolset) listSessions(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	limit := defaultSessions
	if c.args.get("limit", "an integer", &limit); limit < 1 || limit > maxSessions {
		c.args.fail("limit must be between 1 and %d", maxSessions)
	}
	if c.args.err != nil {
		return nil, c.args.err
	}
	list, more, err := t.executor.ListSessions(ctx, c.caller, limit)
	if err != nil {
		return nil, err
	}
	out := sessionsJSON{Sessions: make([]sessionJSON, len(list)), Truncated: more, Warnings: c.args.warnings}
	st := t.executor.Storage(c.caller)
	out.Usage = usageJSON{st.Sessions, st.Bytes, st.ClosedSessions, st.ClosedBytes, st.Files, st.ClosedFiles, st.MaxSessions, st.MaxBytes, st.MaxFiles}
	for i, s := range list {
		out.Sessions[i] = sessionJSON{
			SessionID: s.ID, LastUsed: s.LastUsed.UTC().Format(time.RFC3339), Files: s.Files, FilesTruncated: s.MoreFiles, Bytes: s.Bytes, Live: s.Live,
		}
	}
	return structuredResult(c.client, out), nil
}
