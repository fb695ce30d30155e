//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// footprint is what a process has loaded before a program's own code runs.
type footprint struct {
	memory    float64  // its own and what it shares with a zygote, in bytes
	libraries []string // Python's
}

// Each program prints its footprint.
const (
	pythonFootprint = `import sys
with open("/proc/self/status") as f: status = dict(line.split(":", 1) for line in f)
libraries = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print("loaded", status["RssAnon"].split()[0], "kB", *sorted(libraries))`
	nodeFootprint = `console.log("loaded " + Math.round(process.memoryUsage().rss / 1024) + " kB")`
)

// always is what every notebook has loaded. All other libraries are loaded when code uses them, so
// that a session that uses none of them gets neither slower nor larger.
const always = "import numpy, pandas, matplotlib.pyplot, requests, IPython\n"

// footprintRule limits the memory of a program to a multiple of a plain process's. The program must
// not have loaded a library that the plain process has not.
type footprintRule struct {
	name           string
	language, code string
	cell           bool
	plain          string // a key of plainFootprints
	most           float64
}

var footprintRules = []footprintRule{
	{name: "a Python run without libraries", language: "python", code: pythonFootprint, plain: "python", most: 0.25},
	{name: "a Python run with pandas", language: "python", code: "import pandas\n" + pythonFootprint, plain: "python", most: 1.35},
	{name: "a Python cell", language: "python", code: pythonFootprint, cell: true, plain: "python", most: 1.35},
	{name: "a TypeScript run", language: "typescript", code: nodeFootprint, plain: "node", most: 1.25},
}

// footprints returns an error for each program of the server that has loaded too much.
func (b *bench) footprints(ctx context.Context, k kind) error {
	plain, err := b.plainFootprints(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range footprintRules {
		f, err := r.measure(ctx, k.server)
		if err == nil {
			err = r.excess(os.Stderr, titles[k.name], f, plain[r.plain])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (b *bench) plainFootprints(ctx context.Context) (map[string]footprint, error) {
	env := []string{"MPLBACKEND=Agg", "MPLCONFIGDIR=" + filepath.Join(b.dir, "matplotlib"), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"}
	found := map[string]footprint{}
	for name, argv := range map[string][]string{
		"python": {b.program("python"), "-c", always + pythonFootprint},
		"node":   {b.program("node"), "-e", nodeFootprint},
	} {
		out, err := command(b.dir, env, argv...)(ctx)
		if err == nil {
			found[name], err = parseFootprint(out)
		}
		if err != nil {
			return nil, fmt.Errorf("plain %s: %w", name, err)
		}
	}
	return found, nil
}

// measure returns the footprint of the last of a few runs: the first may start without a zygote.
func (r footprintRule) measure(ctx context.Context, s *server) (f footprint, err error) {
	run := s.run
	if r.cell {
		run = s.cell
	}
	for range few {
		out, err := run(ctx, "footprint", r.language, r.code)
		if err != nil {
			return f, err
		}
		if f, err = parseFootprint(out); err != nil {
			return f, err
		}
	}
	return f, nil
}

// excess returns an error if a footprint is too large.
func (r footprintRule) excess(out io.Writer, server string, f, plain footprint) error {
	ratio := f.memory / plain.memory
	sentence := fmt.Sprintf("%s of %s has %s, %s of a plain process (%s); allowed is %s", r.name, server, mb(f.memory), times(ratio), mb(plain.memory), times(r.most))
	unused := slices.DeleteFunc(slices.Clone(f.libraries), func(name string) bool {
		return strings.HasPrefix(name, "_") || strings.HasPrefix(name, "sandbox_") || slices.Contains(plain.libraries, name)
	})
	if len(unused) > 0 {
		sentence += "; it has loaded libraries that it does not use: " + strings.Join(unused, ", ")
	}
	if ratio <= r.most && len(unused) == 0 {
		fmt.Fprintf(out, "guard: %s\n", sentence)
		return nil
	}
	fmt.Fprintf(out, "guard: TOO MUCH: %s\n", sentence)
	return errors.New(sentence)
}

var footprintLine = regexp.MustCompile(`loaded (\d+) kB([^\\"\n]*)`)

func parseFootprint(out []byte) (footprint, error) {
	m := footprintLine.FindSubmatch(out)
	if m == nil {
		return footprint{}, fmt.Errorf("no footprint in %.500q", out)
	}
	kb, err := strconv.Atoi(string(m[1]))
	return footprint{float64(kb) * 1024, strings.Fields(string(m[2]))}, err
}
