//go:build linux

package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// cellResult is a plain caller's result of run.
type cellResult struct {
	Session   string `json:"session"`
	SessionID string `json:"session_id"`
	RunID     string `json:"run_id"`
	ExitCode  int    `json:"exit_code"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	State     string `json:"state"`
	Cause     string `json:"cause"`
	Hint      string `json:"hint"`
	Artifacts []struct {
		Path, Filename string
		MIMEType       string `json:"mime_type"`
		DownloadURL    string `json:"download_url"`
	} `json:"artifacts"`
	Images []struct{ Name, URL string } `json:"images"`
}

// cell calls run with or without a session.
func (s *server) cell(t *testing.T, session, env, code string) cellResult {
	t.Helper()
	return s.cellWith(t, session, env, code, nil)
}

// cellWith is cell with environment variables.
func (s *server) cellWith(t *testing.T, session, env, code string, environment map[string]string) cellResult {
	t.Helper()
	args := map[string]any{"env": env, "code": code}
	if session != "" {
		args["session"] = session
	}
	if environment != nil {
		args["environment"] = environment
	}
	return s.callRun(t, args)
}

// cellFor is cell for code that its time limit may end. Other cells of these tests have the usual
// limit: on a busy machine, an interpreter may take seconds to start.
func (s *server) cellFor(t *testing.T, seconds int, session, env, code string) cellResult {
	t.Helper()
	return s.callRun(t, map[string]any{"env": env, "session": session, "code": code, "timeout_seconds": seconds})
}

func (s *server) callRun(t *testing.T, args map[string]any) cellResult {
	t.Helper()
	res := s.call(t, "run", args)
	if res.Error != nil || res.IsError || len(res.Content) != 1 {
		t.Fatalf("run: %+v", res)
	}
	var r cellResult
	if err := json.Unmarshal([]byte(res.Content[0].Text), &r); err != nil {
		t.Fatalf("run: %v in %s", err, res.Content[0].Text)
	}
	return r
}

// TestNotebook checks that state is kept, values and plots are shown, and errors point at cells.
func TestNotebook(t *testing.T) {
	s := serve(t)
	if r := s.cell(t, "nb", "python", "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': [0.5, 0.25]})\ndf"); r.Stdout != "   a     b\n0  1  0.50\n1  2  0.25\n" || r.ExitCode != 0 || r.Session != "nb" {
		t.Errorf("a frame: %+v", r)
	}
	if r := s.cell(t, "nb", "python", "df.a.sum()"); !strings.Contains(r.Stdout, "3") {
		t.Errorf("state: %+v", r)
	}
	for name, code := range map[string]string{
		"shown":     "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
		"left open": "import matplotlib.pyplot as plt\n_ = plt.plot([2, 1])",
	} {
		r := s.cell(t, "nb", "python", code)
		if len(r.Images) != 1 || !strings.HasSuffix(r.Images[0].Name, ".png") || len(r.Artifacts) > 0 || r.Stderr != "" {
			t.Errorf("a plot that is %s: %+v", name, r)
		}
	}
	r := s.cell(t, "nb", "python", "def f():\n    return 1/0\nf()")
	if want := "in f\n    return 1/0"; r.ExitCode != 1 || !strings.Contains(r.Stderr, want) || !strings.Contains(r.Stderr, `File "<cell 5>", line 3`) || strings.Contains(r.Stderr, "driver") {
		t.Errorf("an error: %+v", r)
	}
	if r := s.cell(t, "nb", "python", "this is no python"); r.ExitCode != 1 || !strings.Contains(r.Stderr, "SyntaxError") || r.State != "" {
		t.Errorf("a syntax error: %+v", r)
	}
	if r := s.cell(t, "nb", "python", "import sys; sys.exit(3)"); r.ExitCode != 3 || r.State != "" {
		t.Errorf("sys.exit: %+v", r)
	}
	if r := s.cell(t, "nb", "python", "len(df)"); r.Stdout != "2\n" {
		t.Errorf("state after errors: %+v", r)
	}
	if r := s.cell(t, "other", "python", "'df' in globals()"); r.Stdout != "False\n" {
		t.Errorf("another session: %+v", r)
	}
	if r := s.run(t, "nb", "python", "print('df' in globals())"); r.Output != "False\n" {
		t.Errorf("run_code is fresh: %+v", r)
	}
	if r := s.cell(t, "nb", "bash", "x=1; f() { echo f $x; }; cd /tmp"); r.ExitCode != 0 {
		t.Errorf("shell: %+v", r)
	}
	for env, code := range map[string]string{"python": "import os; print(os.getenv('MINE', 'none'))", "shell": "echo ${MINE-none}", "javascript": "console.log(process.env.MINE ?? 'none')"} {
		if r := s.cellWith(t, "nb", env, code, map[string]string{"MINE": "one"}); r.Stdout != "one\n" {
			t.Errorf("a variable of the call in %s: %+v", env, r)
		}
		if r := s.cell(t, "nb", env, code); r.Stdout != "none\n" {
			t.Errorf("a variable of the call before in %s: %+v", env, r)
		}
	}
	if r := s.cell(t, "nb", "shell", "f; pwd"); r.Stdout != "f 1\n/tmp\n" {
		t.Errorf("shell state: %+v", r)
	}
}

// TestNodeNotebook does the same for JavaScript and TypeScript.
func TestNodeNotebook(t *testing.T) {
	s := serve(t)
	for _, env := range []string{"javascript", "typescript"} {
		number := map[string]string{"typescript": ": number"}[env]
		for i, step := range []struct{ code, want string }{
			{"let x" + number + " = 1; const y = 2; class C { m() { return 3 } }; function f() { return 4 }", ""},
			{"x + y + new C().m() + f()", "10\n"},
			{"let x" + number + " = 5; const y = 6; x + y", "11\n"},
			{"await Promise.resolve(7)", "7\n"},
			{"import fs from 'node:fs'; const path = require('node:path'); path.basename(fs.realpathSync('/data'))", "'data'\n"},
			{"import Papa from 'papaparse'; Papa.parse('a,b').data[0].length", "2\n"},
			{"console.log('log'); process.stdout.write('write\\n')", "log\nwrite\ntrue\n"},
		} {
			if r := s.cell(t, "nb", env, step.code); r.Stdout != step.want || r.Stderr != "" || r.ExitCode != 0 {
				t.Errorf("%s, cell %d: %+v", env, i+1, r)
			}
		}
		if r := s.cell(t, "nb", env, "\nnull.x"); r.ExitCode != 1 || !strings.Contains(r.Stderr, "<cell 8>:2") || strings.Contains(r.Stderr, ".cjs") {
			t.Errorf("%s: an error: %+v", env, r)
		}
		if r := s.cellFor(t, 3, "nb", env, "while (true) {}"); r.Cause != "timeout" || !strings.Contains(r.State, "kept") {
			t.Errorf("%s: an endless loop: %+v", env, r)
		}
		if r := s.cell(t, "nb", env, "x"); r.Stdout != "5\n" {
			t.Errorf("%s: after it: %+v", env, r)
		}
		if r := s.cell(t, "nb", env, "console.log('bye'); process.exit(4)"); r.ExitCode != 4 || r.Stdout != "bye\n" || !strings.Contains(r.State, "lost") {
			t.Errorf("%s: exit: %+v", env, r)
		}
	}
}

// TestFigures checks that a fresh run returns links to its figures, and that a saved figure is
// returned once, as a file.
func TestFigures(t *testing.T) {
	s := serve(t)
	for name, test := range map[string]struct {
		code          string
		files, images int
	}{
		"shown":           {"plt.plot([1, 2])\nplt.show()", 0, 1},
		"left open":       {"plt.plot([1, 2])\nplt.figure()\nplt.plot([2, 1])", 0, 2},
		"saved":           {"plt.plot([1, 2])\nplt.savefig('/data/a.png')", 1, 0},
		"saved elsewhere": {"plt.plot([1, 2])\nplt.savefig('/mnt/data/a.png')\nplt.savefig('/workspace/b.png')", 2, 0},
		"empty":           {"plt.figure()", 0, 0},
		"failed":          {"plt.plot([1, 2])\nraise SystemExit(3)", 0, 1},
	} {
		r := s.run(t, "figures-"+strings.ReplaceAll(name, " ", "-"), "python", "import matplotlib.pyplot as plt\n"+test.code)
		if len(r.Files) != test.files || len(r.Images) != test.images {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestSingleRun checks that a run without a session keeps only its links.
func TestSingleRun(t *testing.T) {
	s := serve(t)
	r := s.cell(t, "", "python", "open('/data/x.txt', 'w').write('hi'); print('once')")
	if r.Stdout != "once\n" || r.Session != "" || len(r.Artifacts) != 1 {
		t.Fatalf("%+v", r)
	}
	resp, err := http.Get(r.Artifacts[0].DownloadURL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || string(body) != "hi" || err != nil {
		t.Errorf("its file: %s %q %v", resp.Status, body, err)
	}
	if res := s.call(t, "list_artifacts", map[string]any{"session_id": r.SessionID}); !res.IsError || !strings.Contains(res.Content[0].Text, "session_not_found") {
		t.Errorf("its session is still there: %+v", res)
	}
}

// TestInterruptAndLoss checks that a timeout keeps the state if the code stops, and that a loss is
// reported at once and by the next run.
func TestInterruptAndLoss(t *testing.T) {
	s := serve(t)
	s.cell(t, "x", "python", "kept = 1")
	r := s.cellFor(t, 2, "x", "python", "import time\nprint('on')\nwhile True: time.sleep(0.05)")
	if r.Cause != "timeout" || r.ExitCode != -1 || r.Stdout != "on\n" || !strings.HasSuffix(r.Stderr, "Execution timed out after 2 seconds") ||
		!strings.Contains(r.Stderr, "line 3, in <module>\n") || strings.Contains(r.Stderr, "driver") || !strings.Contains(r.State, "kept") {
		t.Errorf("a timeout: %+v", r)
	}
	if r := s.cell(t, "x", "python", "kept"); r.Stdout != "1\n" {
		t.Errorf("after it: %+v", r)
	}
	r = s.cellFor(t, 2, "x", "python", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass")
	if r.Cause != "timeout" || !strings.Contains(r.State, "lost") {
		t.Errorf("code that does not heed an interrupt: %+v", r)
	}
	if r := s.cell(t, "x", "python", "'kept' in globals()"); r.Stdout != "False\n" || !strings.Contains(r.State, "had ended") {
		t.Errorf("the next run starts clean and says so: %+v", r)
	}
	if r := s.cell(t, "x", "python", "1"); r.State != "" {
		t.Errorf("and only that one: %+v", r)
	}
	s.stop(t)
	again := serve(t, "SANDBOX_ROOT="+s.Root)
	if r := again.cell(t, "x", "python", "1"); !strings.Contains(r.State, "had ended") {
		t.Errorf("after a restart: %+v", r)
	}
	if r := again.cell(t, "x", "python", "import os; os.kill(os.getpid(), 11)"); r.ExitCode != 139 || !strings.Contains(r.State, "lost") {
		t.Errorf("a crash: %+v", r)
	}
	if r := again.cell(t, "x", "python", "x = bytearray(10**10)"); !strings.Contains(r.Stderr, "MemoryError") && r.Cause != "out_of_memory" {
		t.Errorf("out of memory: %+v", r)
	}
}
