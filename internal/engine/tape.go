package engine

// tape keeps the last bytes of what a program prints, both streams in the order they came, in bounded memory. Places on it are
// counted from the program's first byte.
type tape struct {
	limit int
	start int64  // the place of data[0]
	data  []byte // at least the last limit bytes, at most twice as many
}

func (t *tape) write(p []byte) {
	if drop := len(p) - t.limit; drop > 0 {
		t.start, t.data, p = t.end()+int64(drop), t.data[:0], p[drop:]
	}
	if drop := len(t.data) + len(p) - t.limit; drop > t.limit {
		t.data = t.data[:copy(t.data, t.data[drop:])]
		t.start += int64(drop)
	}
	t.data = append(t.data, p...)
}

func (t *tape) end() int64 { return t.start + int64(len(t.data)) }

// since returns a copy of what follows the cursor, without the first part of a character whose other part is still to come
// unless all is printed, how many bytes are gone before it, and the cursor for what comes next.
func (t *tape) since(cursor int64, all bool) Output {
	cursor = min(max(cursor, 0), t.end())
	out := Output{Cursor: t.end()}
	if cursor < t.start {
		out.Missed, cursor = t.start-cursor, t.start
	}
	p := t.data[cursor-t.start:]
	if out.Missed > 0 {
		whole := cutStart(p)
		out.Missed += int64(len(p) - len(whole))
		p = whole
	}
	if !all {
		whole := cutEnd(p)
		out.Cursor -= int64(len(p) - len(whole))
		p = whole
	}
	out.Data = append([]byte(nil), p...)
	return out
}
