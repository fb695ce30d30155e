package tools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// codeInvalidBase64 is the only code that does not come from the executor.
const codeInvalidBase64 executor.Code = "invalid_base64"

// uploadFileArguments are those of contracts 2 and 4. SessionID and ContentBase64 are aliases, so
// their values arrive in ConversationID and Content.
type uploadFileArguments struct {
	ConversationID string  `json:"conversationId,omitempty" jsonschema:"Unique identifier for the conversation/session; without it, a new one is created"`
	SessionID      string  `json:"session_id,omitempty" jsonschema:"Another name for conversationId"`
	Filename       string  `json:"filename" jsonschema:"Name of the file to create (e.g., 'data.csv', 'input.json')"`
	Content        *string `json:"content,omitempty" jsonschema:"Base64 encoded file content"`
	ContentBase64  string  `json:"content_base64,omitempty" jsonschema:"Another name for content"`
	Overwrite      bool    `json:"overwrite,omitempty" jsonschema:"Replace the file if it exists (default: false)"`
}

// uploadFileJSON has the fields of contracts 2 and 4. Without content, it has a URL to send the
// content to instead of a file.
type uploadFileJSON struct {
	Success   bool      `json:"success"`
	Message   string    `json:"message"`
	File      *fileJSON `json:"file,omitempty"`
	UploadURL string    `json:"upload_url,omitempty" jsonschema:"URL for a single PUT of the content"`
	Curl      string    `json:"curl,omitempty" jsonschema:"A curl command that uploads the file"`
	ExpiresAt string    `json:"expires_at,omitempty" jsonschema:"When upload_url expires (RFC 3339)"`
	SessionID string    `json:"session_id"`
	Path      string    `json:"path" jsonschema:"The file's path inside the sandbox"`
	warned
}

func (t *toolset) uploadFileTool() *tool {
	return newStructuredTool(mcp.Tool{
		Name:  "upload_file",
		Title: "Upload a file",
		Description: "Upload a file to the sandbox for analysis. The file will be available in /data for code execution. " +
			"Use this before running code to provide data files (CSV, JSON, etc.) for analysis. Called without content, it returns " +
			"a one-time URL and a curl command that sends a local file there directly: use that for large or binary files.",
		Annotations: &destructive,
	}, t.uploadFile)
}

func (t *toolset) uploadFile(ctx context.Context, c *call, in uploadFileArguments) (uploadFileJSON, error) {
	id := cmp.Or(in.ConversationID, session.NewID())
	content := ""
	if in.Content != nil {
		content = *in.Content
	}
	log := t.log.With("session_id", logSession(id))
	log.Info(fmt.Sprintf("[MCP] upload_file: conversationId=%s, filename=%s, contentLen=%d, overwrite=%t",
		logSession(id), logName(in.Filename), len(content), in.Overwrite))
	if in.Content == nil {
		return t.uploadLink(ctx, c, id, in)
	}
	data, err := decodeBase64(content)
	if err != nil {
		return uploadFileJSON{}, &executor.Error{Code: codeInvalidBase64, Err: err,
			Message: "The content is not valid base64. Encode the file's bytes with standard base64, " +
				"or call upload_file without content to get a URL to send them to."}
	}
	file, err := t.executor.Upload(ctx, c.caller, executor.UploadRequest{
		Session: id, Name: in.Filename, Content: bytes.NewReader(data), Overwrite: in.Overwrite,
	})
	if err != nil {
		return uploadFileJSON{}, err
	}
	log.Info(fmt.Sprintf("[MCP] upload_file completed successfully: %s, %d bytes", logName(file.Name), len(data)))
	return uploadFileJSON{
		Success:   true,
		Message:   fmt.Sprintf("File '%s' uploaded successfully (%d bytes)", file.Name, len(data)),
		File:      &fileJSON{Name: file.Name, URL: file.URL},
		SessionID: id,
		Path:      executor.DataPath(file.Name),
		warned:    warned{c.warnings},
	}, nil
}

// uploadLink returns a URL that accepts the content once.
func (t *toolset) uploadLink(ctx context.Context, c *call, id string, in uploadFileArguments) (uploadFileJSON, error) {
	address, expires, err := t.executor.UploadURL(ctx, c.caller, id, in.Filename, in.Overwrite)
	if err != nil {
		return uploadFileJSON{}, err
	}
	name, err := workspace.CleanName(in.Filename)
	if err != nil {
		return uploadFileJSON{}, &executor.Error{Code: executor.CodeInvalidPath, Message: err.Error()}
	}
	until := expires.UTC().Format(time.RFC3339)
	return uploadFileJSON{
		Success:   true,
		Message:   fmt.Sprintf("Send the content of '%s' with the curl command. The URL works once, until %s.", name, until),
		UploadURL: address,
		Curl:      "curl --fail --upload-file " + shellQuote("./"+path.Base(name)) + " " + shellQuote(address),
		ExpiresAt: until,
		SessionID: id,
		Path:      executor.DataPath(name),
		warned:    warned{c.warnings},
	}, nil
}

// decodeBase64 decodes standard base64 with line breaks, with or without padding.
func decodeBase64(s string) ([]byte, error) {
	if data, err := base64.StdEncoding.DecodeString(s); err == nil {
		return data, nil
	}
	return base64.RawStdEncoding.DecodeString(s)
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
