package executor

import "slices"

// maxMarks bounds the changes between streams that a tape records. Output before the first mark
// counts as stdout.
const maxMarks = 4000

// Output is what a program printed after some point, both streams in the order of arrival.
type Output struct {
	Data   []byte
	Missed int64    // bytes before Data that are no longer kept
	Stderr [][2]int // the ranges of Data that came from stderr
	Cursor int64    // where the next part begins
}

// RecentPieces returns Recent in order; see Pieces.
func (r Result) RecentPieces() []Piece {
	if r.Persistent {
		return r.Recent.pieces()
	}
	return wholeLines(r.Recent.pieces())
}

func (o Output) pieces() (pieces []Piece) {
	at := 0
	add := func(stream Stream, to int) {
		if to > at {
			pieces = append(pieces, Piece{Stream: stream, Text: o.Data[at:to]})
			at = to
		}
	}
	for _, r := range o.Stderr {
		add(Stdout, r[0])
		add(Stderr, r[1])
	}
	add(Stdout, len(o.Data))
	return pieces
}

// last returns the last n bytes of an output, and counts the others as missed.
func (o Output) last(n int) Output {
	if len(o.Data) <= n {
		return o
	}
	data := cutStart(o.Data[len(o.Data)-n:])
	drop := len(o.Data) - len(data)
	out := Output{Data: slices.Clone(data), Missed: o.Missed + int64(drop), Cursor: o.Cursor}
	for _, r := range o.Stderr {
		if r[1] > drop {
			out.Stderr = append(out.Stderr, [2]int{max(r[0]-drop, 0), r[1] - drop})
		}
	}
	return out
}

// tape keeps the last bytes of what a program prints, both streams in the order of arrival, in
// bounded memory. A position counts from the program's first byte.
type tape struct {
	allowance
	start int64  // the position of data[0]
	data  []byte // at least the last limit bytes, at most twice as many
	marks []mark // where the stream changes, in order
}

// mark says that output from At on is of Stream.
type mark struct {
	At     int64
	Stream Stream
}

func (t *tape) write(stream Stream, p []byte) {
	last := Stdout
	if n := len(t.marks); n > 0 {
		last = t.marks[n-1].Stream
	}
	if stream != last && len(p) > 0 {
		if len(t.marks) == maxMarks {
			t.marks = slices.Delete(t.marks, 0, maxMarks/2)
		}
		t.marks = append(t.marks, mark{t.end(), stream})
	}
	if drop := len(p) - t.limit; drop > 0 {
		t.start, t.data, p = t.end()+int64(drop), t.data[:0], p[drop:]
	}
	if drop := len(t.data) + len(p) - t.limit; drop > t.limit {
		t.data = t.data[:copy(t.data, t.data[drop:])]
		t.start += int64(drop)
	}
	t.data = append(t.data, p...)
	t.dropMarks()
}

// shrink makes the tape keep at most n bytes.
func (t *tape) shrink(n int) {
	if t.full = min(t.full, n); t.limit > n {
		last := t.last(n)
		t.limit, t.start, t.data, t.marks = n, last.start, last.data, last.marks
	}
}

// dropMarks drops the marks of output that is no longer kept, except for the last of them, which
// names the stream of the first kept byte.
func (t *tape) dropMarks() {
	n := 0
	for n+1 < len(t.marks) && t.marks[n+1].At <= t.start {
		n++
	}
	t.marks = slices.Delete(t.marks, 0, n)
}

// last returns a copy of the tape's last n bytes.
func (t *tape) last(n int) tape {
	drop := max(0, len(t.data)-n)
	out := tape{start: t.start + int64(drop), data: slices.Clone(t.data[drop:]), marks: slices.Clone(t.marks)}
	out.dropMarks()
	return out
}

func (t *tape) end() int64 { return t.start + int64(len(t.data)) }

// since returns a copy of the output after the cursor. Unless all is printed, it leaves out an
// incomplete character at the end.
func (t *tape) since(cursor int64, all bool) Output {
	cursor = min(max(cursor, 0), t.end())
	out := Output{Cursor: t.end()}
	if cursor < t.start {
		out.Missed, cursor = t.start-cursor, t.start
	}
	p := t.data[cursor-t.start:]
	if out.Missed > 0 {
		rest := cutStart(p)
		cut := int64(len(p) - len(rest))
		out.Missed, cursor, p = out.Missed+cut, cursor+cut, rest
	}
	if !all {
		rest := cutEnd(p)
		out.Cursor -= int64(len(p) - len(rest))
		p = rest
	}
	out.Data = slices.Clone(p)
	out.Stderr = t.stderr(cursor, cursor+int64(len(p)))
	return out
}

// stderr returns the ranges of the output between two positions that came from stderr, counted from
// the first position.
func (t *tape) stderr(from, to int64) (ranges [][2]int) {
	for i, m := range t.marks {
		end := to
		if i+1 < len(t.marks) {
			end = min(to, t.marks[i+1].At)
		}
		if start := max(from, m.At); m.Stream == Stderr && start < end {
			ranges = append(ranges, [2]int{int(start - from), int(end - from)})
		}
	}
	return ranges
}
