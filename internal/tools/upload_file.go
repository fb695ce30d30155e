package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// codeInvalidBase64 is the only refusal that is not the executor's.
const codeInvalidBase64 executor.Code = "invalid_base64"

// uploadJSON has the fields of contracts 2 and 4. Without content it has an address to send it to instead of a file.
type uploadJSON struct {
	Success   bool      `json:"success"`
	Message   string    `json:"message"`
	File      *fileJSON `json:"file,omitempty"`
	UploadURL string    `json:"upload_url,omitempty"`
	Curl      string    `json:"curl,omitempty"`
	ExpiresAt string    `json:"expires_at,omitempty"`
	SessionID string    `json:"session_id"`
	Path      string    `json:"path"`
	Warnings  []string  `json:"warnings,omitempty"`
}

func uploadFileTool() *mcp.Tool {
	text := func(description string) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "string", Description: description}
	}
	return &mcp.Tool{
		Name:        "upload_file",
		Title:       "Upload a file",
		Description: "Upload a file to the sandbox for analysis. The file will be available in /data for code execution. Use this before running code to provide data files (CSV, JSON, etc.) for analysis. Called without content, it returns a one-time URL and a curl command that sends a local file there directly: use that for large or binary files.",
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)},
		InputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"conversationId": text("Unique identifier for the conversation/session; a new one is made when it is missing"),
				"session_id":     text("Another name for conversationId"),
				"filename":       text("Name of the file to create (e.g., 'data.csv', 'input.json')"),
				"content":        text("Base64 encoded file content"),
				"content_base64": text("Another name for content"),
				"overwrite":      {Type: "boolean", Description: "Replace the file if it exists (default: false)"},
			},
			PropertyOrder: []string{"conversationId", "session_id", "filename", "content", "content_base64", "overwrite"},
			Required:      []string{"filename"},
		},
		OutputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"success": {Type: "boolean"},
				"message": {Type: "string"},
				"file": {
					Type:          "object",
					Properties:    map[string]*jsonschema.Schema{"name": {Type: "string"}, "url": {Type: "string"}},
					PropertyOrder: []string{"name", "url"},
					Required:      []string{"name", "url"},
				},
				"upload_url": text("Where to PUT the content, once"),
				"curl":       text("The command that does it"),
				"expires_at": text("Until when, as RFC 3339"),
				"session_id": {Type: "string"},
				"path":       text("The file's path inside the sandbox"),
			},
			PropertyOrder: []string{"success", "message", "file", "upload_url", "curl", "expires_at", "session_id", "path"},
			Required:      []string{"success", "message", "session_id", "path"},
		},
	}
}

func (t *toolset) uploadFile(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	id := c.args.optional("conversationId")
	name := c.args.required("filename")
	content, hasContent := c.args.text("content")
	overwrite := c.args.flag("overwrite")
	if c.args.err != nil {
		return nil, c.args.err
	}
	if id == "" {
		id = session.NewID()
	}
	log := t.log.With("session_id", logSession(id))
	log.Info(fmt.Sprintf("[MCP] upload_file: conversationId=%s, filename=%s, contentLen=%d, overwrite=%t",
		logSession(id), logFile(name), len(content), overwrite))

	if !hasContent {
		return t.uploadLink(ctx, c, id, name, overwrite)
	}
	data, err := decodeBase64(content)
	if err != nil {
		return nil, &executor.Error{Code: codeInvalidBase64, Message: "The content is not valid base64. Encode the file's bytes with standard base64, or call upload_file without content to get a URL to send them to.", Err: err}
	}
	file, err := t.executor.Upload(ctx, c.caller, executor.UploadRequest{
		Session: id, Name: name, Content: bytes.NewReader(data), Overwrite: overwrite,
	})
	if err != nil {
		return nil, err
	}
	log.Info(fmt.Sprintf("[MCP] upload_file completed successfully: %s, %d bytes", logFile(file.Name), len(data)))
	return structuredResult(c.client, uploadJSON{
		Success:   true,
		Message:   fmt.Sprintf("File '%s' uploaded successfully (%d bytes)", file.Name, len(data)),
		File:      &fileJSON{Name: file.Name, URL: file.URL},
		SessionID: id,
		Path:      executor.DataPath(file.Name),
		Warnings:  c.args.warnings,
	}), nil
}

func (t *toolset) uploadLink(ctx context.Context, c call, id, name string, overwrite bool) (*mcp.CallToolResult, error) {
	address, expires, err := t.executor.UploadURL(ctx, c.caller, id, name, overwrite)
	if err != nil {
		return nil, err
	}
	clean, err := workspace.CleanName(name)
	if err != nil {
		return nil, &executor.Error{Code: executor.CodeInvalidPath, Message: err.Error()}
	}
	until := expires.UTC().Format(time.RFC3339)
	return structuredResult(c.client, uploadJSON{
		Success:   true,
		Message:   fmt.Sprintf("Send the content of '%s' with the curl command. The URL works once, until %s.", clean, until),
		UploadURL: address,
		Curl:      "curl --fail --upload-file " + shellQuote("./"+path.Base(clean)) + " " + shellQuote(address),
		ExpiresAt: until,
		SessionID: id,
		Path:      executor.DataPath(clean),
		Warnings:  c.args.warnings,
	}), nil
}

// decodeBase64 takes standard base64, with line breaks and with or without padding.
func decodeBase64(s string) ([]byte, error) {
	if strings.HasSuffix(s, "=") || len(s)%4 == 0 {
		return base64.StdEncoding.DecodeString(s)
	}
	if data, err := base64.StdEncoding.DecodeString(s); err == nil {
		return data, nil
	}
	return base64.RawStdEncoding.DecodeString(s)
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func logFile(name string) string {
	clean, err := workspace.CleanName(name)
	if err != nil {
		return "(invalid)"
	}
	return clean
}
