//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// figure is a table on a page for readers. It is found by its first line.
type figure struct {
	page   string
	header []string
	rows   func(values) [][]string
}

var figures = []figure{
	{"README.md", []string{"", "plain process", "`docker run`", "warm: root's server", "ordinary user's", "new session: root's", "ordinary user's"},
		runFigures("plain", "docker run", "warm root", "warm ordinary", "new session root", "new session ordinary")},
	{"docs/performance.md", []string{"", "plain process", "`docker run`", "`docker exec`", "warm: root's server", "ordinary user's", "on Docker", "new session: root's", "ordinary user's"},
		runFigures("plain", "docker run", "docker exec", "warm root", "warm ordinary", "warm docker", "new session root", "new session ordinary")},
	{"docs/performance.md", []string{"", "root's server", "ordinary user's"}, kindFigures},
}

// runFigures returns rows with the medians of some contenders. Those of warm runs are bold.
func runFigures(contenders ...string) func(values) [][]string {
	return func(v values) (rows [][]string) {
		for _, what := range []struct{ title, key string }{
			{"Python, `print`", "python"}, {"Python, pandas `groupby`", "pandas"}, {"TypeScript, `console.log`", "typescript"},
		} {
			row := []string{what.title}
			for _, name := range contenders {
				cell := "–"
				if median, ok := v[what.key+" "+name]; ok {
					cell = readable(median)
				}
				if strings.HasPrefix(name, "warm ") {
					cell = "**" + cell + "**"
				}
				row = append(row, cell)
			}
			rows = append(rows, row)
		}
		return rows
	}
}

// kindFigures returns the kinds of servers side by side, without the runs of the other tables.
func kindFigures(v values) (rows [][]string) {
	for _, g := range goals {
		if !g.figure {
			continue
		}
		row := []string{g.what}
		for _, kind := range []string{rootKind, ordinaryKind} {
			text, _, ok := g.judge(v, kind)
			if !ok {
				text = "–"
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return rows
}

// readable formats milliseconds with two digits.
func readable(ms float64) string {
	if ms < 9.95 {
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

// figurePaths returns the pages with figures.
func figurePaths() []string {
	var paths []string
	for _, f := range figures {
		if !slices.Contains(paths, f.page) {
			paths = append(paths, f.page)
		}
	}
	return paths
}

// writeFigures writes the numbers into the tables of the pages in dir.
func writeFigures(dir string, v values) error {
	for _, f := range figures {
		path := filepath.Join(dir, f.page)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		changed, err := f.replace(string(text), v)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// replace returns the text of a page with the rows of the table replaced.
func (f figure) replace(text string, v values) (string, error) {
	header := line(f.header) + "|" + strings.Repeat("---|", len(f.header)) + "\n"
	before, after, found := strings.Cut(text, header)
	if !found {
		return "", fmt.Errorf("no table begins with\n%s", header)
	}
	for strings.HasPrefix(after, "|") {
		_, after, _ = strings.Cut(after, "\n")
	}
	var b strings.Builder
	for _, row := range f.rows(v) {
		b.WriteString(line(row))
	}
	return before + header + b.String() + after, nil
}

// line returns a row of a table. An empty first cell is narrow.
func line(cells []string) string {
	return strings.Replace("| "+strings.Join(cells, " | ")+" |\n", "|  |", "| |", 1)
}
