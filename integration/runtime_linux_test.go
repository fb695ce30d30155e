//go:build linux

package integration

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// envRuntime names a runtime of the engine whose containers have their own kernel: gVisor's runsc.
const envRuntime = "SANDBOX_TEST_DOCKER_RUNTIME"

// needRuntime returns its name, or ends the test.
func needRuntime(t *testing.T) string {
	t.Helper()
	name := os.Getenv(envRuntime)
	if name == "" {
		skip(t, "%s is not set: the engine has no runsc (see scripts/engine)", envRuntime)
	}
	return name
}

// TestSameAnswersOnOwnKernel checks that attacks, packages and named hosts get the same answers in
// sandboxes with their own kernel.
func TestSameAnswersOnOwnKernel(t *testing.T) {
	if onDocker() {
		t.Skip("another process runs it")
	}
	needEngine(t)
	passAgain(t, []string{"TestSessionsApart", "TestNothingSurvives", "TestNotebook", "TestPackages", "TestHosts", "TestHostClients"}, envUseRuntime+"="+needRuntime(t))
}

// TestOwnKernel follows a session in sandboxes with their own kernel, through the server.
func TestOwnKernel(t *testing.T) {
	c := needEngine(t)
	runtime := needRuntime(t)
	s := serveDocker(t, "SANDBOX_DOCKER_RUNTIME="+runtime)
	timed := func(what string, f func()) {
		start := time.Now()
		f()
		t.Logf("%s: %d ms", what, time.Since(start).Milliseconds())
	}
	kernel := "import os; print(open('/proc/version').read().split()[2])"
	var host, inside string
	timed("first run", func() { inside = s.python(t, "story", kernel).Stdout })
	if text, err := os.ReadFile("/proc/version"); err != nil {
		t.Fatal(err)
	} else {
		host = strings.Fields(string(text))[2]
	}
	if inside == "" || strings.TrimSpace(inside) == host {
		t.Fatalf("the kernel inside is %q, the host's %q", inside, host)
	}
	for range 20 { // also those that come from the zygote
		timed("warm run", func() {
			if r := s.python(t, "story", "print(1)"); r.Stdout != "1\n" {
				t.Errorf("a warm run: %+v", r)
			}
		})
	}
	timed("pandas", func() {
		if r := s.python(t, "story", "import pandas as pd; print(pd.Series([1, 2]).sum())"); r.Stdout != "3\n" {
			t.Errorf("pandas: %+v", r)
		}
	})

	for language, code := range map[string]string{
		"python": "print(6*7)", "javascript": "console.log(6*7)", "typescript": "const n: number = 6; console.log(n*7)", "shell": "echo $((6*7))",
	} {
		timed(language, func() {
			if r := s.run(t, "story", language, code); !r.Success || !strings.Contains(r.Output, "42") {
				t.Errorf("run_code in %s: %+v", language, r)
			}
		})
	}
	for env, cells := range map[string][2]string{
		"python": {"x = 40", "x + 2"}, "javascript": {"let x = 40", "x + 2"}, "typescript": {"let x: number = 40", "x + 2"}, "shell": {"x=40", "echo $((x+2))"},
	} {
		s.cell(t, "notebook", env, cells[0])
		timed("cell of "+env, func() {
			if r := s.cell(t, "notebook", env, cells[1]); r.Stdout != "42\n" {
				t.Errorf("a cell of %s: %+v", env, r)
			}
		})
	}
	timed("plot", func() {
		r := s.cell(t, "notebook", "python", "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
		if len(r.Images) != 1 || !strings.HasSuffix(r.Images[0].Name, ".png") {
			t.Errorf("a plot: %+v", r)
		}
	})

	limited := func(seconds int) func(map[string]any) {
		return func(m map[string]any) { m["timeout_seconds"] = seconds }
	}
	if r := s.run(t, "attack", "python", "while True: pass", limited(2)); r.Cause != "timeout" {
		t.Errorf("an endless loop: %+v", r)
	}
	if r := s.run(t, "attack", "python", "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 24)))"); r.Cause != "out_of_memory" && (r.Cause != "killed" || !strings.Contains(r.Hint, "memory")) {
		t.Errorf("all memory: %+v", r)
	}
	bomb := s.run(t, "attack", "python", "import os\nwhile True: os.fork()", limited(5))
	if bomb.Success || bomb.Cause != "out_of_memory" && bomb.Cause != "timeout" {
		t.Errorf("a fork bomb: %+v", bomb)
	}
	if r := s.run(t, "attack", "python", "print('alive')"); !strings.Contains(r.Output, "alive") {
		t.Errorf("after the attacks: %+v", r)
	}
	if r := s.cell(t, "notebook", "python", "x"); r.Stdout != "40\n" {
		t.Errorf("another session after the attacks: %+v", r)
	}
	if said := s.answer(t, "run_code", map[string]any{"conversationId": "net", "language": "python", "code": "1", "network": true}); !strings.HasPrefix(said, "network_denied: ") {
		t.Errorf("network: %s", said)
	}
	s.stop(t)
	for _, session := range []string{"story", "notebook", "attack", "net"} {
		if left := containersOf(t, c, session); len(left) != 0 {
			t.Errorf("containers of %s are left: %v", session, left)
		}
	}
}

// TestUnknownRuntime checks that a server does not start with a runtime that the engine does not
// have.
func TestUnknownRuntime(t *testing.T) {
	needEngine(t)
	cmd := exec.CommandContext(t.Context(), binary, "serve")
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+t.TempDir(), "MCP_HTTP_ADDR=127.0.0.1:0", "SANDBOX_BACKEND=docker", "DOCKER_HOST="+os.Getenv(envEngine), "SANDBOX_DOCKER_RUNTIME=runcs")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the engine has no runtime runcs") || !strings.Contains(string(out), "SANDBOX_DOCKER_RUNTIME to one of") {
		t.Errorf("%v\n%s", err, out)
	}
}
