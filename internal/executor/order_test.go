package executor

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// describe writes pieces as "out:text", "err:text", "out-n" for n omitted bytes, and "#i" for a
// display.
func describe(pieces []Piece) string {
	var parts []string
	for _, p := range pieces {
		name := map[Stream]string{Stdout: "out", Stderr: "err"}[p.Stream]
		switch {
		case p.Stream == 0:
			parts = append(parts, fmt.Sprintf("#%d", p.Display))
		case p.Omitted > 0:
			parts = append(parts, fmt.Sprintf("%s-%d", name, p.Omitted))
		default:
			parts = append(parts, name+":"+string(p.Text))
		}
	}
	return strings.Join(parts, " ")
}

func TestPieces(t *testing.T) {
	c := newCapture(&run{}, 8, &spool{})
	for _, step := range []string{"out:ab", "#", "err:x", "out:c", "out:d", "#", "out:efghijkl", "err:yz", "out:m"} {
		switch name, text, _ := strings.Cut(step, ":"); name {
		case "#":
			c.displays.list = append(c.displays.list, Display{MIME: "text/plain"})
			c.order.shown()
		case "out":
			c.write(Stdout, []byte(text))
		case "err":
			c.write(Stderr, []byte(text))
		}
	}
	res := Result{Persistent: true}
	c.fill(&res)
	const want = "out:ab #0 err:x out:cd #1 out-5 out:jkl err:yz out:m"
	if got := describe(res.Pieces()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	res.removeDisplays(func(i int) bool { return i == 0 })
	if got := describe(res.Pieces()); got != "out:ab err:x out:cd #0 out-5 out:jkl err:yz out:m" {
		t.Errorf("without the first display: %s", got)
	}
	res.Persistent = false // by arrival: stderr does not split lines of stdout
	if got := describe(res.Pieces()); got != "err:x out:abcd #0 out-5 err:yz out:jklm" {
		t.Errorf("of a fresh process: %s", got)
	}
	res.Persistent, res.Order = true, nil // stored before there was an order
	if got := describe(res.Pieces()); got != "out:abcd out-5 out:jklm err:xyz #0" {
		t.Errorf("without an order: %s", got)
	}
}

// In a fresh process, stderr that arrives in the middle of a line of stdout comes before that line.
func TestWholeLines(t *testing.T) {
	long := strings.Repeat("x", maxMoved+1)
	for in, want := range map[string]string{
		"out:a\nb err:w\n out:c\nd err:v\n out:e\n": "out:a\n err:w\n out:bc\n err:v\n out:de\n",
		"out:a\n err:w\n out:b":                     "out:a\n err:w\n out:b",
		"out:a err:w":                               "out:a err:w",
		"out:a #0 err:w out:b":                      "out:a #0 err:w out:b",
		"out:a err-5 out:b":                         "err-5 out:ab",
		"out:a err:w out-5":                         "out:a err:w out-5",
		"err:w out:a err:v":                         "err:w out:a err:v",
		"out:" + long + " err:w out:b":              "out:" + long + " err:w out:b",
	} {
		var pieces []Piece
		for _, step := range strings.Split(in, " ") {
			p := Piece{Stream: map[byte]Stream{'o': Stdout, 'e': Stderr, '#': 0}[step[0]]}
			_, text, _ := strings.Cut(step, ":")
			p.Text = []byte(text)
			fmt.Sscanf(step[1:], "rr-%d", &p.Omitted)
			fmt.Sscanf(step[1:], "ut-%d", &p.Omitted)
			pieces = append(pieces, p)
		}
		if got := describe(wholeLines(pieces)); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	res := Result{Recent: Output{Data: []byte("aWb\n"), Stderr: [][2]int{{1, 2}}}}
	if got := describe(res.RecentPieces()); got != "err:W out:ab\n" {
		t.Errorf("live: %q", got)
	}
	if res.Persistent = true; describe(res.RecentPieces()) != "out:a err:W out:b\n" {
		t.Error("an interpreter's own order is exact")
	}
}

// A file that is saved again and again is shown once.
// TestClear: what the code has withdrawn is in stdout, and not among the pieces. A run may show as
// much again.
func TestClear(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		for i := range 100 {
			p.Display(wire.ClearMIME, []byte("\n"))
			p.Stdout(fmt.Append(nil, i))
			p.Display("image/png", fmt.Append(nil, i))
			p.Stderr([]byte("."))
		}
		return wire.Exit{}
	}, keepState)
	res := r.mustRun(t, session.Local, notebookRequest("loop"))
	if got := describe(res.Pieces()); got != "out:99 #0 err:." || len(res.Displays) != 1 || len(res.Stderr) != 100 {
		t.Errorf("%s; %d displays, stderr %q", got, len(res.Displays), res.Stderr)
	}
	if data, _ := res.Displays[0].Content(); string(data) != "99" || res.DisplaysBeyond+res.DisplaysDropped != 0 {
		t.Errorf("shown: %q; %d beyond, %d dropped", data, res.DisplaysBeyond, res.DisplaysDropped)
	}
	res.removeDisplays(func(int) bool { return true })
	if got := describe(res.Pieces()); got != "out:99 err:." {
		t.Errorf("without its display: %s", got)
	}
}

func TestPiecesOfOneFile(t *testing.T) {
	c := newCapture(&run{}, 100, &spool{})
	for i, file := range []string{"a.png", "", "a.png", "b.png"} {
		c.write(Stdout, fmt.Append(nil, i))
		c.displays.list = append(c.displays.list, Display{MIME: "image/png", File: file})
		c.order.shown()
	}
	var res Result
	c.fill(&res)
	if got := describe(res.Pieces()); got != "out:01 #0 out:2 #1 out:3 #2" {
		t.Errorf("got %s", got)
	}
}

// Any number of changes takes bounded memory, and loses neither text nor a display.
func TestManyPieces(t *testing.T) {
	var o order
	rng := rand.New(rand.NewPCG(1, 2))
	var printed [Stderr + 1]int64
	shown := 0
	for range 100_000 {
		if rng.IntN(2000) == 0 {
			o.shown()
			shown++
		}
		stream := Stream(1 + rng.IntN(2))
		o.printed(stream, 1)
		printed[stream]++
	}
	if len(o.spans) > maxSpans {
		t.Errorf("%d spans", len(o.spans))
	}
	for _, s := range o.spans {
		printed[s.Stream] -= s.N
		if s.Display {
			shown--
		}
	}
	if printed != [Stderr + 1]int64{} || shown != 0 {
		t.Errorf("lost: %v, %d displays", printed, shown)
	}
}
