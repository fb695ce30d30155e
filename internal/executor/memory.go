package executor

import (
	"sync"

	"mcp-code-sandbox/internal/share"
)

// hold is a part of the memory budget that one thing takes: an output buffer, a display. While it is
// offered, the pool may take it back for another caller; drop then frees the memory. A nil hold has
// no limit. Its methods call the pool, so the caller must hold no lock that a drop takes.
type hold struct {
	pool   *share.Pool
	caller string

	mu     sync.Mutex
	drop   func() // must not block
	leases []*share.Lease
	bytes  int64 // of the leases
	offer  offer
	gone   bool // taken or released: it never grows again
}

// offer says who may take a hold.
type offer int

const (
	toSmaller offer = iota // callers who would hold no more than this one afterwards
	toAnyone               // nobody uses it
	toNobody
)

// grow adds n bytes and reports whether there is room for them.
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

// setOffer changes who may take the hold, and what frees its memory then; nil leaves that as it is.
func (h *hold) setOffer(to offer, drop func()) {
	h.mu.Lock()
	h.offer = to
	if drop != nil {
		h.drop = drop
	}
	leases := append([]*share.Lease(nil), h.leases...)
	h.mu.Unlock()
	for _, lease := range leases {
		h.offerLease(lease, to)
	}
}

// taken is called when the pool has taken a lease: what the others pay for goes, too.
func (h *hold) taken() {
	if leases, drop, ok := h.end(); ok {
		drop()
		for _, lease := range leases {
			lease.Release()
		}
	}
}

// release gives everything back. The memory is the caller's affair.
func (h *hold) release() {
	if h == nil {
		return
	}
	leases, _, _ := h.end()
	for _, lease := range leases {
		lease.Release()
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

// memory is what one run holds: while it is going, while answers about it are made and sent, and
// while it lingers after its end. The zero value has no limit.
type memory struct {
	pool   *share.Pool
	caller string

	mu       sync.Mutex
	holds    []*hold
	output   []*hold // those of the holds whose memory only goes with the run, once it has ended
	users    int
	lingers  bool
	released bool
	forget   func() // ends the lingering
}

// hold returns a new hold that ends with m.
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

// size returns how much is held.
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

// use keeps the memory from being released until done is called.
func (m *memory) use() (done func()) {
	m.mu.Lock()
	m.users++
	m.mu.Unlock()
	m.update()
	return sync.OnceFunc(func() {
		m.mu.Lock()
		m.users--
		m.mu.Unlock()
		m.update()
	})
}

// fix says that the run has ended: output, of which results have copies, is freed by forget alone.
func (m *memory) fix(forget func(), output ...*hold) {
	m.mu.Lock()
	m.forget = forget
	for _, h := range output {
		if h != nil {
			m.output = append(m.output, h)
		}
	}
	m.mu.Unlock()
	m.update()
}

// linger keeps the memory after its last use for as long as nobody needs the room.
func (m *memory) linger(on bool) {
	m.mu.Lock()
	m.lingers = on
	m.mu.Unlock()
	m.update()
}

// update offers, or releases, the holds by who uses them. The displays go before the output.
func (m *memory) update() {
	m.mu.Lock()
	to, release := toSmaller, m.users == 0 && !m.lingers
	if m.users == 0 {
		to = toAnyone
	}
	m.released = m.released || release
	holds := append([]*hold(nil), m.holds...)
	output := append([]*hold(nil), m.output...)
	forget := m.forget
	m.mu.Unlock()
	if release {
		for _, h := range holds {
			h.release()
		}
		return
	}
	fixed := make(map[*hold]bool, len(output))
	for _, h := range output {
		fixed[h] = true
	}
	for _, h := range holds {
		if !fixed[h] {
			h.setOffer(to, nil)
		}
	}
	if to == toSmaller {
		to = toNobody
	}
	for _, h := range output {
		h.setOffer(to, forget)
	}
}
