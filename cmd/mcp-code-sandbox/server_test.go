package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/tools"
)

// server is the program serving in this process.
type server struct {
	url  string
	text *syncBuffer // what it printed to stderr
	stop func() int  // ends it and returns its exit code
}

type syncBuffer struct {
	mu   sync.Mutex
	b    strings.Builder
	more chan struct{} // closed and replaced at each write
}

func newSyncBuffer() *syncBuffer { return &syncBuffer{more: make(chan struct{})} }

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.more)
	s.more = make(chan struct{})
	return s.b.Write(p)
}

func (s *syncBuffer) state() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String(), s.more
}

// wait returns the first submatch of re as soon as it was printed.
func (s *syncBuffer) wait(t *testing.T, re string) string {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		text, more := s.state()
		if m := regexp.MustCompile(re).FindStringSubmatch(text); m != nil {
			return m[len(m)-1]
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("never printed %s:\n%s", re, text)
		}
	}
}

func serve(t *testing.T, root string, env ...string) *server {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	text := newSyncBuffer()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"serve"}, append([]string{"SANDBOX_ROOT=" + root}, env...), strings.NewReader(""), io.Discard, text)
	}()
	s := &server{text: text}
	s.stop = sync.OnceValue(func() int { cancel(); return <-code })
	t.Cleanup(func() { s.stop() })
	text.wait(t, `\[HTTP\] serving`)
	s.url = text.wait(t, `MCP endpoint +(http://\S+)/mcp`)
	return s
}

func (s *server) get(t *testing.T, path, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServe(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	s := serve(t, root, "SANDBOX_HTTP_PORT=0")

	// What it prints goes into a log here: the token is in its file alone.
	file := s.text.wait(t, `Token +in the file (.*)\n`)
	text, _ := s.text.state()
	content, err := os.ReadFile(file)
	token := strings.TrimSpace(string(content))
	if err != nil || len(token) != 64 || strings.Contains(text, token) {
		t.Fatalf("the token in %s, %v:\n%s", file, err, text)
	}
	for _, want := range []string{
		"Page          " + s.url + "/\n",
		`claude mcp add --transport http sandbox ` + s.url + `/mcp --header "Authorization: Bearer $(cat '` + file + `')"`,
		`"url": "` + s.url + `/mcp"`, `"Authorization": "Bearer TOKEN"`, "SANDBOX_TOOLS=run",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the start does not print %q:\n%s", want, text)
		}
	}
	for path, want := range map[string]int{"/": 200, "/healthz": 200, "/mcp": 401, "/metrics": 401, "/files/a/b?sig=x": 403, "/nothing": 404} {
		if got, body := s.get(t, path, ""); got != want {
			t.Errorf("GET %s = %d %s, want %d", path, got, body, want)
		}
	}
	if code, body := s.get(t, "/metrics", token); code != 200 || !strings.Contains(body, "sandbox_sessions") ||
		!strings.Contains(body, `sandbox_share_used{caller="local",resource="connections"} 1`) || !strings.Contains(body, `sandbox_share_capacity{resource="event_streams"} 1000`) {
		t.Errorf("metrics = %d %s", code, body)
	}
	if code := s.stop(); code != 0 {
		text, _ := s.text.state()
		t.Errorf("exit code %d:\n%s", code, text)
	}

	// What stays on disk, and for whom.
	for path, want := range map[string]os.FileMode{"": 0o700, "keys": 0o700, "keys/api-token": 0o600, "keys/file-secret": 0o600, "keys/installation": 0o600, "logs/sandbox.log": 0o600} {
		if fi, err := os.Stat(filepath.Join(root, path)); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, fi, err, want)
		}
	}
	if left := instances(t, root); len(left) != 0 {
		t.Errorf("the instance left %v", left)
	}
	logged, err := os.ReadFile(filepath.Join(root, "logs", "sandbox.log"))
	if err != nil || !strings.Contains(string(logged), "[HTTP]") || strings.Contains(string(logged), token) || strings.Contains(string(logged), "sig=") {
		t.Errorf("log file: %v\n%s", err, logged)
	}

	// The next start has the same token.
	again := serve(t, root, "SANDBOX_HTTP_PORT=0")
	if code, _ := again.get(t, "/metrics", token); code != 200 {
		t.Errorf("the token changed: %d", code)
	}
}

func instances(t *testing.T, root string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "instances"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestServeKeepsTheOperatorsTokenToItself(t *testing.T) {
	const token = "operators-own-token"
	s := serve(t, t.TempDir(), "SANDBOX_HTTP_PORT=0", "MCP_API_TOKEN="+token)
	if code, _ := s.get(t, "/metrics", token); code != 200 {
		t.Errorf("the operator's token is refused: %d", code)
	}
	s.stop()
	if text, _ := s.text.state(); strings.Contains(text, token) {
		t.Errorf("it prints the token:\n%s", text)
	}
}

func TestPortTaken(t *testing.T) {
	root := t.TempDir()
	first := serve(t, root, "SANDBOX_HTTP_PORT=0")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(first.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	second := serve(t, root, "SANDBOX_HTTP_PORT="+port)
	if second.url == first.url {
		t.Fatal("both serve on one port")
	}
	second.text.wait(t, "taken by another mcp-code-sandbox; serving on")

	// Clients know MCP_HTTP_ADDR, so serve insists on it. stdio needs a port for file links only.
	address := strings.TrimPrefix(first.url, "http://")
	for _, args := range [][]string{{"serve"}, {"serve", "--http-addr", address}} {
		out := newSyncBuffer()
		code := run(t.Context(), args, []string{"SANDBOX_ROOT=" + root, "MCP_HTTP_ADDR=" + address}, strings.NewReader(""), io.Discard, out)
		if text, _ := out.state(); code != exitFailure || !strings.Contains(text, address+" is taken by another mcp-code-sandbox; stop it, or choose another address with MCP_HTTP_ADDR\n") {
			t.Errorf("%q: code %d: %s", args, code, text)
		}
	}
	out := newSyncBuffer()
	if code := run(t.Context(), []string{"stdio"}, []string{"SANDBOX_ROOT=" + root, "MCP_HTTP_ADDR=" + address}, strings.NewReader(""), io.Discard, out); code != exitOK {
		text, _ := out.state()
		t.Errorf("stdio: code %d: %s", code, text)
	}
	if n := len(instances(t, root)); n != 2 {
		t.Errorf("%d instances on the root, want 2", n)
	}
	second.stop()
	if code, _ := first.get(t, "/healthz", ""); code != 200 {
		t.Errorf("the first is gone with the second: %d", code)
	}
	if n := len(instances(t, root)); n != 1 {
		t.Errorf("%d instances on the root, want 1", n)
	}

	// Somebody else's port, asked for by name, is an error that says what to do.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go http.Serve(l, http.NotFoundHandler())
	out = newSyncBuffer()
	code := run(t.Context(), []string{"serve", "--http-addr", l.Addr().String()}, []string{"SANDBOX_ROOT=" + root}, strings.NewReader(""), io.Discard, out)
	if text, _ := out.state(); code != exitFailure || !strings.Contains(text, "MCP_HTTP_ADDR") {
		t.Errorf("code %d: %s", code, text)
	}
}

// TestLoginWithoutPublicURL: serve warns that people on other machines cannot log in.
func TestLoginWithoutPublicURL(t *testing.T) {
	config := filepath.Join(t.TempDir(), "services.json")
	text := `{"auth": {"type": "oidc", "issuer": "https://login.example.com", "clientId": "c", "allowedDomains": ["example.com"]}}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	server := serve(t, t.TempDir(), "SANDBOX_HTTP_PORT=0", "SANDBOX_CONFIG="+config)
	server.text.wait(t, `(?i)warn.*people on other machines cannot log in: PUBLIC_BASE_URL is not set`)
}

func TestStdio(t *testing.T) {
	root := t.TempDir()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	text := newSyncBuffer()
	code := make(chan int, 1)
	go func() {
		code <- run(t.Context(), []string{"stdio"}, []string{"SANDBOX_ROOT=" + root, "SANDBOX_HTTP_PORT=0"}, in, out, text)
		out.Close()
	}()
	lines := bufio.NewScanner(fromServer)
	lines.Buffer(nil, 1<<20)
	ask := func(msg string) map[string]any {
		t.Helper()
		if _, err := io.WriteString(toServer, msg+"\n"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() {
			t.Fatal("no answer:", lines.Err())
		}
		var m map[string]any
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatalf("stdout has something that is no message: %q", lines.Text())
		}
		return m
	}
	if m := ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`); m["result"] == nil {
		t.Fatal(m)
	}
	if _, err := io.WriteString(toServer, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if m := ask(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`); !strings.Contains(lines.Text(), "run_code") {
		t.Fatal(m)
	}
	// The file server is separate, and does not offer the tools.
	s := &server{url: text.wait(t, `file links at (http://\S+)`)}
	if got, _ := s.get(t, "/files/a/b?sig=x", ""); got != 403 {
		t.Errorf("GET of a file with a wrong signature = %d", got)
	}
	if got, _ := s.get(t, "/mcp", ""); got != 404 {
		t.Errorf("GET /mcp = %d", got)
	}
	toServer.Close() // the client has gone
	if c := <-code; c != 0 {
		t.Errorf("exit code %d", c)
	}
	if lines.Scan() {
		t.Errorf("more on stdout: %q", lines.Text())
	}
	if left := instances(t, root); len(left) != 0 {
		t.Errorf("the instance left %v", left)
	}
}

// TestToolsAreRecommended: an operator who has chosen the tools is not told to.
func TestToolsAreRecommended(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "root"), "SANDBOX_HTTP_PORT=0", "SANDBOX_TOOLS=session")
	if text, _ := s.text.state(); strings.Contains(text, "SANDBOX_TOOLS") {
		t.Error(text)
	}
}

func TestToolsAreNarrowed(t *testing.T) {
	for _, tc := range []struct {
		list string
		want string
	}{
		{"", ""}, {"all", ""},
		{"run_code", "upload_file list_runners run_python read_artifact list_artifacts close_session run wait_run cancel_run list_sessions delete_file list_services"},
		{"conversation", "run_python read_artifact list_artifacts close_session run wait_run cancel_run list_sessions delete_file"},
		{"session", "run_code list_runners run wait_run cancel_run list_sessions delete_file"},
		{"run", "run_code list_runners run_python"},
		{"session, conversation, run", ""},
		{"list_runners, session", "run_code run wait_run cancel_run list_sessions delete_file"},
	} {
		var list []string
		if tc.list != "" {
			list = strings.Split(tc.list, ",")
		}
		wanted, err := wantedTools(list)
		offered := tools.Options{Tools: wanted, Services: &tools.Services{}}.Offered()
		var left []string
		for _, name := range tools.Names() {
			if !slices.Contains(offered, name) {
				left = append(left, name)
			}
		}
		if err != nil || strings.Join(left, " ") != tc.want {
			t.Errorf("%q leaves out %v, %v; want %q", tc.list, left, err, tc.want)
		}
	}
}
