package tools

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/mediatype"
)

// readJSON is contract 4's result of read_artifact.
type readJSON struct {
	Path          string  `json:"path"`
	Filename      string  `json:"filename"`
	MIMEType      string  `json:"mime_type"`
	SizeBytes     int64   `json:"size_bytes"`
	ContentBase64 *string `json:"content_base64,omitempty"` // left out where the client gets an image instead
	SessionID     string  `json:"session_id"`

	Warnings []string `json:"warnings,omitempty"`
}

// listJSON is contract 4's result of list_artifacts.
type listJSON struct {
	Artifacts []artifactJSON `json:"artifacts"`
	Truncated bool           `json:"truncated,omitempty"`
	SessionID string         `json:"session_id"`
	Warnings  []string       `json:"warnings,omitempty"`
}

// modifiedLayout is RFC 3339 with milliseconds.
const modifiedLayout = "2006-01-02T15:04:05.000Z07:00"

// closeJSON is contract 4's result of close_session.
type closeJSON struct {
	Status    string   `json:"status"`
	SessionID string   `json:"session_id"`
	Warnings  []string `json:"warnings,omitempty"`
}

func sessionSchema(description string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Description: description}
}

func readArtifactTool() *mcp.Tool {
	return &mcp.Tool{
		Name:  "read_artifact",
		Title: "Read an artifact",
		Description: "Read a file from the session's /mnt/data. Use it to look at a chart: a PNG, JPEG, GIF or WebP comes back as an image you can see. " +
			"Other files come back as base64; to look at text or a table, printing it with code is cheaper. Files that are too large have a download_url instead.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
		InputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"session_id": sessionSchema("The session that has the file"),
				"path":       {Type: "string", Description: "Path of the file, such as /mnt/data/chart.png"},
				"encoding":   {Type: "string", Enum: []any{"auto", "base64"}, Description: "base64: the bytes as base64 text, of an image too (default: auto)"},
			},
			PropertyOrder: []string{"session_id", "path", "encoding"},
			Required:      []string{"session_id", "path"},
		},
	}
}

func (t *toolset) readArtifact(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	id := c.args.required("session_id")
	name := c.args.required("path")
	encoding, _ := c.args.text("encoding")
	if encoding != "" && encoding != "auto" && encoding != "base64" {
		c.args.fail("encoding must be auto or base64")
	}
	if c.args.err != nil {
		return nil, c.args.err
	}
	t.log.Info(fmt.Sprintf("[MCP] read_artifact: session_id=%s, path=%s", logSession(id), logFile(name)), "session_id", logSession(id))
	a, err := t.executor.ReadArtifact(ctx, c.caller, id, name)
	if err != nil {
		return nil, err
	}
	f := artifactOf(a.FileLink)
	out := readJSON{Path: f.Path, Filename: f.Filename, MIMEType: f.MIMEType, SizeBytes: f.SizeBytes, SessionID: id, Warnings: c.args.warnings}
	if !c.client.plain && encoding != "base64" {
		if picture := t.images.content(a.Name, a.Content, maxImageBytes); picture != nil {
			res := textResult(out)
			res.Content = append(res.Content, picture)
			return res, nil
		}
	}
	out.ContentBase64 = new(base64.StdEncoding.EncodeToString(a.Content))
	return textResult(out), nil
}

// imageType returns the type of an image that models can look at. The content decides, and not the name that hostile code gave it: a
// client that is told a wrong type may refuse the whole conversation.
func imageType(name string, content []byte) (string, bool) {
	kind := http.DetectContentType(content)
	ok := strings.HasPrefix(mediatype.ByName(name), "image/") && slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp"}, kind)
	return kind, ok
}

func listArtifactsTool() *mcp.Tool {
	text := &jsonschema.Schema{Type: "string"}
	return &mcp.Tool{
		Name:        "list_artifacts",
		Title:       "List artifacts",
		Description: "List the files in the session's /mnt/data, newest first: what was uploaded and what code has made.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: new(false)},
		InputSchema: &jsonschema.Schema{
			Type:       "object",
			Properties: map[string]*jsonschema.Schema{"session_id": sessionSchema("The session whose files to list")},
			Required:   []string{"session_id"},
		},
		OutputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"artifacts": {
					Type: "array",
					Items: &jsonschema.Schema{
						Type: "object",
						Properties: map[string]*jsonschema.Schema{
							"path": text, "filename": text, "size_bytes": {Type: "integer"}, "mime_type": text, "download_url": text, "modified_at": text,
						},
						PropertyOrder: []string{"path", "filename", "size_bytes", "mime_type", "download_url", "modified_at"},
						Required:      []string{"path", "filename", "size_bytes", "mime_type"},
					},
				},
				"truncated":  {Type: "boolean", Description: "There are more files than these"},
				"session_id": text,
			},
			PropertyOrder: []string{"artifacts", "truncated", "session_id"},
			Required:      []string{"artifacts", "session_id"},
		},
	}
}

func (t *toolset) listArtifacts(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	id := c.args.required("session_id")
	if c.args.err != nil {
		return nil, c.args.err
	}
	files, truncated, err := t.executor.ListArtifacts(ctx, c.caller, id)
	if err != nil {
		return nil, err
	}
	list := artifactsOf(files)
	if !c.client.plain {
		for i, f := range files {
			list[i].ModifiedAt = f.ModTime.UTC().Format(modifiedLayout)
		}
	}
	out := structuredResult(c.client, listJSON{Artifacts: list, Truncated: truncated, SessionID: id, Warnings: c.args.warnings})
	if c.wantsDetails() {
		out.Meta = mcp.Meta{runsKey: runsOf(t.executor.RecentRuns(c.caller, id))}
	}
	return out, nil
}

func closeSessionTool() *mcp.Tool {
	return &mcp.Tool{
		Name:  "close_session",
		Title: "Close a session",
		Description: "End a session when its work is done: what still runs in it is stopped and its files are no longer available to code. " +
			"Download links that were handed out go on working for a while. The same id used again starts an empty session.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)},
		InputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"session_id":   sessionSchema("The session to close"),
				"revoke_links": {Type: "boolean", Description: "End the session's download links at once, also those of an earlier session of this id (only for logged-in users)"},
			},
			PropertyOrder: []string{"session_id", "revoke_links"},
			Required:      []string{"session_id"},
		},
		OutputSchema: &jsonschema.Schema{
			Type:          "object",
			Properties:    map[string]*jsonschema.Schema{"status": {Type: "string"}, "session_id": {Type: "string"}},
			PropertyOrder: []string{"status", "session_id"},
			Required:      []string{"status", "session_id"},
		},
	}
}

func (t *toolset) closeSession(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	id := c.args.required("session_id")
	revoke := c.args.flag("revoke_links")
	if c.args.err != nil {
		return nil, c.args.err
	}
	t.log.Info("[MCP] close_session", "session_id", logSession(id))
	end := t.executor.CloseSession
	if revoke {
		end = t.executor.CloseAndRevoke
	}
	if err := end(ctx, c.caller, id); err != nil {
		return nil, err
	}
	return structuredResult(c.client, closeJSON{Status: "closed", SessionID: id, Warnings: c.args.warnings}), nil
}
