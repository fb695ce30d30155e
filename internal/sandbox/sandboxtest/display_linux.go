package sandboxtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// showing defines, in Python, how a library of a fresh run shows something: it waits until that has
// its place in the output.
const showing = `
import os, sys, time
d = os.environ["SANDBOX_DISPLAY"]
while not os.path.exists(d + "/index"): time.sleep(0.001)
os.chdir(d)
index = open("index", "w")
def announce(text): print(text, file=index, flush=True)
def wait(name):
    while os.path.lexists(name): time.sleep(0.001)
def put(name, data):
    with open(name, "wb") as f: f.write(data)
def show(data, path="", name="shown"):
    sys.stdout.flush()
    put(name, data)
    announce(f"image/png {name} {path}")
    wait(name)
`

// program is a fresh run that may show something.
func program(code string) wire.Run {
	r := Python(showing + code)
	r.Displays = true
	return r
}

// plots defines values that a cell shows.
const plots = `
import subprocess, sys
class Plot:
    def __init__(self, n): self.n = n
    def _repr_png_(self): return b"plot %d" % self.n
class Drawing:
    def _repr_svg_(self): return "<svg>"
class Table:
    def _repr_html_(self): return "<table>"
    def __repr__(self): return "table"
class Note:
    def _repr_markdown_(self): return "*note*"
    def __repr__(self): return "note"
`

const bundle = "application/vnd.mcp-code-sandbox.bundle+json"

// testOrder: what the code prints and shows arrives in the order in which it was made.
func (s *suite) testOrder(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	// expect compares the output with repeated pieces, which have their number in place of #.
	expect := func(t *testing.T, r wire.Run, times int, pieces string) {
		t.Helper()
		var want strings.Builder
		for i := range times {
			want.WriteString(strings.ReplaceAll(pieces, "#", fmt.Sprint(i)))
		}
		res := b.Begin(t, r).WaitFor(t, patience)
		if got := strings.Join(res.Order, "|"); strings.Trim(got, "|") != strings.Trim(want.String(), "|") || res.Exit.Code != 0 {
			t.Errorf("%.2000q, want %.2000q; %+v %.500s", got, want.String(), res.Exit, res.Stderr)
		}
	}
	t.Run("cell", func(t *testing.T) {
		b.Run(t, Cell(t, "python", plots))
		expect(t, Cell(t, "python", "for i in range(30): print('text', i); display(Plot(i))"),
			30, "text #\n|image/png plot #|")
		expect(t, Cell(t, "python", `
for i in range(30):
    print("out", end=" "); print(i); print("err", i, file=sys.stderr); display(Plot(i)); print("more", i, file=sys.stderr)
`), 30, "out #\n|err #\n|image/png plot #|more #\n|")
		expect(t, Cell(t, "python", "print('a'); display(Plot(1), Drawing()); print('b'); display(Table(), Note(), 1); print('c'); Plot(2)"), 1,
			"a\n|image/png plot 1|image/svg+xml <svg>|b\ntable\n|"+bundle+` {"text/html": "<table>", "text/plain": "table\n"}|note`+"\n|"+
				bundle+` {"text/markdown": "*note*", "text/plain": "note\n"}|`+"1\nc\n|image/png plot 2")
		// A child that has ended has written before what the cell shows next.
		expect(t, Cell(t, "python", `
for i in range(10):
    print("text", i); subprocess.run(["echo", f"child {i}"]); display(Plot(i)); subprocess.run("echo more >&2", shell=True); display(Plot(i))
`), 10, "text #\nchild #\n|image/png plot #|more\n|image/png plot #|")
		expect(t, Cell(t, "python", "print('x' * 1_000_000); print('y' * 100_000, file=sys.stderr); display(Plot(1)); print('z')"), 1,
			strings.Repeat("x", 1_000_000)+"\n|"+strings.Repeat("y", 100_000)+"\n|image/png plot 1|z\n")
	})
	t.Run("settle", func(t *testing.T) {
		expect(t, Cell(t, "python", `
import os, time
dir = os.path.dirname(os.readlink("/proc/self/fd/1"))
def settle():
    open(dir + "/settle", "w").close()
    os.write(3, f"settle {os.path.basename(dir)} settle\n".encode())
    while os.path.exists(dir + "/settle"): time.sleep(1e-4)
for i in range(30):
    os.write(1, b"out %d\n" % i); settle(); os.write(2, b"err %d\n" % i); settle()
`), 30, "out #\n|err #\n|")
	})
	t.Run("fresh run", func(t *testing.T) {
		expect(t, program(`for i in range(30): print("text", i); show(b"plot %d" % i)`), 30, "text #\n|image/png plot #|")
		expect(t, program(`
for i in range(30): print("text", i); show(b"plot %d" % i); print("err", i, file=sys.stderr, flush=True); show(b"second")
`), 30, "text #\n|image/png plot #|err #\n|image/png second|")
		expect(t, program(`
import subprocess
print("a" * 500_000); show(b"1"); subprocess.run(["echo", "child"]); show(b"2" * 100_000); print("b")`), 1,
			strings.Repeat("a", 500_000)+"\n|image/png 1|child\n|image/png "+strings.Repeat("2", 100_000)+"|b\n")
	})
	t.Run("at the end", func(t *testing.T) {
		script := Shell(`echo text; printf shown >$SANDBOX_DISPLAY/a; echo "text/plain a" >$SANDBOX_DISPLAY/index; exit`)
		script.Displays = true
		expect(t, script, 1, "text\n|text/plain shown")
	})
}

// testDisplays: a program's displays arrive, and no other file does, whatever it does.
func (s *suite) testDisplays(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	big := strings.Repeat("x", 100_000)
	for _, test := range []struct {
		name, code string
		want       []string
	}{
		{"displays", `
put("a", b"first"); put("b", b"x" * 100000); announce("text/plain a\nimage/png b\ntext/plain missing\nnonsense")`,
			[]string{"text/plain first", "image/png " + big}},
		{"links", `
os.symlink("/etc/passwd", "l"); os.symlink("/proc/1/environ", "p"); os.symlink("/dev/zero", "z"); os.symlink("..", "up"); put("../beside", b"beside")
announce("t/a l\nt/b p\nt/c ../../etc/passwd\nt/d /etc/passwd\nt/e index/..\nt/f z\nt/g up/beside\nt/h ../beside")
show(b"last")`, []string{"image/png last"}},
		{"pipe", `os.mkfifo("f"); announce("t/a f"); wait("f"); show(b"last")`, []string{"image/png last"}},
		{"index", `announce("t/a index"); wait("index")`, nil},
		{"another index", `os.unlink("index"); os.mkfifo("index"); show(b"last")`, []string{"image/png last"}},
		{"no index", `os.unlink("index"); put("index", b"t/a index")`, nil},
		{"directory", `os.mkdir("x"); announce("t/a x\nt/b ."); wait("x")`, nil},
		{"too large", `
with open("h", "wb") as f: f.truncate(17 << 20)
announce("t/a h"); wait("h"); show(b"last")`, []string{"image/png last"}},
		{"moved", `os.rename(d, d + "-elsewhere"); os.mkfifo(d)`, nil},
		{"linked", `os.rename(d, d + "-elsewhere"); os.symlink("/proc/1", d)`, nil},
		{"gone", `os.rename(d, d + "-elsewhere")`, nil},
		{"garbage", `
for text in (b"x" * (1 << 20), b"\n" * 100_000, bytes(range(256)) * 1000, b"t/a " + b"y" * 5000, b"a b c d\n" * 1000, b"a\xff b\xff \xff\n"):
    index.buffer.write(text + b"\n")
show(b"last")`, []string{"image/png last"}},
		{"no line's end", `put("a", b"first"); index.write("text/plain a")`, []string{"text/plain first"}},
		{"many", `for i in range(3000): put("x", b"x"); announce("t/x x"); wait("x")`, slices.Repeat([]string{"t/x x"}, 64)},
		{"many at once", `
for i in range(10_000): put(f"{i}", b"x")
announce("\n".join(f"t/x {i}" for i in range(10_000)))`, slices.Repeat([]string{"t/x x"}, 64)},
		{"much", `for i in range(20): show(b"x" * (1 << 20))`, slices.Repeat([]string{"image/png " + strings.Repeat("x", 1<<20)}, 16)},
		{"long type", `put("a", b"x"); announce("x" * 300 + " a"); wait("a")`, nil},
		{"a child goes on", `
show(b"first")
if os.fork() == 0:
    os.setsid()
    while True: os.write(index.fileno(), b"t/a b\n" * 500)
os._exit(0)`, []string{"image/png first"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			res := b.Begin(t, program(test.code)).WaitFor(t, 30*time.Second)
			if !slices.Equal(res.Displays, test.want) || res.Exit.Code != 0 || res.Exit.Error != "" {
				t.Errorf("%d displays, %.200q; %+v %s", len(res.Displays), res.Displays, res.Exit, res.Stderr)
			}
		})
	}
	t.Run("removed", func(t *testing.T) { // before or after it is read
		res := b.Begin(t, program("for i in range(30): put('a', b'x'); announce('t/a a'); os.unlink('a') if os.path.exists('a') else 0")).WaitFor(t, 30*time.Second)
		if res.Exit.Error != "" {
			t.Errorf("%+v %s", res.Exit, res.Stderr)
		}
	})
	t.Run("path", func(t *testing.T) {
		const paths = `["plots/a%20b.png", "", "../../etc/passwd", "%2e%2e%2Fetc%2fpasswd", "/etc/passwd", "%2Fetc%2Fpasswd", "a/%2E%2E/%2e%2e/b", "%", "%zz", "%ff", "a" * 256, "..."]`
		want := []string{"plots/a b.png", "", "", "", "", "", "", "", "", "", "", "..."}
		for name, r := range map[string]wire.Run{
			"program": program("for path in " + paths + ": show(b'x', path)"),
			"cell":    Cell(t, "python", "import sys\nshow = sys._getframe(2).f_globals['show_bytes']\nfor path in "+paths+": show('image/png', b'x', path)"),
		} {
			res := b.Begin(t, r).WaitFor(t, 30*time.Second)
			if !slices.Equal(res.Files, want) || res.Exit.Code != 0 {
				t.Errorf("%s: %q, want %q; %+v %s", name, res.Files, want, res.Exit, res.Stderr)
			}
		}
	})
	t.Run("lines of a cell", func(t *testing.T) {
		// The code writes to the driver's channel itself, and waits for nothing.
		res := b.Begin(t, Cell(t, "python", `
import os, sys
driver = sys._getframe(2).f_globals
cell = driver["Cell"]
os.chdir(cell.directory)
def tell(*words): driver["tell"](" ".join(map(str, words)))
os.symlink("/etc/passwd", "l"); os.symlink("/dev/zero", "z"); os.mkfifo("f"); os.mkdir("d"); open("h", "wb").truncate(17 << 20); open("a", "w").write("first")
for name in "l", "z", "f", "d", "h", "stdout", "..", ".", "../../../../etc/passwd", "/etc/passwd", "missing": tell("display", cell.number, "t/x", name)
tell("display", cell.number, "t/x"); tell("display", cell.number, "t/x", "m", "b", "c"); tell("display", 999, "t/x", "a")
tell("display", cell.number, "t/x", "a")
for i in range(10_000): tell("display", cell.number, "t/x", "a")
driver["show_bytes"]("t/y", b"last")
`)).WaitFor(t, patience)
		if want := []string{"t/x first", "t/y last"}; !slices.Equal(res.Displays, want) || res.Exit.Code != 0 || res.Exit.Lost {
			t.Errorf("%.200q, want %q; %+v %s", res.Displays, want, res.Exit, res.Stderr)
		}
	})
	t.Run("cleared", func(t *testing.T) { // as much may be shown again
		const code = "import sys\ndriver = sys._getframe(2).f_globals\nfor i in range(100): driver['clear'](); driver['show_bytes']('image/png', b'x' * 300_000)"
		res := b.Begin(t, Cell(t, "python", code)).WaitFor(t, patience)
		want := slices.Repeat([]string{wire.ClearMIME + " \n", "image/png " + strings.Repeat("x", 300_000)}, 100)
		if !slices.Equal(res.Displays, want) || res.Exit.Code != 0 {
			t.Errorf("%d displays; %+v %s", len(res.Displays), res.Exit, res.Stderr)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		// The display fits into no buffer, so the program waits for a reader.
		const large = "8 << 20"
		for name, r := range map[string]wire.Run{
			"program": program("try: put('a', b'x' * (" + large + ")); announce('t/a a'); open('/data/program', 'w'); wait('a'); time.sleep(60)\nexcept KeyboardInterrupt: sys.exit(130)"),
			"cell":    Cell(t, "python", "class Large:\n    def _repr_png_(self): open('/data/cell', 'w'); return b'x' * ("+large+")\ndisplay(Large())\nimport time; time.sleep(60)"),
		} {
			running := b.Begin(t, r)
			if res := b.Run(t, Shell("while [ ! -e /data/"+name+" ]; do sleep 0.01; done")); res.Exit.Code != 0 {
				t.Fatal(res)
			}
			running.Send(t, wire.TypeInterrupt)
			if res := running.WaitFor(t, 30*time.Second); res.Exit.Code != 130 || res.Exit.Lost {
				t.Errorf("%s: %+v %s", name, res.Exit, res.Stderr)
			}
		}
		running := b.Begin(t, program("put('a', b'x' * ("+large+")); announce('t/a a'); open('/data/killed', 'w'); wait('a')"))
		if res := b.Run(t, Shell("while [ ! -e /data/killed ]; do sleep 0.01; done")); res.Exit.Code != 0 {
			t.Fatal(res)
		}
		running.Send(t, wire.TypeKill)
		if res := running.WaitFor(t, 10*time.Second); res.Exit.Signal != 9 {
			t.Errorf("%+v %s", res.Exit, res.Stderr)
		}
	})
	b.Alive(t)
}

// testRestart: a cell can ask for a new interpreter, which has no variables. Files stay.
func (s *suite) testRestart(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	for language, code := range map[string]struct{ set, look, hang string }{
		"python": {"x = 1; open('/data/python', 'w').write('kept'); None", "print('x' in globals(), open('/data/python').read())", "print('on', flush=True)\nwhile True: pass"},
		"shell":  {"x=1; printf kept >/data/shell", `echo "${x-False} $(cat /data/shell)"`, "trap '' INT TERM; echo on; while :; do :; done"},
	} {
		restart := func(code string) wire.Run {
			r := Cell(t, language, code)
			r.Restart = true
			return r
		}
		if res := b.Run(t, restart(code.set)); !res.Exit.Fresh || res.Exit.Code != 0 { // there is none yet
			t.Errorf("%s: %+v %s", language, res.Exit, res.Stderr)
		}
		if res := b.Run(t, restart(code.look)); string(res.Stdout) != "False kept\n" || !res.Exit.Fresh || res.Exit.Lost {
			t.Errorf("%s, restarted: %q %+v %s", language, res.Stdout, res.Exit, res.Stderr)
		}
		b.Run(t, Cell(t, language, code.set))
		if res := b.Run(t, Cell(t, language, code.look)); string(res.Stdout) == "False kept\n" || res.Exit.Fresh {
			t.Errorf("%s, afterwards: %q %+v %s", language, res.Stdout, res.Exit, res.Stderr)
		}
		// A cell that hangs ends with its interpreter.
		hanging := b.BeginUntil(t, "on\n", Cell(t, language, code.hang))
		if res := b.Begin(t, restart(code.look)).WaitFor(t, 30*time.Second); string(res.Stdout) != "False kept\n" || !res.Exit.Fresh {
			t.Errorf("%s, while a cell hung: %q %+v %s", language, res.Stdout, res.Exit, res.Stderr)
		}
		if res := hanging.WaitFor(t, 30*time.Second); res.Exit.Signal != 9 || !res.Exit.Lost {
			t.Errorf("%s, the cell that hung: %+v", language, res.Exit)
		}
		if res := b.Run(t, Cell(t, language, code.look)); string(res.Stdout) != "False kept\n" || res.Exit.Fresh {
			t.Errorf("%s, after that: %q %+v %s", language, res.Stdout, res.Exit, res.Stderr)
		}
	}
	b.Alive(t)
}
