package tools

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/mediatype"
)

// textResult returns a result of one text item with v as JSON.
func textResult(v any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: encode(v)}}}
}

// encode returns contract 2's form of a result: JSON indented by two spaces. v is one of our types,
// so an error is a bug.
func encode(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // keeps links readable
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		panic("tools: encode a result: " + err.Error())
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// errorJSON is contract 4's error.
type errorJSON struct {
	Error       string  `json:"error"`
	Message     string  `json:"message"`
	SizeBytes   int64   `json:"size_bytes,omitempty"`
	DownloadURL string  `json:"download_url,omitempty"`
	ConnectURL  string  `json:"connect_url,omitempty"`
	RetryAfter  float64 `json:"retry_after_seconds,omitempty"`
	warned
}

// errorResult returns a refusal by the executor. For run_code, it adds contract 1's fields.
func errorResult(tool string, e *executor.Error, warnings []string) *mcp.CallToolResult {
	var v any = errorJSON{
		Error: e.Code, Message: e.Message, SizeBytes: e.SizeBytes, DownloadURL: e.DownloadURL, ConnectURL: e.ConnectURL,
		RetryAfter: e.RetryAfter.Seconds(), warned: warned{warnings},
	}
	if tool == "run_code" {
		v = runCodeJSON{
			Output: e.Message, Files: []fileJSON{}, Error: e.Code, Message: e.Message, ConnectURL: e.ConnectURL,
			RetryAfter: e.RetryAfter.Seconds(), warned: warned{warnings},
		}
	}
	res := textResult(v)
	res.IsError = true
	return res
}

// validUTF8 returns output as text.
func validUTF8(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// combine joins the streams as contract 1 §8.3 says.
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

const (
	linksKey = "mcp-code-sandbox/resource_links" // true in the _meta of a call asks for resource links
	maxLinks = 20                                // the JSON lists more files
)

// links returns resource links to the newest files of a run, for resources/read, and their download
// URLs, for people. They are optional: some frameworks pass links on to the model's provider, which
// refuses them.
func (t *toolset) links(c *call, res executor.Result) (links []mcp.Content) {
	wanted, _ := c.req.Params.Meta[linksKey].(bool)
	if !wanted && !t.resourceLinks || !c.client.atLeast(version20250618) {
		return nil
	}
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
		links = append(links, link)
	}
	return links
}
