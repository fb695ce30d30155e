package jail_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

// program is Python that can be started before its code is there. The code finds in prestarted
// whether it was.
const program = `
import json, os, sys
file, prestarted = sys.argv[1], not os.path.exists(sys.argv[1])
if prestarted:
    %s
    os.write(0, b"ready\n")
    text = b""
    while part := os.read(0, 1 << 16): text += part
    request = json.loads(text)
    os.write(0, b"taken\n")
    os.close(0)
    os.open("/dev/null", os.O_RDONLY)
    os.chdir("/data")
    os.environ.clear()
    os.environ.update(request["env"])
    file = request["file"]
exec(open(file).read())
`

// prestartable is a run of program, which executes first before it is ready.
func prestartable(first, code string) wire.Run {
	return wire.Run{
		Argv: []string{"/usr/bin/python3", "-I", "-c", fmt.Sprintf(program, first), "{file}"}, File: "program.py", Code: []byte(code),
		Prestart: &wire.Prestart{Env: map[string]string{"OWN": "1"}, Reads: []string{"EARLY_"}},
	}
}

// waitingPrograms lists the programs that wait for their code.
func waitingPrograms(t *testing.T, workspace string) (pids []int) {
	t.Helper()
	for _, pid := range processes(t, workspace) {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.HasPrefix(string(cmdline), "/usr/bin/python3\x00") && strings.Contains(string(cmdline), "request = json.loads(text)") {
			pids = append(pids, pid)
		}
	}
	return pids
}

func awaitWaiting(t *testing.T, workspace string) int {
	t.Helper()
	var pids []int
	await(t, "a program to wait for the next run", func() bool {
		pids = waitingPrograms(t, workspace)
		return len(pids) == 1
	})
	return pids[0]
}

func parent(t *testing.T, pid int) (ppid int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var state string
	if _, err := fmt.Sscan(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), &state, &ppid); err != nil {
		t.Fatal(err)
	}
	return ppid
}

// TestPrestartedProgram: a prestarted program is as confined as its run, has nothing of the run
// before, never runs at the same time as another run, and may fail without consequences.
func TestPrestartedProgram(t *testing.T) {
	needRoot(t, "reads other users' /proc")
	b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
	want := func(t *testing.T, r wire.Run, stdout string) {
		t.Helper()
		if res := b.Run(t, r); string(res.Stdout) != stdout || len(res.Stderr) > 0 || res.Exit.Code != 0 {
			t.Errorf("%+v %s%s, want %s", res.Exit, res.Stdout, res.Stderr, stdout)
		}
	}
	const whether = "print(prestarted)"

	t.Run("confined and clean", func(t *testing.T) {
		r := prestartable("pass", "open('/tmp/left', 'w') # s3cr3t")
		r.Env = map[string]string{"OWN": "1", "MINE": "s3cr3t"}
		want(t, r, "")
		pid := awaitWaiting(t, b.Workspace)
		await(t, "the program to be ready", func() bool { return reads(pid) })
		proc := fmt.Sprintf("/proc/%d/", pid)
		if !powerless(t, pid) {
			t.Error("it has a privilege")
		}
		agent := parent(t, parent(t, pid)) // of run-init
		for _, name := range []string{"pid", "mnt", "ipc"} {
			ns, err := os.Readlink(proc + "ns/" + name)
			if theirs, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", agent, name)); err != nil || ns == theirs {
				t.Errorf("its %s namespace is %s, the agent's %s; %v", name, ns, theirs, err)
			}
		}
		for _, name := range []string{"environ", "cmdline"} {
			if text, err := os.ReadFile(proc + name); err != nil || strings.Contains(string(text), "s3cr3t") {
				t.Errorf("%s: %q, %v", name, text, err)
			}
		}
		if score, _ := os.ReadFile(proc + "oom_score_adj"); string(score) != "1000\n" {
			t.Errorf("oom_score_adj is %s", score)
		}
		if files, err := os.ReadDir(proc + "root/tmp"); err != nil || len(files) > 0 {
			t.Errorf("its /tmp: %v, %v", files, err)
		}
		fds, _ := filepath.Glob(proc + "fd/*")
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); !strings.HasPrefix(to, "socket:") && !strings.HasPrefix(to, "pipe:") || len(filepath.Base(fd)) > 1 || filepath.Base(fd) > "2" {
				t.Errorf("descriptor %s is %s", filepath.Base(fd), to)
			}
		}
		r = prestartable("pass", "import resource\nprint(prestarted, os.environ.get('OWN'), os.environ.get('NEW'), 'HOME' in os.environ, resource.getrlimit(resource.RLIMIT_FSIZE)[1], os.path.exists('/tmp/left'), os.listdir('/proc/self/fd')[:3])")
		r.Env = map[string]string{"NEW": "2"}
		r.Limits.FileBytes = 5000
		want(t, r, "True None 2 True 5000 False ['0', '1', '2']\n")
	})
	t.Run("another name", func(t *testing.T) {
		awaitWaiting(t, b.Workspace)
		r := prestartable("pass", "print(prestarted, file[:11], file[-4:])")
		r.File = "named.txt"
		want(t, r, "True /tmp/named- .txt\n")
	})
	t.Run("variables that are read early", func(t *testing.T) {
		pid := awaitWaiting(t, b.Workspace)
		r := prestartable("pass", whether)
		r.Env = map[string]string{"EARLY_X": "1"}
		want(t, r, "False\n")
		if pids := waitingPrograms(t, b.Workspace); len(pids) > 0 && pids[0] == pid {
			t.Error("it still waits")
		}
	})
	t.Run("another program", func(t *testing.T) {
		pid := awaitWaiting(t, b.Workspace)
		run := b.Begin(t, sandboxtest.Shell("echo up; sleep 1000"))
		run.Until(t, "up\n")
		await(t, fmt.Sprintf("program %d, which does not fit, to end", pid), func() bool {
			return len(waitingPrograms(t, b.Workspace)) == 0
		})
		want(t, prestartable("pass", whether), "False\n")
		want(t, prestartable("pass", whether), "False\n") // the other run is still going on
		run.Send(t, wire.TypeKill)
		run.Wait(t)
		want(t, prestartable("pass", ""), "")
	})

	for name, first := range map[string]string{
		"hangs up":              "os.close(0); import time; time.sleep(1000)",
		"says something else":   "os.write(0, b'reading'); import time; time.sleep(1000)",
		"ends when it is ready": "os.write(0, b'ready\\n'); os._exit(1)",
	} {
		t.Run(name, func(t *testing.T) {
			b.Run(t, prestartable(first, ""))
			want(t, prestartable(first, whether), "False\n")
			want(t, prestartable(first, whether), "False\n")
		})
	}
	t.Run("killed", func(t *testing.T) {
		const loud = "print('loud', flush=True); print('loud', file=sys.stderr, flush=True)"
		b.Run(t, prestartable("pass", "")) // replaces the one that failed
		b.Run(t, prestartable(loud, ""))
		pid := awaitWaiting(t, b.Workspace)
		killed(t, pid, pid)
		want(t, prestartable(loud, whether), "False\n")
	})
	t.Run("helper", func(t *testing.T) { testHelper(t, b, want) })
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := processes(t, b.Workspace); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// helper answers a line on its standard input with the largest size of a file that it may write.
const helper = "import os, resource\nwhile os.read(0, 100): os.write(1, b'%d' % resource.getrlimit(resource.RLIMIT_FSIZE)[1])"

// testHelper: the helper of a prestarted program is confined like it, has the limits of the run,
// and may fail without consequences. Without a prestarted program there is none.
func testHelper(t *testing.T, b *sandboxtest.Sandbox, want func(*testing.T, wire.Run, string)) {
	helped := func(code string) wire.Run {
		r := prestartable("pass", code)
		r.Prestart.Helper = []string{"/usr/bin/python3", "-I", "-c", helper}
		r.Limits.FileBytes = 5000
		return r
	}
	find := func() (program, pid int) {
		program = awaitWaiting(t, b.Workspace)
		await(t, "the program and its helper", func() bool {
			for _, each := range processes(t, b.Workspace) {
				cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", each))
				if strings.Contains(string(cmdline), "\x00"+helper+"\x00") && reads(each) {
					pid = each
				}
			}
			return pid != 0 && reads(program)
		})
		return program, pid
	}
	const ask = "os.write(3, b'?')\nprint(prestarted, os.read(3, 100))"

	b.Run(t, prestartable("pass", ""))
	awaitWaiting(t, b.Workspace)
	want(t, prestartable("pass", "print(prestarted, os.path.exists('/proc/self/fd/4'))"), "True False\n")
	b.Run(t, helped(""))
	program, pid := find()
	if !powerless(t, pid) || parent(t, pid) != parent(t, program) {
		t.Errorf("the helper has a privilege, or its parent is %d, not %d", parent(t, pid), parent(t, program))
	}
	for _, name := range []string{"pid", "mnt", "ipc", "net"} {
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
		if programs, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", program, name)); err != nil || its != programs {
			t.Errorf("its %s namespace is %s, the program's %s; %v", name, its, programs, err)
		}
	}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if len(fds) != 3 {
		t.Errorf("it has the descriptors %v", fds)
	}
	want(t, helped(ask), "True b'5000'\n")

	_, pid = find()
	killed(t, pid, pid)
	want(t, helped("print(prestarted, os.read(3, 100))"), "True b''\n")

	program, pid = find()
	killed(t, program, program)
	want(t, helped("print(prestarted, os.path.exists('/proc/self/fd/4'))"), "False False\n")
	await(t, "the helper to end with its program", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		return os.IsNotExist(err)
	})
}

// TestFirstProgram: a prepared sandbox starts the program of its first run before it has a
// workspace. Only the first one waits longer than others.
func TestFirstProgram(t *testing.T) {
	needRoot(t, "only root's sandboxes can be prepared")
	b := open(t, t.TempDir(), sandboxtest.ID())
	h := harness(t, b)
	first := prestartable("pass", "")
	spec := sandbox.Spec{ID: sandboxtest.ID(), Limits: sandbox.Limits{TmpBytes: 1 << 20}, Prestart: &sandbox.Prestart{
		Argv: first.Argv, File: first.File, Env: first.Prestart.Env, Reads: first.Prestart.Reads,
	}}
	p, err := b.Prepare(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	ws := sandboxtest.Workspace(t, h.Owner)
	if err := os.WriteFile(filepath.Join(ws, "old"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.Attach(t.Context(), ws); err != nil {
		t.Fatal(err)
	}
	started := &sandboxtest.Sandbox{Sandbox: p, Conn: wire.NewConn(p.Conn(), wire.ServerSide, nil), Workspace: ws}
	t.Cleanup(func() { _ = started.Conn.Close() })
	run := prestartable("pass", "print(prestarted, os.getcwd(), open('old').read()); open('/workspace/new', 'w').close(); print(os.listdir('/mnt/data'))")
	run.Limits.TmpBytes = 1 << 20
	for range 2 { // the second program started after the workspace came
		awaitWaiting(t, ws)
		if res := started.Run(t, run); string(res.Stdout) != "True /data kept\n['old', 'new']\n" && string(res.Stdout) != "True /data kept\n['new', 'old']\n" {
			t.Errorf("%+v: %s%s", res.Exit, res.Stdout, res.Stderr)
		}
	}
}
