package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/digest"
	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/mediatype"
	"mcp-code-sandbox/internal/workspace"
)

type readArtifactArguments struct {
	SessionID string `json:"session_id" jsonschema:"The session that contains the file"`
	Path      string `json:"path" jsonschema:"Path of the file, such as /mnt/data/chart.png"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"base64: return any file as base64 (default: auto)"`
}

// readArtifactJSON is contract 4's result of read_artifact.
type readArtifactJSON struct {
	Path          string  `json:"path"`
	Filename      string  `json:"filename"`
	MIMEType      string  `json:"mime_type"`
	SizeBytes     int64   `json:"size_bytes"`
	ContentBase64 *string `json:"content_base64,omitempty" jsonschema:"The content, unless the result contains it in another form"`
	SessionID     string  `json:"session_id"`
	warned
}

func (t *toolset) readArtifactTool() *tool {
	tool := newTool[readArtifactArguments, readArtifactJSON](mcp.Tool{
		Name:  "read_artifact",
		Title: "Read an artifact",
		Description: "Read a file from the session's /mnt/data. A PNG, JPEG, GIF or WebP comes back as an image you can see, text as text, " +
			"a PDF as text and resource, anything else as base64. Of a long text or table, print a part with code instead. A file that is too large has a download_url.",
		Annotations: &readOnly,
	}, t.readArtifact)
	setEnum(tool.input, "encoding", []string{"auto", "base64"})
	return tool
}

func (t *toolset) readArtifact(ctx context.Context, c *call, in readArtifactArguments) (*mcp.CallToolResult, error) {
	if in.Encoding != "" && in.Encoding != "auto" && in.Encoding != "base64" {
		return nil, argumentError("encoding must be auto or base64")
	}
	t.logFile("read_artifact", "path", in.SessionID, in.Path)
	a, err := t.executor.ReadArtifact(ctx, c.caller, in.SessionID, in.Path)
	if err != nil {
		return nil, err
	}
	f := artifactOf(a.FileLink)
	out := readArtifactJSON{
		Path: f.Path, Filename: f.Filename, MIMEType: f.MIMEType, SizeBytes: f.SizeBytes, SessionID: in.SessionID,
		warned: warned{c.warnings},
	}
	if c.client.plain || in.Encoding == "base64" {
		out.ContentBase64 = new(base64.StdEncoding.EncodeToString(a.Content))
		return textResult(out), nil
	}
	if image := t.images.content(c, a.Name, func() []byte { return a.Content }, maxImageBytes); image != nil {
		return withContent(out, image), nil
	}
	if text := textOf(f.MIMEType, a.Content); text != "" {
		return withContent(out, &mcp.TextContent{Text: t.limited(text)}), nil
	}
	if text := t.pdfText(ctx, c, in.SessionID, a); text != "" {
		file := &mcp.ResourceContents{URI: fileURI(in.SessionID, a.Name), MIMEType: f.MIMEType, Blob: a.Content}
		return withContent(out, &mcp.TextContent{Text: t.limited(text)}, &mcp.EmbeddedResource{Resource: file}), nil
	}
	out.ContentBase64 = new(base64.StdEncoding.EncodeToString(a.Content))
	return textResult(out), nil
}

// withContent returns a JSON result with further items.
func withContent(out readArtifactJSON, items ...mcp.Content) *mcp.CallToolResult {
	res := textResult(out)
	res.Content = append(res.Content, items...)
	return res
}

// limited leaves out the middle of a text that is long for a model.
func (t *toolset) limited(text string) string {
	return digest.Limit([]digest.Text{{Text: text}}, t.resultBytes, func(omitted int64) string {
		return fmt.Sprintf("\n… [%d bytes omitted: print the part that you need with code] …\n", omitted)
	})[0]
}

// pdfTimeout bounds the time for extracting the text of a PDF.
const pdfTimeout = 20 * time.Second

// pdfCode prints the text of a PDF. It runs in the session's sandbox, because a PDF is hostile, and
// does not import modules that the session has in /data.
const pdfCode = `import os, sys
sys.path = [p for p in sys.path if p.startswith((sys.prefix, sys.base_prefix))]
from pypdf import PdfReader
for number, page in enumerate(PdfReader(os.environ["PDF"]).pages, 1):
    if text := page.extract_text().strip():
        print(f"[page {number}]", text, sep="\n", flush=True)
`

// pdfText returns the text of a PDF, as far as it can be extracted, or "" for any other file.
func (t *toolset) pdfText(ctx context.Context, c *call, sessionID string, a executor.Artifact) string {
	python, ok := t.executor.Runners().Lookup("python")
	if !ok || !isPDF(a.Content) {
		return ""
	}
	res, err := t.executor.Run(ctx, c.caller, executor.Request{
		Session: sessionID, Runner: python.Name, Code: pdfCode, Env: map[string]string{"PDF": "/data/" + a.Name},
		Timeout: pdfTimeout, Tool: "read_artifact", Internal: true,
	})
	if err != nil {
		t.log.InfoContext(ctx, "[MCP] read_artifact: cannot extract the text of a PDF", "session_id", logSession(sessionID), "error", err)
		return ""
	}
	return strings.TrimSpace(digest.Clean(validUTF8(res.Stdout)))
}

// textOf returns the text of a file, or "" if it is not text. Text that is neither UTF-8 nor UTF-16
// with a byte order mark is read as Windows-1252, with a note.
func textOf(mimeType string, content []byte) string {
	if text, ok := utf16Text(content); ok {
		return text
	}
	switch {
	case len(content) == 0 || isPDF(content) || bytes.IndexByte(content, 0) >= 0:
		return ""
	case isText(content):
		return string(content)
	case !strings.HasPrefix(mimeType, "text/"):
		return ""
	}
	runes := make([]rune, len(content))
	for i, b := range content {
		if runes[i] = rune(b); b >= 0x80 && b < 0xa0 {
			runes[i] = windows1252[b-0x80]
		}
	}
	return "[not UTF-8, shown as Windows-1252]\n" + string(runes)
}

// windows1252 are the characters from 0x80 to 0x9F. The others are those of Latin-1.
var windows1252 = []rune("€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ")

// utf16Text returns text that begins with a byte order mark.
func utf16Text(content []byte) (text string, ok bool) {
	order := map[string]binary.ByteOrder{"\xff\xfe": binary.LittleEndian, "\xfe\xff": binary.BigEndian}[string(content[:min(2, len(content))])]
	if order == nil || len(content)%2 != 0 {
		return "", false
	}
	units := make([]uint16, len(content)/2-1)
	for i := range units {
		units[i] = order.Uint16(content[2*i+2:])
	}
	text = string(utf16.Decode(units))
	return text, isText([]byte(text))
}

func isPDF(content []byte) bool { return bytes.HasPrefix(content, []byte("%PDF-")) }

type listArtifactsArguments struct {
	SessionID string `json:"session_id" jsonschema:"The session whose files to list"`
	Prefix    string `json:"prefix,omitempty" jsonschema:"List only paths that begin with this, such as plots/"`
	Limit     int    `json:"limit,omitempty" jsonschema:"Maximum number of files"`
	Cursor    string `json:"cursor,omitempty" jsonschema:"The next_cursor of the last answer"`
}

// listArtifactsJSON is contract 4's result of list_artifacts.
type listArtifactsJSON struct {
	Artifacts []artifactJSON `json:"artifacts"`
	Truncated bool           `json:"truncated,omitempty" jsonschema:"There are more files than listed"`
	// Only for a call with prefix, limit or cursor:
	Total      *int   `json:"total,omitempty" jsonschema:"How many files there are, from the cursor on"`
	NextCursor string `json:"next_cursor,omitempty" jsonschema:"The cursor for the next call, if there are more"`
	SessionID  string `json:"session_id"`
	warned
}

// artifactJSON is a file as contract 4 describes it.
type artifactJSON struct {
	Path        string `json:"path"`
	Filename    string `json:"filename"`
	SizeBytes   int64  `json:"size_bytes"`
	MIMEType    string `json:"mime_type"`
	DownloadURL string `json:"download_url,omitempty"`
	ModifiedAt  string `json:"modified_at,omitempty"` // only list_artifacts, for MCP clients
}

// modifiedLayout is RFC 3339 with milliseconds.
const modifiedLayout = "2006-01-02T15:04:05.000Z07:00"

func (t *toolset) listArtifactsTool() *tool {
	tool := newStructuredTool(mcp.Tool{
		Name:        "list_artifacts",
		Title:       "List artifacts",
		Description: "List the files in the session's /mnt/data, newest first: uploaded files and files that code wrote.",
		Annotations: &readOnly,
	}, t.listArtifacts)
	return tool.limit("limit", 1, executor.MaxArtifacts)
}

func (t *toolset) listArtifacts(ctx context.Context, c *call, in listArtifactsArguments) (listArtifactsJSON, error) {
	opt, err := listOptions(in)
	if err != nil {
		return listArtifactsJSON{}, err
	}
	found, err := t.executor.ListArtifacts(ctx, c.caller, in.SessionID, opt)
	if err != nil {
		return listArtifactsJSON{}, err
	}
	list := artifactsOf(found.Files)
	if !c.client.plain {
		for i, f := range found.Files {
			list[i].ModifiedAt = f.ModTime.UTC().Format(modifiedLayout)
		}
	}
	if c.wantsDetails() {
		c.meta = mcp.Meta{runsKey: runsOf(t.executor.RecentRuns(c.caller, in.SessionID))}
	}
	out := listArtifactsJSON{Artifacts: list, Truncated: found.More, SessionID: in.SessionID, warned: warned{c.warnings}}
	if in.Prefix != "" || in.Limit > 0 || in.Cursor != "" {
		out.Total = &found.Total
		if n := len(found.Files); found.More && n > 0 {
			out.NextCursor = encodeCursor(found.Files[n-1])
		}
	}
	return out, nil
}

// workspacePrefix is the beginning of a path inside the sandbox.
var workspacePrefix = regexp.MustCompile(`^(?:\./|/(?:mnt/data|data|workspace)(?:/|$))`)

// listOptions returns what a call asks for.
func listOptions(in listArtifactsArguments) (executor.ListOptions, error) {
	opt := executor.ListOptions{Prefix: workspacePrefix.ReplaceAllString(in.Prefix, ""), Limit: in.Limit}
	if in.Cursor != "" {
		after, err := decodeCursor(in.Cursor)
		if err != nil || after.Session != in.SessionID {
			return opt, argumentError("cursor must be the next_cursor of an earlier call for this session")
		}
		opt.After = after
	}
	return opt, nil
}

func artifactsOf(files []executor.FileLink) []artifactJSON {
	list := make([]artifactJSON, len(files))
	for i, f := range files {
		list[i] = artifactOf(f)
	}
	return list
}

func artifactOf(f executor.FileLink) artifactJSON {
	name := validUTF8([]byte(f.Name))
	return artifactJSON{
		Path: executor.DataPath(name), Filename: path.Base(name), SizeBytes: f.Size,
		MIMEType: mediatype.ByName(name), DownloadURL: f.URL,
	}
}

type deleteFileArguments struct {
	SessionID string `json:"session_id" jsonschema:"The session that contains the file"`
	Filename  string `json:"filename" jsonschema:"Path of the file, such as plots/old.png or /mnt/data/plots/old.png"`
}

type deleteFileJSON struct {
	Deleted   bool   `json:"deleted"`
	Filename  string `json:"filename"`
	Path      string `json:"path"`
	SessionID string `json:"session_id"`
	warned
}

func (t *toolset) deleteFileTool() *tool {
	return newStructuredTool(mcp.Tool{
		Name:        "delete_file",
		Title:       "Delete a file",
		Description: "Permanently delete one file from the session's /mnt/data. Links to it stop working. To delete many files, or directories, use code.",
		Annotations: &destructive,
	}, t.deleteFile)
}

func (t *toolset) deleteFile(ctx context.Context, c *call, in deleteFileArguments) (deleteFileJSON, error) {
	t.logFile("delete_file", "filename", in.SessionID, in.Filename)
	if err := t.executor.DeleteFile(ctx, c.caller, in.SessionID, in.Filename); err != nil {
		return deleteFileJSON{}, err
	}
	name, err := workspace.CleanName(in.Filename)
	if err != nil {
		return deleteFileJSON{}, err // cannot happen: the executor accepted the name
	}
	return deleteFileJSON{
		Deleted: true, Filename: name, Path: executor.DataPath(name), SessionID: in.SessionID, warned: warned{c.warnings},
	}, nil
}

func (t *toolset) logFile(tool, argument, sessionID, name string) {
	id := logSession(sessionID)
	t.log.Info(fmt.Sprintf("[MCP] %s: session_id=%s, %s=%s", tool, id, argument, logName(name)), "session_id", id)
}

// logName returns a file's name for the log, which never contains an invalid name.
func logName(name string) string {
	clean, err := workspace.CleanName(name)
	if err != nil {
		return "(invalid)"
	}
	return clean
}
