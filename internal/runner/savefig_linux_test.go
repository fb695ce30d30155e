package runner

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// savefigs saves figures in many ways, and prints what a program can see of them, and how often
// each statement has drawn.
const savefigs = `
import hashlib, io, sys
import matplotlib.figure, matplotlib.pyplot as plt, numpy as np
from PIL import Image

draws = 0
draw = matplotlib.figure.Figure.draw
def counted(self, renderer):
    global draws
    draws += 1
    return draw(self, renderer)
matplotlib.figure.Figure.draw = counted

def pixels(name, image):
    print(name, np.asarray(image).shape, hashlib.sha256(np.ascontiguousarray(image)).hexdigest())

def save(name, **options):
    global draws
    draws = 0
    file = io.BytesIO()
    plt.savefig(file, **options)
    print(name, "draws:", draws, file=sys.stderr)
    pixels(name, Image.open(file))

def canvas(name):
    pixels(name, plt.gcf().canvas.buffer_rgba())

def figure():
    plt.close("all")
    plt.figure(facecolor="beige")
    plt.plot([1, 3, 2, 4], label="one")
    plt.title("Sales")
    plt.legend()

for options in ({}, {"transparent": True}, {"dpi": 50}, {"bbox_inches": "tight"}, {"format": "jpg"}, {"facecolor": "red"}):
    figure()
    save(f"first {options}", **options)
    save(f"second {options}", **options)
    print([label.get_text() for label in plt.gca().get_xticklabels()])
    canvas(f"canvas {options}")
figure()
print(hasattr(plt.gcf().canvas, "renderer"))
plt.savefig(io.BytesIO(), transparent=True)
pixels("renderer", plt.gcf().canvas.renderer.buffer_rgba())
plt.savefig(io.BytesIO(), dpi=20)
pixels("get_renderer", plt.gcf().canvas.get_renderer().buffer_rgba())
plt.savefig(io.BytesIO(), transparent=True)
plt.gcf().canvas.draw()
canvas("drawn")
plt.savefig(io.BytesIO())
plt.draw()
canvas("drawn when idle")
try:
    plt.savefig("x.unknown")
except ValueError as e:
    print(str(e)[:50])
canvas("after an error")
plt.savefig(io.BytesIO(), format="svg")
canvas("after SVG")
print(plt.savefig.__name__, plt.savefig.__doc__ == matplotlib.figure.Figure.savefig.__doc__)
`

// TestSavefig: our savefig draws a figure once instead of twice, and its results are matplotlib's.
func TestSavefig(t *testing.T) {
	dir := os.Getenv("SANDBOX_TEST_RUNNERS")
	python := filepath.Join(dir, "python", "bin", "python")
	if _, err := os.Stat(python); dir == "" || err != nil {
		skip(t, "no Python environment: run make test, or set SANDBOX_TEST_RUNNERS to a directory that has been prepared")
	}
	ours, err := filepath.Abs("../../runners/python")
	if err != nil {
		t.Fatal(err)
	}
	run := func(env ...string) (stdout, draws string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), python, "-c", savefigs)
		cmd.Dir = t.TempDir()
		cmd.Env = append(env, "PYTHONPATH="+ours, "PYTHONDONTWRITEBYTECODE=1", "MPLBACKEND=Agg", "MPLCONFIGDIR="+filepath.Join(cmd.Dir, "config"))
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, errs.String())
		}
		return string(out), errs.String()
	}
	want, before := run()
	got, draws := run("SANDBOX_DISPLAY=" + t.TempDir())
	if got != want {
		t.Errorf("ours:\n%s\nmatplotlib's:\n%s", got, want)
	}
	if !strings.Contains(before, "first {} draws: 2\nsecond {} draws: 2\n") || !strings.Contains(draws, "first {} draws: 1\nsecond {} draws: 1\n") {
		t.Errorf("ours:\n%s\nmatplotlib's:\n%s", draws, before)
	}
}
