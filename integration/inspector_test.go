//go:build linux

package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestInspector drives the inspector's command line as far as possible: it shows no progress, and
// cancels by being ended.
func TestInspector(t *testing.T) {
	interpreter := node(t)
	cli := filepath.Join(clientsDir(t), "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js")
	s := serve(t)
	home := t.TempDir()
	inspect := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, interpreter, append([]string{cli, "--cli", s.URL + "/mcp", "--transport", "http",
			"--header", "Authorization: Bearer " + s.Token}, args...)...)
		cmd.Env = append(baseEnv(), "HOME="+home)
		cmd.WaitDelay = 5 * time.Second
		return cmd
	}
	output := func(result any, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var stderr bytes.Buffer
		cmd := inspect(ctx, args...)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, result)
		}
		if err != nil {
			t.Fatalf("inspector %v: %v\n%s%s", args, err, out, stderr.String())
		}
	}
	callArgs := func(tool string, args map[string]string) []string {
		list := []string{"--method", "tools/call", "--tool-name", tool}
		for k, v := range args {
			list = append(list, "--tool-arg", k+"="+v)
		}
		return list
	}
	call := func(tool string, args map[string]string) (r runResult) {
		t.Helper()
		var res toolResult
		output(&res, callArgs(tool, args)...)
		if len(res.Content) == 0 || res.IsError || json.Unmarshal([]byte(res.Content[0].Text), &r) != nil {
			t.Fatalf("inspector %s: %+v", tool, res)
		}
		return r
	}

	var listed struct{ Tools []struct{ Name string } }
	output(&listed, "--method", "tools/list")
	if len(listed.Tools) < 3 {
		t.Errorf("tools/list: %+v", listed)
	}
	content := base64.StdEncoding.EncodeToString([]byte("from the inspector"))
	if r := call("upload_file", map[string]string{"conversationId": "inspector", "filename": "in.txt", "content": content}); !r.Success {
		t.Errorf("upload_file: %+v", r)
	}
	python := "print(open('/data/in.txt').read().upper())"
	if r := call("run_code", map[string]string{"conversationId": "inspector", "language": "python", "code": python}); r.Output != "FROM THE INSPECTOR\n" {
		t.Errorf("python: %+v", r)
	}
	r := call("run_code", map[string]string{"conversationId": "inspector", "language": "typescript", "code": makeCode})
	if r.Output != "70000\n" || len(r.Files) != 2 {
		t.Fatalf("typescript: %+v", r)
	}
	resp, err := http.Get(r.Files[0].URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, madeBytes()) {
		t.Errorf("the download is not the file that was made: %v, %d bytes", err, len(got))
	}

	marker := newMarker()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := inspect(ctx, callArgs("run_code", map[string]string{"conversationId": "inspector", "language": "shell", "code": sleeper(marker)})...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() { cancel(); <-ended })
	eventually(t, 30*time.Second, "the run to start", func() bool { return len(marked(marker)) == 1 })
	cancel()
	<-ended
	eventually(t, time.Second, "the run to die with its client", func() bool { return len(marked(marker)) == 0 })
}
