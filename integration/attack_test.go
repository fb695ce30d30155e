//go:build linux

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestHostilePrograms runs programs that take all they can get or refuse to let go. Each is stopped
// soon, for a reason that the result names, and the session keeps working.
func TestHostilePrograms(t *testing.T) {
	s := serveHostile(t)
	defer s.sweep(t)
	before := s.memory(t)
	tests := []struct {
		name, language, code string
		cause                string
		hint                 string // a part of it
		limit                time.Duration
	}{
		{"prints 1 GB", "python", `
import sys
b = b"x" * (1 << 20)
for _ in range(1024): sys.stdout.buffer.write(b)
`, "output_limit", "printed too much", 15 * time.Second},
		{"floods stdout and stderr at once", "shell", `yes out & yes err >&2 & wait`, "output_limit", "printed too much", 15 * time.Second},
		{"prints 1 GB in one line of JSON", "shell", `head -c 1G /dev/zero | tr '\0' '"'`, "output_limit", "printed too much", 15 * time.Second},
		{"prints from a child that is left", "shell", `yes & exit 0`, "", "", 10 * time.Second},
		{"allocates 100 GB", "python", `
held = []
while True: held.append(bytearray(b"x" * (16 << 20)))
`, "out_of_memory", "512 MB", 20 * time.Second},
		{"allocates 100 GB in Node", "javascript", `const a = []; for (;;) a.push(Buffer.alloc(16 << 20, 1))`, "out_of_memory", "512 MB", 20 * time.Second},
		{"fills its /tmp", "shell", `head -c 1G /dev/zero > /tmp/x`, "", "/data", 20 * time.Second},
		{"fills its shared memory", "shell", `head -c 1G /dev/zero > /dev/shm/x`, "", "", 20 * time.Second},
		{"forks until it fails", "python", `
import os, sys
os.execv(sys.executable, [sys.executable, "-I", "-c", "import os, signal\nwhile True:\n    if os.fork() == 0: signal.pause()"])
`, "pids_limit", "256", 20 * time.Second},
		{"forks with the libraries until it fails", "python", `
import os, signal
while True:
    if os.fork() == 0: signal.pause()
`, "pids_limit", "256", 40 * time.Second}, // each fork copies the page tables of the libraries, imported or not
		{"starts threads until it fails", "python", `
import threading, time
for _ in range(1000): threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
`, "pids_limit", "256", 20 * time.Second},
		{"opens files until it fails", "python", `
held = []
while True: held.append(open("/dev/null"))
`, "", "", 20 * time.Second},
		{"kills everything it can see", "python", `
import os, signal
for sig in (signal.SIGTERM, signal.SIGKILL):
    for pid in range(1, 400):
        if pid != os.getpid():
            try: os.kill(pid, sig)
            except OSError: pass
    try: os.kill(-1, sig)
    except OSError: pass
print("done")
`, "", "", 10 * time.Second},
		{"closes its streams", "python", `
import os
for fd in range(3): os.close(fd)
`, "", "", 10 * time.Second},
		{"dies of a signal", "python", `import os, signal; os.kill(os.getpid(), signal.SIGSEGV)`, "", "SIGSEGV", 10 * time.Second},
		{"kills itself", "shell", `kill -9 $$`, "killed", "SIGKILL", 10 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Now()
			r := s.run(t, "hostile", tt.language, tt.code)
			took := time.Since(began)
			t.Logf("%v, success %t, exit code %d, cause %q, hint %q: %.100q", took.Round(time.Millisecond), r.Success, r.ExitCode, r.Cause, r.Hint, r.Output)
			if !s.hasCgroups(t) && (tt.cause == "out_of_memory" || tt.cause == "pids_limit") {
				// Limits of single processes: the program sees the error and reports it.
				tt.cause, tt.hint = "", ""
				if r.Success {
					t.Error("it succeeded")
				}
			}
			if onDocker() && tt.name == "forks with the libraries until it fails" && r.Cause == "out_of_memory" {
				// Imported libraries and copied pages count as the container's memory: either limit
				// may come first.
				tt.cause, tt.hint = r.Cause, "512 MB"
			}
			if r.Cause != tt.cause || tt.cause != "" && r.Success || !strings.Contains(r.Hint, tt.hint) || took > tt.limit {
				t.Errorf("%+.300v after %v; want cause %q, hint %q, within %v", r, took, tt.cause, tt.hint, tt.limit)
			}
			if len(r.Output) > 210<<10 {
				t.Errorf("the result has %d bytes of output", len(r.Output))
			}
			if r := s.run(t, "hostile", tt.language, map[string]string{"python": "print(1)", "javascript": "console.log(1)", "shell": "echo 1"}[tt.language]); r.Output != "1\n" {
				t.Errorf("the next run: %+v", r)
			}
		})
	}
	if after := s.memory(t); after > before+100<<20 {
		t.Errorf("the server's memory grew from %d to %d MB", before>>20, after>>20)
	}
}

// hasCgroups reports whether the server limits whole sandboxes, and so knows which limit was
// reached.
func (s *server) hasCgroups(t *testing.T) bool {
	t.Helper()
	if onDocker() {
		return true
	}
	b, err := os.ReadFile(filepath.Join(s.Root, "instances", s.ids[0], "jail", "cgroups.json"))
	if err != nil {
		t.Fatal(err)
	}
	var homes []string
	if err := json.Unmarshal(b, &homes); err != nil {
		t.Fatal(err)
	}
	return len(homes) > 0
}

// TestProgramsThatStay checks that a program that refuses to end is ended at its time limit.
func TestProgramsThatStay(t *testing.T) {
	s := serveHostile(t, "SANDBOX_EXEC_TIMEOUT_S=2")
	defer s.sweep(t)
	for _, tt := range []struct{ name, language, code string }{
		{"sleeps", "python", "import time; print('here', flush=True); time.sleep(10**6)"},
		{"computes", "python", "print('here', flush=True)\nwhile True: pass"},
		{"awaits", "typescript", "console.log('here'); setInterval(() => {}, 1000); await new Promise(() => {})"},
		{"ignores signals", "python", `
import signal, time
for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)
print("here", flush=True)
while True: time.sleep(1)
`},
		{"traps signals", "shell", `trap '' TERM INT HUP QUIT; echo here; while :; do sleep 1; done`},
		{"has children that ignore signals", "shell", `echo here; for i in 1 2 3; do (trap '' TERM INT; setsid sleep 1000) & done; wait`},
		{"closes its streams and stays", "python", `
import os, time
print("here", flush=True)
for fd in range(3): os.close(fd)
time.sleep(1000)
`},
		{"waits for input", "shell", `echo here; mkfifo -m 600 /tmp/f; cat /tmp/f`},
		{"stops itself", "javascript", "console.log('here'); process.kill(process.pid, 'SIGSTOP')"},
		{"stops itself and its parent", "shell", `echo here; kill -STOP $PPID; kill -STOP $$`},
		{"forks a bomb", "shell", `echo here; b() { b | b & }; b; while :; do wait; done 2>/dev/null`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			began := time.Now()
			r := s.run(t, "stay", tt.language, tt.code)
			took := time.Since(began)
			timedOut := r.Cause == "timeout" && strings.Contains(r.Hint, "2 seconds")
			bombEnded := tt.name == "forks a bomb" && r.Cause == "pids_limit" // early, where the backend sees who forks
			if r.Success || !timedOut && !bombEnded || !strings.HasPrefix(r.Output, "here") || took > 5*time.Second {
				t.Errorf("after %v: %+v", took, r)
			}
		})
	}
}

// TestHostIsClosed checks that code can neither read, write nor see anything of the host.
func TestHostIsClosed(t *testing.T) {
	s := serveHostile(t)
	defer s.sweep(t)
	marker := filepath.Join(os.TempDir(), "host-marker-"+filepath.Base(t.TempDir()))
	if err := os.WriteFile(marker, []byte("HOST"), 0o666); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(marker) })
	code := fmt.Sprintf(`
import glob, os, pathlib
def readable(p):
    try: return os.listdir(p) if os.path.isdir(p) else open(p, "rb").read(10)
    except OSError: return None
def way(p): # nothing but directories down to a mount: an interpreter that lies there
    return os.path.ismount(p) or os.path.isdir(p) and bool(os.listdir(p)) and all(way(p + "/" + name) for name in os.listdir(p))
for p in ("/root", "/home"):
    for name in readable(p) or ():
        if not way(p + "/" + name): print("reads", p, name)
for p in glob.glob("/proc/[0-9]*/mount*") + glob.glob("/proc/self/mount*"): # each line would have a path of the host's
    if readable(p): print("reads", p)
for p in ("/etc/shadow", "/etc/ssh", "/var", "/run", "/boot", "/srv", "/sys", "/etc/hostname", %q, %q, "/proc/1/environ", "/proc/1/mem", "/proc/1/root",
          "/proc/1/cwd", "/proc/1/fd", "/proc/kcore", "/proc/kmsg", "/proc/keys", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/tty", "/.sandbox-agent/..//root"):
    if readable(p): print("reads", p, readable(p))
for p in ("/", "/etc", "/usr", "/usr/bin", "/opt/runners", "/proc/sys/kernel", "/dev", "/mnt", "/opt"):
    try: open(p + "/written", "w"); print("writes", p)
    except OSError: pass
for p in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/oom_score_adj", "/proc/1/oom_score_adj"):
    try: os.write(os.open(p, os.O_WRONLY), b"-500"); print("writes", p)
    except OSError: pass
others = [p for p in os.listdir("/proc") if p.isdigit() and int(p) not in (1, os.getppid(), os.getpid())]
if others: print("sees processes", others)
names = os.uname()
if names.nodename != "sandbox": print("knows the host's name", names.nodename)
if os.getuid() != 1000: print("is user", os.getuid())
status = open("/proc/self/status").read()
for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
    if line not in status: print("lacks", line)
if set(os.environ) - {"PATH", "HOME", "LANG", "TMPDIR", "USER", "LC_CTYPE", "ARROW_DEFAULT_MEMORY_POOL", "MPLBACKEND", "MPLCONFIGDIR", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED", "SANDBOX_DISPLAY"}: print(os.environ)
print("done")
`, marker, s.Root)
	if onDocker() { // the image's own, and what the engine shows to every container
		code = strings.NewReplacer(`"/var", "/run", `, "", `"/sys", "/etc/hostname", `, "",
			`glob.glob("/proc/[0-9]*/mount*") + glob.glob("/proc/self/mount*")`, "()").Replace(code)
	}
	r := s.run(t, "host", "python", code)
	if r.Output != "done\n" {
		t.Errorf("the sandbox %s", r.Output)
	}
}

// TestSessionsApart checks that two sessions that search for each other find nothing.
func TestSessionsApart(t *testing.T) {
	s := serveHostile(t, "SANDBOX_EXEC_TIMEOUT_S=40")
	defer s.sweep(t)
	hide := `
import ctypes, os, socket, sys, time
open("/data/a", "w").write("A's data"); open("/tmp/marker", "w").write("x"); open("/dev/shm/marker", "w").write("x")
tcp = socket.create_server(("127.0.0.1", 45678)); tcp.setblocking(False)
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\0marker"); abstract.listen(); abstract.setblocking(False)
libc = ctypes.CDLL(None)
shm = libc.shmget(0x5ECE7, 4096, 0o1666)
print("hidden", shm >= 0, flush=True)
while not os.path.exists("/data/stop"):
    for s in (tcp, abstract):
        try: s.accept(); print("somebody came")
        except OSError: pass
    time.sleep(0.01)
`
	reach := `
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", 45678)), (socket.AF_UNIX, "\0marker")):
    try: socket.socket(family).connect(address); print("reaches", address)
    except OSError: pass
`
	seek := `
import ctypes, os
if ctypes.CDLL(None).shmget(0x5ECE7, 4096, 0o666) >= 0: print("has its shared memory")
for p in ("/tmp/marker", "/dev/shm/marker", "/data/a", "/mnt/data/a", "/workspace/a"):
    if os.path.exists(p): print("sees", p)
for p in os.listdir("/proc"):
    if p.isdigit() and int(p) not in (1, os.getppid(), os.getpid()): print("sees process", p)
print("sought")
`
	var wg sync.WaitGroup
	wg.Go(func() {
		if r := s.run(t, "a", "python", hide); r.Output != "hidden True\n" {
			t.Errorf("the one who hides: %+v", r)
		}
	})
	defer wg.Wait()
	defer s.answer(t, "upload_file", map[string]any{"conversationId": "a", "filename": "stop", "content": ""})
	eventually(t, 20*time.Second, "the other session to hide", func() bool { return len(s.run(t, "a", "shell", "true").Files) > 0 })
	if r := s.run(t, "b", "python", reach+seek); r.Output != "sought\n" {
		t.Errorf("another session %s", r.Output)
	}
	if onDocker() { // runs of one session that overlap share more there: see SECURITY.md
		return
	}
	// Another run of the same session shares only files and loopback.
	r := s.run(t, "a", "python", strings.Replace(seek, `if os.path.exists(p): print("sees", p)`, `if os.path.exists(p) and not p.endswith("/a"): print("sees", p)`, 1))
	if strings.Contains(r.Output, "shared memory") || strings.Contains(r.Output, "sees") || !strings.HasSuffix(r.Output, "sought\n") {
		t.Errorf("another run of the session %s", r.Output)
	}
}

// TestNothingSurvives checks that no process of a run is alive when its result arrives, however it
// hides.
func TestNothingSurvives(t *testing.T) {
	s := serveHostile(t)
	defer s.sweep(t)
	for _, tt := range []struct{ name, language, code string }{
		{"a background child", "shell", `sleep MARK & echo started`},
		{"a child without streams", "shell", `nohup sleep MARK >/dev/null 2>&1 </dev/null & disown; echo started`},
		{"a setsid daemon", "shell", `setsid -f sleep MARK; echo started`},
		{"a double fork", "python", `
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        os.execlp("sleep", "sleep", "MARK")
    os._exit(0)
os.wait(); print("started")
`},
		{"one that ignores everything", "python", `
import os, signal
if os.fork() == 0:
    for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)
    os.setsid(); os.execlp("sleep", "sleep", "MARK")
print("started")
`},
		{"a stopped one", "shell", `sleep MARK & kill -STOP $!; echo started`},
		{"one of Node's", "javascript", `require("child_process").spawn("sleep", ["MARK"], { detached: true, stdio: "ignore" }).unref(); console.log("started")`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mark := fmt.Sprintf("1000%d", time.Now().UnixNano()%1e9)
			began := time.Now()
			r := s.run(t, "survive", tt.language, strings.ReplaceAll(tt.code, "MARK", mark))
			left := processes(func(dir string) bool {
				cmd, _ := os.ReadFile(dir + "/cmdline")
				return bytes.Contains(cmd, []byte("sleep\x00"+mark))
			})
			if len(left) > 0 {
				t.Errorf("with the result out, there is still %v", left)
			}
			if !r.Success || r.Output != "started\n" || time.Since(began) > 5*time.Second {
				t.Errorf("after %v: %+v", time.Since(began), r)
			}
		})
	}
}

// TestManyAtOnce makes 30 runs in 5 sessions, each with its own result, and expects clear refusals
// beyond the limits.
func TestManyAtOnce(t *testing.T) {
	s := serveHostile(t, "SANDBOX_MAX_RUNS_PER_SESSION=6", "SANDBOX_MAX_SESSIONS=5")
	defer s.sweep(t)
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			session := fmt.Sprintf("many-%d", i%5)
			r := s.run(t, session, "python", fmt.Sprintf(`open("f%d", "w").write("%d"); print("run %d")`, i, i, i))
			if !r.Success || r.Output != fmt.Sprintf("run %d\n", i) {
				t.Errorf("run %d: %+v", i, r)
			}
		})
	}
	wg.Wait()
	for i := range 5 {
		if r := s.run(t, fmt.Sprintf("many-%d", i), "shell", "ls | wc -l"); r.Output != "6\n" || len(r.Files) != 6 {
			t.Errorf("session %d has %s files", i, r.Output)
		}
	}

	// A run that waits for a file takes each place.
	begin := func(session string) {
		wg.Go(func() {
			r := s.run(t, session, "shell", `touch here-$$; while [ ! -e stop ]; do sleep 0.05; done; echo stopped`)
			if r.Output != "stopped\n" {
				t.Errorf("%s: %+v", session, r)
			}
		})
	}
	stop := func(session string) {
		s.answer(t, "upload_file", map[string]any{"conversationId": session, "filename": "stop", "content": ""})
	}
	for i := range 5 {
		begin(fmt.Sprintf("cap-%d", i))
	}
	eventually(t, 20*time.Second, "five sessions to run", func() bool { return s.metric(t, "sandbox_active_runs") == 5 })
	refused := s.answer(t, "run_code", map[string]any{"conversationId": "cap-more", "language": "shell", "code": "true"})
	if !strings.HasPrefix(refused, "max_sessions: Maximum 5 concurrent sessions reached.") {
		t.Errorf("a sixth session: %s", refused)
	}
	for range 5 {
		begin("cap-0")
	}
	eventually(t, 20*time.Second, "a session to be busy", func() bool { return s.metric(t, "sandbox_active_runs") == 10 })
	refused = s.answer(t, "run_code", map[string]any{"conversationId": "cap-0", "language": "shell", "code": "true"})
	if !strings.HasPrefix(refused, "session_busy: ") {
		t.Errorf("a seventh run: %s", refused)
	}
	for i := range 5 {
		stop(fmt.Sprintf("cap-%d", i))
	}
	wg.Wait()
	if r := s.run(t, "cap-more", "shell", "echo room"); r.Output != "room\n" {
		t.Errorf("afterwards: %+v", r)
	}
}

// TestClientsThatLeave checks that a client that disconnects during a run ends its run.
func TestClientsThatLeave(t *testing.T) {
	s := serveHostile(t)
	defer s.sweep(t)
	mark := fmt.Sprintf("1000%d", time.Now().UnixNano()%1e9)
	running := func() bool {
		return len(processes(func(dir string) bool {
			cmd, _ := os.ReadFile(dir + "/cmdline")
			return bytes.Contains(cmd, []byte("sleep\x00"+mark))
		})) > 0
	}
	for _, accept := range []string{"application/json", "application/json, text/event-stream"} {
		body, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{
			"name": "run_code", "arguments": map[string]any{"conversationId": "leave", "language": "shell", "code": "sleep " + mark}}})
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/mcp", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.Token)
		req.Header.Set("Accept", accept)
		transport := &http.Transport{}
		failed := make(chan error, 1)
		go func() {
			resp, err := (&http.Client{Transport: transport}).Do(req)
			if err == nil {
				_, err = resp.Body.Read(make([]byte, 1))
				resp.Body.Close()
			}
			failed <- err
		}()
		eventually(t, 10*time.Second, "the run to begin", running)
		hangUp()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("the client got %v", err)
		}
		eventually(t, 3*time.Second, "the run of a client that left to end", func() bool { return !running() })
		transport.CloseIdleConnections()
	}
}

// TestClientThatDoesNotRead requests progress, gets a flood of it and never reads. Neither the run
// nor the server waits for it or buffers all of it.
func TestClientThatDoesNotRead(t *testing.T) {
	s := serveHostile(t)
	defer s.sweep(t)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	before := s.memory(t)
	code := "head -c 60M /dev/zero | tr '\\0' x; touch /data/finished"
	for i := range 4 {
		body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{
			"name": "run_code", "_meta": map[string]any{"progressToken": "p"},
			"arguments": map[string]any{"conversationId": fmt.Sprintf("deaf-%d", i), "language": "shell", "code": code}}})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", s.Token, len(body), body)
	}
	for i := range 4 {
		eventually(t, 30*time.Second, "the run of a client that does not read to finish", func() bool {
			files, _ := filepath.Glob(filepath.Join(s.Root, "*", "files", "finished"))
			return len(files) > i
		})
	}
	if after := s.memory(t); after > before+100<<20 {
		t.Errorf("the server's memory grew from %d to %d MB", before>>20, after>>20)
	}
}
