package wrapper_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mcp-code-sandbox/internal/backend/wrapper"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// session is a session-run in Python. Code can use its parts to misbehave.
const session = `#!/usr/bin/env python3
import contextlib, io, json, os, struct, sys, time
out = os.fdopen(os.dup(1), "wb")
def send(m):
    b = json.dumps(m).encode()
    out.write(struct.pack(">I", len(b)) + b); out.flush()
def recv():
    head = sys.stdin.buffer.read(4)
    if len(head) < 4: sys.exit(0)
    return json.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0]))
g = {"send": send, "out": out}
print("noise", file=sys.stderr, flush=True)
send({"type": "ready"})
while True:
    m = recv()
    if m["type"] == "ping": send({"type": "pong"})
    elif m["type"] == "pong": pass
    elif m["type"] == "shutdown": sys.exit(0)
    elif m["type"] == "execute":
        o, e, code = io.StringIO(), io.StringIO(), 0
        g["m"] = m
        with contextlib.redirect_stdout(o), contextlib.redirect_stderr(e):
            try: exec(m["code"], g)
            except Exception as x: print(repr(x), file=sys.stderr); code = 1
        send({"type": "result", "id": m["id"], "stdout": o.getvalue(), "stderr": e.getvalue(), "exit_code": g.pop("code", code)})
`

// fixture is a started wrapper, as a session sees it.
type fixture struct {
	t    *testing.T
	dir  string
	sb   sandbox.Sandbox
	conn *wire.Conn
}

func start(t *testing.T, cfg wrapper.Config, limits sandbox.Limits, files map[string]string) *fixture {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // a root server starts wrappers as another user
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, "bin", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := wrapper.New(cfg)
	t.Cleanup(b.Close)
	sb, err := b.Start(t.Context(), sandbox.Spec{ID: fmt.Sprintf("t-%x", time.Now().UnixNano()), Runner: "custom", Wrapper: dir, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, dir: dir, sb: sb, conn: wire.NewConn(sb.Conn(), wire.ServerSide, nil)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := sb.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		_ = f.conn.Close()
	})
	return f
}

type result struct {
	wire.Exit
	stdout, stderr string
}

// begin starts a run, or a cell.
func (f *fixture) begin(cell bool, code string, env map[string]string) *wire.Stream {
	f.t.Helper()
	run := &wire.Run{Argv: []string{filepath.Join(f.dir, "bin/run")}, Code: []byte(code), Env: env}
	if cell {
		run.Argv, run.Interpreter = []string{filepath.Join(f.dir, "bin/session-run"), "python"}, "custom"
	}
	s, err := f.conn.Open(wire.Frame{Type: wire.TypeRun, Run: run})
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func (f *fixture) end(s *wire.Stream) (r result) {
	f.t.Helper()
	for {
		frame, err := s.Recv(f.t.Context())
		if err != nil {
			f.t.Fatal(err)
		}
		switch frame.Type {
		case wire.TypeStdout:
			r.stdout += string(frame.Data)
		case wire.TypeStderr:
			r.stderr += string(frame.Data)
		case wire.TypeExit:
			r.Exit = *frame.Exit
			return r
		}
	}
}

func (f *fixture) run(code string) result  { f.t.Helper(); return f.end(f.begin(false, code, nil)) }
func (f *fixture) cell(code string) result { f.t.Helper(); return f.end(f.begin(true, code, nil)) }

// gone fails if the process whose pid is in the file is alive.
func (f *fixture) gone(file string) {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, file))
	pid, perr := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || perr != nil {
		f.t.Fatal(err, perr)
	}
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
		f.t.Errorf("process %d of %s is still there: %s", pid, file, stat)
	}
}

// appears waits until the file has a line.
func (f *fixture) appears(file string) {
	f.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if text, _ := os.ReadFile(filepath.Join(f.dir, file)); strings.HasSuffix(string(text), "\n") {
			return
		}
		if f.t.Context().Err() != nil {
			f.t.Fatal("it never came: " + file)
		}
	}
}

func TestFreshRun(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "x")
	f := start(t, wrapper.Config{ProjectDir: "/srv/p", ProjectMount: "/project"}, sandbox.Limits{FileBytes: 1 << 20}, map[string]string{"run": "#!/bin/sh\nexec /bin/sh -s\n"})
	if r := f.run("echo out; echo err >&2; exit 3"); r.stdout != "out\n" || r.stderr != "err\n" || r.Code != 3 || r.Lost {
		t.Errorf("got %+v", r)
	}
	r := f.run("env; pwd; id -u; ulimit -c")
	for _, want := range []string{"PATH=/usr/local/bin:", "PROJECT_DIR=/srv/p\n", "PROJECT_MOUNT=/project\n", "\n/\n"} {
		if !strings.Contains("\n"+r.stdout, want) {
			t.Errorf("no %q in %s", want, r.stdout)
		}
	}
	if strings.Contains(r.stdout, "SECRET") || strings.Contains(r.stdout, "HOME=/root") || os.Geteuid() == 0 && !strings.Contains(r.stdout, strconv.Itoa(wrapper.UID)+"\n") {
		t.Errorf("something of the server's got in: %s", r.stdout)
	}
	if r := f.run("kill -SEGV $$"); r.Signal != int(syscall.SIGSEGV) || r.Code != 128+int(syscall.SIGSEGV) {
		t.Errorf("a crash: %+v", r)
	}
	if r := f.run("head -c 300000 /dev/zero | tr '\\0' x"); len(r.stdout) != 300000 {
		t.Errorf("long output: %d bytes", len(r.stdout))
	}
	// A caller's variables would reach a program outside any jail.
	if r := f.end(f.begin(false, "echo ran", map[string]string{"LD_PRELOAD": "/tmp/evil.so"})); r.Code != 126 || r.Error == "" || r.stdout != "" {
		t.Errorf("with variables: %+v", r)
	}
}

func TestStdinIsNotRead(t *testing.T) {
	f := start(t, wrapper.Config{}, sandbox.Limits{}, map[string]string{"run": "#!/bin/sh\nexec 0<&-\necho done\n"})
	if r := f.run(strings.Repeat("#", 1<<20)); r.stdout != "done\n" || r.Code != 0 {
		t.Errorf("got %+v", r)
	}
}

// Every process of a run dies with it, in or out of its session, and when the run is killed.
func TestNothingSurvives(t *testing.T) {
	f := start(t, wrapper.Config{}, sandbox.Limits{}, map[string]string{"run": "#!/bin/sh\ncd " + "\"${0%/*}/..\"" + "\nexec /bin/sh -s\n"})
	f.run("sleep 1000 & echo $! > plain\nsetsid sh -c 'echo $$ > daemon; exec sleep 1000' >/dev/null 2>&1 & while ! [ -s daemon ]; do :; done")
	f.gone("plain")
	f.gone("daemon")
	for name, how := range map[string]wire.Type{"kill": wire.TypeKill, "interrupt": wire.TypeInterrupt} {
		s := f.begin(false, "trap '' INT TERM\nsleep 1000 & echo $! > "+name+"\nwait", nil)
		f.appears(name)
		if err := s.Send(t.Context(), wire.Frame{Type: how}); err != nil {
			t.Fatal(err)
		}
		if r := f.end(s); r.Signal != int(syscall.SIGKILL) {
			t.Errorf("%s: %+v", name, r)
		}
		f.gone(name)
	}
	// The sandbox is closed during a run.
	f.begin(false, "sleep 1000 & echo $! > last\nwait", nil)
	f.appears("last")
	if err := f.sb.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.gone("last")
	if exit, err := f.sb.Wait(t.Context()); err != nil || exit.Cause != sandbox.CauseKilled {
		t.Errorf("wait: %v, %v", exit, err)
	}
}

func TestStateLivesOn(t *testing.T) {
	f := start(t, wrapper.Config{PingAfter: time.Nanosecond}, sandbox.Limits{}, map[string]string{"run": "", "session-run": session})
	if r := f.cell("x = 41; print(m['interpreter'])"); r.stdout != "python\n" || !r.Fresh || r.Lost || r.stderr != "" {
		t.Errorf("first: %+v", r)
	}
	if r := f.cell("import sys; print(x + 1); print('é', file=sys.stderr); 1/0"); r.stdout != "42\n" || r.Code != 1 || r.Fresh || !strings.HasPrefix(r.stderr, "é\nZeroDivision") {
		t.Errorf("second: %+v", r)
	}
	if r := f.cell("print('y' * 300000)"); len(r.stdout) != 300001 {
		t.Errorf("long output: %d bytes", len(r.stdout))
	}
	if r := f.cell("import os; os._exit(9)"); r.Code != 9 || !r.Lost {
		t.Errorf("a crash: %+v", r)
	}
	if r := f.cell("x = 1; import os; os._exit(0)"); r.Code == 0 || !r.Lost || !strings.Contains(r.stderr, "without a result") {
		t.Errorf("an end without a result is no success: %+v", r)
	}
	if r := f.cell("print('x' in globals())"); r.stdout != "False\n" || !r.Fresh {
		t.Errorf("after a crash: %+v", r)
	}
	// The interpreter dies between two cells.
	if r := f.cell("import threading; threading.Timer(0.01, lambda: os._exit(0) if os else 0).start(); import os"); r.Lost {
		t.Errorf("got %+v", r)
	}
	for r := f.cell("pass"); !r.Fresh; r = f.cell("pass") {
	}
	s := f.begin(true, "import os, subprocess, time\np = subprocess.Popen(['sleep', '1000'])\nopen('"+f.dir+"/child', 'w').write(str(p.pid) + '\\n')\ntime.sleep(1000)", nil)
	f.appears("child")
	if err := s.Send(t.Context(), wire.Frame{Type: wire.TypeInterrupt}); err != nil {
		t.Fatal(err)
	}
	if r := f.end(s); r.Signal != int(syscall.SIGKILL) || !r.Lost {
		t.Errorf("a timeout: %+v", r)
	}
	f.gone("child")
	if r := f.cell("print(1)"); r.stdout != "1\n" || !r.Fresh {
		t.Errorf("after a timeout: %+v", r)
	}
	f.cell("import os; open('" + f.dir + "/self', 'w').write(str(os.getpid()) + '\\n')")
	if err := f.sb.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.gone("self")
}

// A wrapper that breaks the protocol loses its state and nothing else.
func TestHostileSession(t *testing.T) {
	raw := func(s string) string {
		return fmt.Sprintf("out.write(%s); out.flush(); import time; time.sleep(1000)", s)
	}
	f := start(t, wrapper.Config{}, sandbox.Limits{}, map[string]string{"run": "", "session-run": session})
	for name, c := range map[string]struct{ code, says string }{
		"garbage":         {raw(`b"\0\0\0\5hello"`), "broke the protocol"},
		"huge frame":      {raw(`b"\xff\xff\xff\xff{}"`), "4294967295 bytes"},
		"empty frame":     {raw(`b"\0\0\0\0"`), "broke the protocol"},
		"text":            {raw(`b"Traceback (most recent call last)"`), "broke the protocol"},
		"another's id":    {"send({'type': 'result', 'id': 'x', 'stdout': 'forged', 'stderr': '', 'exit_code': 0}); import time; time.sleep(1000)", "broke the protocol"},
		"no exit code":    {"send({'type': 'result', 'id': m['id']}); import time; time.sleep(1000)", "broke the protocol"},
		"unknown type":    {"send({'type': 'surprise'}); import time; time.sleep(1000)", "surprise"},
		"cut short":       {`out.write(b"\0\0\1\0{"); out.flush(); import os; os._exit(5)`, ""},
		"wrong type":      {"send({'type': 'result', 'id': 7}); import time; time.sleep(1000)", "broke the protocol"},
		"ready once more": {"send({'type': 'ready'}); import time; time.sleep(1000)", "ready"},
	} {
		t.Run(name, func(t *testing.T) {
			r := f.cell(c.code)
			if !r.Lost || r.Code == 0 || r.stdout != "" || !strings.Contains(r.stderr, c.says) {
				t.Errorf("got %+v", r)
			}
			if r := f.cell("print('clean')"); r.stdout != "clean\n" || !r.Fresh {
				t.Errorf("the next call: %+v", r)
			}
		})
	}
	// A result that is written in advance is not taken for the next one.
	f.cell("import threading; threading.Timer(0, lambda: send({'type': 'result', 'id': m['id'], 'stdout': 'forged', 'stderr': '', 'exit_code': 0})).start()")
	for range 3 {
		if r := f.cell("print('honest')"); r.stdout != "honest\n" && !r.Lost || strings.Contains(r.stdout, "forged") {
			t.Errorf("after a forged result: %+v", r)
		}
	}
	// It may ping. Exit codes are brought into range.
	for code, want := range map[int]int{-9: 137, 255: 255, 256: 1, -1000: 1} {
		r := f.cell(fmt.Sprintf("send({'type': 'ping'}); code = %d", code))
		if r.Code != want || r.Lost {
			t.Errorf("exit code %d: %+v", code, r)
		}
	}
}

func TestSessionThatDoesNotStart(t *testing.T) {
	for name, c := range map[string]struct{ script, says, stderr string }{
		"hangs":         {"#!/bin/sh\nexec sleep 1000\n", `did not say "ready" within`, ""},
		"hangs in part": {"#!/bin/sh\nprintf '\\0'\nsleep 1000\n", `did not say "ready" within`, ""},
		"ends":          {"#!/bin/sh\necho no such jail >&2\nexit 4\n", "ended before it was ready", "no such jail"},
		"speaks early":  {"#!/bin/sh\nprintf '\\0\\0\\0\\17{\"type\":\"pong\"}'\nsleep 1000\n", `"pong" where "ready" was due`, ""},
		"is no program": {"\x7fELF nonsense", "ended before it was ready", ""},
		"closes stdout": {"#!/bin/sh\nexec >&-\nsleep 1000\n", "ended before it was ready", ""},
		"floods stderr": {"#!/bin/sh\nyes >&2\n", `did not say "ready" within`, "y\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, wrapper.Config{ReadyTimeout: 500 * time.Millisecond}, sandbox.Limits{}, map[string]string{"run": "", "session-run": c.script})
			r := f.cell("1")
			if r.Code != 126 || !r.Lost || !strings.Contains(r.Error, c.says) ||
				!strings.Contains(r.stderr, c.stderr) || len(r.stderr) > 8<<10 {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	b := wrapper.New(wrapper.Config{})
	defer b.Close()
	for name, spec := range map[string]sandbox.Spec{
		"gone":       {ID: "a", Wrapper: filepath.Join(t.TempDir(), "missing")},
		"no wrapper": {ID: "b"},
		"network":    {ID: "c", Wrapper: t.TempDir(), Network: true},
	} {
		if sb, err := b.Start(t.Context(), spec); err == nil {
			t.Errorf("%s: started", name)
			sb.Close(t.Context())
		}
	}
}

// Without cgroups, the memory of each process is limited.
func TestMemoryWithoutGroup(t *testing.T) {
	f := start(t, wrapper.Config{}, sandbox.Limits{MemoryBytes: 256 << 20}, map[string]string{"run": "#!/bin/sh\nexec python3 -\n"})
	if r := f.run("x = bytearray(1 << 30)"); r.Code == 0 || !strings.Contains(r.stderr, "MemoryError") {
		t.Errorf("got %+v", r)
	}
}
