//go:build linux

package integration

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// command runs the program and returns its output and exit code.
func command(t *testing.T, root, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+root, "SANDBOX_HTTP_PORT=0")
	var out, log bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &log
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), log.String(), cmd.ProcessState.ExitCode()
}

func TestCommands(t *testing.T) {
	root := stdioRoot(t)
	script := filepath.Join(t.TempDir(), "fails.ts")
	if err := os.WriteFile(script, []byte("console.log('typed' as string); process.exitCode = 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   []string
		stdin  string
		code   int
		stdout string // a regular expression for all of it
		stderr string
	}{
		{name: "version", args: []string{"version"}, stdout: `mcp-code-sandbox \S+ \(go\S+, linux/\w+\)\n`},
		{name: "runners", args: []string{"runners"}, stdout: `(?s)RUNNER .*\npython .*numpy.*\ntypescript .*\njavascript +node, js .*\nshell +bash, sh .*`},
		{name: "doctor", args: []string{"doctor"}, stdout: `(?s).*ok +sessions +SANDBOX_MAX_SESSIONS is 10; this machine has room for about \d+, if most of them are idle: half of .*ok +python .*(Code can run here|Everything works).*`},
		{name: "flag for the version", args: []string{"--version"}, stdout: `mcp-code-sandbox \S+ \(go\S+, linux/\w+\)\n`},
		{name: "stdio answers before it ends", args: []string{"stdio"}, stdin: `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"printf","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_code","arguments":{"conversationId":"s","language":"python","code":"import time; time.sleep(1); print(6*7)"}}}
`, stdout: `\{"jsonrpc":"2.0","id":1,"result":.*\n\{"jsonrpc":"2.0","id":2,"result":.*42.*\n`, stderr: "(?s).*"},
		{name: "stdin", args: []string{"run", "--language", "python", "-"}, stdin: "import sys; print('out'); sys.stderr.write('err\\n')", stdout: "out\n", stderr: "err\n"},
		{name: "short names", args: []string{"run", "-l", "py"}, stdin: "print(1)", stdout: "1\n"},
		{name: "exit code", args: []string{"run", "--language", "shell"}, stdin: "echo bye; exit 42", code: 42, stdout: "bye\n"},
		{name: "signal", args: []string{"run", "--language", "shell"}, stdin: "kill -TERM $$", code: 128 + 15, stderr: "(?s).*"},
		{name: "file by its extension", args: []string{"run", script}, code: 3, stdout: "typed\n"},
		{name: "environment", args: []string{"run", "-l", "shell", "-e", "NAME=a=b c"}, stdin: `echo "$NAME"`, stdout: "a=b c\n"},
		{name: "writes a file of a session", args: []string{"run", "-l", "shell", "--session", "s"}, stdin: "echo kept > kept.txt", stderr: "mcp-code-sandbox: wrote kept.txt in /.*/files\n"},
		{name: "writes a name for terminals", args: []string{"run", "-l", "shell", "--session", "s"}, stdin: `printf x > "$(printf 'a\033[2J')"; exit 3`, code: 3, stderr: `mcp-code-sandbox: wrote "a\\x1b\[2J" in /.*/files\n`},
		{name: "reads it", args: []string{"run", "-l", "python", "--session", "s"}, stdin: "print(open('kept.txt').read(), end='')", stdout: "kept\n"},
		{name: "timeout", args: []string{"run", "-l", "shell", "--exec-timeout", "1s"}, stdin: "echo first; sleep infinity", code: 124, stdout: "first\n", stderr: "(?s).*timed out after 1 second. Do less in one run, or .*--exec-timeout 10m\n"},
		{name: "no language", args: []string{"run"}, stdin: "x", code: 2, stderr: "(?s).*--language.*"},
		{name: "unknown language", args: []string{"run", "-l", "cobol"}, stdin: "x", code: 2, stderr: "(?s).*python.*"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, code := command(t, root, c.stdin, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, s := range []struct{ name, got, want string }{{"stdout", stdout, c.stdout}, {"stderr", stderr, c.stderr}} {
				if !regexp.MustCompile(`\A(?:` + s.want + `)\z`).MatchString(s.got) {
					t.Errorf("%s is %q, want %q", s.name, s.got, s.want)
				}
			}
		})
	}
}

// TestRunStreams checks that `run` passes output on while the program runs. This program ends when
// its first line has been read and a file appears.
func TestRunStreams(t *testing.T) {
	root := newRoot(t)
	cmd := exec.CommandContext(t.Context(), binary, "run", "--language", "shell")
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+root, "SANDBOX_HTTP_PORT=0")
	cmd.Stdin = strings.NewReader("echo first; until [ -e go ]; do sleep 0.05; done; echo last; exit 7")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("first\n"))
	if _, err := io.ReadFull(stdout, first); err != nil || string(first) != "first\n" {
		t.Fatalf("%q, %v", first, err)
	}
	dirs, err := filepath.Glob(filepath.Join(root, "*", "files"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("workspaces: %v, %v", dirs, err)
	}
	if err := os.WriteFile(filepath.Join(dirs[0], "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(stdout)
	if err != nil || string(rest) != "last\n" {
		t.Errorf("%q, %v", rest, err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("ended with %v, want exit code 7", err)
	}
}
