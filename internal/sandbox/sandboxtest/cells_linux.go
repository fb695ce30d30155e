package sandboxtest

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/runners"
)

// The interpreters' drivers, for interpreters that every machine has.
var drivers = map[string]struct {
	file string
	argv []string
}{
	"python": {"python/driver.py", []string{"/usr/bin/python3", "{driver}"}},
	"shell":  {"shell/driver.sh", []string{"/bin/bash", "{driver}"}},
}

// Cell is a run of the next cell of an interpreter.
func Cell(t *testing.T, language, code string) wire.Run {
	t.Helper()
	d := drivers[language]
	source, err := runners.Files.ReadFile(d.file)
	if err != nil {
		t.Fatal(err)
	}
	return wire.Run{Argv: d.argv, Driver: source, Interpreter: language, Code: []byte(code)}
}

var lateOutput = regexp.MustCompile(`(?s)\[late output of cell \d+\]\n.*?\[end of late output\]\n`)

// splitLate separates a cell's own output from that of earlier cells' threads and children.
func splitLate(stdout []byte) (own, late string) {
	return string(lateOutput.ReplaceAll(stdout, nil)), string(bytes.Join(lateOutput.FindAll(stdout, -1), nil))
}

// testCells: interpreters keep their state between runs.
func (s *suite) testCells(t *testing.T) {
	t.Run("State", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		for i, step := range []struct{ language, code, want string }{
			{"python", "import math\nx = 41\ndef f(): return x + 1", ""},
			{"python", "f()", "42\n"},
			{"python", "import os; os.chdir('/tmp'); os.environ['K'] = 'v'", ""},
			{"python", "print(os.getcwd(), os.environ['K'], math.floor(2.5))", "/tmp v 2\n"},
			{"python", "import asyncio\nawait asyncio.sleep(0)\n'awaited'", "'awaited'\n"},
			{"shell", "x=1; f() { echo \"f $x\"; }; cd /tmp", ""},
			{"shell", "f; pwd", "f 1\n/tmp\n"},
		} {
			res := b.Run(t, Cell(t, step.language, step.code))
			if string(res.Stdout) != step.want || len(res.Stderr) > 0 || res.Exit.Code != 0 || res.Exit.Lost {
				t.Errorf("cell %d: %q, %q, %+v; want %q", i, res.Stdout, res.Stderr, res.Exit, step.want)
			}
		}
	})
	t.Run("Environment", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		given := map[string]string{"TOKEN": "a 'b' \"c\" $d `e` =f\n\\", "MINE": "theirs", "CHANGED": "1"}
		for language, code := range map[string]struct{ before, show, fail, after string }{
			"python": {
				"import os; os.environ['MINE'] = 'mine'",
				"import os, subprocess; print(os.environ['TOKEN'], os.environ['MINE']); os.environ['CHANGED'] = '2'; print(subprocess.run(['printenv', 'TOKEN'], capture_output=True, text=True).stdout)",
				"1/0", "print(os.environ.get('TOKEN'), os.environ['MINE'], os.environ['CHANGED'])",
			},
			"shell": {
				"set -u; MINE=mine", `printf '%s %s\n' "$TOKEN" "$MINE"; CHANGED=2; printenv TOKEN; echo`,
				"(exit 1)", `echo "${TOKEN-None}" "$MINE" "$CHANGED"`,
			},
		} {
			b.Run(t, Cell(t, language, code.before))
			cell := Cell(t, language, code.show)
			cell.CellEnv = given
			want := given["TOKEN"] + " theirs\n" + given["TOKEN"] + "\n\n"
			if res := b.Run(t, cell); string(res.Stdout) != want || res.Exit.Code != 0 {
				t.Errorf("%s: %q %s; want %q", language, res.Stdout, res.Stderr, want)
			}
			cell = Cell(t, language, code.fail)
			cell.CellEnv = map[string]string{"TOKEN": "another"}
			b.Run(t, cell)
			if res := b.Run(t, Cell(t, language, code.after)); string(res.Stdout) != "None mine 2\n" || res.Exit.Fresh {
				t.Errorf("%s, afterwards: %q %s", language, res.Stdout, res.Stderr)
			}
		}
	})
	t.Run("Late", s.testLateChildren)
	t.Run("Interrupt", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		for language, code := range map[string]string{
			"python": "import time\nkept = 1\nprint('on', flush=True)\nwhile True: time.sleep(0.1)",
			"shell":  "kept=1\necho on\nwhile true; do sleep 0.1; done",
		} {
			r := b.BeginUntil(t, "on\n", Cell(t, language, code))
			r.Send(t, wire.TypeInterrupt)
			if res := r.Wait(t); res.Exit.Code != 130 || res.Exit.Lost {
				t.Errorf("%s: %+v %s", language, res.Exit, res.Stderr)
			}
			after := map[string]string{"python": "kept", "shell": "echo $kept"}[language]
			if res := b.Run(t, Cell(t, language, after)); string(res.Stdout) != "1\n" || res.Exit.Fresh {
				t.Errorf("%s after the interrupt: %q %+v %s", language, res.Stdout, res.Exit, res.Stderr)
			}
		}
	})
	t.Run("InterruptOnce", func(t *testing.T) { // or what the code does because of it would end as well
		r := s.start(t, sandbox.Spec{}).BeginUntil(t, "on\n", Cell(t, "python",
			"import time\ntry:\n    print('on', flush=True)\n    while True: time.sleep(0.1)\nexcept KeyboardInterrupt:\n    time.sleep(1.5)\n    print('saved')"))
		r.Send(t, wire.TypeInterrupt)
		if res := r.Wait(t); string(res.Stdout) != "on\nsaved\n" || res.Exit.Code != 0 {
			t.Errorf("%q %+v %s", res.Stdout, res.Exit, res.Stderr)
		}
	})
	t.Run("EarlyInterrupt", func(t *testing.T) {
		// The interpreter is still starting, or has not read the cell yet.
		b := s.start(t, sandbox.Spec{})
		for language, code := range map[string]string{"python": "import time\ntime.sleep(60)", "shell": "sleep 60"} {
			for i := range 10 {
				r := b.Begin(t, Cell(t, language, code))
				r.Send(t, wire.TypeInterrupt)
				if res := r.Wait(t); res.Exit.Code != 130 || res.Exit.Lost || res.Exit.Fresh != (i == 0) {
					t.Errorf("%s, cell %d: %+v %s", language, i, res.Exit, res.Stderr)
				}
			}
		}
	})
	t.Run("Restart", s.testRestart)
	t.Run("Crash", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		for _, crash := range []struct {
			language, code string
			exit, signal   int
		}{
			{"python", "import os\nprint('last words', flush=True)\nos._exit(7)", 7, 0},
			{"python", "import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)", 139, 11},
			{"shell", "echo last words; kill -KILL $$", 137, 9},
			{"shell", "echo last words; exec sh -c 'exit 3'", 3, 0},
		} {
			res := b.Run(t, Cell(t, crash.language, crash.code))
			if res.Exit.Code != crash.exit || res.Exit.Signal != crash.signal || !res.Exit.Lost || string(res.Stdout) != "last words\n" {
				t.Errorf("%s: %q %+v", crash.code, res.Stdout, res.Exit)
			}
			again := b.Run(t, Cell(t, crash.language, map[string]string{"python": "print('anew')", "shell": "echo anew"}[crash.language]))
			if !again.Exit.Fresh || again.Exit.Lost || string(again.Stdout) != "anew\n" {
				t.Errorf("after %s: %q %+v", crash.code, again.Stdout, again.Exit)
			}
		}
		// More output than the streams to the server buffer.
		res := b.Run(t, Cell(t, "python", "import os, sys\nsys.stdout.write('x' * 1_000_000)\nos._exit(7)"))
		if len(res.Stdout) != 1_000_000 || res.Exit.Code != 7 || !res.Exit.Lost {
			t.Errorf("%d bytes of 1000000 came, %+v", len(res.Stdout), res.Exit)
		}
	})
	t.Run("ShellEnds", func(t *testing.T) {
		// A cell that exits its shell ends only itself: state and options stay.
		b := s.start(t, sandbox.Spec{})
		given := Cell(t, "shell", "set -euo pipefail; x=1; f() { local y=2; false; }; a=('1 2' $'3\n4'); cd /tmp; exec 7>seven; f; echo never")
		given.CellEnv = map[string]string{"TOKEN": "t"}
		b.Run(t, given)
		for _, step := range []struct {
			code string
			exit int
			want string
		}{
			{`echo "$x ${y-} ${a[1]} $PWD ${TOKEN-none} $-"; echo 7 >&7; cat seven; x=2`, 0, "1  3\n4 /tmp none ehuB\n7\n"},
			{"f || echo caught; f; echo never", 1, "caught\n"},
			{"echo $unset; echo never", 1, ""},
			{"g() { echo ${unset}; }; g; echo never", 1, ""},
			{"false | true; echo never", 1, ""},
			{"(exit 5); echo never", 5, ""},
			{"exit 3", 3, ""},
			{"x=3; : ${unset:?}; echo never", 1, ""},
			{"set -- 'a b' c; trap 'echo bye $x; exit 6' EXIT; trap 'echo usr' USR1; echo on; exit 4", 6, "on\nbye 3\n"},
			{`kill -USR1 $$; echo "$1 $2 $x"; false`, 1, "usr\na b c 3\n"},
			{`sleep 60 & kill $!; wait $! || exit 9`, 9, ""},
			{"set +eu; false; echo $unset $x", 0, "3\n"},
			{`for i in {1..200}; do sleep 60 & kill $!; wait $!; [ $? = 143 ] || exit 9; done`, 0, ""}, // mostly before the exec
			{"for i in $(seq 30); do :; done; unset x; exit 0", 0, ""},
			{"echo ${x-gone}; (exit 8)", 8, "gone\n"},
		} {
			res := b.Run(t, Cell(t, "shell", step.code))
			if res.Exit.Code != step.exit || res.Exit.Lost || res.Exit.Fresh || string(res.Stdout) != step.want {
				t.Errorf("%s: %q %q %+v; want %q and %d", step.code, res.Stdout, res.Stderr, res.Exit, step.want, step.exit)
			}
		}
		var open string // descriptors, which must not accumulate
		for range 50 {
			res := b.Run(t, Cell(t, "shell", "set -e; open=(/proc/$$/fd/*); echo ${#open[@]}; false"))
			if res.Exit.Code != 1 || res.Exit.Lost || open != "" && string(res.Stdout) != open {
				t.Fatalf("%q, at first %q, %+v", res.Stdout, open, res.Exit)
			}
			open = string(res.Stdout)
		}
		r := b.BeginUntil(t, "on\n", Cell(t, "shell", "kept=1; echo on; while true; do sleep 0.1; done"))
		r.Send(t, wire.TypeInterrupt)
		if res := r.Wait(t); res.Exit.Code != 130 || res.Exit.Lost {
			t.Errorf("an interrupt under set -e: %+v %s", res.Exit, res.Stderr)
		}
		if res := b.Run(t, Cell(t, "shell", "echo $kept")); string(res.Stdout) != "1\n" || res.Exit.Fresh {
			t.Errorf("after it: %q %+v", res.Stdout, res.Exit)
		}
	})
	t.Run("Flood", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		for language, code := range map[string]string{
			"python": "import sys; _ = sys.stdout.write('x' * 5_000_000); _ = sys.stderr.write('y' * 5_000_000)",
			"shell":  "head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2",
		} {
			res := b.Run(t, Cell(t, language, code))
			if len(res.Stdout) != 5_000_000 || len(res.Stderr) != 5_000_000 || res.Exit.Code != 0 || res.Exit.Lost {
				t.Errorf("%s: %d and %d bytes, %+v", language, len(res.Stdout), len(res.Stderr), res.Exit)
			}
		}
	})
	t.Run("Kill", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		for language, code := range map[string]string{
			"python": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on')\nwhile True: pass",
			"shell":  "trap '' INT TERM; echo on; while :; do :; done",
		} {
			r := b.BeginUntil(t, "on\n", Cell(t, language, code))
			r.Send(t, wire.TypeKill)
			if res := r.WaitFor(t, time.Second); res.Exit.Signal != 9 || !res.Exit.Lost {
				t.Errorf("%s: %+v", language, res.Exit)
			}
		}
	})
	t.Run("Show", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		res := b.Run(t, Cell(t, "python", `
class P:
    def _repr_png_(self): return b"png"
class M:
    def _repr_markdown_(self): return "*m*"
    def __repr__(self): return "M()"
class H:
    def _repr_html_(self): return "<b>h</b>"
    def __repr__(self): return "H()"
class B:
    def _repr_png_(self): raise ValueError
    def __repr__(self): return "B()"
display(P(), M(), H(), B(), 1)
P()`))
		if got := strings.Join(res.Displays, "|"); got != "image/png png|"+bundle+` {"text/markdown": "*m*", "text/plain": "M()\n"}|`+bundle+` {"text/html": "<b>h</b>", "text/plain": "H()\n"}|image/png png` ||
			string(res.Stdout) != "M()\nH()\nB()\n1\n" || res.Exit.Code != 0 {
			t.Errorf("%q %q %s", got, res.Stdout, res.Stderr)
		}
	})
	t.Run("Output", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		res := b.Run(t, Cell(t, "python", `
import ctypes, os, subprocess, sys, threading
print("print")
os.write(1, b"os.write\n")
subprocess.run(["echo", "subprocess"])
ctypes.CDLL(None).puts(b"C"); ctypes.CDLL(None).fflush(None)
t = threading.Thread(target=lambda: print("thread")); t.start(); t.join()
sys.stderr.write("error\n"); _ = os.write(2, b"\xff\n")
`))
		if got := string(res.Stdout); got != "print\nos.write\nsubprocess\nC\nthread\n" || string(res.Stderr) != "error\n\xff\n" {
			t.Errorf("%q %q", res.Stdout, res.Stderr)
		}
		next := func(code string) Result { // in the interpreter of the cells before
			t.Helper()
			res := b.Run(t, Cell(t, "python", code))
			if res.Exit.Code != 0 || res.Exit.Lost || res.Exit.Fresh {
				t.Errorf("%s: %+v %q", code, res.Exit, res.Stderr)
			}
			return res
		}
		// A thread that an earlier cell started cannot print into a later one.
		next(`child = subprocess.Popen(["sh", "-c", "while echo late; do sleep 0.01; done"])`)
		if own, _ := splitLate(next("import time; time.sleep(0.3); child.kill(); child.wait(); print('mine')").Stdout); own != "mine\n" {
			t.Errorf("a child of an earlier cell printed into a later one: %q", own)
		}
		if own, late := splitLate(next("print('mine')").Stdout); own != "mine\n" || !strings.HasPrefix(late, "[late output of cell 2]\nlate\nlate\n") {
			t.Errorf("late output of a child: %q, %q", own, late)
		}
		next(`
def chatter():
    while not quiet.wait(0.01): print("late"); sys.stdout.buffer.write(b"late")
quiet, talker = threading.Event(), threading.Thread(target=chatter, daemon=True)
talker.start()`)
		if own, late := splitLate(next("import time; time.sleep(0.3); print('mine', end='')").Stdout); strings.TrimSuffix(own, "\n") != "mine" || !strings.Contains(late, "late\n") {
			t.Errorf("a thread of an earlier cell printed into a later one: %q %q", own, late)
		}
		next("quiet.set(); talker.join()")
		// A thread that is printing when the next cell begins neither blocks it nor crashes.
		next(`
class Slow:
    def __str__(self): go.wait(); return "late"
def slow():
    try: print(Slow(), "late"); outcome.append("printed")
    except BaseException as e: outcome.append(repr(e))
go, outcome, thread = threading.Event(), [], threading.Thread(target=slow)
thread.start()`)
		if own, late := splitLate(next("go.set(); thread.join(); print(*outcome)").Stdout); own != "printed\n" || late != "[late output of cell 8]\nlate late\n[end of late output]\n" {
			t.Errorf("a thread that printed while a cell began: %q %q", own, late)
		}
		// Whatever a cell does to its streams, the next cell has them.
		for _, code := range []string{
			"import io; sys.stdout = io.TextIOWrapper(sys.stdout.buffer)", "sys.stdout = io.TextIOWrapper(sys.stdout.detach())",
			"sys.stdout.reconfigure(encoding='ascii', errors='strict', write_through=False)", "sys.stdout.reconfigure(newline='\\r\\n')",
			"sys.stdout.write = sys.stdout.buffer.write = lambda s: len(s)", "sys.stdout.close()", "sys.stdout = None",
		} {
			next(code)
			if res := next("print('mine', 'é', sep='\\n', end=''); os.write(1, b'\\n'); None"); string(res.Stdout) != "mine\né\n" {
				t.Errorf("after %s: %q %s", code, res.Stdout, res.Stderr)
			}
		}
		// A stream that a cell kept, as logging does, prints into the current cell.
		next("import logging; logging.basicConfig(format='%(message)s')")
		if res := next("logging.warning('logged'); subprocess.run(['echo', 'child'], stdout=sys.stdout); None"); string(res.Stderr) != "logged\n" || string(res.Stdout) != "child\n" {
			t.Errorf("%q %q", res.Stdout, res.Stderr)
		}
		// Lines of the driver's protocol, and garbage, on every open descriptor.
		forge := b.Run(t, Cell(t, "python", `
for fd in range(3, 64):
    try: os.write(fd, b"result 999 0\nresult x y z\n\x00\xff garbage\nready\ndisplay 999 text/plain ../../../etc/passwd\n")
    except OSError: pass
for name in "../../../etc/passwd", "/etc/passwd", ".", "stdout", "settle", "": os.write(3, f"settle {os.path.basename(os.path.dirname(os.readlink('/proc/self/fd/1')))} {name}\nsettle 999 x\n".encode())
for fd in (1, 2): os.write(fd, b"\x00\x00\x00\x10{\"type\":\"exit\"}")
sys.exit(5)
`))
		if forge.Exit.Code != 5 || !strings.Contains(string(forge.Stdout), `{"type":"exit"}`) {
			t.Errorf("%+v %q", forge.Exit, forge.Stdout)
		}
		// A line that is too long is an error; nothing waits for its end.
		for _, line := range []string{`b"x" * 5000 + b"\n"`, `b"x" * 5000`, `b"display 1 " + b"m" * 5000 + b" name\n"`} {
			res := b.Begin(t, Cell(t, "python", `
import os, time
for fd in range(3, 64):
    try: os.write(fd, `+line+`)
    except OSError: pass
time.sleep(60)
`)).WaitFor(t, 20*time.Second)
			if res.Exit.Code != 126 || !res.Exit.Lost || !strings.Contains(res.Exit.Error, "more than 4096 bytes") {
				t.Errorf("%s: %+v", line, res.Exit)
			}
			if res := b.Run(t, Cell(t, "python", "1")); string(res.Stdout) != "1\n" || !res.Exit.Fresh {
				t.Errorf("after it: %q %+v", res.Stdout, res.Exit)
			}
		}
		b.Alive(t)
	})
}
