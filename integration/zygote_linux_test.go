package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestForked checks that a program that comes from the zygote cannot notice it, except by the
// clock.
func TestForked(t *testing.T) {
	ignoreLibrarySignal(t)
	s := serve(t)
	type result struct {
		ExitCode       int `json:"exit_code"`
		Stdout, Stderr string
		Cause          string
	}
	run := func(t *testing.T, code string, env map[string]string) result {
		t.Helper()
		args := map[string]any{"session_id": "forked", "code": code}
		if env != nil {
			args["environment"] = env
		}
		res := s.call(t, "run_python", args)
		if res.Error != nil || len(res.Content) != 1 {
			t.Fatalf("run_python: %+v", res)
		}
		return decode[result](t, json.RawMessage(res.Content[0].Text))
	}
	const imported = "import sys; print('pandas' in sys.modules, 'statistics' in sys.modules)"
	const heavy = "\n'import'" // as far as anybody can tell without parsing it
	for code, want := range map[string]string{imported: "False True", imported + heavy: "True False"} {
		for n := 0; strings.TrimSpace(run(t, code, nil).Stdout) != want; n++ {
			if n == 2000 {
				t.Fatalf("no run comes from the zygote that it should come from: %s", want)
			}
		}
	}
	t.Run("chance", func(t *testing.T) {
		const draw = `import random, uuid, secrets, tempfile, numpy
print(random.random(), numpy.random.random(), numpy.random.default_rng().random(), numpy.random.RandomState().random_sample(), uuid.uuid1(), uuid.uuid4(), secrets.token_hex(), tempfile.mktemp(), random.SystemRandom().random())`
		seen := map[string]bool{}
		for range 3 {
			for _, word := range strings.Fields(run(t, draw, nil).Stdout) {
				seen[word] = true
			}
		}
		if len(seen) != 3*9 {
			t.Errorf("%d different values of %d: %v", len(seen), 3*9, seen)
		}
	})
	t.Run("what a session uses", func(t *testing.T) { // is there before it is imported, some runs later
		if onDocker() {
			return // a zygote does not grow there
		}
		if r := run(t, "import sys; print('seaborn' in sys.modules); import seaborn", nil); r.Stdout != "False\n" {
			t.Fatalf("%+v", r)
		}
		for n := 0; strings.TrimSpace(run(t, "import sys; print('seaborn' in sys.modules)"+heavy, nil).Stdout) != "True"; n++ {
			if n == 2000 {
				t.Fatal("no run has it")
			}
		}
	})
	cold := map[string]string{"PYTHONHASHSEED": "0"} // what is read at the start needs a start
	if r := run(t, imported, cold); r.Stdout != "False False\n" {
		t.Fatalf("%+v", r)
	}

	const held = "open('/data/held.py', 'w').write('class A:\\n    def __del__(self): print(1)\\na = A()')\n"
	// These values differ in every process.
	volatile := regexp.MustCompile(`main-[0-9a-f]{8}|0x[0-9a-f]+|PYTHONHASHSEED=0\n|/\.runs/[a-z2-7]*`)
	for name, code := range map[string]string{
		"value":            "print(2+2)",
		"exception":        "def f():\n    return 1/0\nf()",
		"chained":          "try:\n    1/0\nexcept Exception as e:\n    raise ValueError('x') from e",
		"syntax":           "print(1)\nx = = 2",
		"exit code":        "import sys; sys.exit(3)",
		"exit message":     "import sys; sys.exit('bye')",
		"exit none":        "raise SystemExit",
		"exit negative":    "import sys; sys.exit(-1)",
		"interrupt":        "raise KeyboardInterrupt",
		"unflushed file":   "f = open('/data/u.txt', 'w'); f.write('hi')",
		"its content":      "f = open('/data/v.txt', 'w'); f.write('hi'); del f; print(open('/data/v.txt').read())",
		"exit handlers":    "import atexit; atexit.register(print, 'bye'); print('x')",
		"thread":           "import threading, time\nprinted = threading.Event()\nthreading.Thread(target=lambda: (printed.wait(), time.sleep(.1), print('t'))).start()\nprint('m'); printed.set()",
		"finalizer":        "class A:\n    def __del__(self): print('del')\na = A()",
		"generator":        "def g():\n    try: yield\n    finally: print('fin')\nx = g(); next(x)",
		"names":            "print(__name__, __file__[:10], __spec__, __doc__, __package__, sorted(globals()))",
		"main":             "import __main__; print(__main__.__dict__ is globals())",
		"environment":      "import os; os.system('env | sort')",
		"arguments":        "import sys; print(len(sys.argv), len(sys.orig_argv), sys.path[:2], sys.executable)",
		"input":            "import sys; print(repr(sys.stdin.read()))",
		"streams":          "import sys; print([(s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdin, sys.stdout, sys.stderr)])",
		"closed stdout":    "import sys; sys.stdout.close()",
		"abort":            "import os; os.abort()",
		"killed":           "import os; os.kill(os.getpid(), 9)",
		"exit at once":     "import os; print('a'); os._exit(5)",
		"fork":             "import os\nif os.fork(): os.wait(); print('p')\nelse: print('c')",
		"processes":        "from concurrent.futures import ProcessPoolExecutor as P\ndef f(x): return x*x\nif __name__ == '__main__':\n    with P(2) as p: print(list(p.map(f, [1, 2, 3])))",
		"spawned":          "import multiprocessing as m\ndef f(): print('spawned', flush=True)\nif __name__ == '__main__':\n    p = m.get_context('spawn').Process(target=f); p.start(); p.join(); print(p.exitcode)",
		"subprocess":       "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True, text=True).stdout)",
		"descriptors":      "import os; print(sorted(os.listdir('/proc/self/fd')))",
		"privileges":       "import re; print([l for l in open('/proc/self/status') if re.match('Cap|NoNew|Seccomp:|Threads|Sig(Blk|Ign)', l)])",
		"limits":           "import resource; print([resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith('RLIMIT')])",
		"worth":            "import os; print(open('/proc/self/oom_score_adj').read(), os.getpriority(0, 0), os.sched_getscheduler(0))",
		"place":            "import os; print(os.getcwd(), os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid(), os.getuid(), os.umask(0))",
		"module of /data":  "open('/data/mine.py', 'w').write('x = 5')\nimport mine; print(mine.x, mine.__file__)",
		"frame":            "import pandas as pd; print(pd.DataFrame({'a': [1, 2, 1], 'b': [1, 2, 3]}).groupby('a').sum())",
		"blocked import":   held + "import held, sys; sys.modules['readline'] = None",
		"reloaded module":  held + "import held, json, importlib; importlib.reload(json)",
		"hook":             "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1/0",
		"recursion":        "def f(n): return f(n + 1)\ntry: f(0)\nexcept RecursionError: print('deep')",
		"event loop":       "import asyncio\nasync def m(): print('x')\nasyncio.run(m())",
		"signals":          "import signal; print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGCHLD), signal.pthread_sigmask(0, []))",
		"temporary files":  "import tempfile, os; print(os.path.dirname(tempfile.mkstemp()[1]))",
		"figure":           "import matplotlib.pyplot as plt; plt.plot([1, 2]); print(plt.get_backend())",
		"bad UTF-8 output": "import sys; sys.stdout.buffer.write(b'\\xff'); sys.stdout.flush()",
	} {
		t.Run(name, func(t *testing.T) {
			stable := func(code string, env map[string]string) result {
				r := run(t, code, env)
				r.Stdout, r.Stderr = volatile.ReplaceAllString(r.Stdout, ""), volatile.ReplaceAllString(r.Stderr, "")
				return r
			}
			plain := stable(code, cold)
			for _, code := range []string{code, code + heavy} {
				if forked := stable(code, nil); forked != plain {
					t.Errorf("forked: %+v\nplain:  %+v", forked, plain)
				}
			}
		})
	}
}

// TestNiceServer: a server that nice has started has a shared zygote too. Nobody may take away its
// niceness again without privileges.
func TestNiceServer(t *testing.T) {
	if onDocker() {
		return // there is none
	}
	s := serveWith(t, func(cmd *exec.Cmd) {
		nice, err := exec.LookPath("nice")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path, cmd.Args = nice, append([]string{"nice", "-n", "15"}, cmd.Args...)
	})
	eventually(t, time.Minute, "a shared zygote in a sandbox", func() bool {
		return slices.ContainsFunc(descendants(t, s.cmd.Process.Pid), isSharedFork)
	})
	if strings.Contains(s.log.String(), "each sandbox imports libraries itself") {
		t.Error("the first shared zygote failed")
	}
}

// ignoreLibrarySignal makes the programs that this process starts ignore a signal of the C library,
// as GNU make does.
func ignoreLibrarySignal(t *testing.T) {
	t.Helper()
	const number, ignore = 32, 1
	set := func(handler uintptr) {
		action := [4]uintptr{handler}
		if _, _, e := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, number, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); e != 0 {
			t.Fatal(e)
		}
	}
	set(ignore)
	t.Cleanup(func() { set(0) })
}

// TestSeparateZygotes checks that with SANDBOX_SHARED_ZYGOTE=off a sandbox imports for itself, and
// that nothing outside of sandboxes does.
func TestSeparateZygotes(t *testing.T) {
	s := serve(t, "SANDBOX_SHARED_ZYGOTE=off")
	for n := 0; s.python(t, "separate", "import sys, numpy; print('pandas' in sys.modules)").Stdout != "True\n"; n++ {
		if n == 2000 {
			t.Fatal("no run comes from a zygote")
		}
	}
	if got := s.cell(t, "separate", "python", "import sys; 'pandas' in sys.modules"); got.Stdout != "True\n" {
		t.Errorf("an interpreter that lives on does not: %+v", got)
	}
	for _, p := range descendants(t, s.cmd.Process.Pid) {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if strings.Contains(string(cmdline), "\x00shared-zygote\x00") {
			t.Errorf("a shared zygote runs: %q", cmdline)
		}
	}
}
