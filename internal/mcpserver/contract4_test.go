package mcpserver_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/workspace"
)

// pixel is the smallest PNG.
const pixel = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"

func link(name string, size int64) executor.FileLink {
	return executor.FileLink{File: workspace.File{Name: name, Size: size}, URL: "http://h:8080/files/sess_1/" + name + "?sig=5ec2e7"}
}

// compact returns the only text item of a plain caller's answer, without white space, and whether
// it is an error.
func compact(t *testing.T, answer string) (text string, isError bool) {
	t.Helper()
	var reply struct {
		Result struct {
			Content           []struct{ Type, Text string }
			StructuredContent any
			IsError           bool
		}
	}
	err := json.Unmarshal([]byte(answer), &reply)
	if err != nil || len(reply.Result.Content) != 1 || reply.Result.StructuredContent != nil {
		t.Fatalf("a plain caller gets one text item: %v in %s", err, answer)
	}
	text = regexp.MustCompile(`\n *`).ReplaceAllString(reply.Result.Content[0].Text, "")
	return strings.ReplaceAll(text, `": `, `":`), reply.Result.IsError
}

// TestContract4 checks contract 4's examples, as a plain caller sees them.
func TestContract4(t *testing.T) {
	p := newProduct(t)
	ran := executor.Result{Session: "sess_1", RunID: "run_20260206T123456Z_a1b2", Runner: "python", Duration: 1340 * time.Millisecond, Timeout: time.Minute}
	run := func(change func(*executor.Result)) executor.Result {
		res := ran
		change(&res)
		return res
	}
	for _, tt := range []struct {
		name, tool, args string
		result           executor.Result
		artifact         executor.Artifact
		err              error
		want             string
	}{
		{
			name: "success", tool: "run_python", args: `{"session_id":"sess_1","code":"1"}`,
			result: run(func(r *executor.Result) {
				r.Stdout, r.Files = []byte("Processed 1500 rows\n"), []executor.FileLink{link("out/report.pdf", 120000)}
			}),
			want: `{"session_id":"sess_1","run_id":"run_20260206T123456Z_a1b2","exit_code":0,"stdout":"Processed 1500 rows\n","stderr":"",` +
				`"stdout_truncated":false,"stderr_truncated":false,"artifacts":[{"path":"/mnt/data/out/report.pdf","filename":"report.pdf","size_bytes":120000,` +
				`"mime_type":"application/pdf","download_url":"http://h:8080/files/sess_1/out/report.pdf?sig=5ec2e7"}],"duration_ms":1340}`,
		},
		{
			name: "failure", tool: "run_python", args: `{"session_id":"sess_1","code":"1"}`,
			result: run(func(r *executor.Result) {
				r.ExitCode, r.Stderr, r.StderrCut = 1, []byte("KeyError: 'sales_amount'\xff"), &executor.Cut{}
			}),
			want: `{"session_id":"sess_1","run_id":"run_20260206T123456Z_a1b2","exit_code":1,"stdout":"","stderr":"KeyError: 'sales_amount'` + "\uFFFD" + `",` +
				`"stdout_truncated":false,"stderr_truncated":true,"artifacts":[],"duration_ms":1340}`,
		},
		{
			name: "timeout", tool: "run_python", args: `{"session_id":"sess_1","code":"1"}`,
			result: run(func(r *executor.Result) { r.ExitCode, r.Cause, r.Stdout = -1, sandbox.CauseTimeout, []byte("so far") }),
			want: `{"session_id":"sess_1","run_id":"run_20260206T123456Z_a1b2","exit_code":-1,"stdout":"so far","stderr":"Execution timed out after 60 seconds",` +
				`"stdout_truncated":false,"stderr_truncated":false,"artifacts":[],"duration_ms":1340,"cause":"timeout"}`,
		},
		{
			name: "timeout in mid-line", tool: "run_python", args: `{"session_id":"sess_1","code":"1"}`,
			result: run(func(r *executor.Result) {
				r.ExitCode, r.Cause, r.Stderr, r.Hint = -1, sandbox.CauseTimeout, []byte("50%"), "Do less."
			}),
			want: `{"session_id":"sess_1","run_id":"run_20260206T123456Z_a1b2","exit_code":-1,"stdout":"","stderr":"50%\nExecution timed out after 60 seconds",` +
				`"stdout_truncated":false,"stderr_truncated":false,"artifacts":[],"duration_ms":1340,"cause":"timeout","hint":"Do less."}`,
		},
		{
			name: "busy", tool: "run_python", args: `{"session_id":"sess_1","code":"1"}`, err: &executor.Error{Code: executor.CodeSessionBusy, Message: "A run."},
			want: `{"error":"session_busy","message":"A run."}`,
		},
		{
			name: "read", tool: "read_artifact", args: `{"session_id":"sess_1","path":"/mnt/data/chart.png"}`,
			artifact: executor.Artifact{FileLink: link("chart.png", 3), Content: []byte("abc")},
			want:     `{"path":"/mnt/data/chart.png","filename":"chart.png","mime_type":"image/png","size_bytes":3,"content_base64":"YWJj","session_id":"sess_1"}`,
		},
		{
			name: "read an empty file", tool: "read_artifact", args: `{"session_id":"sess_1","path":"/mnt/data/x"}`, artifact: executor.Artifact{FileLink: link("x", 0)},
			want: `{"path":"/mnt/data/x","filename":"x","mime_type":"application/octet-stream","size_bytes":0,"content_base64":"","session_id":"sess_1"}`,
		},
		{
			name: "too large", tool: "read_artifact", args: `{"session_id":"sess_1","path":"/mnt/data/chart.png"}`,
			err:  &executor.Error{Code: executor.CodeArtifactTooLarge, Message: "Too large.", SizeBytes: 15000000, DownloadURL: "http://h/x"},
			want: `{"error":"artifact_too_large","message":"Too large.","size_bytes":15000000,"download_url":"http://h/x"}`,
		},
		{
			name: "list", tool: "list_artifacts", args: `{"session_id":"sess_1"}`,
			result: executor.Result{Files: []executor.FileLink{link("sales.csv", 24000)}},
			want: `{"artifacts":[{"path":"/mnt/data/sales.csv","filename":"sales.csv","size_bytes":24000,"mime_type":"text/csv",` +
				`"download_url":"http://h:8080/files/sess_1/sales.csv?sig=5ec2e7"}],"session_id":"sess_1"}`,
		},
		{name: "list nothing", tool: "list_artifacts", args: `{"conversationId":"sess_1"}`, want: `{"artifacts":[],"session_id":"sess_1"}`},
		{name: "close", tool: "sandbox.close_session", args: `{"session_id":"sess_1"}`, want: `{"status":"closed","session_id":"sess_1"}`},
		{name: "close and revoke", tool: "close_session", args: `{"session_id":"sess_1","revoke_links":true}`, want: `{"status":"closed","session_id":"sess_1"}`},
		{
			name: "close nothing", tool: "close_session", args: `{"session_id":"sess_123"}`,
			err:  &executor.Error{Code: executor.CodeSessionNotFound, Message: "No active session with id sess_123"},
			want: `{"error":"session_not_found","message":"No active session with id sess_123"}`,
		},
	} {
		p.executor.result, p.executor.artifact, p.executor.err = tt.result, tt.artifact, tt.err
		got, isError := compact(t, p.call(t, tt.tool, tt.args))
		if got != tt.want || isError != (tt.err != nil) {
			t.Errorf("%s: error %t, %s\nwant %s", tt.name, isError, got, tt.want)
		}
		if revoked := p.executor.revoked != ""; revoked != strings.Contains(tt.args, "revoke_links") {
			t.Errorf("%s: links were revoked: %t", tt.name, revoked)
		}
		p.executor.revoked = ""
	}
	p.executor.err = nil
	for _, args := range []string{`{"code":"1"}`, `{"code":"1","session_id":null}`, `{"code":"1","session_id":""}`} {
		p.call(t, "run_python", args)
		if id := p.executor.request.Session; !regexp.MustCompile(`^sess_[0-9a-f]{12}$`).MatchString(id) || !p.executor.request.Artifacts || p.executor.request.Runner != "python" {
			t.Errorf("%s: %+v", args, p.executor.request)
		}
	}
	for _, tt := range []struct{ tool, args, want string }{
		{"run_python", `{}`, "code is required"},
		{"run_python", `{"code":"1","session_id":7}`, "session_id must be a string"},
		{"run_python", `{"code":"1","session_id":"a","conversationId":"b"}`, "session_id and conversationId are the same argument; give one of them"},
		{"read_artifact", `{"path":"a"}`, "session_id is required"},
		{"read_artifact", `{"session_id":"a"}`, "path is required"},
		{"read_artifact", `{"session_id":"a","path":"a","encoding":"hex"}`, "encoding must be auto or base64"},
		{"list_artifacts", `{}`, "session_id is required"},
		{"close_session", `{"session_id":""}`, "session_id is required"},
	} {
		if got := p.call(t, tt.tool, tt.args); !strings.Contains(got, `{"code":-32602,"message":"`+tt.want+`"`) {
			t.Errorf("%s %s: %s", tt.tool, tt.args, got)
		}
	}
}

// TestReadEncodings: text of Windows is text.
func TestReadEncodings(t *testing.T) {
	p := newProduct(t)
	cs := p.connect(t, "http", "2025-11-25", nil)
	for content, want := range map[string]string{
		"\xff\xfea\x00\xe4\x00": "aä", "\xfe\xff\x00a\x20\xac": "a€", "5 \x80 \x96 \xe4": "[not UTF-8, shown as Windows-1252]\n5 € – ä",
	} {
		p.executor.artifact = executor.Artifact{FileLink: link("a.csv", int64(len(content))), Content: []byte(content)}
		got, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_artifact", Arguments: map[string]any{"session_id": "s", "path": "a.csv"}})
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := got.Content[len(got.Content)-1].(*mcp.TextContent); !ok || text.Text != want {
			t.Errorf("%q: %+v, want %q", content, text, want)
		}
	}
}

// TestReadFile: an MCP client gets an image as an image and text as text, or as base64 if it asks
// for that. Anything else is base64.
func TestReadFile(t *testing.T) {
	forClients(t, func(t *testing.T, transport, version string) {
		p := newProduct(t)
		cs := p.connect(t, transport, version, nil)
		for _, tt := range []struct {
			name, content, encoding string
			image                   string // its type; "text": text; "": base64
		}{
			{"a.png", pixel, "", "image/png"}, {"a.png", pixel, "auto", "image/png"}, {"a.png", pixel, "base64", ""},
			{"a.jpg", pixel, "", "image/png"}, // the content decides
			{"a.png", "<html>", "", "text"}, {"a.png", "", "", ""}, {"a.svg", "<svg/>", "", "text"}, {"a.bin", pixel, "", ""}, {"a.csv", "a,b", "", "text"},
			{"a.csv", "a,b", "base64", ""}, {"ä", "ä\n", "auto", "text"}, {"a.txt", "a\x00b", "", ""}, {"latin.csv", "\xe4,b", "", "text"}, {"latin", "\xe4,b", "", ""}, {"a.pdf", "%PDF-\xff", "", ""},
		} {
			p.executor.artifact = executor.Artifact{FileLink: link(tt.name, int64(len(tt.content))), Content: []byte(tt.content)}
			args := map[string]any{"session_id": "a", "path": tt.name}
			if tt.encoding != "" {
				args["encoding"] = tt.encoding
			}
			got, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_artifact", Arguments: args})
			if err != nil || got.StructuredContent != nil {
				t.Fatalf("%+v: %+v, %v", tt, got, err)
			}
			var facts map[string]any
			if err := json.Unmarshal([]byte(got.Content[0].(*mcp.TextContent).Text), &facts); err != nil {
				t.Fatal(err)
			}
			if _, has := facts["content_base64"]; has != (tt.image == "") || len(got.Content) == 2 != (tt.image != "") {
				t.Errorf("%+v: %d items, %v", tt, len(got.Content), facts)
			} else if tt.image == "text" {
				if text, ok := got.Content[1].(*mcp.TextContent); !ok || text.Text != strings.Replace(tt.content, "\xe4", "[not UTF-8, shown as Windows-1252]\nä", 1) {
					t.Errorf("%+v: %+v", tt, got.Content[1])
				}
			} else if tt.image != "" {
				if i, ok := got.Content[1].(*mcp.ImageContent); !ok || i.MIMEType != tt.image || string(i.Data) != tt.content {
					t.Errorf("%+v: %+v", tt, got.Content[1])
				}
			}
		}
	})
}
