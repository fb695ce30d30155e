//go:build linux

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// work is a piece of code that contenders run, and its expected output.
type work struct {
	key      string // begins the names of its values
	title    string
	language string
	code     string
	plain    []string // the command that runs plainCode; without its first word's directory
	want     string
	rounds   int // of the quick contenders
	slow     int // of those that take long

	plainCode string // where the command's code is another than code
	cells     bool   // also as persistent
	sessions  bool   // also as the first run of a session
	notebooks bool   // also as the first cell of a session
}

const (
	trivial = "print(40000 + 2)"
	groupBy = `import pandas as pd
df = pd.DataFrame({"region": ["n", "s", "e", "w"] * 25, "amount": range(100)})
print(df.groupby("region").amount.sum().to_dict())`
	plot = `import os
import matplotlib.pyplot as plt
plt.plot([1, 3, 2, 4])
plt.title("Sales")
plt.savefig("plot.png")
print(os.path.getsize("plot.png") > 1000)`
)

var works = map[string]work{
	"python": {key: "python", title: "Python, trivial", language: "python", code: trivial, plain: []string{"python", "-c"}, want: "40002",
		rounds: 60, slow: 20, cells: true, sessions: true},
	"pandas": {key: "pandas", title: "Python, pandas: a groupby", language: "python", code: groupBy, plain: []string{"python", "-c"}, want: "1200",
		rounds: 24, slow: 12, sessions: true, notebooks: true},
	"plot": {key: "plot", title: "Python, a plot to a PNG file", language: "python", code: plot, plain: []string{"python", "-c"}, want: "True",
		rounds: 10, slow: 6},
	"typescript": {key: "typescript", title: "TypeScript, trivial", language: "typescript", code: "const x: number = 40000; console.log(x + 2)",
		plain: []string{"node", "-e"}, plainCode: "console.log(40000 + 2)", want: "40002", rounds: 30, slow: 10, sessions: true},
	"shell": {key: "shell", title: "Shell, trivial", language: "shell", code: "echo $((40000 + 2))", plain: []string{"bash", "-c"}, want: "40002",
		rounds: 60, slow: 10},
}

var latencyHeader = []string{"what", "p50", "p99", "n", "to plain", "to bwrap", "to docker exec", "to docker run"}

// latency measures a piece of work in every available way.
func (b *bench) latency(w work) func(context.Context) (*section, error) {
	return func(ctx context.Context) (*section, error) {
		s := &section{Title: w.title, Header: latencyHeader}
		contenders := b.plain(w)
		docker, err := b.docker(ctx, s)
		if err != nil {
			return nil, err
		}
		if docker != nil {
			contenders = append(contenders, docker.commands(b, w)...)
		}
		kinds, err := b.kinds(ctx)
		if err != nil {
			return nil, err
		}
		if docker != nil {
			kinds = append(slices.Clone(kinds), kind{name: dockerKind, server: docker.server})
		}
		contenders = append(contenders, b.ours(w, kinds)...)
		taken, err := measure(ctx, b.budget, contenders)
		if err != nil {
			return nil, err
		}
		b.tabulate(s, w, taken)
		return s, nil
	}
}

// yardsticks are the contenders that the last columns compare with, in the header's order.
var yardsticks = []string{"plain", "bwrap", "docker exec", "docker run"}

func (b *bench) tabulate(s *section, w work, taken []series) {
	medians := map[string]time.Duration{}
	for _, t := range taken {
		medians[t.name] = t.p50()
		s.set(w.key+" "+t.name, t.medianMS())
	}
	for _, t := range taken {
		row := []string{t.name, ms(t.p50()), ms(t.p99()), fmt.Sprint(len(t.times))}
		for _, y := range yardsticks {
			if m, ok := medians[y]; ok && y != t.name {
				row = append(row, times(float64(t.p50())/float64(m)))
			} else {
				row = append(row, "")
			}
		}
		s.row(row...)
	}
}

// plain returns the contenders without the server: the runner's interpreter as a process, and under
// a bare bubblewrap.
func (b *bench) plain(w work) []contender {
	argv := append([]string{b.program(w.plain[0])}, w.plain[1:]...)
	argv = append(argv, w.command())
	// These are the variables of runners/python/runner.json.
	env := []string{"MPLBACKEND=Agg", "MPLCONFIGDIR=" + filepath.Join(b.dir, "matplotlib"), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1"}
	bwrap := append(b.bubblewrap(argv[0]), argv...)
	return []contender{
		{name: "plain", n: b.scaled(w.rounds), do: command(b.dir, env, argv...), want: w.want},
		{name: "bwrap", n: b.scaled(w.rounds), do: command(b.dir, env, bwrap...), want: w.want},
	}
}

// bubblewrap returns the start of a command that shows a program only what it needs.
func (b *bench) bubblewrap(program string) []string {
	argv := []string{"bwrap", "--unshare-all", "--proc", "/proc", "--dev", "/dev"}
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64", "/etc"} {
		argv = append(argv, "--ro-bind-try", dir, dir)
	}
	if prefix := prefixOf(program); prefix != "" {
		argv = append(argv, "--ro-bind", prefix, prefix)
	}
	return append(argv, "--ro-bind", b.runners, b.runners, "--bind", b.dir, b.dir, "--chdir", b.dir)
}

// prefixOf returns the directory in which an interpreter was installed, unless it is the system's.
func prefixOf(program string) string {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return ""
	}
	prefix := filepath.Dir(filepath.Dir(real))
	if prefix == "/" || prefix == "/usr" {
		return ""
	}
	return prefix
}

func (w *work) command() string {
	if w.plainCode != "" {
		return w.plainCode
	}
	return w.code
}

// program returns the path of an interpreter.
func (b *bench) program(name string) string {
	if name == "python" {
		return filepath.Join(b.runners, "python", "bin", "python")
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	return name
}

// ours returns the contenders of some kinds of servers.
func (b *bench) ours(w work, kinds []kind) []contender {
	var lists [][]contender
	for _, k := range kinds {
		lists = append(lists, b.oursOf(w, k))
	}
	return alternate(lists)
}

func (b *bench) oursOf(w work, k kind) []contender {
	s, session := k.server, "warm-"+w.key
	list := []contender{{
		name: "warm " + k.name, n: b.scaled(w.rounds), want: w.want,
		do: func(ctx context.Context) ([]byte, error) { return s.run(ctx, session, w.language, w.code) },
	}}
	if w.cells {
		list = append(list, contender{
			name: "persistent " + k.name, n: b.scaled(w.rounds), want: w.want,
			do: func(ctx context.Context) ([]byte, error) { return s.cell(ctx, "persistent-"+w.key, w.language, w.code) },
		})
	}
	if w.sessions {
		list = append(list, b.firstOf(w, k, "new session", s.run))
	}
	if w.notebooks {
		list = append(list, b.firstOf(w, k, "new notebook", s.cell))
	}
	return list
}

// firstOf measures the first run of a session, in a new session each time.
func (b *bench) firstOf(w work, k kind, name string, run func(ctx context.Context, session, language, code string) ([]byte, error)) contender {
	var last string
	return contender{
		name: name + " " + k.name, n: b.scaled(max(w.slow, w.rounds/2)), want: w.want, rest: 15 * pause,
		do: func(ctx context.Context) ([]byte, error) {
			last = b.newSession()
			return run(ctx, last, w.language, w.code)
		},
		after: func(ctx context.Context) error { return k.server.closeSession(ctx, last) },
	}
}
