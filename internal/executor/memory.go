package executor

import (
	"context"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
)

const (
	// answerCopies is how many copies of an answer are in memory while it is made and sent: as
	// bytes, base64 and JSON, as the message, as the event, and in buffers.
	answerCopies = 8
	// freeAnswer is the size of an answer that needs no memory from the pool.
	freeAnswer = 64 << 10
	// answerDisplays bounds the displays in an answer: images are made smaller, text is left out.
	answerDisplays = 1200 << 10

	memoryWait  = 10 * time.Second       // how long a call waits for memory that it needs
	shortenWait = 500 * time.Millisecond // how long a result waits before it is shortened
)

// answer returns res in a form that can be sent: if memory is short, without displays and with less
// output. held is the memory that the run already holds.
func (e *Executor) answer(ctx context.Context, caller session.Caller, res Result, held int64) Result {
	displays := 0
	for _, d := range res.Displays {
		data, plain := d.Content()
		displays += len(data) + len(plain)
	}
	n := int64(len(res.Stdout) + len(res.Stderr) + len(res.Recent.Data) + min(displays, answerDisplays))
	if e.room(ctx, caller, answerCopies*n-held, shortenWait) {
		return res
	}
	for _, d := range res.Displays {
		if d.File == "" {
			res.DisplaysDropped++
		}
	}
	res.Displays = nil
	res.Stdout, res.StdoutCut = shorten(res.Stdout, res.stdoutTotal)
	res.Stderr, res.StderrCut = shorten(res.Stderr, res.stderrTotal)
	res.Recent = res.Recent.last(freeOutput)
	return res
}

// room takes memory for an answer until it is sent, and reports whether there is any. If the pool
// takes it back for another caller, the answer is aborted.
func (e *Executor) room(ctx context.Context, caller session.Caller, n int64, wait time.Duration) bool {
	if e.memory == nil || n <= answerCopies*freeAnswer {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	lease, err := e.memory.Acquire(ctx, caller.ID, min(n, e.cfg.ResultMemory/2))
	if err != nil {
		return false
	}
	scope := share.ScopeOf(ctx)
	if scope != nil {
		lease.Yield(scope.Abort)
	}
	scope.Defer(lease.Release)
	return true
}

// shorten leaves out more of the middle of a stream of total bytes, of which p was kept.
func shorten(p []byte, total int64) ([]byte, *Cut) {
	c := newCollector(freeOutput, &memory{})
	c.write(p)
	c.total = total
	return c.bytes()
}

// memory accounts for the buffers of one run: while it is active, while answers about it are made
// and sent, and while it lingers. The zero value has no limit.
type memory struct {
	pool   *share.Pool
	caller string

	mu       sync.Mutex
	holds    []*hold
	users    int
	lingers  bool
	released bool
}

// hold returns a new hold that ends with m. drop frees what it holds.
func (m *memory) hold(drop func()) *hold {
	if m.pool == nil {
		return nil
	}
	h := &hold{pool: m.pool, caller: m.caller, drop: drop}
	m.mu.Lock()
	defer m.mu.Unlock()
	h.gone = m.released
	m.holds = append(m.holds, h)
	return h
}

// size returns how many bytes are held.
func (m *memory) size() (n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.holds {
		h.mu.Lock()
		n += h.bytes
		h.mu.Unlock()
	}
	return n
}

// use keeps the memory until done is called.
func (m *memory) use() (done func()) {
	m.update(func() { m.users++ })
	return sync.OnceFunc(func() { m.update(func() { m.users-- }) })
}

// linger keeps the memory after its last use, until somebody needs it.
func (m *memory) linger(on bool) { m.update(func() { m.lingers = on }) }

// fix says that the run has ended. Results have copies of the output, so only forget frees it.
func (m *memory) fix(forget func(), output ...*hold) {
	for _, h := range output {
		if h != nil {
			h.fix(forget)
		}
	}
	m.update(func() {})
}

// update makes a change, and then offers or releases the holds. The pool takes displays before
// output, because they are offered first.
func (m *memory) update(change func()) {
	m.mu.Lock()
	change()
	to, release := toSmaller, m.users == 0 && !m.lingers
	if m.users == 0 {
		to = toAnyone
	}
	m.released = m.released || release
	holds := slices.Clone(m.holds)
	m.mu.Unlock()
	if release {
		for _, h := range holds {
			h.release()
		}
		return
	}
	for _, fixed := range []bool{false, true} {
		for _, h := range holds {
			h.setOffer(to, fixed)
		}
	}
}

// hold is the part of the memory budget that an output buffer or a display takes. While it is
// offered, the pool may take it for another caller; drop then frees the memory. A nil hold has no
// limit. Its methods call the pool, so the caller must not hold a lock that drop takes.
type hold struct {
	pool   *share.Pool
	caller string

	mu     sync.Mutex
	drop   func() // must not block
	leases []*share.Lease
	bytes  int64 // of the leases
	offer  offer
	fixed  bool // not offered while the run is in use
	gone   bool // taken or released: it never grows again
}

// offer determines which callers may take a hold.
type offer int

const (
	toSmaller offer = iota // callers that would hold no more than this one afterwards
	toAnyone               // it is not in use
	toNobody
)

// grow adds n bytes and reports whether the pool had room for them.
func (h *hold) grow(n int64) bool {
	if h == nil {
		return true
	}
	h.mu.Lock()
	gone := h.gone
	h.mu.Unlock()
	if gone {
		return false
	}
	lease, err := h.pool.TryAcquire(h.caller, n)
	if err != nil {
		return false
	}
	h.mu.Lock()
	if h.gone { // taken meanwhile
		h.mu.Unlock()
		lease.Release()
		return false
	}
	h.leases = append(h.leases, lease)
	h.bytes += n
	to := h.offer
	h.mu.Unlock()
	h.offerLease(lease, to)
	return true
}

func (h *hold) offerLease(lease *share.Lease, to offer) {
	switch to {
	case toSmaller:
		lease.Yield(h.taken)
	case toAnyone:
		lease.Idle(h.taken)
	case toNobody:
		lease.Busy()
	}
}

func (h *hold) fix(drop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fixed, h.drop = true, drop
}

// setOffer changes who may take the hold, provided that h.fixed equals fixed.
func (h *hold) setOffer(to offer, fixed bool) {
	h.mu.Lock()
	if h.fixed != fixed {
		h.mu.Unlock()
		return
	}
	if fixed && to == toSmaller {
		to = toNobody
	}
	h.offer = to
	leases := slices.Clone(h.leases)
	h.mu.Unlock()
	for _, lease := range leases {
		h.offerLease(lease, to)
	}
}

// taken is called when the pool has taken a lease. The hold releases its other leases.
func (h *hold) taken() {
	if leases, drop, ok := h.end(); ok {
		drop()
		releaseAll(leases)
	}
}

// release gives everything back. The caller frees the memory.
func (h *hold) release() {
	if h != nil {
		leases, _, _ := h.end()
		releaseAll(leases)
	}
}

func (h *hold) end() (leases []*share.Lease, drop func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return nil, nil, false
	}
	h.gone = true
	leases, h.leases, h.bytes = h.leases, nil, 0
	return leases, h.drop, true
}

func releaseAll(leases []*share.Lease) {
	for _, lease := range leases {
		lease.Release()
	}
}
