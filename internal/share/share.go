// Package share divides something finite among callers: sessions, streams, connections, bytes. A
// lone caller may hold everything. Shares bind only when others want some. The pool then takes idle
// leases, starting with the largest holder, and after those the leases that a holder has offered
// beyond an equal share. It serves waiting callers in the order of what they hold.
//
// The package does not know what it divides.
package share

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
)

var (
	// ErrFull says that the pool has no room and cannot make any for this caller.
	ErrFull = errors.New("share: no room left")
	// ErrLimit says that the caller holds as much as one caller may.
	ErrLimit = errors.New("share: the caller has reached its limit")
)

// Config configures a Pool.
type Config struct {
	// Capacity is the total number of units.
	Capacity int64
	// Limit is the most that one caller may hold; zero: no limit.
	Limit int64
	// Exempt is a caller that shares do not bind. It counts as holding nothing when it asks, and
	// loses only idle leases. Empty: none.
	Exempt string
}

// Pool lends units to callers. It is safe for concurrent use.
type Pool struct {
	cfg Config

	mu      sync.Mutex
	used    int64
	callers map[string]*account // those that hold or wait
	waiters []*waiter           // in the order of arrival
	evicted int64
	refused int64
	offers  int64 // so far
	grants  int64 // so far
}

// offerKind says which leases are offered: idle ones, or some that are in use.
type offerKind int

const (
	idle offerKind = iota
	inUse
)

// account is what one caller holds.
type account struct {
	caller  string
	held    int64
	waiting int
	served  int64        // Pool.grants when it last got a lease
	offers  [2]list.List // by kind; the least recently used lease is in front
}

type waiter struct {
	account *account
	n       int64
	granted chan *Lease // has room for one
	done    bool
}

// New returns a pool.
func New(cfg Config) *Pool {
	if cfg.Limit <= 0 {
		cfg.Limit = math.MaxInt64
	}
	return &Pool{cfg: cfg, callers: make(map[string]*account)}
}

// TryAcquire takes n units for caller, or returns ErrFull or ErrLimit. Before it returns, it calls
// the evict functions of the leases that it takes from others.
func (p *Pool) TryAcquire(caller string, n int64) (*Lease, error) {
	w, victims, err := p.enqueue(caller, n, true)
	evict(victims)
	if err != nil {
		return nil, err
	}
	return <-w.granted, nil
}

// Acquire waits for n units until ctx ends, and then returns its error. If the caller may not hold
// as much, it returns ErrLimit at once.
func (p *Pool) Acquire(ctx context.Context, caller string, n int64) (*Lease, error) {
	w, victims, err := p.enqueue(caller, n, false)
	evict(victims)
	if err != nil {
		return nil, err
	}
	select {
	case l := <-w.granted:
		return l, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	if w.done { // granted meanwhile
		p.mu.Unlock()
		return <-w.granted, nil
	}
	p.refused++
	p.dequeueLocked(w)
	victims = p.grantLocked() // the others may have waited for this one
	p.mu.Unlock()
	evict(victims)
	return nil, ctx.Err()
}

// enqueue adds a waiter and grants leases where it can. With try, the waiter does not stay.
func (p *Pool) enqueue(caller string, n int64, try bool) (*waiter, []*Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.accountLocked(caller)
	if n <= 0 || n > min(p.cfg.Limit, p.cfg.Capacity) || try && n > p.cfg.Limit-a.held {
		p.refused++
		p.forgetLocked(a)
		return nil, nil, ErrLimit
	}
	w := &waiter{account: a, n: n, granted: make(chan *Lease, 1)}
	a.waiting++
	p.waiters = append(p.waiters, w)
	victims := p.grantLocked()
	if try && !w.done {
		p.refused++
		p.dequeueLocked(w)
		return nil, victims, ErrFull
	}
	return w, victims, nil
}

func (p *Pool) dequeueLocked(w *waiter) {
	p.waiters = slices.DeleteFunc(p.waiters, func(other *waiter) bool { return other == w })
	w.account.waiting--
	p.forgetLocked(w.account)
}

// grantLocked serves waiters until the next one has to wait. Nobody overtakes that one, so that
// small requests do not starve a large one.
func (p *Pool) grantLocked() (victims []*Lease) {
	for {
		w := p.nextLocked()
		if w == nil {
			return victims
		}
		taken, ok := p.makeRoomLocked(w.account, w.n)
		if !ok {
			return victims
		}
		victims = append(victims, taken...)
		l := &Lease{pool: p, account: w.account, n: w.n}
		p.used += w.n
		w.account.held += w.n
		p.grants++
		w.account.served = p.grants
		w.done = true
		p.dequeueLocked(w)
		w.granted <- l
	}
}

// nextLocked returns the waiter to serve next. It skips callers at their limit, and prefers the
// caller that holds the least, then the one served least recently, then the first to arrive.
func (p *Pool) nextLocked() (next *waiter) {
	for _, w := range p.waiters {
		if w.n > p.cfg.Limit-w.account.held {
			continue
		}
		if next == nil || cmp.Or(
			cmp.Compare(p.rank(w.account), p.rank(next.account)),
			cmp.Compare(w.account.served, next.account.served),
		) < 0 {
			next = w
		}
	}
	return next
}

// rank returns what a caller counts as holding when it asks.
func (p *Pool) rank(a *account) int64 {
	if p.isExempt(a) {
		return 0
	}
	return a.held
}

func (p *Pool) isExempt(a *account) bool { return p.cfg.Exempt != "" && a.caller == p.cfg.Exempt }

// makeRoomLocked takes leases until n units are free for a, or takes none.
func (p *Pool) makeRoomLocked(a *account, n int64) (victims []*Lease, ok bool) {
	for p.used+n > p.cfg.Capacity {
		l := p.victimLocked(a, n)
		if l == nil {
			for i := len(victims) - 1; i >= 0; i-- {
				victims[i].restoreLocked()
			}
			return nil, false
		}
		l.removeLocked()
		victims = append(victims, l)
	}
	for _, l := range victims {
		l.gone = true
		p.evicted++
		p.forgetLocked(l.account)
	}
	return victims, true
}

// victimLocked returns the lease to take for a, or nil: the least recently used one of the largest
// holder, and idle leases before those that are offered while in use.
func (p *Pool) victimLocked(a *account, n int64) *Lease {
	var victims [2]*Lease // by kind
	for _, holder := range p.callers {
		for kind := range holder.offers {
			if front := holder.offers[kind].Front(); front != nil {
				l := front.Value.(*Lease)
				if p.mayTake(l, a, n) && l.isBefore(victims[kind]) {
					victims[kind] = l
				}
			}
		}
	}
	return cmp.Or(victims[idle], victims[inUse])
}

// mayTake reports whether a, which asks for n units, may have the offered lease.
func (p *Pool) mayTake(l *Lease, a *account, n int64) bool {
	holder := l.account
	if l.kind == idle {
		return holder == a || holder.held > p.rank(a)
	}
	return holder != a && !p.isExempt(holder) && holder.held-l.n >= p.rank(a)+n
}

// isBefore reports whether l is taken before other: its caller holds more, or as much and offered
// it earlier.
func (l *Lease) isBefore(other *Lease) bool {
	if other == nil || l.account.held != other.account.held {
		return other == nil || l.account.held > other.account.held
	}
	return l.offered < other.offered
}

func (p *Pool) accountLocked(caller string) *account {
	a := p.callers[caller]
	if a == nil {
		a = &account{caller: caller}
		p.callers[caller] = a
	}
	return a
}

func (p *Pool) forgetLocked(a *account) {
	if a.held == 0 && a.waiting == 0 {
		delete(p.callers, a.caller)
	}
}

func evict(victims []*Lease) {
	for _, l := range victims {
		l.evict()
	}
}

// Stats are a pool's numbers at one moment, and its counts of evictions and refusals.
type Stats struct {
	Capacity, Used   int64
	Callers, Waiting int
	Evicted, Refused int64
}

// Stats returns the numbers for metrics.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{p.cfg.Capacity, p.used, len(p.callers), len(p.waiters), p.evicted, p.refused}
}

// Held returns how many units a caller holds.
func (p *Pool) Held(caller string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.callers[caller]; a != nil {
		return a.held
	}
	return 0
}
