package executor

import (
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"
)

// freeOutput is what each buffer of a run's output may take without asking for memory.
const freeOutput = 16 << 10

// collector keeps the head and the tail of a stream in bounded memory. It is written to by one
// goroutine; cut may be called by any.
type collector struct {
	hold *hold // nil: it may grow up to limit

	mu    sync.Mutex
	limit int // of what is kept, if there is memory for it
	half  int // kept of the head, and of the tail
	head  []byte
	tail  []byte // at least the last half bytes after head, at most twice as many
	total int64
}

// newCollector makes a collector whose memory m accounts for.
func newCollector(limit int, m *memory) *collector {
	c := &collector{limit: max(limit, 2*utf8.UTFMax)}
	c.half = c.limit / 2
	if c.hold = m.hold(c.cut); c.hold != nil {
		c.half = min(c.limit, freeOutput) / 2
	}
	return c
}

func (c *collector) write(p []byte) {
	for {
		c.mu.Lock()
		if size := 2 * c.half; c.total+int64(len(p)) > int64(size) && c.total <= int64(size) && size < c.limit/2*2 {
			next := min(c.limit, max(4*size, int(c.total)+len(p)))
			c.mu.Unlock()
			c.resize(size, next, c.hold.grow(2*int64(next-size))) // the buffers take 1.5 times as much, the result once
			continue
		}
		break
	}
	defer c.mu.Unlock()
	c.append(p)
}

// resize lets the collector keep next bytes in place of size, or no more than those if there is no
// memory for it. Nothing has been left out so far.
func (c *collector) resize(size, next int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ok || c.limit < next { // or cut meanwhile
		c.limit = min(c.limit, size)
		return
	}
	all := append(c.head, c.tail...)
	c.half, c.head, c.tail = next/2, nil, nil
	c.total = 0
	c.append(all)
}

// cut keeps no more than what needs no asking: the pool has taken the rest.
func (c *collector) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = min(c.limit, freeOutput)
	half := c.limit / 2
	if c.half <= half {
		return
	}
	c.half = half
	all := append(c.head, c.tail...)
	c.head = slices.Clone(all[:min(half, len(all))])
	c.tail = slices.Clone(all[max(len(c.head), len(all)-half):])
}

func (c *collector) append(p []byte) {
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
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total <= int64(2*c.half) && c.total == int64(len(c.head)+len(c.tail)) {
		return slices.Concat(c.head, c.tail), false
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
