package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/runners"
)

// withZygote returns a harness whose Python programs are forks of a zygote.
func withZygote(t *testing.T) sandboxtest.Harness {
	t.Helper()
	source, err := runners.Files.ReadFile("python/zygote.py")
	if err != nil {
		t.Fatal(err)
	}
	h := newContainers(t).harness()
	h.Zygote = &wire.Zygote{Name: "python", Argv: []string{"/usr/bin/python3"}, Reads: []string{"PYTHON"}, Source: source}
	return h
}

// TestZygote is TestLandlock with programs that are forks of a zygote.
func TestZygote(t *testing.T) {
	sandboxtest.Run(t, withZygote)
}

// TestZygoteLost: a run may kill or stop the zygote where Landlock cannot forbid it. The only
// effect is that a later run starts more slowly, once.
func TestZygoteLost(t *testing.T) {
	h := withZygote(t)
	b := sandboxtest.Start(t, h, sandbox.Spec{})
	for n, sig := range []unix.Signal{unix.SIGKILL, unix.SIGSTOP} {
		zygote := zygoteOf(t, b)
		if err := unix.Kill(zygote, sig); err != nil {
			t.Fatal(err)
		}
		for again := range 3 { // the first may have been prestarted
			begin := time.Now()
			res := b.Run(t, sandboxtest.Python("with open('/data/runs', 'a') as f: f.write('x')"))
			if res.Exit.Code != 0 || time.Since(begin) > 10*time.Second {
				t.Errorf("after %v, %v: %+v %s", sig, time.Since(begin), res.Exit, res.Stderr)
			}
			if runs, err := os.ReadFile(filepath.Join(b.Workspace, "runs")); len(runs) != 3*n+again+1 {
				t.Errorf("after %v the program has run %d times, not %d: %v", sig, len(runs), 3*n+again+1, err)
			}
		}
		for tries := 0; !b.Run(t, sandboxtest.Python("pass")).Exit.Forked; tries++ {
			if tries == 1000 {
				t.Fatalf("after %v no other zygote starts", sig)
			}
		}
	}
}

// TestZygoteStays: the zygote survives the end of a run, whatever the run leaves behind.
func TestZygoteStays(t *testing.T) {
	h := withZygote(t)
	b := sandboxtest.Start(t, h, sandbox.Spec{})
	before := zygoteOf(t, b)
	for _, code := range []string{
		"pass",
		"if not os.fork():\n    os.setsid()\n    if not os.fork():\n        while True: os.fork() or os._exit(0)",
		"subprocess.Popen(['sleep', '1000'], start_new_session=True)",
		"os.kill(os.getpid(), 9)",
	} {
		if res := b.Run(t, sandboxtest.Python(code)); !res.Exit.Forked {
			t.Errorf("%s: %+v %s", code, res.Exit, res.Stderr)
		}
	}
	if after := zygoteOf(t, b); after != before {
		t.Errorf("the zygote was process %d and is process %d", before, after)
	}
}

// TestZygotePrestarts: a run can neither find nor damage anything of the next one, whose process
// waits already.
func TestZygotePrestarts(t *testing.T) {
	h := withZygote(t)
	b := sandboxtest.Start(t, h, sandbox.Spec{})
	b.Run(t, sandboxtest.Python("pass"))
	spoil := b.Run(t, sandboxtest.Shell(`
for try in $(seq 500); do # where runs can signal each other, none waits
	[ $(cat /proc/[0-9]*/comm | grep -c python) -lt 2 ] || break
	sleep 0.01
done
ls /.runs
chmod 0 /.runs/* /.runs`))
	if dirs := strings.Fields(string(spoil.Stdout)); len(dirs) != 1 || spoil.Exit.Code != 0 {
		t.Errorf("a run sees the directories %q: %+v %s", dirs, spoil.Exit, spoil.Stderr)
	}
	res := b.Run(t, sandboxtest.Python("open(os.environ['TMPDIR'] + '/x', 'w'); print(oct(os.stat(os.environ['TMPDIR']).st_mode))"))
	if string(res.Stdout) != "0o40700\n" || !res.Exit.Forked {
		t.Errorf("the run after it: %q %+v %s", res.Stdout, res.Exit, res.Stderr)
	}
}

// zygoteOf finds a sandbox's zygote.
func zygoteOf(t *testing.T, b *sandboxtest.Sandbox) int {
	t.Helper()
	pids := zygotesBelow(t, b.Sandbox.(*container).cmd.Process.Pid)
	if len(pids) == 0 {
		t.Fatal("no zygote found")
	}
	return slices.Min(pids) // the others come from it
}

func zygotesBelow(t *testing.T, pid int) (pids []int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		children, _ := os.ReadFile(thread) // it may have ended
		for _, field := range strings.Fields(string(children)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			if cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); err == nil && strings.Contains(string(cmd), "\x00/proc/self/fd/4\x00") {
				pids = append(pids, child)
			}
			pids = append(pids, zygotesBelow(t, child)...)
		}
	}
	return pids
}
