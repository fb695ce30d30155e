//go:build linux

// Package integration tests the built binary end to end: real clients, real sandboxes, real
// signals.
package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"mcp-code-sandbox/internal/logging/logtest"
)

var (
	binary  string // the built server
	runners string // prepared language environments
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain builds the server with its agent, as `make build` does.
func testMain(m *testing.M) int {
	if binary = os.Getenv(envBuilt); binary != "" {
		runners = os.Getenv("SANDBOX_TEST_RUNNERS")
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	top, err := filepath.Abs("..")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	build := exec.Command("make", "-s", "build", "BIN="+dir)
	build.Dir = top
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "make build: %v\n%s", err, out)
		return 1
	}
	binary = filepath.Join(dir, "mcp-code-sandbox")
	if runners = os.Getenv("SANDBOX_TEST_RUNNERS"); runners == "" {
		runners = filepath.Join(top, ".cache", "runners")
	}
	return m.Run()
}

// skip reports a part that cannot run here. With REQUIRE_ALL=1 it fails instead.
func skip(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("REQUIRE_ALL") == "1" {
		t.Fatalf("REQUIRE_ALL=1: "+format, args...)
	}
	t.Skipf(format, args...)
}

// newRoot makes a data directory with the prepared language environments.
func newRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if _, err := os.Stat(filepath.Join(runners, "python")); err != nil {
		skip(t, "no language environments at %s: run make test", runners)
	}
	if err := os.Symlink(runners, filepath.Join(root, "runners")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endShared(t, root) })
	return root
}

// stdioRoot is newRoot for windows. At the end nothing may be left of their shared servers.
func stdioRoot(t *testing.T) string {
	t.Helper()
	root := newRoot(t)
	t.Cleanup(func() {
		endShared(t, root)
		(&server{Root: root}).wantNoResidue(t)
	})
	return root
}

// endShared ends the servers that windows on root share, as an operator would.
func endShared(t *testing.T, root string) {
	t.Helper()
	if sockets, _ := filepath.Glob(filepath.Join(root, "stdio", "*.sock")); len(sockets) == 0 {
		return
	}
	cmd := exec.Command(binary, "stdio", "--stop")
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+root)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("stdio --stop: %v\n%s", err, out)
	}
}

// server is a started `mcp-code-sandbox serve`.
type server struct {
	URL, Token, Root string

	cmd  *exec.Cmd
	log  *logtest.Buffer
	done chan error

	// A sweep compares with these; see residue_test.go.
	ids        []string // of its instances
	goroutines float64
}

const testToken = "integration-test-token"

// serve starts the server on a free port, waits until it is ready, and stops it with the test.
// Settings are environment variables (KEY=value); SANDBOX_ROOT among them chooses the data
// directory.
func serve(t *testing.T, settings ...string) *server {
	t.Helper()
	return serveWith(t, func(*exec.Cmd) {}, settings...)
}

// serveWith is serve for a process that must be prepared before it starts.
func serveWith(t *testing.T, prepare func(*exec.Cmd), settings ...string) *server {
	t.Helper()
	s := &server{Token: testToken, log: &logtest.Buffer{}, done: make(chan error, 1)}
	for _, kv := range settings {
		if root, ok := strings.CutPrefix(kv, "SANDBOX_ROOT="); ok {
			s.Root = root
		}
	}
	if s.Root == "" {
		s.Root = newRoot(t)
	}
	s.cmd = exec.Command(binary, "serve")
	s.cmd.Env = append(baseEnv(), append([]string{"SANDBOX_ROOT=" + s.Root, "MCP_HTTP_ADDR=127.0.0.1:0", "MCP_API_TOKEN=" + s.Token}, settings...)...)
	s.cmd.Stderr = s.log
	prepare(s.cmd)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	t.Cleanup(func() {
		s.stop(t)
		if t.Failed() {
			t.Logf("server's log:\n%s", s.log)
		}
	})
	s.URL = s.waitForURL(t)
	return s
}

// The environment of these tests: the backend of the servers, the engines and, for a test binary
// that another one started, the built server.
const (
	envBackend = "SANDBOX_TEST_BACKEND" // jail, unless it says docker
	envEngine  = "SANDBOX_TEST_DOCKER_HOST"
	envPodman  = "SANDBOX_TEST_PODMAN_HOST"
	envBuilt   = "SANDBOX_TEST_SERVER"

	envUseRuntime = "SANDBOX_TEST_USE_RUNTIME" // of the engine, for all sandboxes
)

// onDocker reports whether servers use the Docker backend.
func onDocker() bool { return os.Getenv(envBackend) == "docker" }

// baseEnv is this machine's environment without variables that would change the server's settings.
func baseEnv() []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8"}
	if onDocker() {
		return append(env, "SANDBOX_BACKEND=docker", "DOCKER_HOST="+os.Getenv(envEngine), "SANDBOX_DOCKER_RUNTIME="+os.Getenv(envUseRuntime))
	}
	return append(env, "SANDBOX_BACKEND=jail")
}

var endpoint = regexp.MustCompile(`MCP endpoint\s+(http://\S+)/mcp`)

func (s *server) waitForURL(t *testing.T) string {
	t.Helper()
	var url string
	eventually(t, 20*time.Second, "the server to listen", func() bool {
		if m := endpoint.FindStringSubmatch(s.log.String()); m != nil {
			url = m[1]
			return true
		}
		return false
	})
	return url
}

// stop ends the server once, as a person would.
func (s *server) stop(t *testing.T) {
	t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-s.done:
		s.done <- err
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		t.Errorf("the server did not end within 20 s of SIGTERM")
	}
}

// post sends a JSON-RPC message as curl would and returns status and body.
func (s *server) post(t *testing.T, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// toolResult is the result of tools/call, and its error if there was one.
type toolResult struct {
	Content []struct{ Type, Text string } `json:"content"`
	IsError bool                          `json:"isError"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"-"`
}

// call calls a tool as a plain caller.
func (s *server) call(t *testing.T, tool string, args map[string]any) toolResult {
	t.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 7, "method": "tools/call",
		"params": map[string]any{"name": tool, "arguments": args}})
	if err != nil {
		t.Fatal(err)
	}
	_, answer := s.post(t, string(body))
	var reply struct {
		ID     int        `json:"id"`
		Result toolResult `json:"result"`
		Error  *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		t.Fatalf("%s: %v in %s", tool, err, answer)
	}
	if reply.ID != 7 {
		t.Fatalf("%s: answer to another request: %s", tool, answer)
	}
	reply.Result.Error = reply.Error
	return reply.Result
}

// runResult is contract 1's result with our additions.
type runResult struct {
	Success bool   `json:"success"`
	Output  string `json:"output"`
	Files   []struct {
		Name, URL string
	} `json:"files"`
	Images []struct {
		Name, URL string
	} `json:"images"`
	FilesTruncated bool   `json:"files_truncated"`
	ExitCode       int    `json:"exit_code"`
	Cause          string `json:"cause"`
	Hint           string `json:"hint"`
	RunID          string `json:"run_id"`
}

// run runs code and expects a run's result, successful or not.
func (s *server) run(t *testing.T, session, language, code string, more ...func(map[string]any)) runResult {
	t.Helper()
	args := map[string]any{"conversationId": session, "language": language, "code": code}
	for _, m := range more {
		m(args)
	}
	res := s.call(t, "run_code", args)
	if res.Error != nil {
		t.Fatalf("run_code: %+v", *res.Error)
	}
	if len(res.Content) != 1 || res.Content[0].Type != "text" {
		t.Fatalf("run_code: a plain caller gets exactly one text item, not %+v", res.Content)
	}
	var r runResult
	if err := json.Unmarshal([]byte(res.Content[0].Text), &r); err != nil {
		t.Fatalf("run_code: %v in %s", err, res.Content[0].Text)
	}
	return r
}

// eventually waits for a condition that another process causes.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited %v for %s", limit, what)
		case <-tick.C:
		}
	}
}

// startPiped starts a program and returns its standard input and output.
func startPiped(t *testing.T, cmd *exec.Cmd) (io.WriteCloser, io.ReadCloser) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return stdin, stdout
}
