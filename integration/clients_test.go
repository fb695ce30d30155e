//go:build linux

package integration

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/logging/logtest"
)

// clientConfig tells a client what to do. Each connects, lists the tools, runs a program that waits
// for an upload, downloads a file, cancels an endless run, and runs another one.
type clientConfig struct {
	Command []string          `json:"command,omitempty"` // stdio, else HTTP
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"`
	Token   string            `json:"token,omitempty"`
	Mode    string            `json:"mode"` // of the Python SDK: auto speaks the newest protocol, legacy begins with initialize

	Stream   map[string]any `json:"stream"`
	Upload   map[string]any `json:"upload"`
	Greeting string         `json:"greeting"`
	Make     map[string]any `json:"make"`
	Endless  map[string]any `json:"endless"`
	Again    map[string]any `json:"again"`
}

// clientEvent is a client's report, as one line of JSON.
type clientEvent struct {
	Event   string   `json:"event"`
	Version string   `json:"version"`
	Names   []string `json:"names"`
	Text    string   `json:"text"`
	SHA256  string   `json:"sha256"`
}

const streamCode = `
import os, time
print("waiting", flush=True)
while not os.path.exists("/data/greeting.txt"):
    time.sleep(0.02)
print(open("/data/greeting.txt").read())
`

const makeCode = `
import { writeFileSync } from "node:fs";
const bytes: Uint8Array = Uint8Array.from({ length: 70_000 }, (_, i: number) => i * 7);
writeFileSync("/data/result.bin", bytes);
console.log(bytes.length);
`

// madeBytes returns the bytes that makeCode writes.
func madeBytes() []byte {
	b := make([]byte, 70_000)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

func newClientConfig(marker string) clientConfig {
	run := func(language, code string) map[string]any {
		return map[string]any{"conversationId": "client", "language": language, "code": code}
	}
	return clientConfig{
		Mode:     "legacy",
		Stream:   run("python", streamCode),
		Upload:   map[string]any{"conversationId": "client", "filename": "greeting.txt"},
		Greeting: "grüß dich",
		Make:     run("typescript", makeCode),
		Endless:  run("shell", sleeper(marker)),
		Again:    run("shell", "cat greeting.txt"),
	}
}

// TestClients lets real clients do what people do with them.
func TestClients(t *testing.T) {
	for _, c := range []struct {
		name    string
		stdio   bool
		mode    string
		version string
		start   func(*testing.T, clientConfig) (<-chan clientEvent, func())
	}{
		{name: "go SDK over HTTP", version: "2026-07-28", start: startGoClient},
		{name: "go SDK over stdio", stdio: true, start: startGoClient},
		{name: "typescript SDK over HTTP", version: "2025-11-25", start: startNodeClient},
		{name: "typescript SDK over stdio", stdio: true, start: startNodeClient},
		{name: "python SDK over HTTP", version: "2025-11-25", start: startPythonClient},
		{name: "python SDK over HTTP, newest protocol", mode: "auto", version: "2026-07-28", start: startPythonClient},
		{name: "python SDK over stdio", stdio: true, mode: "auto", start: startPythonClient},
	} {
		t.Run(c.name, func(t *testing.T) {
			marker := newMarker()
			config := newClientConfig(marker)
			if c.mode != "" {
				config.Mode = c.mode
			}
			if c.stdio {
				root := stdioRoot(t)
				config.Command = []string{binary, "stdio"}
				config.Env = map[string]string{"SANDBOX_ROOT": root, "SANDBOX_HTTP_PORT": "0"}
				for _, kv := range baseEnv() {
					k, v, _ := strings.Cut(kv, "=")
					config.Env[k] = v
				}
			} else {
				s := serve(t)
				config.URL, config.Token = s.URL+"/mcp", s.Token
			}
			events, proceed := c.start(t, config)
			checkClient(t, marker, c.version, events, proceed)
		})
	}
}

// checkClient follows a client's reports, and checks its protocol version if one is given. proceed
// tells it to cancel the endless run.
func checkClient(t *testing.T, marker, version string, events <-chan clientEvent, proceed func()) {
	t.Helper()
	expect := func(name string) clientEvent {
		t.Helper()
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("the client ended before it told of %q", name)
			}
			if e.Event != name {
				t.Fatalf("the client tells of %+v, want %q", e, name)
			}
			return e
		case <-time.After(time.Minute):
			t.Fatalf("waited a minute for the client to tell of %q", name)
			return clientEvent{}
		}
	}
	result := func(e clientEvent) runResult {
		t.Helper()
		var r runResult
		if err := json.Unmarshal([]byte(e.Text), &r); err != nil {
			t.Fatalf("%s: %v in %s", e.Event, err, e.Text)
		}
		return r
	}
	if e := expect("connected"); version != "" && e.Version != version {
		t.Errorf("the client speaks version %s, want %s", e.Version, version)
	}
	names := expect("tools").Names
	for _, want := range []string{"run_code", "upload_file", "list_runners"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no tool %s among %v", want, names)
		}
	}
	if e := expect("uploaded"); !strings.Contains(e.Text, "uploaded successfully (11 bytes)") {
		t.Errorf("upload_file: %s", e.Text)
	}
	if r := result(expect("streamed")); r.Output != "waiting\ngrüß dich\n" || !r.Success {
		t.Errorf("the streamed run: %+v", r)
	}
	if r := result(expect("made")); r.Output != "70000\n" || len(r.Files) != 2 || r.Files[0].Name != "result.bin" {
		t.Errorf("the run that makes a file: %+v", r)
	}
	sum := sha256.Sum256(madeBytes())
	if e := expect("downloaded"); e.SHA256 != hex.EncodeToString(sum[:]) {
		t.Errorf("the download is not the file that was made")
	}
	expect("running")
	if len(marked(marker)) != 1 {
		t.Fatalf("the endless run has the processes %v, want one", marked(marker))
	}
	proceed()
	expect("cancelled")
	eventually(t, time.Second, "the cancelled run to die", func() bool { return len(marked(marker)) == 0 })
	if r := result(expect("again")); r.Output != "grüß dich" {
		t.Errorf("the run after the cancelled one: %+v", r)
	}
	select {
	case e, ok := <-events:
		if ok {
			t.Errorf("the client tells more: %+v", e)
		}
	case <-time.After(20 * time.Second):
		t.Error("the client does not end")
	}
}

// clientsDir is where `make test` installs the npm clients.
func clientsDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("clients")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// node returns a Node.js that is new enough for the npm clients.
func node(t *testing.T) string {
	t.Helper()
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	path := filepath.Join(clientsDir(t), "node_modules", "node-linux-"+arch, "bin", "node")
	if _, err := os.Stat(path); err != nil {
		skip(t, "no npm clients at %s: run make test", path)
	}
	return path
}

func startNodeClient(t *testing.T, config clientConfig) (<-chan clientEvent, func()) {
	t.Helper()
	return startScript(t, config, node(t), filepath.Join(clientsDir(t), "client.mjs"))
}

func startPythonClient(t *testing.T, config clientConfig) (<-chan clientEvent, func()) {
	t.Helper()
	return startScript(t, config, clientPython(t, "client.py"), filepath.Join(clientsDir(t), "client.py"))
}

// startScript starts a client that is a separate program.
func startScript(t *testing.T, config clientConfig, command ...string) (<-chan clientEvent, func()) {
	t.Helper()
	arg, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], string(arg))...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	log := &logtest.Buffer{}
	cmd.Stderr = log
	stdin, stdout := startPiped(t, cmd)
	events, ended := make(chan clientEvent, 16), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(events)
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			var e clientEvent
			if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
				t.Errorf("the client prints %q", sc.Text())
				continue
			}
			events <- e
		}
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Errorf("the client: %v", err)
		}
	}()
	t.Cleanup(func() { // after the test's context has ended, and with it the client
		stdin.Close()
		<-ended
		if t.Failed() {
			t.Logf("the client's stderr:\n%s", log)
		}
	})
	return events, func() { fmt.Fprintln(stdin) }
}

// startGoClient is a client by the Go SDK.
func startGoClient(t *testing.T, config clientConfig) (<-chan clientEvent, func()) {
	t.Helper()
	events, proceed, ended := make(chan clientEvent, 16), make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(events)
		if err := goClient(t.Context(), config, func(e clientEvent) { events <- e }, proceed); err != nil && t.Context().Err() == nil {
			t.Errorf("the client: %v", err)
		}
	}()
	t.Cleanup(func() { <-ended })
	return events, func() { proceed <- struct{}{} }
}

func goClient(ctx context.Context, config clientConfig, tell func(clientEvent), proceed <-chan struct{}) error {
	progress := make(chan string, 16)
	client := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1.0.0"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) { progress <- req.Params.Message },
	})
	var transport mcp.Transport
	if len(config.Command) > 0 {
		cmd := exec.Command(config.Command[0], config.Command[1:]...)
		for k, v := range config.Env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		transport = &mcp.CommandTransport{Command: cmd, TerminateDuration: 20 * time.Second}
	} else {
		transport = &mcp.StreamableClientTransport{Endpoint: config.URL, HTTPClient: &http.Client{Transport: bearer(config.Token)}}
	}
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		return err
	}
	defer session.Close()
	tell(clientEvent{Event: "connected", Version: session.InitializeResult().ProtocolVersion})

	tools, err := session.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	listed := clientEvent{Event: "tools"}
	for _, tool := range tools.Tools {
		listed.Names = append(listed.Names, tool.Name)
	}
	tell(listed)

	call := func(ctx context.Context, name string, args map[string]any, token any) (string, error) {
		params := &mcp.CallToolParams{Name: name, Arguments: args}
		if token != nil {
			params.SetProgressToken(token)
		}
		res, err := session.CallTool(ctx, params)
		if err != nil {
			return "", err
		}
		for _, c := range res.Content {
			if text, ok := c.(*mcp.TextContent); ok {
				return text.Text, nil
			}
		}
		return "", fmt.Errorf("%s: no text", name)
	}
	type outcome struct {
		text string
		err  error
	}
	begin := func(ctx context.Context, args map[string]any, token any) (<-chan outcome, error) {
		done := make(chan outcome, 1)
		go func() {
			text, err := call(ctx, "run_code", args, token)
			done <- outcome{text, err}
		}()
		select {
		case <-progress:
			return done, nil
		case o := <-done:
			return nil, fmt.Errorf("the run ended before its output came: %+v", o)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}

	streaming, err := begin(ctx, config.Stream, "a token")
	if err != nil {
		return err
	}
	config.Upload["content"] = base64.StdEncoding.EncodeToString([]byte(config.Greeting))
	uploaded, err := call(ctx, "upload_file", config.Upload, nil)
	if err != nil {
		return err
	}
	tell(clientEvent{Event: "uploaded", Text: uploaded})
	o := <-streaming
	if o.err != nil {
		return o.err
	}
	tell(clientEvent{Event: "streamed", Text: o.text})

	made, err := call(ctx, "run_code", config.Make, nil)
	if err != nil {
		return err
	}
	tell(clientEvent{Event: "made", Text: made})
	sum, err := download(ctx, made)
	if err != nil {
		return err
	}
	tell(clientEvent{Event: "downloaded", SHA256: sum})

	for len(progress) > 0 {
		<-progress
	}
	endless, cancel := context.WithCancel(ctx)
	defer cancel()
	done, err := begin(endless, config.Endless, 17)
	if err != nil {
		return err
	}
	tell(clientEvent{Event: "running"})
	select {
	case <-proceed:
	case <-ctx.Done():
		return ctx.Err()
	}
	cancel()
	tell(clientEvent{Event: "cancelled"})
	<-done
	again, err := call(ctx, "run_code", config.Again, nil)
	if err != nil {
		return err
	}
	tell(clientEvent{Event: "again", Text: again})
	return nil
}

// download fetches the first file of a run's result.
func download(ctx context.Context, result string) (sum string, err error) {
	var r runResult
	if err := json.Unmarshal([]byte(result), &r); err != nil {
		return "", err
	}
	if len(r.Files) == 0 {
		return "", fmt.Errorf("no files in %s", result)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.Files[0].URL, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, resp.Body)
	return hex.EncodeToString(hash.Sum(nil)), err
}

// bearer adds a token to every request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}
