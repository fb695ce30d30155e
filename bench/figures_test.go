//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFigures writes numbers into copies of the pages. It fails if a page has lost its table.
func TestFigures(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, page := range figurePaths() {
		if err := os.WriteFile(filepath.Join(dir, page), []byte(read(filepath.Join("..", page))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	numbers := values{"python plain": 15.4, "python warm root": 6.04, "python warm ordinary": 9.96, "python new session root": 12.3,
		"plot warm root": 40, "plot warm ordinary": 41}
	for range 2 { // the second time replaces what the first has written
		if err := writeFigures(dir, numbers); err != nil {
			t.Fatal(err)
		}
	}
	for page, want := range map[string]string{
		"README.md":           "\n| Python, `print` | 15 ms | – | **6.0 ms** | **10 ms** | 12 ms | – |\n",
		"docs/performance.md": "\n| a plot to a PNG file, warm | 40.0 ms | 41.0 ms |\n",
	} {
		before, after := read(filepath.Join("..", page)), read(filepath.Join(dir, page))
		if !strings.Contains(after, want) {
			t.Errorf("%s has no line%s", page, want)
		}
		if b, a := strings.Count(before, "\n"), strings.Count(after, "\n"); b != a {
			t.Errorf("%s has %d lines, had %d", page, a, b)
		}
	}
}

func TestFigureWithoutTable(t *testing.T) {
	_, err := figures[0].replace("# A page\n\n| other | table |\n|---|---|\n", values{})
	if err == nil || !strings.Contains(err.Error(), "no table begins with\n| | plain process |") {
		t.Errorf("replace: %v", err)
	}
}
