package share

import "container/list"

// Lease is a number of units that a caller holds until Release. A new lease is busy: the pool does
// not take it. Its methods are safe for concurrent use.
type Lease struct {
	pool *Pool
	n    int64

	// The rest is guarded by pool.mu.
	account *account
	gone    bool // released or evicted
	evict   func()
	kind    offerKind
	list    *list.List    // account.offers[kind]; nil while the lease is busy
	element *list.Element // of list
	offered int64         // the number of the offer, counted over all callers
}

// Idle lets the pool take the lease for the same caller, for callers that hold less, and for the
// exempt caller. The pool then calls evict once, in the goroutine that makes room: a caller of Idle
// or Release must not hold a lock that evict takes, if others wait in Acquire.
func (l *Lease) Idle(evict func()) { l.offer(idle, evict) }

// Yield lets the pool take the lease, although it is in use, for another caller that would then
// hold no more than this one. See [Lease.Idle] about evict.
func (l *Lease) Yield(evict func()) { l.offer(inUse, evict) }

func (l *Lease) offer(kind offerKind, evictFunc func()) {
	p := l.pool
	p.mu.Lock()
	if l.gone {
		p.mu.Unlock()
		return
	}
	l.withdrawLocked()
	l.kind, l.evict = kind, evictFunc
	l.offerLocked()
	victims := p.grantLocked()
	p.mu.Unlock()
	evict(victims)
}

// offerLocked adds the lease to the offers of its account.
func (l *Lease) offerLocked() {
	l.pool.offers++
	l.offered, l.list = l.pool.offers, &l.account.offers[l.kind]
	l.element = l.list.PushBack(l)
}

// Busy withdraws the offer of Idle or Yield. It returns false if the pool has taken the lease.
func (l *Lease) Busy() bool {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.withdrawLocked()
	return !l.gone
}

// Assign moves the lease to another caller, regardless of that caller's limit.
func (l *Lease) Assign(caller string) {
	p := l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.gone || l.account.caller == caller {
		return
	}
	from, to := l.account, p.accountLocked(caller)
	if l.list != nil {
		l.list.Remove(l.element)
		defer l.offerLocked()
	}
	from.held -= l.n
	to.held += l.n
	l.account = to
	p.forgetLocked(from)
}

// Release returns the units. Later calls, and calls after an eviction, have no effect.
func (l *Lease) Release() {
	p := l.pool
	p.mu.Lock()
	if l.gone {
		p.mu.Unlock()
		return
	}
	l.gone = true
	l.removeLocked()
	p.forgetLocked(l.account)
	victims := p.grantLocked()
	p.mu.Unlock()
	evict(victims)
}

// removeLocked subtracts the units from the account. It keeps l.list for restoreLocked.
func (l *Lease) removeLocked() {
	if l.list != nil {
		l.list.Remove(l.element)
		l.element = nil
	}
	l.account.held -= l.n
	l.pool.used -= l.n
}

// restoreLocked undoes removeLocked for an offered lease, which was in front.
func (l *Lease) restoreLocked() {
	l.element = l.list.PushFront(l)
	l.account.held += l.n
	l.pool.used += l.n
}

func (l *Lease) withdrawLocked() {
	if l.element != nil {
		l.list.Remove(l.element)
	}
	l.list, l.element = nil, nil
}
