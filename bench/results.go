//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// section is the printable result of one part. Adjacent sections with the same header share a
// table.
type section struct {
	Title  string
	Header []string
	Rows   [][]string
	Notes  []string           // what was left out, and why; how it was measured
	Values map[string]float64 // numbers by name, for goals: milliseconds, bytes, ratios

	Build string // the server it was measured with
	Took  time.Duration
}

func (s *section) row(cells ...string) { s.Rows = append(s.Rows, cells) }

// leaveOut notes why something is not in the section.
func (s *section) leaveOut(what string, why error) {
	s.Notes = append(s.Notes, fmt.Sprintf("%s was left out: %v", what, why))
}

func (s *section) set(name string, value float64) {
	if s.Values == nil {
		s.Values = map[string]float64{}
	}
	s.Values[name] = value
}

func ms(d time.Duration) string {
	return short(float64(d.Nanoseconds())/1e6, 2) + " ms"
}

// times formats a ratio as people say it: 1.3x, or 1/40.
func times(r float64) string {
	if r < 0.7 {
		return "1/" + strings.TrimSuffix(short(1/r, 1), ".0")
	}
	return short(r, 2) + "x"
}

// short formats a number with fewer decimals the larger it is.
func short(v float64, decimals int) string {
	switch {
	case v >= 100:
		decimals = 0
	case v >= 10:
		decimals = min(decimals, 1)
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// shelf keeps the sections of an interrupted run in a directory, so that the next run can resume.
type shelf struct{ dir string }

func (s shelf) path(part string) string { return filepath.Join(s.dir, part+".json") }

func (s shelf) put(part string, sec *section) error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(sec, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(s.path(part), text, 0o644)
}

// get returns the part's section if this build measured it, or nil.
func (s shelf) get(part, build string) (*section, error) {
	text, err := os.ReadFile(s.path(part))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var sec section
	if err := json.Unmarshal(text, &sec); err != nil || sec.Build != build {
		return nil, nil // another version's
	}
	return &sec, nil
}

func (s shelf) clear() error { return os.RemoveAll(s.dir) }

// render writes the state of the goals and all sections as Markdown.
func render(machine []string, sections []*section) string {
	var b strings.Builder
	b.WriteString("# Results of `make bench`\n\n")
	for _, line := range machine {
		b.WriteString("- " + line + "\n")
	}
	var took time.Duration
	for _, s := range sections {
		took += s.Took
	}
	fmt.Fprintf(&b, "- measured in %.0f minutes\n", took.Minutes())
	b.WriteString(`
All on the built server, through HTTP except for stdio. In each part the contenders take turns, round by round, so a slow moment of the machine hits all of them: compare ratios, not times.
**root** is a server that root runs, **ordinary** one of a user without rights, **docker** one of root's on the docker backend.

## Goals

` + goalsTable(valuesOf(sections)) + `
## Measurements

The last columns are the ratio of the medians to the same code by plain processes, under a bare bubblewrap, and by docker's commands (no network, no capabilities, read-only, 512 MB).
**warm** is a fresh process in a session that has a sandbox; **persistent** a cell of an interpreter that lives on; **new session** the first run of a session, isolated from all others.
p99 of fewer than 100 measurements is nearly the worst of them.
`)
	var header []string
	for _, s := range sections {
		if len(s.Rows) == 0 {
			continue
		}
		if !slices.Equal(s.Header, header) {
			header = s.Header
			b.WriteString("\n| " + strings.Join(header, " | ") + " |\n|" + strings.Repeat("---|", len(header)) + "\n")
		}
		b.WriteString("| **" + s.Title + "** |" + strings.Repeat(" |", len(header)-1) + "\n")
		for _, r := range s.Rows {
			b.WriteString("| " + strings.Join(r, " | ") + strings.Repeat(" |", len(header)-len(r)+1) + "\n")
		}
	}
	b.WriteString("\n")
	var noted []string
	for _, s := range sections {
		for _, n := range s.Notes {
			if !slices.Contains(noted, n) {
				noted = append(noted, n)
				b.WriteString("- " + n + "\n")
			}
		}
	}
	return b.String()
}
