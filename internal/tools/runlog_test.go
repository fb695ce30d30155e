package tools

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/workspace"
)

func TestRunLog(t *testing.T) {
	for _, exit := range []int{0, 3} {
		var out bytes.Buffer
		log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l := runLog{log: log, session: "x", network: true, envVars: 1}
		res := executor.Result{RunID: "run_1", ExitCode: exit, Started: time.Now(), Stdout: []byte("hunter2")}
		l.Started("run_1", runner.Runner{Image: "jail:python", Definition: runner.Definition{Name: "python"}})
		l.Opened("f00")
		l.Ended(res)
		res.Files = []executor.FileLink{
			{File: workspace.File{Name: "sub/deep.txt", ModTime: res.Started}, URL: "http://host:1/files/x/sub/deep.txt?sig=5ec2e7"},
			{File: workspace.File{Name: "old.txt"}, URL: "http://host:1/files/x/old.txt?sig=5ec2e7"},
		}
		l.Listed(res)
		got := strings.ReplaceAll(out.String(), `\u003e`, ">")
		at := 0
		for _, line := range []string{
			`"level":"INFO","msg":"[MCP] Using runner: jail:python","session_id":"x","run_id":"run_1"`,
			`"level":"DEBUG","msg":"[MCP] Sandbox directory: f00"`,
			`"level":"INFO","msg":"[MCP] Executing python code for conversation x (network: true, env vars: 1)"`,
			fmt.Sprintf(`"level":"INFO","msg":"[MCP] Execution completed: success=%t, exitCode=%d"`, exit == 0, exit),
			`"duration_ms":`, fmt.Sprintf(`"exit_code":%d`, exit),
			`"level":"INFO","msg":"[MCP] File available: sub/deep.txt -> http://host:1/files/x/sub/deep.txt"`,
			`"level":"INFO","msg":"[MCP] Found 2 files"`,
		} {
			i := strings.Index(got[at:], line)
			if i < 0 {
				t.Fatalf("the log lacks %s after byte %d:\n%s", line, at, got)
			}
			at += i + len(line)
		}
		for _, secret := range []string{"hunter2", "sig=", "old.txt"} {
			if strings.Contains(got, secret) {
				t.Errorf("the log holds %q:\n%s", secret, got)
			}
		}
	}
}
