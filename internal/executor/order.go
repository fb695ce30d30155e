package executor

import (
	"bytes"
	"slices"
)

// maxSpans bounds the changes between text and displays that a Result remembers. Beyond it, the
// middle loses its order.
const maxSpans = 4000

// Span is a part of what a run printed and showed: N bytes of a stream, or the next display. Of a
// Cleared stream, the code has withdrawn the bytes: they are not part of what people and models
// see.
type Span struct {
	Stream  Stream `json:",omitempty"`
	N       int64  `json:",omitempty"`
	Display bool   `json:",omitempty"`
	Cleared bool   `json:",omitempty"`
}

// order records in which order a run printed and showed things. It holds no text.
type order struct{ spans []Span }

func (o *order) printed(stream Stream, n int64) {
	if n == 0 {
		return
	}
	if last := len(o.spans) - 1; last >= 0 && o.spans[last].Stream == stream && !o.spans[last].Cleared {
		o.spans[last].N += n
		return
	}
	o.add(Span{Stream: stream, N: n})
}

func (o *order) shown() { o.add(Span{Display: true}) }

// clear withdraws everything so far.
func (o *order) clear() {
	var sum [Stderr + 1]int64
	for _, s := range o.spans {
		sum[s.Stream] += s.N
	}
	o.spans = o.spans[:0]
	for _, stream := range []Stream{Stdout, Stderr} {
		if sum[stream] > 0 {
			o.spans = append(o.spans, Span{Stream: stream, N: sum[stream], Cleared: true})
		}
	}
}

func (o *order) add(s Span) {
	if o.spans = append(o.spans, s); len(o.spans) > maxSpans {
		const ends = maxSpans / 4
		middle := joined(o.spans[ends : len(o.spans)-ends])
		o.spans = slices.Concat(o.spans[:ends], middle, o.spans[len(o.spans)-ends:])
	}
}

// joined joins the text of each stream between two displays.
func joined(spans []Span) (out []Span) {
	var sum [Stderr + 1]int64
	flush := func() {
		for stream, n := range sum {
			if n > 0 {
				out = append(out, Span{Stream: Stream(stream), N: n})
			}
		}
		sum = [Stderr + 1]int64{}
	}
	for _, s := range spans {
		if s.Display || s.Cleared {
			flush()
			out = append(out, s)
		} else {
			sum[s.Stream] += s.N
		}
	}
	flush()
	return out
}

// removeDisplays removes displays from a Result, and their places.
func (r *Result) removeDisplays(remove func(i int) bool) {
	var displays []Display
	var o order
	shown := 0
	for _, s := range r.Order {
		switch {
		case s.Cleared:
			o.add(s)
		case !s.Display:
			o.printed(s.Stream, s.N)
		case !remove(shown):
			o.shown()
			fallthrough
		default:
			shown++
		}
	}
	for i, d := range r.Displays {
		if !remove(i) {
			displays = append(displays, d)
		}
	}
	r.Displays, r.Order = displays, o.spans
}

// Piece is a part of what a run printed and showed: text of a stream, a number of bytes of it that
// are not kept, or a display.
type Piece struct {
	Stream  Stream // 0: a display
	Text    []byte
	Omitted int64
	Display int // the index in Displays
}

// Pieces returns what the run printed and showed, in order. What has no place in it comes last. A
// fresh process writes its two streams itself: their order is that of arrival, by whole lines.
func (r Result) Pieces() []Piece {
	if r.Persistent {
		return r.pieces()
	}
	return wholeLines(r.pieces())
}

func (r Result) pieces() (pieces []Piece) {
	streams := [Stderr + 1]kept{Stdout: {r.Stdout, r.StdoutCut, 0}, Stderr: {r.Stderr, r.StderrCut, 0}}
	shown := 0
	for _, s := range r.Order {
		switch {
		case s.Cleared:
			streams[s.Stream].next(s.Stream, s.N)
		case !s.Display:
			pieces = append(pieces, streams[s.Stream].next(s.Stream, s.N)...)
		case shown < len(r.Displays):
			pieces = append(pieces, Piece{Display: shown})
			shown++
		}
	}
	for _, stream := range []Stream{Stdout, Stderr} {
		rest := streams[stream].size() - streams[stream].at
		pieces = append(pieces, streams[stream].next(stream, rest)...)
	}
	for ; shown < len(r.Displays); shown++ {
		pieces = append(pieces, Piece{Display: shown})
	}
	return pieces
}

// maxMoved bounds the part of a line that wholeLines moves.
const maxMoved = 4 << 10

// wholeLines moves stderr that arrived in the middle of a line of stdout before that line. A
// program that buffers stdout writes it in blocks that end anywhere.
func wholeLines(pieces []Piece) []Piece {
	for i := 0; i+2 < len(pieces); i++ {
		first, last := &pieces[i], &pieces[i+2]
		if first.Stream != Stdout || pieces[i+1].Stream != Stderr || last.Stream != Stdout || len(first.Text) == 0 || len(last.Text) == 0 {
			continue
		}
		at := bytes.LastIndexByte(first.Text, '\n') + 1
		if start := first.Text[at:]; len(start) > 0 && len(start) <= maxMoved {
			first.Text, last.Text = first.Text[:at], slices.Concat(start, last.Text)
		}
	}
	return slices.DeleteFunc(pieces, func(p Piece) bool { return p.Stream != 0 && p.Omitted == 0 && len(p.Text) == 0 })
}

// Cut says which part of a stream is not kept: a stream of a Result has Head bytes from its start,
// a line about the omission, and Tail bytes from its end.
type Cut struct {
	Head, Tail int
	Omitted    int64
}

// kept reads a stream of a Result piece by piece.
type kept struct {
	data []byte
	cut  *Cut
	at   int64 // in the stream
}

func (k *kept) size() int64 {
	if k.cut == nil {
		return int64(len(k.data))
	}
	return int64(k.cut.Head) + k.cut.Omitted + int64(k.cut.Tail)
}

// next returns the next n bytes of the stream, as far as they are kept.
func (k *kept) next(stream Stream, n int64) (pieces []Piece) {
	from, to := k.at, k.at+n
	k.at = to
	head, gap := int64(len(k.data)), int64(0)
	if k.cut != nil {
		head, gap = int64(k.cut.Head), k.cut.Omitted
	}
	add := func(text []byte) {
		if len(text) > 0 {
			pieces = append(pieces, Piece{Stream: stream, Text: text})
		}
	}
	add(k.data[min(from, head):min(to, head)])
	if omitted := min(to, head+gap) - max(from, head); omitted > 0 {
		pieces = append(pieces, Piece{Stream: stream, Omitted: omitted})
	}
	if k.cut != nil {
		tail := k.data[len(k.data)-k.cut.Tail:]
		start, size := head+gap, int64(len(tail))
		add(tail[min(max(from-start, 0), size):min(max(to-start, 0), size)])
	}
	return pieces
}
