package share

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// holder acquires leases for a test and records which are evicted.
type holder struct {
	t       *testing.T
	pool    *Pool
	evicted []string
}

func (h *holder) take(caller string, n int64) *Lease {
	h.t.Helper()
	l, err := h.pool.TryAcquire(caller, n)
	if err != nil {
		h.t.Fatalf("%s takes %d: %v", caller, n, err)
	}
	return l
}

func (h *holder) refused(caller string, n int64, want error) {
	h.t.Helper()
	if _, err := h.pool.TryAcquire(caller, n); !errors.Is(err, want) {
		h.t.Errorf("%s takes %d: %v, want %v", caller, n, err, want)
	}
}

func (h *holder) idle(l *Lease, name string) { l.Idle(func() { h.evicted = append(h.evicted, name) }) }
func (h *holder) yield(l *Lease, name string) {
	l.Yield(func() { h.evicted = append(h.evicted, name) })
}

func (h *holder) wantEvicted(names ...string) {
	h.t.Helper()
	if !slices.Equal(h.evicted, names) {
		h.t.Errorf("evicted %q, want %q", h.evicted, names)
	}
}

// TestLoneCaller: one caller may hold everything, and a released unit is free once.
func TestLoneCaller(t *testing.T) {
	h := &holder{t: t, pool: New(Config{Capacity: 3})}
	first := h.take("ann", 2)
	h.take("ann", 1)
	h.refused("ann", 1, ErrFull)
	h.refused("bob", 1, ErrFull) // all in use and nothing offered
	h.refused("bob", 4, ErrLimit)
	h.refused("bob", 0, ErrLimit)
	first.Release()
	first.Release()
	h.take("bob", 2)
	h.refused("bob", 1, ErrFull)
	if s := h.pool.Stats(); s.Used != 3 || s.Callers != 2 || s.Refused != 5 || s.Waiting != 0 {
		t.Errorf("stats %+v", s)
	}
	if a, b, c := h.pool.Held("ann"), h.pool.Held("bob"), h.pool.Held("eve"); a != 1 || b != 2 || c != 0 {
		t.Errorf("ann holds %d, bob %d, eve %d", a, b, c)
	}
}

// TestIdleOfLargestHolder: the largest holder loses idle leases first, the least recently used one
// first. Callers that hold less than the one that asks lose none.
func TestIdleOfLargestHolder(t *testing.T) {
	h := &holder{t: t, pool: New(Config{Capacity: 5})}
	old := h.take("bob", 1)
	h.idle(old, "bob 1") // the least recently used of all
	var ann []*Lease
	for i := range 4 {
		ann = append(ann, h.take("ann", 1))
		h.idle(ann[i], fmt.Sprint("ann ", i+1))
	}
	if !ann[0].Busy() { // used again
		t.Fatal("the lease is gone")
	}
	h.idle(ann[0], "ann 1")
	h.take("eve", 1)
	h.wantEvicted("ann 2")
	h.take("ann", 1) // its own: it is still the largest
	h.wantEvicted("ann 2", "ann 3")
	if ann[1].Busy() {
		t.Error("an evicted lease can be used")
	}
	for _, l := range ann[1:3] {
		l.Release()
	}
	if !ann[0].Busy() || !ann[3].Busy() {
		t.Fatal("a lease was lost")
	}
	h.refused("ann", 1, ErrFull) // bob holds less
	h.take("dan", 1)
	h.wantEvicted("ann 2", "ann 3", "bob 1")
	if s := h.pool.Stats(); s.Used != 5 || s.Evicted != 3 {
		t.Errorf("stats %+v", s)
	}
}

// TestYield: offered leases that are in use go to other callers only, and only down to equal
// shares.
func TestYield(t *testing.T) {
	h := &holder{t: t, pool: New(Config{Capacity: 4})}
	for i := range 4 {
		h.yield(h.take("ann", 1), fmt.Sprint("ann ", i+1))
	}
	h.refused("ann", 1, ErrFull)
	h.yield(h.take("bob", 1), "bob 1")
	h.yield(h.take("bob", 1), "bob 2")
	h.wantEvicted("ann 1", "ann 2")
	h.refused("bob", 1, ErrFull)
	h.refused("ann", 1, ErrFull)
	h.yield(h.take("eve", 1), "eve 1")
	h.wantEvicted("ann 1", "ann 2", "ann 3")
}

// TestExempt: the exempt caller loses only idle leases, and its share does not bind it.
func TestExempt(t *testing.T) {
	h := &holder{t: t, pool: New(Config{Capacity: 4, Exempt: "local"})}
	for range 3 {
		h.yield(h.take("local", 1), "local")
	}
	h.yield(h.take("bob", 1), "bob")
	h.refused("eve", 1, ErrFull)
	h.refused("bob", 1, ErrFull)

	h = &holder{t: t, pool: New(Config{Capacity: 4, Exempt: "local"})}
	for range 3 {
		h.take("local", 1)
	}
	h.idle(h.take("bob", 1), "bob")
	h.idle(h.take("local", 1), "local")
	h.wantEvicted("bob")
	h.take("eve", 1)
	h.wantEvicted("bob", "local")
}

// TestSeveralVictims: the pool takes enough leases, or none.
func TestSeveralVictims(t *testing.T) {
	h := &holder{t: t, pool: New(Config{Capacity: 10})}
	for i := range 3 {
		h.idle(h.take("ann", 2), fmt.Sprint("ann ", i+1))
	}
	h.take("ann", 4)
	h.refused("bob", 7, ErrFull)
	h.wantEvicted()
	if s := h.pool.Stats(); s.Used != 10 || s.Evicted != 0 {
		t.Errorf("stats %+v", s)
	}
	h.take("bob", 3)
	h.wantEvicted("ann 1", "ann 2")
}

// TestLimit bounds what one caller holds.
func TestLimit(t *testing.T) {
	h := &holder{t: t, pool: New(Config{Capacity: 10, Limit: 2})}
	h.take("ann", 1)
	l := h.take("ann", 1)
	h.refused("ann", 1, ErrLimit)
	h.take("bob", 2)
	l.Release()
	h.take("ann", 1)
}

// TestAssign moves a lease, with its offer, to another caller.
func TestAssign(t *testing.T) {
	h := &holder{t: t, pool: New(Config{Capacity: 2})}
	l := h.take("address", 1)
	h.idle(l, "first")
	l.Assign("ann")
	l.Assign("ann")
	if h.pool.Held("address") != 0 || h.pool.Held("ann") != 1 || h.pool.Stats().Callers != 1 {
		t.Errorf("stats %+v", h.pool.Stats())
	}
	h.take("bob", 1)
	h.take("eve", 1)
	h.wantEvicted("first")
	l.Assign("bob")
	l.Release()
	if s := h.pool.Stats(); s.Used != 2 || h.pool.Held("bob") != 1 {
		t.Errorf("stats %+v", s)
	}
}

// TestFairOrder: the waiter whose caller holds least is served first. A hundred requests of one
// caller do not delay another's first, and small requests do not overtake a large one.
func TestFairOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{Capacity: 2})
		var mu sync.Mutex
		var order []string
		var done sync.WaitGroup
		wait := func(caller string, n int64) {
			done.Go(func() {
				l, err := p.Acquire(t.Context(), caller, n)
				if err != nil {
					t.Errorf("%s: %v", caller, err)
					return
				}
				mu.Lock()
				order = append(order, caller)
				mu.Unlock()
				<-time.After(time.Second)
				l.Release()
			})
			synctest.Wait()
		}
		for range 6 {
			wait("ann", 1)
		}
		wait("bob", 2)
		wait("eve", 1)
		if s := p.Stats(); s.Waiting != 6 {
			t.Errorf("stats %+v", s)
		}
		done.Wait()
		if !slices.Equal(order[:3], []string{"ann", "ann", "bob"}) || slices.Index(order, "eve") > 4 {
			t.Errorf("order %q", order)
		}
		if s := p.Stats(); s.Used != 0 || s.Callers != 0 || s.Waiting != 0 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestWaitEnds: a waiter that gives up lets the next one through, and an offer serves a waiter.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &holder{t: t, pool: New(Config{Capacity: 3})}
		l := h.take("ann", 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first, second := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := h.pool.Acquire(ctx, "bob", 3)
			first <- err
		}()
		synctest.Wait()
		go func() {
			_, err := h.pool.Acquire(t.Context(), "eve", 1)
			second <- err
		}()
		synctest.Wait()
		select {
		case err := <-second:
			t.Fatalf("a small request passed a large one: %v", err)
		default:
		}
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after a second: %v", err)
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
		third := make(chan error, 1)
		go func() {
			_, err := h.pool.Acquire(t.Context(), "dan", 2)
			third <- err
		}()
		synctest.Wait()
		h.idle(l, "ann")
		if err := <-third; err != nil {
			t.Error(err)
		}
		h.wantEvicted("ann")
	})
}

// TestManyAtOnce: with concurrent calls no unit is lost or lent twice.
func TestManyAtOnce(t *testing.T) {
	const capacity = 20
	p := New(Config{Capacity: capacity, Exempt: "0"})
	var done sync.WaitGroup
	for i := range 16 {
		done.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				l, err := p.Acquire(ctx, fmt.Sprint(i%5), 1+rng.Int64N(capacity))
				cancel()
				if s := p.Stats(); s.Used < 0 || s.Used > capacity {
					t.Errorf("stats %+v", s)
				}
				if err != nil {
					continue
				}
				switch rng.IntN(4) {
				case 0:
					l.Idle(func() {})
				case 1:
					l.Yield(func() {})
					l.Assign(fmt.Sprint(rng.IntN(5)))
				case 2:
					l.Idle(func() {})
					l.Busy()
				}
				l.Release()
			}
		})
	}
	done.Wait()
	if s := p.Stats(); s.Used != 0 || s.Callers != 0 || s.Waiting != 0 {
		t.Errorf("stats %+v", s)
	}
}
