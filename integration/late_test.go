//go:build linux

package integration

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

var lateOutput = regexp.MustCompile(`(?s)\[late output of cell \d+\]\n.*?\[end of late output\]\n`)

// splitLate separates a cell's output from the late output of earlier cells.
func splitLate(stdout string) (own, late string) {
	return lateOutput.ReplaceAllString(stdout, ""), strings.Join(lateOutput.FindAllString(stdout, -1), "")
}

// awaitLate runs cells that print "1" until late output arrives, and returns it.
func (s *server) awaitLate(t *testing.T, session, env, code string) (late string) {
	t.Helper()
	eventually(t, 20*time.Second, "late output", func() bool {
		r := s.cell(t, session, env, code)
		own, l := splitLate(r.Stdout)
		if own != "1\n" || r.Stderr != "" || r.ExitCode != 0 {
			t.Fatalf("a cell during late output: %+v", r)
		}
		late = l
		return late != ""
	})
	return late
}

// lateStep is a cell, its own output and the late output that it returns.
type lateStep struct{ code, own, late string }

func (s *server) lateSteps(t *testing.T, session, env string, steps []lateStep) {
	t.Helper()
	for _, step := range steps {
		r := s.cell(t, session, env, step.code)
		if own, late := splitLate(r.Stdout); own != step.own || late != step.late || r.ExitCode != 0 {
			t.Errorf("%s: %s\n%q, late %q, %s; want %q, late %q", env, step.code, own, late, r.Stderr, step.own, step.late)
		}
	}
}

// TestLateOutput checks that output of threads, tasks and timers after their cell comes with the
// next result, marked and bounded.
func TestLateOutput(t *testing.T) {
	s := serve(t)
	s.cell(t, "l", "python", "import threading; threading.Timer(1, print, ['tick']).start()")
	if late := s.awaitLate(t, "l", "python", "1"); late != "[late output of cell 1]\ntick\n[end of late output]\n" {
		t.Errorf("a timer: %q", late)
	}
	s.cell(t, "t", "python", "1")
	s.lateSteps(t, "t", "python", []lateStep{
		{"import asyncio, threading\ngo, done = threading.Event(), threading.Event()\ndef work(): go.wait(); print('from 2'); done.set()\nthreading.Thread(target=work).start()", "", ""},
		{"go.set(); done.wait(); print('mine', end='')", "mine", "[late output of cell 2]\nfrom 2\n[end of late output]\n"},
		{"gate = asyncio.Event()\nasync def work(): await gate.wait(); print('task')\nawait asyncio.sleep(0)\ntask = asyncio.ensure_future(work())\nawait asyncio.sleep(0)\npass", "", ""},
		{"gate.set()\nawait task\nprint('mine')", "mine\n", "[late output of cell 4]\ntask\n[end of late output]\n"},
		{"await asyncio.to_thread(print, 'mine, too')", "mine, too\n", ""},
		{"from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\npool.submit(print, 'pool').result()", "pool\n", ""},
		{"pool.submit(print, 'the same pool').result()", "the same pool\n", ""},
		{"go.clear(); done.clear()\ndef flood():\n    go.wait()\n    for i in range(10_000): print('x' * 999)\n    done.set()\nthreading.Thread(target=flood).start()", "", ""},
		{"go.set(); done.wait(); print('mine')", "mine\n", "[late output of cell 9]\n" + strings.Repeat(strings.Repeat("x", 999)+"\n", 8) + strings.Repeat("x", 192) + "\n[9991808 bytes of late output were left out]\n[end of late output]\n"},
		{"print('mine')", "mine\n", ""},
		{"gate = asyncio.Event()\ntask = asyncio.ensure_future(work())", "", ""},
	})
	// What the cell prints later comes later.
	const ordered = "first\n[late output of cell 12]\ntask\n[end of late output]\n'value'\n"
	if r := s.cell(t, "t", "python", "print('first')\ngate.set()\nawait task\n'value'"); r.Stdout != ordered {
		t.Errorf("got %q, want %q", r.Stdout, ordered)
	}
	s.cell(t, "e", "python", "import threading; threading.Timer(1, lambda: 1/0).start()")
	if late := s.awaitLate(t, "e", "python", "1"); !strings.Contains(late, "ZeroDivisionError") {
		t.Errorf("an error in a timer: %q", late)
	}

	for _, env := range []string{"javascript", "typescript"} {
		s.cell(t, env, env, "setTimeout(() => console.log('tick'), 1000)\nvoid 0")
		if late := s.awaitLate(t, env, env, "1"); late != "[late output of cell 1]\ntick\n[end of late output]\n" {
			t.Errorf("%s: a timer: %q", env, late)
		}
		s.cell(t, env+"-error", env, "setTimeout(() => { throw new Error('too late') }, 1000); void 0")
		if late := s.awaitLate(t, env+"-error", env, "1"); !strings.Contains(late, "[late output of cell 1]\n") || !strings.Contains(late, "too late") {
			t.Errorf("%s: an error in a timer: %q", env, late)
		}
		s.lateSteps(t, env+"-steps", env, []lateStep{
			{"var go; var gate = new Promise((resolve) => { go = resolve }).then(() => console.log('from 1')); void 0", "", ""},
			{"go(0); await gate; [process.stdout.write('mine')].find(() => false)", "mine\n", "[late output of cell 1]\nfrom 1\n[end of late output]\n"},
			{"var gate = new Promise((resolve) => { go = resolve }).then(() => { for (let i = 0; i < 10000; i++) console.log('x'.repeat(999)) }); void 0", "", ""},
			{"go(0); await gate; console.log('mine')", "mine\n", "[late output of cell 3]\n" + strings.Repeat(strings.Repeat("x", 999)+"\n", 8) + strings.Repeat("x", 192) + "\n[9991808 bytes of late output were left out]\n[end of late output]\n"},
			{"'x'.repeat(20000)", "'" + strings.Repeat("x", 20000) + "'\n", ""},
		})
	}
}

// TestInterruptedPlot checks that a figure that was interrupted or cannot be drawn does not affect
// the next one. The cells interrupt themselves, so that it happens at the intended place.
func TestInterruptedPlot(t *testing.T) {
	usual := serve(t)
	importsItself := serve(t, "SANDBOX_SHARED_ZYGOTE=off", "SANDBOX_POOL_SIZE=0") // so does a session's first interpreter here
	const interrupt = "import os, signal, sys, time\ndef interrupt(): os.kill(os.getpid(), signal.SIGINT); time.sleep(60)\n"
	const figure = interrupt + `
import matplotlib.pyplot as plt
class Line(matplotlib.lines.Line2D):
    def draw(self, renderer): interrupt()
_ = plt.gca().add_line(Line([0, 1], [0, 1]))
`
	const importing = interrupt + `
class Finder:
    def find_spec(name, path=None, target=None):
        if name in ('matplotlib.rcsetup', 'matplotlib.figure'): sys.meta_path.remove(Finder); interrupt()
sys.meta_path.insert(0, Finder)
import matplotlib.pyplot
`
	const all, some, none = "import matplotlib.pyplot", "import matplotlib", "pass"
	for name, tt := range map[string]struct {
		before, code string
		exit         int
	}{
		"while it is shown":   {all, figure + "plt.show()", 130},
		"left open":           {all, figure, 130},
		"shown by its value":  {all, figure + "plt.gcf()", 130},
		"saved, then waiting": {all, interrupt + "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.savefig('/tmp/a.png')\ninterrupt()", 130},
		"not to be drawn":     {all, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('$\\\\nonsense$')\nplt.show()", 1},
		"importing it":        {none, importing, 130},
		"importing pyplot":    {some, importing, 130},
	} {
		t.Run(name, func(t *testing.T) {
			s := usual
			if tt.before != all {
				s = importsItself
			}
			session := strings.NewReplacer(" ", "-", ",", "").Replace(name)
			s.cell(t, session, "python", tt.before+"\nkept = 1")
			if r := s.cell(t, session, "python", tt.code); r.ExitCode != tt.exit || r.State != "" || len(r.Artifacts) != 0 {
				t.Errorf("interrupted: %+v", r)
			}
			r := s.cell(t, session, "python", "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2]); kept, len(plt.gca().lines)")
			if len(r.Images) != 1 || !strings.HasSuffix(r.Images[0].Name, ".png") || r.Stdout != "(1, 1)\n" || r.ExitCode != 0 {
				t.Errorf("the next plot: %+v", r)
			}
		})
	}
}

// TestForkedCell checks that a forked child ends with its cell. Otherwise it would take every later
// cell.
func TestForkedCell(t *testing.T) {
	s := serve(t)
	got := s.cell(t, "f", "python", "import os\nchild = os.fork()\nx = 'parent' if child else 'child'\nif child: print(os.waitpid(child, 0)[1])").Stdout
	for range 4 {
		got += s.cell(t, "f", "python", "x").Stdout
	}
	if want := "0\n" + strings.Repeat("'parent'\n", 4); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// Code that overwrites the driver's notes does not end the interpreter.
	s.cell(t, "f", "python", "import threading\nthreading.current_thread().sandbox_cell = 'x'\nthreading.Timer(0.01, print, ['late']).start()")
	if got := s.cell(t, "f", "python", "x").Stdout; !strings.HasSuffix(got, "'parent'\n") {
		t.Errorf("after the driver's notes were changed: %q", got)
	}
}
