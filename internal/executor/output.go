package executor

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"
)

// freeOutput is how much a buffer of a run's output may take without a hold on memory.
const freeOutput = 16 << 10

// capture collects what a run prints and shows, without the secrets it was granted.
type capture struct {
	stdout, stderr *collector
	redactors      map[Stream]*redactor
	displays       displays
}

func newCapture(r *run, limit int) *capture {
	c := &capture{stdout: newCollector(limit, &r.memory), stderr: newCollector(limit, &r.memory)}
	c.redactors = map[Stream]*redactor{
		Stdout: {out: func(p []byte) { c.stdout.write(p); r.output(Stdout, p) }},
		Stderr: {out: func(p []byte) { c.stderr.write(p); r.output(Stderr, p) }},
	}
	c.displays = displays{memory: &r.memory, redact: c.redactors[Stdout].redact}
	return c
}

// hide removes secrets from everything that follows.
func (c *capture) hide(secrets []string) {
	c.redactors[Stdout].hide(secrets)
	c.redactors[Stderr].hide(secrets)
}

func (c *capture) write(stream Stream, p []byte) { c.redactors[stream].write(p) }

// flush passes on what the redactors hold back. It must come last.
func (c *capture) flush() {
	c.redactors[Stdout].flush()
	c.redactors[Stderr].flush()
}

// fill copies what was collected into a Result.
func (c *capture) fill(res *Result) {
	res.Stdout, res.StdoutTruncated = c.stdout.bytes()
	res.Stderr, res.StderrTruncated = c.stderr.bytes()
	res.stdoutTotal, res.stderrTotal = c.stdout.total, c.stderr.total
	res.Displays, res.DisplaysDropped, res.DisplaysBeyond = c.displays.list, c.displays.dropped, c.displays.beyond
}

// redacted replaces an execution token.
const redacted = "[execution token]"

// redactor removes secrets from a stream that comes in pieces. It holds back a possible beginning
// of a secret until the next piece or flush.
type redactor struct {
	secrets [][]byte
	held    []byte
	out     func([]byte)
}

// hide adds secrets. It must be called before they can be written.
func (r *redactor) hide(secrets []string) {
	for _, s := range secrets {
		if s != "" {
			r.secrets = append(r.secrets, []byte(s))
		}
	}
}

func (r *redactor) write(p []byte) {
	if len(r.secrets) == 0 {
		r.out(p)
		return
	}
	if len(r.held) > 0 {
		p = append(r.held, p...)
		r.held = nil
	}
	for {
		at, length := r.find(p)
		if at < 0 {
			break
		}
		if at > 0 {
			r.out(p[:at])
		}
		r.out([]byte(redacted))
		p = p[at+length:]
	}
	keep := r.beginning(p)
	if len(p) > keep {
		r.out(p[:len(p)-keep])
	}
	r.held = slices.Clone(p[len(p)-keep:])
}

// flush writes what was held back.
func (r *redactor) flush() {
	if len(r.held) > 0 {
		r.out(r.held)
		r.held = nil
	}
}

// find returns the place and the length of the first secret, and a negative place if there is none.
func (r *redactor) find(p []byte) (at, length int) {
	at = -1
	for _, s := range r.secrets {
		if i := bytes.Index(p, s); i >= 0 && (at < 0 || i < at || i == at && len(s) > length) {
			at, length = i, len(s)
		}
	}
	return at, length
}

// beginning returns the length of the longest suffix of p with which a secret begins.
func (r *redactor) beginning(p []byte) int {
	longest := 0
	for _, s := range r.secrets {
		for n := min(len(s)-1, len(p)); n > longest; n-- {
			if p[len(p)-n] == s[0] && bytes.HasPrefix(s, p[len(p)-n:]) {
				longest = n
			}
		}
	}
	return longest
}

// redact removes the secrets from a complete text.
func (r *redactor) redact(p []byte) []byte {
	for _, s := range r.secrets {
		if bytes.Contains(p, s) {
			p = bytes.ReplaceAll(p, s, []byte(redacted))
		}
	}
	return p
}

// collector keeps the head and the tail of a stream in bounded memory. One goroutine writes to it;
// any may call cut.
type collector struct {
	hold *hold // nil: it may grow up to limit

	mu    sync.Mutex
	limit int // bytes to keep, if there is memory for them
	half  int // bytes kept of the head, and of the tail
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
		size := 2 * c.half
		if c.total > int64(size) || c.total+int64(len(p)) <= int64(size) || size >= c.limit/2*2 {
			break
		}
		next := min(c.limit, max(4*size, int(c.total)+len(p)))
		c.mu.Unlock()
		c.resize(size, next, c.hold.grow(2*int64(next-size))) // 1.5 times for the buffers, once for the result
	}
	defer c.mu.Unlock()
	c.append(p)
}

// resize makes the collector keep next bytes instead of size, or never more than size if there is
// no memory. It has not left out anything yet.
func (c *collector) resize(size, next int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ok || c.limit < next { // or cut was called meanwhile
		c.limit = min(c.limit, size)
		return
	}
	all := append(c.head, c.tail...)
	c.half, c.head, c.tail = next/2, nil, nil
	c.total = 0
	c.append(all)
}

// cut drops what needs a hold: the pool has taken its memory.
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
		c.tail = c.tail[:copy(c.tail, c.tail[len(c.tail)-keep:])]
	}
	c.tail = append(c.tail, p...)
}

// bytes returns the stream, or its head and tail with a line between them. It splits no character.
func (c *collector) bytes() (out []byte, truncated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total <= int64(2*c.half) && c.total == int64(len(c.head)+len(c.tail)) {
		return slices.Concat(c.head, c.tail), false
	}
	head, tail := cutEnd(c.head), cutStart(c.tail[max(0, len(c.tail)-c.half):])
	omitted := c.total - int64(len(head)) - int64(len(tail))
	out = fmt.Appendf(slices.Clip(head), "\n… [%d bytes omitted] …\n", omitted)
	return append(out, tail...), true
}

// cutEnd removes an incomplete character at the end.
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
