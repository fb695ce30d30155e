package tools

import (
	"context"
	"encoding/base64"
	"fmt"
	"path"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/mediatype"
	"mcp-code-sandbox/internal/workspace"
)

type readArtifactArguments struct {
	SessionID string `json:"session_id" jsonschema:"The session that contains the file"`
	Path      string `json:"path" jsonschema:"Path of the file, such as /mnt/data/chart.png"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"base64: return the bytes as base64 text, even for an image (default: auto)"`
}

// readArtifactJSON is contract 4's result of read_artifact.
type readArtifactJSON struct {
	Path          string  `json:"path"`
	Filename      string  `json:"filename"`
	MIMEType      string  `json:"mime_type"`
	SizeBytes     int64   `json:"size_bytes"`
	ContentBase64 *string `json:"content_base64,omitempty" jsonschema:"The content, unless the result contains an image"`
	SessionID     string  `json:"session_id"`
	warned
}

func (t *toolset) readArtifactTool() *tool {
	tool := newTool[readArtifactArguments, readArtifactJSON](mcp.Tool{
		Name:  "read_artifact",
		Title: "Read an artifact",
		Description: "Read a file from the session's /mnt/data. Use it to look at a chart: a PNG, JPEG, GIF or WebP comes back as an image you can see. " +
			"Other files come back as base64; to look at text or a table, printing it with code is cheaper. Files that are too large have a download_url instead.",
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
	if !c.client.plain && in.Encoding != "base64" {
		if image := t.images.content(a.Name, func() []byte { return a.Content }, maxImageBytes); image != nil {
			res := textResult(out)
			res.Content = append(res.Content, image)
			return res, nil
		}
	}
	out.ContentBase64 = new(base64.StdEncoding.EncodeToString(a.Content))
	return textResult(out), nil
}

type listArtifactsArguments struct {
	SessionID string `json:"session_id" jsonschema:"The session whose files to list"`
}

// listArtifactsJSON is contract 4's result of list_artifacts.
type listArtifactsJSON struct {
	Artifacts []artifactJSON `json:"artifacts"`
	Truncated bool           `json:"truncated,omitempty" jsonschema:"There are more files than listed"`
	SessionID string         `json:"session_id"`
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
	return newStructuredTool(mcp.Tool{
		Name:        "list_artifacts",
		Title:       "List artifacts",
		Description: "List the files in the session's /mnt/data, newest first: uploaded files and files that code wrote.",
		Annotations: &readOnly,
	}, t.listArtifacts)
}

func (t *toolset) listArtifacts(ctx context.Context, c *call, in listArtifactsArguments) (listArtifactsJSON, error) {
	files, truncated, err := t.executor.ListArtifacts(ctx, c.caller, in.SessionID)
	if err != nil {
		return listArtifactsJSON{}, err
	}
	list := artifactsOf(files)
	if !c.client.plain {
		for i, f := range files {
			list[i].ModifiedAt = f.ModTime.UTC().Format(modifiedLayout)
		}
	}
	if c.wantsDetails() {
		c.meta = mcp.Meta{runsKey: runsOf(t.executor.RecentRuns(c.caller, in.SessionID))}
	}
	return listArtifactsJSON{Artifacts: list, Truncated: truncated, SessionID: in.SessionID, warned: warned{c.warnings}}, nil
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
