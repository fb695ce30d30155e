//go:build linux

package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	_ "image/jpeg"
	_ "image/png"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/logging/logtest"
)

// TestHabits runs what people and models type in notebooks, habits/*.py, here and in Jupyter, and
// compares what each cell prints and shows, in order. Each file lists how the two differ.
func TestHabits(t *testing.T) {
	cache := filepath.Dir(runners)
	for _, python := range []struct {
		name  string
		root  func(*testing.T) string
		cache string // see scripts/test-environments
	}{
		{"python", newRoot, cache},
		{"python3.10", python310Root, filepath.Join(cache, "python310")},
	} {
		t.Run(python.name, func(t *testing.T) {
			habits := readHabits(t)
			s := serve(t, "SANDBOX_ROOT="+python.root(t), "SANDBOX_EXEC_TIMEOUT_S=120")
			client, jupyter := s.connect(t), startJupyter(t, python.cache)
			for name, h := range habits {
				if python.name == "python3.10" && !h.isForOldest(name) {
					continue
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					theirs := jupyter.run(t, name, h)
					h.compare(t, theirs, func(code string) transcript { return runHabit(t, client, name, code) })
					if _, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "close_session", Arguments: map[string]any{"session_id": name}}); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}

// python310Root is newRoot with an environment of Python 3.10, the oldest version, and IPython 8.
func python310Root(t *testing.T) string {
	t.Helper()
	root, environments := t.TempDir(), filepath.Join(filepath.Dir(runners), "python310", "runners")
	if _, err := os.Stat(filepath.Join(environments, "python")); err != nil {
		skip(t, "no environment of Python 3.10 at %s: run make test", environments)
	}
	if err := os.Symlink(environments, filepath.Join(root, "runners")); err != nil {
		t.Fatal(err)
	}
	return root
}

var (
	imports       = regexp.MustCompile(`(?m)^(import|from) (pandas|matplotlib|seaborn|sklearn|statsmodels|sympy|networkx|polars|plotly|duckdb|PIL)\b|%pylab`)
	withLibraries = []string{"frame_head", "frames_in_a_loop", "styled_frame", "plot_show", "subplots", "sympy"}
)

// isForOldest reports whether a habit runs with Python 3.10, too: most of those with libraries test
// the same there and take long. IPython 8 has the right lines in chained_exceptions.
func (h habit) isForOldest(name string) bool {
	if name == "chained_exceptions" {
		return false
	}
	return slices.Contains(withLibraries, name) || !slices.ContainsFunc(h.cells, func(c habitCell) bool { return imports.MatchString(c.code) })
}

// ---- Files of habits ----

// habit is a short notebook. Its file has cells that begin with "# %%". Comments that begin with
// "#:" follow that line or the start of the file; see habits/README.md.
type habit struct {
	masks []*regexp.Regexp
	cells []habitCell
}

// habitCell is a cell of a habit, and how its transcript differs from Jupyter's.
type habitCell struct {
	code                   string
	jupyter, here, because []string
}

func readHabits(t *testing.T) map[string]habit {
	t.Helper()
	files, err := filepath.Glob("habits/*.py")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d habits, %v", len(files), err)
	}
	habits := map[string]habit{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		habits[strings.TrimSuffix(filepath.Base(file), ".py")] = parseHabit(t, string(text))
	}
	return habits
}

func parseHabit(t *testing.T, text string) (h habit) {
	t.Helper()
	parts := strings.Split("\n"+text, "\n# %%\n")
	for line := range strings.Lines(parts[0]) {
		if mask, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "#: mask "); ok {
			h.masks = append(h.masks, regexp.MustCompile(mask))
		}
	}
	for _, part := range parts[1:] {
		var c habitCell
		for strings.HasPrefix(part, "#: ") {
			line, rest, _ := strings.Cut(part, "\n")
			kind, value, _ := strings.Cut(line[len("#: "):], " ")
			to := map[string]*[]string{"jupyter": &c.jupyter, "here": &c.here, "because": &c.because}[kind]
			if to == nil {
				t.Fatalf("unknown comment %q", line)
			}
			*to, part = append(*to, value), rest
		}
		if c.because == nil && c.jupyter != nil || c.because == nil && c.here != nil {
			t.Fatalf("no reason for a difference:\n%s", part)
		}
		c.code = strings.TrimSuffix(part, "\n")
		h.cells = append(h.cells, c)
	}
	return h
}

// compare runs the cells and compares them with Jupyter's outputs.
func (h habit) compare(t *testing.T, theirs []transcript, run func(code string) transcript) {
	for i, c := range h.cells {
		ours := run(c.code)
		if slices.ContainsFunc(theirs[i], func(o output) bool { return o.kind == "error" }) || slices.ContainsFunc(c.here, isError) {
			ours = ours.withError()
		}
		their, our := theirs[i].lines(h.masks), ours.lines(h.masks)
		want, ok := c.expected(their)
		switch {
		case !ok:
			t.Errorf("cell %d:\n%s\n\nJupyter's output is not as the habit says, but\n%s", i+1, c.code, strings.Join(their, "\n"))
		case want == nil && slices.Equal(our, their):
			t.Errorf("cell %d:\n%s\n\nthe output is the same as in Jupyter, although %s", i+1, c.code, c.because)
		case want != nil && !slices.Equal(our, want):
			t.Errorf("cell %d:\n%s\n\nhere:\n%s\n\nwant:\n%s", i+1, c.code, strings.Join(our, "\n"), strings.Join(want, "\n"))
		}
	}
}

func isError(line string) bool { return strings.HasPrefix(line, "error: ") }

// expected returns our transcript, given Jupyter's: the same but for the lines that the habit
// replaces. It returns nil if any other transcript will do.
func (c habitCell) expected(their []string) (our []string, ok bool) {
	switch {
	case c.because == nil:
		return append([]string{}, their...), true
	case c.jupyter == nil && c.here == nil:
		return nil, true
	case c.jupyter == nil:
		return c.here, !slices.Equal(c.here, their)
	}
	for i := range their {
		if end := i + len(c.jupyter); end <= len(their) && slices.Equal(their[i:end], c.jupyter) {
			return slices.Concat([]string{}, their[:i], c.here, their[end:]), true
		}
	}
	return nil, false
}

// ---- What a cell prints and shows ----

// transcript is what a cell prints and shows, in order.
type transcript []output

// output is text of a kind: stdout, stderr, error, image, or the media type of a display.
type output struct{ kind, text string }

// add appends output. A value begins a line of stdout.
func (tr *transcript) add(kind, text string) { *tr = append(*tr, output{kind, text}) }

func (tr *transcript) addValue(text string) {
	if n := len(*tr); n > 0 && (*tr)[n-1].kind == "stdout" && !strings.HasSuffix((*tr)[n-1].text, "\n") {
		text = "\n" + text
	}
	tr.add("stdout", text+"\n")
}

// lines returns the transcript as lines with their kind. Between two displays stdout comes first:
// Jupyter does not keep the order of the two streams.
func (tr transcript) lines(masks []*regexp.Regexp) (lines []string) {
	var streams [2]string
	flush := func() {
		for i, prefix := range []string{"", "stderr: "} {
			lines = append(lines, prefixed(prefix, streams[i])...)
		}
		streams = [2]string{}
	}
	for _, o := range tr {
		switch text := unmasked(o.text, masks); o.kind {
		case "stdout":
			streams[0] += text
		case "stderr":
			streams[1] += text
		default:
			flush()
			lines = append(lines, prefixed(o.kind+": ", text)...)
		}
	}
	flush()
	return lines
}

func prefixed(prefix, text string) (lines []string) {
	if text == "" && prefix != "" && prefix != "stderr: " {
		return []string{strings.TrimSuffix(prefix, ": ")}
	}
	for line := range strings.Lines(text) {
		line = strings.NewReplacer("\r", `\r`, "\x1b", `\e`, "\b", `\b`).Replace(strings.TrimRight(line, " \n"))
		lines = append(lines, strings.TrimRight(prefix+line, " "))
	}
	return lines
}

// differing are parts of outputs that differ from run to run or from machine to machine.
var differing = []struct {
	pattern *regexp.Regexp
	mask    string
}{
	{regexp.MustCompile(`\r\n`), "\n"},
	{regexp.MustCompile(`0x[0-9a-f]{6,}`), "0x…"},
	{regexp.MustCompile(`/tmp/ipykernel_\d+/\d+\.py|<cell \d+>|<ipython-input-[^>]*>`), "<cell>"},
	{regexp.MustCompile(`[\w/.+-]*/lib/python3\.\d+/`), "…/lib/python3/"},
	{regexp.MustCompile(`\bT_[0-9a-f]{5}`), "T_…"}, // pandas' Styler
}

func unmasked(text string, masks []*regexp.Regexp) string {
	for _, d := range differing {
		text = d.pattern.ReplaceAllString(text, d.mask)
	}
	for _, m := range masks {
		text = m.ReplaceAllString(text, "…")
	}
	return text
}

// imageText describes an image: its type and size.
func imageText(t *testing.T, kind string, data []byte) string {
	t.Helper()
	if kind == "image/svg+xml" {
		return kind
	}
	config, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return fmt.Sprintf("%s %dx%d", kind, config.Width, config.Height)
}

// ---- Here ----

// habitTimeout says which habit hangs before the whole test is cut.
const habitTimeout = 5 * time.Minute

// runHabit runs a cell with a client that asks for details, in a session with that name.
func runHabit(t *testing.T, client *mcp.ClientSession, session, code string) (tr transcript) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), habitTimeout)
	defer cancel()
	res, err := client.CallTool(ctx, &mcp.CallToolParams{Name: "run", Arguments: map[string]any{"session": session, "env": "python", "code": code},
		Meta: mcp.Meta{"mcp-code-sandbox/details": true}})
	if err != nil {
		t.Fatal(err)
	}
	var run struct {
		Status   string
		Displays []struct {
			MIMEType string `json:"mime_type"`
			Text     string
			Plain    string
		}
		Outputs []struct {
			Type, Text, File string
			Index            *int
		}
	}
	b, err := json.Marshal(res.Meta["mcp-code-sandbox/run"])
	if err == nil {
		err = json.Unmarshal(b, &run)
	}
	if err != nil || run.Status != "completed" {
		t.Fatalf("%s\n%v, %s: %+v", code, err, b, res.Content[0])
	}
	var images []*mcp.ImageContent
	for _, c := range res.Content {
		if c, ok := c.(*mcp.ImageContent); ok {
			images = append(images, c)
		}
	}
	for _, o := range run.Outputs {
		switch {
		case o.Type == "image" && o.Index != nil:
			tr.add("image", imageText(t, images[*o.Index].MIMEType, images[*o.Index].Data))
		case o.Type == "image":
			tr.add("image", o.File)
		case o.Type == "display":
			d := run.Displays[*o.Index]
			if last := len(tr) - 1; d.MIMEType != "image/svg+xml" && (last < 0 || tr[last].kind != "stdout" || !strings.HasSuffix(tr[last].text, d.Plain)) {
				t.Errorf("%s\na display that does not follow its text %q", code, d.Plain)
			}
			if d.MIMEType == "image/svg+xml" {
				tr.add("image", d.MIMEType)
			} else {
				tr.add(d.MIMEType, d.Text)
			}
		default:
			tr.add(o.Type, o.Text)
		}
	}
	checkContent(t, code, tr, res.Content)
	return tr
}

// checkContent checks that a model sees the text and the images of a transcript in the same order.
func checkContent(t *testing.T, code string, tr transcript, content []mcp.Content) {
	t.Helper()
	var seen strings.Builder
	for _, c := range content {
		switch c := c.(type) {
		case *mcp.TextContent:
			seen.WriteString(c.Text + "\n")
		case *mcp.ImageContent:
			seen.WriteString("<image>\n")
		}
	}
	rest, traceback := seen.String(), false
	for _, o := range tr {
		if o.kind == "image" && o.text != "image/svg+xml" {
			o.text = "<image>"
		} else if o.kind != "stdout" && o.kind != "stderr" {
			continue
		}
		for line := range strings.Lines(o.text) {
			traceback = traceback || o.kind == "stderr" && errorStart.MatchString(line)
			if traceback || strings.ContainsAny(line, "\r\x1b\b") {
				continue // shortened
			}
			_, after, ok := strings.Cut(rest, strings.TrimSpace(line))
			if !ok {
				t.Errorf("%s\nthe content misses, or has in another place, %q:\n%s", code, line, seen.String())
				return
			}
			rest = after
		}
	}
}

var (
	errorStart  = regexp.MustCompile(`(?m)^(Traceback \(most recent call last\):|  File "<cell \d+>", line \d+|\w+Error: )`)
	errorFrame  = regexp.MustCompile(`File "<cell (\d+)>", line (\d+)`)
	errorName   = regexp.MustCompile(`(?m)^(?:[\w]+\.)*(\w+)(?:: |$)`)
	jupyterCell = regexp.MustCompile(`Cell In\[(\d+)\], line (\d+)`)
	errorPlace  = regexp.MustCompile(` \([^()]*, line \d+\)$`)
	ansi        = regexp.MustCompile("\x1b\\[[0-9;]*m")
)

// withError takes a traceback out of stderr: an error is its name, its text, and its frames in
// cells.
func (tr transcript) withError() transcript {
	for i, o := range tr {
		start := errorStart.FindStringIndex(o.text)
		if o.kind != "stderr" || start == nil || strings.HasPrefix(o.text[start[0]:], "UsageError: ") { // Jupyter prints it, too
			continue
		}
		var rest transcript
		trace := o.text[start[0]:]
		for _, o := range tr[i+1:] {
			if o.kind == "stderr" {
				trace += o.text
			} else {
				rest = append(rest, o)
			}
		}
		trace, _, _ = strings.Cut(trace, "\nHint: ")
		last := trace // of a chain
		if at := strings.LastIndex(trace, tracebackLine); at >= 0 {
			last = trace[at+len(tracebackLine):]
		}
		name := errorName.FindStringSubmatchIndex(last)
		if name == nil {
			return tr
		}
		with := append(slices.Clone(tr[:i]), output{"stderr", o.text[:start[0]]})
		with.add("error", errorText(errorFrame, trace, last[name[2]:name[3]], strings.TrimRight(last[name[1]:], "\n")))
		return append(with, rest...)
	}
	return tr
}

const tracebackLine = "Traceback (most recent call last):\n"

func errorText(frame *regexp.Regexp, trace, name, value string) string {
	text := name
	if value != "" {
		text += ": " + errorPlace.ReplaceAllString(value, "")
	}
	for _, m := range frame.FindAllStringSubmatch(trace, -1) {
		text += fmt.Sprintf("\nin cell %s, line %s", m[1], m[2])
	}
	return text
}

// ---- In Jupyter ----

// jupyter runs notebooks with nbclient and ipykernel, in a process that habits share.
type jupyter struct {
	mu      sync.Mutex
	stdin   io.Writer
	waiting map[string]chan jupyterAnswer // by the name of the habit
}

// jupyterAnswer has the outputs of each cell of a habit, or why there are none.
type jupyterAnswer struct {
	Name    string
	Outputs [][]jupyterOutput
	Error   string
}

// startJupyter starts the Jupyter in cache with the libraries of the environment there.
func startJupyter(t *testing.T, cache string) *jupyter {
	t.Helper()
	bin := filepath.Join(cache, "jupyter", "bin")
	libraries, _ := filepath.Glob(filepath.Join(cache, "runners/python/lib/python3.*/site-packages"))
	if _, err := os.Stat(bin); err != nil || len(libraries) != 1 {
		skip(t, "no Jupyter in %s: run make test", cache)
	}
	log := &logtest.Buffer{}
	cmd := exec.Command(filepath.Join(bin, "python"), "habits/jupyter/run.py")
	cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "PYTHONPATH=" + libraries[0], "HOME=" + t.TempDir(), "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1",
		"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "MPLCONFIGDIR=" + filepath.Join(cache, "jupyter", "matplotlib"), "PYDEVD_DISABLE_FILE_VALIDATION=1"}
	cmd.Stderr = log
	stdin, stdout := startPiped(t, cmd)
	j := &jupyter{stdin: stdin, waiting: map[string]chan jupyterAnswer{}}
	go j.read(stdout)
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("Jupyter: %v\n%s", err, log)
		}
	})
	return j
}

// read passes answers on. At the end of the process, everybody who waits gets an error.
func (j *jupyter) read(stdout io.Reader) {
	for answers := json.NewDecoder(stdout); ; {
		var answer jupyterAnswer
		err := answers.Decode(&answer)
		if err != nil {
			answer.Error = "Jupyter has ended: " + err.Error()
		}
		j.mu.Lock()
		for name, waits := range j.waiting {
			if name == answer.Name || err != nil {
				waits <- answer
				delete(j.waiting, name)
			}
		}
		j.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// run runs a habit and returns a transcript of each cell.
func (j *jupyter) run(t *testing.T, name string, h habit) (cells []transcript) {
	t.Helper()
	var code []string
	for _, c := range h.cells {
		code = append(code, c.code)
	}
	line, err := json.Marshal(map[string]any{"name": name, "cells": code})
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan jupyterAnswer, 1)
	j.mu.Lock()
	j.waiting[name] = answered
	_, err = j.stdin.Write(append(line, '\n'))
	j.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	answer := <-answered
	if answer.Error != "" {
		t.Fatal(answer.Error)
	}
	for _, outputs := range answer.Outputs {
		cells = append(cells, fromJupyter(t, outputs))
	}
	if len(cells) != len(h.cells) {
		t.Fatalf("Jupyter ran %d of %d cells", len(cells), len(h.cells))
	}
	return cells
}

// jupyterOutput is an output of nbformat 4.
type jupyterOutput struct {
	Type      string `json:"output_type"`
	Name      string
	Text      string
	Data      map[string]any
	Error     string `json:"ename"`
	Value     string `json:"evalue"`
	Traceback []string
}

func fromJupyter(t *testing.T, outputs []jupyterOutput) (tr transcript) {
	t.Helper()
	for _, o := range outputs {
		switch o.Type {
		case "stream":
			tr.add(o.Name, o.Text)
		case "error":
			tr.add("error", errorText(jupyterCell, ansi.ReplaceAllString(strings.Join(o.Traceback, "\n"), ""), o.Error, o.Value))
		default:
			tr.addBundle(t, o.Data)
		}
	}
	return tr
}

// addBundle adds a value as we show it: as an image, or as its text, with its markup for people.
func (tr *transcript) addBundle(t *testing.T, data map[string]any) {
	t.Helper()
	for _, kind := range []string{"image/png", "image/jpeg", "image/svg+xml"} {
		if text, ok := data[kind].(string); ok {
			raw, _ := base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\n", ""))
			tr.add("image", imageText(t, kind, raw))
			return
		}
	}
	if plain, ok := data["text/plain"].(string); ok {
		tr.addValue(plain)
	}
	for _, kind := range []string{"text/html", "text/markdown", "text/latex"} {
		if text, ok := data[kind].(string); ok {
			tr.add(kind, text)
			return
		}
	}
	for kind := range data {
		if kind != "text/plain" {
			tr.add(kind, "")
		}
	}
}

// connect returns an MCP client of the server.
func (s *server) connect(t *testing.T) *mcp.ClientSession {
	t.Helper()
	transport := &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.Token)}}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}
