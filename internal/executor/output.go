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
	order          order
	spool          *spool
}

func newCapture(r *run, limit int, sp *spool) *capture {
	c := &capture{stdout: newCollector(limit, &r.memory), stderr: newCollector(limit, &r.memory), spool: sp}
	out := func(stream Stream, kept *collector) *redactor {
		return &redactor{out: func(p []byte) {
			kept.write(p)
			c.order.printed(stream, int64(len(p)))
			c.spool.add(p)
			r.output(stream, p)
		}}
	}
	c.redactors = map[Stream]*redactor{Stdout: out(Stdout, c.stdout), Stderr: out(Stderr, c.stderr)}
	c.displays = displays{memory: &r.memory, redact: c.redactors[Stdout].redact, shown: c.order.shown, clear: c.order.clear}
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
	res.Stdout, res.StdoutCut = c.stdout.bytes()
	res.Stderr, res.StderrCut = c.stderr.bytes()
	res.stdoutTotal, res.stderrTotal = c.stdout.total, c.stderr.total
	res.Displays, res.DisplaysDropped, res.DisplaysBeyond = c.displays.list, c.displays.dropped, c.displays.beyond
	res.Order = c.order.spans
	last := map[string]int{} // a file that was saved again is shown as it is now
	for i, d := range res.Displays {
		last[d.File] = i
	}
	res.removeDisplays(func(i int) bool { file := res.Displays[i].File; return file != "" && last[file] != i })
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

// find returns the position and the length of the first secret. The position is negative if no
// secret is found.
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

// allowance bounds the bytes that a buffer keeps. It grows as long as its hold gets memory.
type allowance struct {
	hold  *hold // nil: no limit on memory
	limit int   // bytes to keep now
	full  int   // bytes to keep if there is memory for them
}

func newAllowance(full int, h *hold) allowance {
	a := allowance{hold: h, limit: full, full: full}
	if h != nil {
		a.limit = min(full, freeOutput)
	}
	return a
}

// grow raises the limit until it covers needs(), or there is no memory. mu guards a, but not while
// the hold grows.
func (a *allowance) grow(mu *sync.Mutex, needs func() int64) {
	for {
		mu.Lock()
		limit, full, needed := a.limit, a.full, needs()
		mu.Unlock()
		if limit >= full || needed <= int64(limit) {
			return
		}
		next := min(full, max(4*limit, int(needed)))
		ok := a.hold.grow(2 * int64(next-limit)) // a buffer and its copies need up to twice the limit
		mu.Lock()
		if ok && next <= a.full { // the pool did not take it meanwhile
			a.limit = next
		} else {
			a.full = min(a.full, limit)
		}
		mu.Unlock()
	}
}

// collector keeps the head and the tail of a stream in bounded memory, each half of its allowance.
// One goroutine writes to it; any may call cut.
type collector struct {
	mu sync.Mutex
	allowance
	head  []byte
	tail  []byte // at least the last half after head, at most twice as much
	total int64
}

// newCollector returns a collector that takes its memory from m.
func newCollector(limit int, m *memory) *collector {
	c := &collector{}
	c.allowance = newAllowance(max(limit, 2*utf8.UTFMax), m.hold(c.cut))
	return c
}

func (c *collector) half() int { return c.limit / 2 }

// isComplete reports whether the collector has the whole stream.
func (c *collector) isComplete() bool { return c.total == int64(len(c.head)+len(c.tail)) }

func (c *collector) write(p []byte) {
	c.grow(&c.mu, func() int64 {
		if !c.isComplete() {
			return 0
		}
		return c.total + int64(len(p))
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	half := c.half()
	if len(c.head) < half && len(c.tail) > 0 && c.isComplete() { // it has grown
		c.split(append(c.head, c.tail...))
	}
	c.total += int64(len(p))
	if room := half - len(c.head); room > 0 {
		n := min(room, len(p))
		c.head = append(c.head, p[:n]...)
		p = p[n:]
	}
	if len(p) >= half {
		c.tail = append(c.tail[:0], p[len(p)-half:]...)
		return
	}
	if len(c.tail)+len(p) > 2*half {
		keep := half - len(p)
		c.tail = c.tail[:copy(c.tail, c.tail[len(c.tail)-keep:])]
	}
	c.tail = append(c.tail, p...)
}

// cut drops the part that needs a hold, after the pool has taken its memory.
func (c *collector) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = min(c.full, freeOutput)
	if c.limit > c.full {
		c.limit = c.full
		c.split(append(c.head, c.tail...))
	}
}

// split sets head and tail to both ends of p.
func (c *collector) split(p []byte) {
	half := c.half()
	c.head = slices.Clone(p[:min(half, len(p))])
	c.tail = slices.Clone(p[max(len(c.head), len(p)-half):])
}

// bytes returns the stream, or its head and tail with a line between them. It splits no character.
func (c *collector) bytes() (out []byte, cut *Cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total <= int64(2*c.half()) && c.isComplete() {
		return slices.Concat(c.head, c.tail), nil
	}
	head, tail := cutEnd(c.head), cutStart(c.tail[max(0, len(c.tail)-c.half()):])
	omitted := c.total - int64(len(head)) - int64(len(tail))
	out = fmt.Appendf(slices.Clip(head), "\n… [%d bytes omitted] …\n", omitted)
	return append(out, tail...), &Cut{Head: len(head), Tail: len(tail), Omitted: omitted}
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

// cutStart removes an incomplete character at the start.
func cutStart(p []byte) []byte {
	for i := 0; i < len(p) && i < utf8.UTFMax; i++ {
		if utf8.RuneStart(p[i]) {
			return p[i:]
		}
	}
	return p
}
