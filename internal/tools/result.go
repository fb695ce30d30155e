package tools

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/mediatype"
)

// maxLinks bounds the resource links of one result. The JSON lists more files than that.
const maxLinks = 20

// fileJSON is contract 1's FileDescriptor.
type fileJSON struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// runCodeJSON is contract 1's RunCodeResult, and what else there is to say about a run.
type runCodeJSON struct {
	Success        bool       `json:"success"`
	Output         string     `json:"output"`
	Files          []fileJSON `json:"files"`
	FilesTruncated bool       `json:"files_truncated,omitempty"`
	ExitCode       *int       `json:"exit_code,omitempty"`
	Cause          string     `json:"cause,omitempty"`
	Hint           string     `json:"hint,omitempty"`
	RunID          string     `json:"run_id,omitempty"`
	DurationMS     *int64     `json:"duration_ms,omitempty"`
	Error          string     `json:"error,omitempty"`
	Message        string     `json:"message,omitempty"`
	ConnectURL     string     `json:"connect_url,omitempty"`
	RetryAfter     float64    `json:"retry_after_seconds,omitempty"`
	Warnings       []string   `json:"warnings,omitempty"`
}

// errorJSON is contract 4's error.
type errorJSON struct {
	Error       string   `json:"error"`
	Message     string   `json:"message"`
	SizeBytes   int64    `json:"size_bytes,omitempty"`
	DownloadURL string   `json:"download_url,omitempty"`
	ConnectURL  string   `json:"connect_url,omitempty"`
	RetryAfter  float64  `json:"retry_after_seconds,omitempty"`
	Warnings    []string `json:"warnings,omitempty"`
}

// encode is contract 2's form of a result: JSON indented by two spaces. What it is given cannot fail to encode.
func encode(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // links stay readable
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		panic("tools: encode a result: " + err.Error())
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// textResult is a result of one text item.
func textResult(v any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: encode(v)}}}
}

// structuredResult is a result of one text item, and the same as structured content for those who know it.
func structuredResult(c client, v any) *mcp.CallToolResult {
	res := textResult(v)
	if c.atLeast(version20250618) {
		res.StructuredContent = v
	}
	return res
}

// errorResult is a refusal of the executor's. That of run_code has contract 1's fields as well.
func (c call) errorResult(tool string, e *executor.Error) *mcp.CallToolResult {
	warnings := c.args.warnings
	var v any = errorJSON{Error: e.Code, Message: e.Message, SizeBytes: e.SizeBytes, DownloadURL: e.DownloadURL, ConnectURL: e.ConnectURL,
		RetryAfter: e.RetryAfter.Seconds(), Warnings: warnings}
	if tool == "run_code" {
		v = runCodeJSON{Output: e.Message, Files: []fileJSON{}, Error: e.Code, Message: e.Message, ConnectURL: e.ConnectURL,
			RetryAfter: e.RetryAfter.Seconds(), Warnings: warnings}
	}
	res := textResult(v)
	res.IsError = true
	return res
}

// validUTF8 is a program's output as text.
func validUTF8(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// combine is contract 1 §8.3.
func combine(stdout, stderr []byte) string {
	combined := validUTF8(stdout)
	if len(stderr) > 0 {
		if combined != "" {
			combined += "\n"
		}
		combined += validUTF8(stderr)
	}
	return combined
}

// linksKey in the _meta of a call asks for resource links: true.
const linksKey = "mcp-code-sandbox/resource_links"

// links are the newest files of a run as resource links, which resources/read takes, for clients that ask for them. Some
// frameworks pass links on to the model's provider, which refuses them. Their signed address goes with them, for people.
func (t *toolset) links(c call, res executor.Result) []mcp.Content {
	wanted, _ := c.req.Params.Meta[linksKey].(bool)
	if !wanted && !t.resourceLinks || !c.client.atLeast(version20250618) {
		return nil
	}
	var out []mcp.Content
	for _, f := range res.Files[:min(len(res.Files), maxLinks)] {
		link := &mcp.ResourceLink{
			URI:      fileURI(f.Session, f.Name),
			Name:     validUTF8([]byte(f.Name)),
			MIMEType: mediatype.ByName(f.Name),
			Size:     &f.Size,
		}
		if f.URL != "" {
			link.Description = "Download: " + f.URL
		}
		out = append(out, link)
	}
	return out
}
