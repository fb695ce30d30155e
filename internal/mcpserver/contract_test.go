package mcpserver_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/logging/logtest"
	"mcp-code-sandbox/internal/mcpserver"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/tools"
	"mcp-code-sandbox/internal/workspace"
)

// fakeExecutor answers as in contract 2's examples, and records its arguments.
type fakeExecutor struct {
	fakeFiles
	mu       sync.Mutex
	caller   session.Caller
	session  string // of the last call that had one
	request  executor.Request
	uploaded []byte
	upload   executor.UploadRequest
	result   executor.Result
	artifact executor.Artifact
	listed   executor.ListOptions
	sessions []executor.SessionInfo
	recent   []executor.RunInfo
	revoked  string // the session of CloseAndRevoke
	err      error
	run      func(ctx context.Context, req executor.Request) (executor.Result, error) // instead of result and err
}

func (e *fakeExecutor) Run(ctx context.Context, caller session.Caller, req executor.Request) (executor.Result, error) {
	e.mu.Lock()
	e.caller, e.request, e.session = caller, req, req.Session
	res, err, run := e.result, e.err, e.run
	e.mu.Unlock()
	if run != nil {
		res, err = run(ctx, req)
	}
	res.Tool, res.Once = req.Tool, req.Once
	return res, err
}

func (e *fakeExecutor) RecentRuns(session.Caller, string) []executor.RunInfo { return e.recent }

func (e *fakeExecutor) Upload(_ context.Context, caller session.Caller, req executor.UploadRequest) (executor.FileLink, error) {
	data, err := io.ReadAll(req.Content)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caller, e.upload, e.uploaded, e.session = caller, req, data, req.Session
	if err != nil || e.err != nil {
		return executor.FileLink{}, e.err
	}
	name, err := workspace.CleanName(req.Name)
	return executor.FileLink{File: workspace.File{Name: name, Size: int64(len(data))}, URL: "https://example.com/files/abc123/" + name + "?sig=5ec2e7"}, err
}

func (e *fakeExecutor) UploadURL(_ context.Context, _ session.Caller, id, name string, overwrite bool) (string, time.Time, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.upload = executor.UploadRequest{Session: id, Name: name, Overwrite: overwrite}
	return "https://example.com/files/" + id + "/" + name + "?upload=t&expires=1", time.Unix(1800000000, 0), e.err
}

func (e *fakeExecutor) ReadArtifact(_ context.Context, caller session.Caller, id, path string) (executor.Artifact, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caller, e.session = caller, id
	return e.artifact, e.err
}

func (e *fakeExecutor) ListArtifacts(
	_ context.Context, caller session.Caller, id string, opt executor.ListOptions,
) (executor.FileList, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caller, e.session, e.listed = caller, id, opt
	files := e.result.Files
	if opt.Limit > 0 {
		files = files[:min(len(files), opt.Limit)]
	}
	return executor.FileList{Files: files, Total: len(e.result.Files), More: len(files) < len(e.result.Files)}, e.err
}

func (e *fakeExecutor) RunOutput(_ context.Context, caller session.Caller, id string, offset, limit int64) (executor.OutputPart, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caller = caller
	all := e.result.Stdout
	size := int64(len(all))
	next := min(offset+limit, size)
	return executor.OutputPart{Text: all[min(offset, size):next], Next: next, Size: size}, e.err
}

func (e *fakeExecutor) DeleteFile(_ context.Context, caller session.Caller, id, path string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caller, e.session = caller, id
	return e.err
}

func (e *fakeExecutor) Storage(session.Caller) session.Storage {
	return session.Storage{Sessions: 2, Bytes: 14, ClosedSessions: 1, ClosedBytes: 3, Files: 7, ClosedFiles: 1, MaxBytes: 100, MaxFiles: 50}
}

func (e *fakeExecutor) ListSessions(_ context.Context, caller session.Caller, limit int) ([]executor.SessionInfo, bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caller = caller
	return e.sessions[:min(limit, len(e.sessions))], limit < len(e.sessions), e.err
}

func (e *fakeExecutor) CloseAndRevoke(ctx context.Context, caller session.Caller, id string) error {
	e.mu.Lock()
	e.revoked = id
	e.mu.Unlock()
	return e.CloseSession(ctx, caller, id)
}

func (e *fakeExecutor) CloseSession(_ context.Context, caller session.Caller, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.caller, e.session = caller, id
	return e.err
}

func (e *fakeExecutor) Runners() runner.Set {
	return runner.Set{
		{Definition: runner.Definition{Name: "python", Libraries: []string{"requests", "numpy"}}, Image: "jail:python"},
		{Definition: runner.Definition{Name: "typescript", Libraries: []string{"postgres", "pg"}}, Image: "jail:typescript"},
		{Definition: runner.Definition{Name: "shell", Aliases: []string{"bash"}}, Image: "jail:shell"},
	}
}

type product struct {
	executor *fakeExecutor
	server   *mcpserver.Server
	url      string
	log      *logtest.Buffer

	notified chan string // names of clients that were notified of changed resources
}

func newProduct(t testing.TB) *product {
	t.Helper()
	return newProductWith(t, tools.Options{})
}

func newProductWith(t testing.TB, opt tools.Options) *product {
	t.Helper()
	p := &product{executor: &fakeExecutor{}, log: new(logtest.Buffer), notified: make(chan string, 1000)}
	log := slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	opt.Logger = log
	p.server, err = mcpserver.New(mcpserver.Config{
		Instructions: tools.Instructions(opt),
		Tools: func(s *mcp.Server) {
			s.AddSendingMiddleware(p.recordNotified)
			tools.Register(s, p.executor, opt)
		},
		Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		if token != "t0ps3cret" {
			return &auth.TokenInfo{UserID: token}, nil // a user of that name
		}
		return &auth.TokenInfo{UserID: "local"}, nil
	}
	authenticate := auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})
	ts := httptest.NewServer(authenticate(p.server.Handler()))
	p.url = ts.URL + "/mcp"
	t.Cleanup(func() {
		p.server.Close(context.Background())
		ts.Close()
	})
	return p
}

// post sends a body as curl -d does.
func (p *product) post(t testing.TB, body string, headers ...string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", p.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer t0ps3cret")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// call calls a tool as a plain caller, with JSON arguments, and returns the answer.
func (p *product) call(t testing.TB, tool, args string, headers ...string) string {
	t.Helper()
	return p.post(t, `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"`+tool+`","arguments":`+args+`}}`, headers...)
}

func exampleResult() executor.Result {
	return executor.Result{
		RunID: "run_1", Runner: "python", Duration: 12 * time.Millisecond, Stdout: []byte("Plot saved!\n"),
		Files: []executor.FileLink{{File: workspace.File{Name: "plot.png", Size: 9}, Session: "abc123", URL: "https://example.com/files/abc123/plot.png?expires=9&sig=5ec2e7"}},
	}
}

// TestContract2 checks contract 2's examples, as a plain caller sends them.
func TestContract2(t *testing.T) {
	p := newProduct(t)
	p.executor.result = exampleResult()
	var list struct {
		Result struct {
			Tools []struct {
				Name, Description string
				InputSchema       struct {
					Properties map[string]struct{ Enum []string }
					Required   []string
				}
				OutputSchema, Annotations, Title json.RawMessage
			}
		}
	}
	listed := p.post(t, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	for _, newer := range []string{"ttlMs", "cacheScope", "resultType"} {
		if strings.Contains(listed, newer) {
			t.Errorf("a plain caller gets %s", newer)
		}
	}
	if err := json.Unmarshal([]byte(listed), &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tool := range list.Result.Tools {
		got = append(got, tool.Name+"("+strings.Join(tool.InputSchema.Required, ",")+")")
		if tool.OutputSchema != nil || tool.Annotations != nil || tool.Title != nil {
			t.Errorf("%s: a plain caller is told of newer things", tool.Name)
		}
		if tool.Name == "run_code" {
			if e := strings.Join(tool.InputSchema.Properties["language"].Enum, ","); e != "python,typescript,shell" {
				t.Errorf("languages: %s", e)
			}
			if !strings.HasSuffix(tool.Description, "\n\nAvailable libraries:\n- python: [requests, numpy]\n- typescript: [postgres, pg]") {
				t.Errorf("description: %s", tool.Description)
			}
		}
	}
	if g := strings.Join(got, " "); g != "cancel_run(run_id) close_session(session_id) delete_file(session_id,filename) list_artifacts(session_id) list_runners() list_sessions() read_artifact(session_id,path) "+
		"run(code,env) run_code(conversationId,language,code) run_python(code) upload_file(filename) wait_run(run_id)" {
		t.Errorf("tools: %s", g)
	}

	answer := func(text string) string {
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return `{"jsonrpc":"2.0","id":4,"result":{"content":[{"type":"text","text":` + string(quoted) + `}]}}`
	}
	const ran = `{
  "success": true,
  "output": "Plot saved!\n",
  "files": [
    {
      "name": "plot.png",
      "url": "https://example.com/files/abc123/plot.png?expires=9&sig=5ec2e7"
    }
  ],
  "exit_code": 0,
  "run_id": "run_1",
  "duration_ms": 12
}`
	const runners = `{
  "languages": [
    {
      "language": "python",
      "image": "jail:python"
    },
    {
      "language": "typescript",
      "image": "jail:typescript"
    },
    {
      "language": "shell",
      "image": "jail:shell"
    }
  ]
}`
	const uploaded = `{
  "success": true,
  "message": "File 'data.csv' uploaded successfully (24 bytes)",
  "file": {
    "name": "data.csv",
    "url": "https://example.com/files/abc123/data.csv?sig=5ec2e7"
  },
  "session_id": "user-123-session-456",
  "path": "/mnt/data/data.csv"
}`
	const unknown = `{
  "success": false,
  "output": "Unknown language. Available: [python, typescript, shell]",
  "files": []
}`
	const run = `{"conversationId":"user-123-session-456","language":"python","code":"print(1)","network":false,"environment":{"API_KEY":"secret-value"}}`
	for _, tt := range []struct{ tool, args, want string }{
		{"run_code", run, ran},
		{"sandbox.run_code", run, ran},
		{"list_runners", `{}`, runners},
		{"sandbox.list_runners", `null`, runners},
		{"upload_file", `{"conversationId":"user-123-session-456","filename":"data.csv","content":"bmFtZSxhZ2UKQWxpY2UsMzAKQm9iLDI1"}`, uploaded},
		{"upload_file", `{"session_id":"user-123-session-456","filename":"/mnt/data/data.csv","content_base64":"bmFtZSxhZ2UKQWxpY2Us\nMzAKQm9iLDI1"}`, uploaded},
		{"run_code", `{"conversationId":"a","language":"cobol","code":"x"}`, unknown},
	} {
		if got := p.call(t, tt.tool, tt.args); got != answer(tt.want) {
			t.Errorf("%s %s:\n got %s\nwant %s", tt.tool, tt.args, got, answer(tt.want))
		}
	}
	if p.executor.caller != session.Local || p.executor.request.Env["API_KEY"] != "secret-value" || string(p.executor.uploaded) != "name,age\nAlice,30\nBob,25" {
		t.Errorf("the executor was asked %+v by %v, got %q", p.executor.request, p.executor.caller, p.executor.uploaded)
	}
	want := `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"conversationId is required","data":null}}`
	if got := p.call(t, "run_code", `{"language":"python","code":"1"}`); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestBadArguments: bad arguments are a protocol error for plain callers and old clients, and a
// result with the same message for new ones.
func TestBadArguments(t *testing.T) {
	p := newProduct(t)
	tests := []struct{ tool, args, want string }{
		{"run_code", `null`, "conversationId is required"},
		{"run_code", `[]`, "arguments must be an object"},
		{"run_code", `"x"`, "arguments must be an object"},
		{"run_code", `7`, "arguments must be an object"},
		{"run_code", `{"conversationId":""}`, "conversationId is required"},
		{"run_code", `{"conversationId":null}`, "conversationId is required"},
		{"run_code", `{"conversation":null,"language":"python","code":"1"}`, `conversationId is required; argument \"conversation\" is not known, did you mean conversationId?`},
		{"run_code", `{"ConversationID":"a","language":"python","code":"1"}`,
			`argument \"ConversationID\" is not known; did you mean conversationId? Nothing was done, because without it the call would use another session`},
		{"run_code", `{"conversationId":5}`, "conversationId must be a string"},
		{"run_code", `{"conversationId":"a"}`, "language is required"},
		{"run_code", `{"conversationId":"a","language":["python"]}`, "language must be a string"},
		{"run_code", `{"conversationId":"a","language":"python"}`, "code is required"},
		{"run_code", `{"conversationId":"a","language":"python","code":{}}`, "code must be a string"},
		{"run_code", `{"conversationId":"a","language":"python","code":"1","network":"yes"}`, "network must be a boolean"},
		{"run_code", `{"conversationId":"a","language":"python","code":"1","environment":{"A":1}}`, "environment must be an object whose values are strings"},
		{"run_code", `{"conversationId":"a","language":"python","code":"1","environment":{"A":null}}`, "environment must be an object whose values are strings"},
		{"upload_file", `{}`, "filename is required"},
		{"upload_file", `{"filename":"a","content":5}`, "content must be a string"},
		{"upload_file", `{"filename":"a","content":"eA==","content_base64":"eQ=="}`, "content and content_base64 are the same argument; give one of them"},
		{"upload_file", `{"filename":"a","conversationId":"a","session_id":"b"}`, "conversationId and session_id are the same argument; give one of them"},
		{"list_runners", `[1]`, "arguments must be an object"},
	}
	for _, tt := range tests {
		for _, version := range []string{"", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
			var headers []string
			if version != "" {
				headers = []string{"Mcp-Protocol-Version: " + version}
			}
			got := p.call(t, tt.tool, tt.args, headers...)
			want := `"error":{"code":-32602,"message":"` + tt.want + `"`
			if version == "2025-11-25" {
				want = `"content":[{"type":"text","text":"` + tt.want + `"}],"isError":true`
			}
			if !strings.Contains(got, want) {
				t.Errorf("version %q, %s %.100s: got %s, want %s", version, tt.tool, tt.args, got, want)
			}
		}
	}
	got := p.call(t, "run_code", `{"conversationId":"a","language":"python","code":"1","environment":{"A":"`+strings.Repeat("x", 1<<20)+`"}}`)
	if !strings.Contains(got, "environment is too large") {
		t.Errorf("large environment: %.300s", got)
	}
}

func TestRefusals(t *testing.T) {
	p := newProduct(t)
	p.executor.err = &executor.Error{Code: executor.CodeSessionBusy, Message: "Wait."}
	text := func(answer string) (m map[string]any) {
		var got struct {
			Result struct {
				IsError bool
				Content []struct{ Text string }
			}
		}
		if err := json.Unmarshal([]byte(answer), &got); err != nil || !got.Result.IsError || len(got.Result.Content) != 1 {
			t.Fatalf("not a tool error: %s", answer)
		}
		if err := json.Unmarshal([]byte(got.Result.Content[0].Text), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := text(p.call(t, "run_code", `{"conversationId":"a","language":"python","code":"1"}`))
	if m["error"] != "session_busy" || m["message"] != "Wait." || m["success"] != false || m["output"] != "Wait." {
		t.Errorf("run_code: %v", m)
	}
	m = text(p.call(t, "upload_file", `{"conversationId":"a","filename":"a","content":"eA=="}`))
	if m["error"] != "session_busy" || m["message"] != "Wait." || len(m) != 2 {
		t.Errorf("upload_file: %v", m)
	}
	m = text(p.call(t, "upload_file", `{"conversationId":"a","filename":"a","content":"not base64!"}`))
	if m["error"] != "invalid_base64" {
		t.Errorf("bad base64: %v", m)
	}
	// An internal error reveals nothing.
	p.executor.err = io.ErrClosedPipe
	if got := p.call(t, "run_code", `{"conversationId":"a","language":"bash","code":"1"}`); got != `{"jsonrpc":"2.0","id":4,"error":{"code":-32603,"message":"internal error"}}` {
		t.Errorf("internal error: %s", got)
	}
}

// TestFailingProgram: a failed run is a result with all details. Invalid UTF-8 is replaced.
func TestFailingProgram(t *testing.T) {
	p := newProduct(t)
	p.executor.result = executor.Result{
		ExitCode: 137, Cause: sandbox.CauseTimeout, Hint: "Be quick.", Stdout: []byte("a\xff\x00\n"), Stderr: []byte("b<&>"), FilesTruncated: true,
	}
	got := p.call(t, "run_code", `{"conversationId":"a","language":"bash","code":"1"}`)
	for _, want := range []string{
		`\"success\": false`, `\"output\": \"a` + "\uFFFD" + `\\u0000\\n\\nb\u003c\u0026\u003e\"`, `\"files\": []`, `\"files_truncated\": true`, `\"exit_code\": 137`, `\"cause\": \"timeout\"`, `\"hint\": \"Be quick.\"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if strings.Contains(got, "isError") || p.executor.request.Runner != "shell" {
		t.Errorf("%s (runner %q)", got, p.executor.request.Runner)
	}
}

func TestUploadLink(t *testing.T) {
	p := newProduct(t)
	got := p.call(t, "upload_file", `{"filename":"a/it's.csv","overwrite":true}`)
	id := p.executor.upload.Session
	if !strings.HasPrefix(id, "sess_") || !p.executor.upload.Overwrite {
		t.Errorf("asked for %+v", p.executor.upload)
	}
	var reply struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal([]byte(got), &reply); err != nil || len(reply.Result.Content) != 1 {
		t.Fatalf("%v: %s", err, got)
	}
	want := `{
  "success": true,
  "message": "Send the content of 'a/it's.csv' with the curl command. The URL works once, until 2027-01-15T08:00:00Z.",
  "upload_url": "https://example.com/files/` + id + `/a/it's.csv?upload=t&expires=1",
  "curl": "curl --fail --upload-file './it'\\''s.csv' 'https://example.com/files/` + id + `/a/it'\\''s.csv?upload=t&expires=1'",
  "expires_at": "2027-01-15T08:00:00Z",
  "session_id": "` + id + `",
  "path": "/mnt/data/a/it's.csv"
}`
	if reply.Result.Content[0].Text != want {
		t.Errorf("got  %s\nwant %s", reply.Result.Content[0].Text, want)
	}
}

// TestNothingSecretIsLogged makes calls with secrets and checks that the log has contract 2's
// lines, without them.
func TestNothingSecretIsLogged(t *testing.T) {
	p := newProduct(t)
	p.executor.result = exampleResult()
	p.call(t, "sandbox.run_code", `{"conversationId":"user-123","language":"python","code":"k0de","environment":{"API_KEY":"envv4lue"}}`)
	p.call(t, "upload_file", `{"conversationId":"user-123","filename":"f.txt","content":"YzBudGVudA=="}`)
	p.call(t, "upload_file", `{"conversationId":"a\nlevel=ERROR forged","filename":"f\nforged","content":"c0ntent!"}`)
	p.call(t, "evil\nforged", `{}`)
	p.post(t, `{"jsonrpc":"2.0","id":"i\nforged","method":"m\nforged"}`)
	p.post(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`)
	log := p.log.String()
	for _, secret := range []string{"k0de", "envv4lue", "c0ntent", "YzBudGVudA", "t0ps3cret", "5ec2e7", "\nforged", "\nlevel=ERROR"} {
		if strings.Contains(log, secret) {
			t.Errorf("the log holds %q:\n%s", secret, log)
		}
	}
	for _, want := range []string{
		"[HTTP] MCP request from 127.0.0.1:", "[HTTP] Parsed JSON-RPC request: method=tools/call, id=4",
		"[MCP] Incoming request - Method: initialize, ID: 1", "[MCP] Processing initialize request", "[MCP] Initialize successful",
		"[MCP] Tool call: sandbox.run_code", "[MCP] Parsing run_code arguments",
		"[MCP] run_code: conversationId=user-123, language=python, codeLen=4, network=false, envVars=1",
		"[MCP] run_code completed successfully", // TestRunLog checks the lines in between
		"[HTTP] Sending response for method=tools/call",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
}

// BenchmarkCall measures the MCP layer: a run without the executor, over a real connection.
func BenchmarkCall(b *testing.B) {
	p := newProduct(b)
	p.executor.result = exampleResult()
	for b.Loop() {
		p.call(b, "run_code", `{"conversationId":"user-123","language":"python","code":"print(1)"}`)
	}
}
