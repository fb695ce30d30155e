//go:build linux

package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// TestFootprint checks what the guard says about what a program has loaded.
func TestFootprint(t *testing.T) {
	plain := footprint{memory: 80e6, libraries: []string{"IPython", "numpy", "pandas"}}
	for name, test := range map[string]struct {
		footprint footprint
		want      string // in the error; none: no error
	}{
		"the same":                {plain, ""},
		"less":                    {footprint{memory: 12e6}, ""},
		"parts of the program":    {footprint{memory: 80e6, libraries: []string{"_ni_label", "sandbox_shell", "pandas"}}, ""},
		"a library is loaded":     {footprint{memory: 80e6, libraries: []string{"numpy", "sklearn", "tabulate"}}, "does not use: sklearn, tabulate"},
		"too much memory":         {footprint{memory: 121e6, libraries: plain.libraries}, "has 121.0 MB, 1.51x of a plain process (80.0 MB); allowed is 1.50x"},
		"a large library is used": {footprint{memory: 160e6, libraries: []string{"sklearn"}}, "2.00x of a plain process (80.0 MB); allowed is 1.50x; it has loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			err := footprintRule{name: "a Python cell", most: 1.5}.excess(io.Discard, titles[rootKind], test.footprint, plain)
			if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestParseFootprint reads what a process prints, and what a plain caller gets of a run.
func TestParseFootprint(t *testing.T) {
	for name, out := range map[string]string{
		"a process": "loaded 100 kB numpy pyarrow-x sandbox_shell\n",
		"a run":     `{"result":{"content":[{"type":"text","text":"{\"output\": \"loaded 100 kB numpy pyarrow-x sandbox_shell\\n\"}"}]}}`,
	} {
		f, err := parseFootprint([]byte(out))
		if err != nil || f.memory != 100<<10 || !slices.Equal(f.libraries, []string{"numpy", "pyarrow-x", "sandbox_shell"}) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
	if f, err := parseFootprint([]byte("killed")); err == nil {
		t.Errorf("%+v", f)
	}
}
