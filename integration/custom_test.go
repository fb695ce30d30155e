//go:build linux

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// customRoot makes a data directory with the prepared environments, in which others can be
// installed.
func customRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if _, err := os.Stat(filepath.Join(runners, "python")); err != nil {
		skip(t, "no language environments at %s: run make test", runners)
	}
	if err := os.Mkdir(filepath.Join(root, "runners"), 0o755); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(runners)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := os.Symlink(filepath.Join(runners, e.Name()), filepath.Join(root, "runners", e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

// commandWith runs the program with settings and returns its output and exit code.
func commandWith(t *testing.T, settings []string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(append(baseEnv(), "SANDBOX_HTTP_PORT=0"), settings...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// publicDir makes a directory that the user of wrappers can reach.
func publicDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// sessionRun speaks contract 5's protocol, in Python.
const sessionRun = `#!/usr/bin/env python3
import contextlib, io, json, os, struct, sys
out = os.fdopen(os.dup(1), "wb")
def send(m):
    b = json.dumps(m).encode(); out.write(struct.pack(">I", len(b)) + b); out.flush()
g = {}
send({"type": "ready"})
while True:
    head = sys.stdin.buffer.read(4)
    if len(head) < 4: break
    m = json.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0]))
    if m["type"] == "shutdown": break
    if m["type"] == "ping": send({"type": "pong"})
    if m["type"] != "execute": continue
    o, e, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(o), contextlib.redirect_stderr(e):
        try: exec(m["code"], g)
        except Exception as x: print(repr(x), file=sys.stderr); code = 1
    send({"type": "result", "id": m["id"], "stdout": o.getvalue(), "stderr": e.getvalue(), "exit_code": code})
`

// selfJailed is the start of a wrapper that jails itself.
const selfJailed = `#!/bin/sh
exec bwrap --unshare-all --die-with-parent --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
  --proc /proc --dev /dev --tmpfs /tmp --ro-bind "$PROJECT_DIR" "$PROJECT_MOUNT" `

func metadata(name string, timeout, memory int) string {
	return fmt.Sprintf(`{"name":%q,"interpreter_type":"python","timeout_seconds":%d,"memory_mb":%d}`, name, timeout, memory)
}

// TestWrappers runs contract 5's environments through the tool run, under the server's limits.
func TestWrappers(t *testing.T) {
	dir := publicDir(t, map[string]string{
		"ds/metadata.json": metadata("ds", 0, 0), "ds/bin/run": "#!/bin/sh\nexec python3 -\n", "ds/bin/session-run": sessionRun,
		"short/metadata.json": metadata("short", 1, 64), "short/bin/run": "#!/bin/sh\nexec python3 -\n", "short/bin/session-run": sessionRun,
		"shell/metadata.json": metadata("shell", 0, 0), "shell/bin/run": "#!/bin/sh\necho not the bundled one\n",
		"broken/metadata.json": metadata("broken", 0, 0),
		"jailed/metadata.json": metadata("jailed", 0, 0), "jailed/bin/run": selfJailed + "python3 -\n", "jailed/bin/session-run": selfJailed + "python3 -c '" + strings.ReplaceAll(sessionRun, "'", `'"'"'`) + "'\n",
	})
	project := publicDir(t, map[string]string{"hello.txt": "hello"})
	s := serve(t, "NIX_SANDBOX_DIR="+dir, "PROJECT_DIR="+project, "PROJECT_MOUNT=/code")

	r := s.run(t, "w", "ds", "import os; print(sorted(os.environ)); print(os.environ['PROJECT_DIR'], os.environ['PROJECT_MOUNT'], os.getuid())")
	if !r.Success || !strings.Contains(r.Output, project+" /code") || strings.Contains(r.Output, "MCP_API_TOKEN") || strings.Contains(r.Output, "HOME") {
		t.Errorf("a fresh run: %+v", r)
	}
	if os.Geteuid() == 0 && !strings.Contains(r.Output, " 61001") {
		t.Errorf("a root server must not start wrappers as root: %s", r.Output)
	}
	if !strings.Contains(r.Hint, "no /data") {
		t.Errorf("a result must say that there is no /data: %+v", r)
	}
	// This one does what it must: its own jail, with the project in it.
	see := "import os; print(open('/code/hello.txt').read(), os.path.exists('/etc/passwd'), os.getpid() < 10)"
	if r := s.run(t, "w", "jailed", see); !r.Success || !strings.Contains(r.Output, "hello False True") {
		t.Errorf("a wrapper with a jail: %+v", r)
	}
	if c := s.cell(t, "w", "jailed", "y = 1; "+see); c.Stdout != "hello False True\n" {
		t.Errorf("a wrapper with a jail, with state: %+v", c)
	}
	if c := s.cell(t, "w", "jailed", "print(y)"); c.Stdout != "1\n" {
		t.Errorf("a wrapper with a jail, with state: %+v", c)
	}
	if c := s.cell(t, "w", "ds", "x = 20"); c.ExitCode != 0 {
		t.Errorf("state: %+v", c)
	}
	if c := s.cell(t, "w", "ds", "x += 1; print(x * 2)"); c.Stdout != "42\n" {
		t.Errorf("state: %+v", c)
	}
	if c := s.cell(t, "another", "ds", "print('x' in globals())"); c.Stdout != "False\n" {
		t.Errorf("another session: %+v", c)
	}
	if c := s.cell(t, "w", "ds", "import os; os._exit(7)"); c.ExitCode != 7 || c.State == "" {
		t.Errorf("a crash must be reported: %+v", c)
	}
	if c := s.cell(t, "w", "ds", "print('x' in globals())"); c.Stdout != "False\n" {
		t.Errorf("after a crash: %+v", c)
	}
	// An environment's own limits.
	if c := s.cell(t, "w", "short", "import time; time.sleep(100)"); c.Cause != "timeout" || c.State == "" || !strings.Contains(c.Stderr, "after 1 second") {
		t.Errorf("a timeout: %+v", c)
	}
	if r := s.run(t, "w", "short", "x = bytearray(200 << 20); print(len(x))"); r.Success {
		t.Errorf("memory: %+v", r)
	}
	if r := s.run(t, "w", "shell", "echo bundled"); !r.Success || !strings.Contains(r.Output, "not the bundled one") {
		t.Errorf("overriding: %+v", r)
	}
	// A caller's variables and network are refused.
	if r := s.run(t, "w", "ds", "print('ran')", func(a map[string]any) { a["environment"] = map[string]string{"LD_PRELOAD": "/tmp/x.so"} }); r.Success || strings.Contains(r.Output, "ran\n") {
		t.Errorf("variables: %+v", r)
	}
	eventually(t, 10*time.Second, "the warning about what has no bin/run", func() bool {
		return strings.Contains(s.log.String(), "no executable bin/run")
	})

	// Nothing of a daemon remains, while the session lives.
	s.run(t, "w", "ds", "import os, subprocess\nsubprocess.Popen(['sleep', '98765'], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)")
	for _, p := range commandLines(t) {
		if strings.Contains(p, "98765") {
			t.Errorf("a daemon survived its run: %q", p)
		}
	}
	s.cell(t, "w", "ds", "import subprocess; p = subprocess.Popen(['sleep', '87654'])")
	s.stop(t)
	for _, p := range commandLines(t) {
		if strings.Contains(p, "87654") {
			t.Errorf("a process survived the server: %q", p)
		}
	}
	s.wantNoResidue(t)
}

// TestWrapperOfOrdinaryUser runs a wrapper without root and, usually, without control groups.
func TestWrapperOfOrdinaryUser(t *testing.T) {
	dir := publicDir(t, map[string]string{"ds/metadata.json": metadata("ds", 3, 256), "ds/bin/run": "#!/bin/sh\nexec python3 -\n", "ds/bin/session-run": sessionRun})
	root, attr := ordinaryRoot(t)
	s := serveWith(t, func(cmd *exec.Cmd) { cmd.SysProcAttr, cmd.Dir = attr, root },
		"SANDBOX_ROOT="+filepath.Join(root, "data"), "HOME="+root, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "NIX_SANDBOX_DIR="+dir)
	daemon := func(seconds string) string {
		return "import subprocess; p = subprocess.Popen(['setsid', '-f', 'sleep', '" + seconds + "'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); p.wait()\n"
	}
	if r := s.run(t, "u", "ds", daemon("65431")+"print('done')"); !r.Success || r.Output != "done\n" {
		t.Errorf("a fresh run: %+v", r)
	}
	s.cell(t, "u", "ds", daemon("65432")+"x = 5")
	if c := s.cell(t, "u", "ds", "print(x)"); c.Stdout != "5\n" {
		t.Errorf("state: %+v", c)
	}
	if c := s.cell(t, "u", "ds", "import time; time.sleep(60)"); c.Cause != "timeout" || c.State == "" {
		t.Errorf("a timeout: %+v", c)
	}
	if r := s.run(t, "u", "ds", "x = bytearray(1 << 30)"); r.Success {
		t.Errorf("memory: %+v", r)
	}
	for _, p := range commandLines(t) {
		if strings.Contains(p, "sleep 6543") {
			t.Errorf("a daemon survived: %q", p)
		}
	}
}

// TestWrapperDiesWithTheServer checks that the next server removes the control groups of a killed
// one.
func TestWrapperDiesWithTheServer(t *testing.T) {
	dir := publicDir(t, map[string]string{"ds/metadata.json": metadata("ds", 0, 0), "ds/bin/run": "#!/bin/sh\nexec python3 -\n", "ds/bin/session-run": sessionRun})
	root := newRoot(t)
	s := serve(t, "NIX_SANDBOX_DIR="+dir, "SANDBOX_ROOT="+root)
	s.cell(t, "w", "ds", "import subprocess; p = subprocess.Popen(['sleep', '76543'])")
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		return // without a cgroup, session-run itself dies; what its jail makes of that is its own business
	}
	serve(t, "NIX_SANDBOX_DIR="+dir, "SANDBOX_ROOT="+root)
	eventually(t, 10*time.Second, "the next server to clean up", func() bool {
		return !strings.Contains(strings.Join(commandLines(t), "\n"), "76543")
	})
}

func commandLines(t *testing.T) (all []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if b, err := os.ReadFile(name); err == nil && len(b) > 0 {
			all = append(all, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return all
}

// TestProject checks that every runner of the jail sees the project and cannot change it.
func TestProject(t *testing.T) {
	project := publicDir(t, map[string]string{"lib/hello.txt": "hello", "mod.py": "answer = 42"})
	if err := os.Symlink("/etc/shadow", filepath.Join(project, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(project, 0o777); err != nil { // even where the files would allow it
		t.Fatal(err)
	}
	s := serve(t, "PROJECT_DIR="+project)
	for language, code := range map[string]string{
		"python":     "print(open('/project/lib/hello.txt').read())",
		"javascript": "console.log(require('fs').readFileSync('/project/lib/hello.txt', 'utf8'))",
		"shell":      "cat /project/lib/hello.txt",
	} {
		if r := s.run(t, "p", language, code); !r.Success || !strings.Contains(r.Output, "hello") {
			t.Errorf("%s: %+v", language, r)
		}
	}
	if c := s.cell(t, "p", "python", "import sys; sys.path.append('/project'); import mod; mod.answer"); c.Stdout != "42\n" {
		t.Errorf("with a session: %+v", c)
	}
	for _, attack := range []string{
		"echo x > /project/new", "echo x >> /project/mod.py", "rm /project/mod.py", "mount -o remount,rw /project", "cat /project/link", "chmod 777 /project/mod.py",
	} {
		if r := s.run(t, "p", "shell", attack); r.Success {
			t.Errorf("%s: %+v", attack, r)
		}
	}
	if text, err := os.ReadFile(filepath.Join(project, "mod.py")); err != nil || string(text) != "answer = 42" {
		t.Errorf("the project was changed: %q, %v", text, err)
	}
}

// TestProjectRefused refuses projects that would show sessions or keys to code.
func TestProjectRefused(t *testing.T) {
	root := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(root, "keys")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ setting, says string }{
		{"PROJECT_DIR=" + root, "SANDBOX_ROOT"}, {"PROJECT_DIR=" + filepath.Dir(root), "SANDBOX_ROOT"}, {"PROJECT_DIR=" + below, "SANDBOX_ROOT"},
		{"PROJECT_DIR=" + link, "SANDBOX_ROOT"}, {"PROJECT_DIR=" + link + "/keys", "SANDBOX_ROOT"}, {"PROJECT_DIR=/", "SANDBOX_ROOT"},
		{"PROJECT_MOUNT=/usr", "/usr"}, {"PROJECT_MOUNT=/data/project", "/data"}, {"PROJECT_MOUNT=/proc", "/proc"}, {"PROJECT_MOUNT=/opt", "/opt/runners"},
		{"PROJECT_MOUNT=/", "/project"}, {"PROJECT_MOUNT=project", "/project"}, {"PROJECT_MOUNT=/a/../usr", "/project"},
	} {
		out, code := commandWith(t, []string{"SANDBOX_ROOT=" + root, "PROJECT_DIR=/usr/share", c.setting}, "runners", "list")
		if code != 2 || !strings.Contains(out, c.says) {
			t.Errorf("%s: exit code %d: %s", c.setting, code, out)
		}
	}
}

// TestOwnRunner installs a runner.json with a requirements.txt, and runs it jailed like the bundled
// ones.
func TestOwnRunner(t *testing.T) {
	root := customRoot(t)
	own := publicDir(t, map[string]string{
		"tiny/runner.json":      `{"base":"python","title":"Tiny","libraries":["six"],"env":{"GREETING":"hi"},"timeout_seconds":2,"memory_mb":128}`,
		"tiny/requirements.txt": "six==1.16.0\n",
		"strict/runner.json":    `{"base":"shell","timeout_seconds":1}`,
		"js/runner.json":        `{"base":"node","libraries":["ms"]}`,
		"js/package.json":       `{"name":"js","version":"1.0.0","dependencies":{"ms":"2.1.3"}}`,
	})
	settings := []string{"SANDBOX_ROOT=" + root, "SANDBOX_RUNNERS_DIR=" + own}
	out, code := commandWith(t, settings, "runners", "install", "--own")
	if strings.Contains(out, "could not be installed") {
		skip(t, "the package index cannot be used here: %s", out)
	}
	if code != 0 {
		t.Fatalf("runners install: %d: %s", code, out)
	}
	s := serve(t, settings...)
	r := s.run(t, "o", "tiny", "import os, six; open('/data/f', 'w').write('x'); print(six.__version__, os.environ['GREETING'], os.path.exists('/opt/runners/python/bin/python'))\ntry:\n    import numpy\nexcept ImportError: print('no numpy')")
	if !r.Success || !strings.Contains(r.Output, "1.16.0 hi True\nno numpy") || len(r.Files) != 1 {
		t.Errorf("tiny: %+v", r)
	}
	if c := s.cell(t, "o", "tiny", "x = 3"); c.ExitCode != 0 {
		t.Errorf("state: %+v", c)
	}
	if c := s.cell(t, "o", "tiny", "x + 1"); c.Stdout != "4\n" {
		t.Errorf("state: %+v", c)
	}
	if r := s.run(t, "o", "tiny", "import time; time.sleep(30)"); r.Cause != "timeout" {
		t.Errorf("timeout_seconds: %+v", r)
	}
	if r := s.run(t, "o", "tiny", "x = bytearray(300 << 20)"); r.Success || os.Geteuid() == 0 && !strings.Contains(r.Hint, "128 MB") {
		t.Errorf("memory_mb: %+v", r)
	}
	if r := s.run(t, "o", "python", "import numpy; x = bytearray(200 << 20); print('ok')"); !r.Success {
		t.Errorf("the bundled runner must be as it was: %+v", r)
	}
	if r := s.run(t, "o", "js", "import ms from 'ms'; console.log(ms('1h'), require('ms')('2m'))"); r.Output != "3600000 120000\n" {
		t.Errorf("js: %+v", r)
	}
	if r := s.run(t, "o", "strict", "sleep 30"); r.Cause != "timeout" {
		t.Errorf("a runner without files: %+v", r)
	}
}

// TestFlakes builds references with nix where it exists. Elsewhere the log and doctor say that it
// is missing.
func TestFlakes(t *testing.T) {
	store := publicDir(t, map[string]string{"metadata.json": metadata("from-flake", 0, 0), "bin/run": "#!/bin/sh\nexec /bin/sh -s\n"})
	fake := publicDir(t, map[string]string{"nix": `#!/bin/sh
echo "building $2" >&2
case $2 in
*bad) echo "error: no such flake" >&2; exit 1 ;;
esac
test "$1 $3" = "build -o" && ln -s ` + store + ` "$4"
`})
	t.Run("with nix", func(t *testing.T) {
		s := serve(t, "PATH="+fake+":"+os.Getenv("PATH"), "NIX_SANDBOX_ENVS=github:me/bad,.#good")
		if r := s.run(t, "f", "from-flake", "echo built"); !r.Success || !strings.Contains(r.Output, "built") {
			t.Errorf("got %+v", r)
		}
		for _, want := range []string{"nix: building .#good", "no such flake"} {
			if !strings.Contains(s.log.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, s.log)
			}
		}
	})
	t.Run("without", func(t *testing.T) {
		var path []string
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			if _, err := os.Stat(filepath.Join(dir, "nix")); err != nil {
				path = append(path, dir)
			}
		}
		settings := []string{"PATH=" + strings.Join(path, ":"), "NIX_SANDBOX_ENVS=.#good"}
		s := serve(t, settings...)
		if !strings.Contains(s.log.String(), "nix is not installed") {
			t.Errorf("the log does not say it:\n%s", s.log)
		}
		if r := s.run(t, "f", "shell", "echo on"); !r.Success {
			t.Errorf("the server must go on: %+v", r)
		}
		if out, _ := commandWith(t, append(settings, "SANDBOX_ROOT="+s.Root), "doctor"); !strings.Contains(out, "nix is not installed") {
			t.Errorf("doctor does not say it:\n%s", out)
		}
	})
}

// TestWrapperIsListed checks that clients see custom environments like any other.
func TestWrapperIsListed(t *testing.T) {
	dir := publicDir(t, map[string]string{"ds/metadata.json": metadata("ds", 0, 0), "ds/bin/run": "#!/bin/sh\n"})
	s := serve(t, "NIX_SANDBOX_DIR="+dir)
	res := s.call(t, "list_runners", map[string]any{})
	text, err := json.Marshal(res)
	if err != nil || !strings.Contains(string(text), "wrapper:ds") {
		t.Errorf("list_runners: %s", text)
	}
	if res := s.call(t, "run", map[string]any{"env": "ds", "session": "x", "code": "1"}); !res.IsError {
		t.Errorf("without session-run there is no state, which must be said: %+v", res)
	}
}

// TestOwnRunnerThroughMirror: where packages are on, the operator's own environments get only what
// the mirror lets through. A kind of packages that is off changes nothing.
func TestOwnRunnerThroughMirror(t *testing.T) {
	root := customRoot(t)
	own := filepath.Join(root, "runners.d", "words")
	if err := os.MkdirAll(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"runner.json": `{"base": "python", "libraries": ["inflection"]}`, "requirements.txt": "inflection\n", "../../denied.json": `{"packages": {"pypi": {"deny": ["inflection"]}}}`} {
		if err := os.WriteFile(filepath.Join(own, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	install := func(settings ...string) (string, int) {
		return commandWith(t, append(settings, "SANDBOX_ROOT="+root), "runners", "install", "--own")
	}
	if out, code := install("SANDBOX_CONFIG=" + filepath.Join(root, "denied.json")); code == 0 || !strings.Contains(out, "The operator does not allow the package inflection.") {
		t.Errorf("denied: exit %d\n%s", code, out)
	}
	if out, code := install("SANDBOX_PACKAGES=pypi"); code != 0 || !strings.Contains(out, "words: ready") {
		t.Errorf("allowed: exit %d\n%s", code, out)
	}
	if err := os.WriteFile(filepath.Join(own, "requirements.txt"), []byte("inflection # again\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, code := install("SANDBOX_PACKAGES=npm"); code != 0 || !strings.Contains(out, "words: ready") {
		t.Errorf("only npm: exit %d\n%s", code, out)
	}
}
