package engine

import (
	"fmt"
	"unicode/utf8"
)

// collector keeps the head and the tail of a stream in bounded memory.
type collector struct {
	half  int // kept of the head, and of the tail
	head  []byte
	tail  []byte // at least the last half bytes after head, at most twice as many
	total int64
}

func newCollector(limit int) *collector {
	return &collector{half: max(limit/2, utf8.UTFMax)}
}

func (c *collector) write(p []byte) {
	c.total += int64(len(p))
	if room := c.half - len(c.head); room > 0 {
		n := min(room, len(p))
		c.head = append(c.head, p[:n]...)
		p = p[n:]
	}
	if len(p) >= c.half {
		c.tail = append(c.tail[:0], p[len(p)-c.half:]...)
		return
	}
	if len(c.tail)+len(p) > 2*c.half {
		keep := c.half - len(p)
		n := copy(c.tail, c.tail[len(c.tail)-keep:])
		c.tail = c.tail[:n]
	}
	c.tail = append(c.tail, p...)
}

// bytes returns the stream, or its head and tail with a line between them. Characters are left whole.
func (c *collector) bytes() (out []byte, truncated bool) {
	if c.total <= int64(2*c.half) && c.total == int64(len(c.head)+len(c.tail)) {
		return append(c.head, c.tail...), false
	}
	head, tail := c.head, c.tail
	if len(tail) > c.half {
		tail = tail[len(tail)-c.half:]
	}
	head, tail = cutEnd(head), cutStart(tail)
	omitted := c.total - int64(len(head)) - int64(len(tail))
	out = fmt.Appendf(head[:len(head):len(head)], "\n… [%d bytes omitted] …\n", omitted)
	return append(out, tail...), true
}

// cutEnd removes the first part of a character whose other part is missing at the end.
func cutEnd(p []byte) []byte {
	for i := len(p) - 1; i >= 0 && i >= len(p)-utf8.UTFMax; i-- {
		if utf8.RuneStart(p[i]) {
			if !utf8.FullRune(p[i:]) {
				return p[:i]
			}
			break
		}
	}
	return p
}

// cutStart removes the rest of a character whose beginning is missing.
func cutStart(p []byte) []byte {
	for i := 0; i < len(p) && i < utf8.UTFMax; i++ {
		if utf8.RuneStart(p[i]) {
			return p[i:]
		}
	}
	return p
}
