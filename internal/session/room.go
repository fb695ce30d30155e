package session

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// roomWait is how long a caller that is entitled to room waits for a run to end by itself. Then the
// largest holder loses one.
const roomWait = 2 * time.Second

// Preemption is why a run was stopped for another caller.
type Preemption struct {
	Held int // sessions with a live sandbox that the run's caller had
	Of   int // how many there may be
}

// roomWaiter is a run that waits until its session may have a sandbox. It is guarded by m.mu.
type roomWaiter struct {
	caller Caller
	due    bool          // it has waited for roomWait
	moved  chan struct{} // gets a value when it should look again
}

// activeRun is a run whose code is in its sandbox.
type activeRun struct {
	since      time.Time
	background func() bool // may be nil
}

// heldLocked is what a caller counts as holding when it asks. Shares do not bind the operator.
func (m *Manager) heldLocked(asking Caller) int {
	if asking == Local {
		return 0
	}
	return m.held[asking]
}

// isEntitledLocked reports whether asking may take a session's place from another caller, though its
// interpreter was just used or its code runs: only one that is beyond an equal share gives, never the
// operator. Two callers with equal shares take nothing from each other.
func (m *Manager) isEntitledLocked(asking, from Caller) bool {
	return from != asking && from != Local && m.held[from] >= m.heldLocked(asking)+2
}

// canPreemptLocked reports whether anybody has to give asking a place.
func (m *Manager) canPreemptLocked(asking Caller) bool {
	for holder := range m.held {
		if m.isEntitledLocked(asking, holder) {
			return true
		}
	}
	return false
}

// preemptLocked stops the runs of one session to make room for one of asking's, and returns its
// sandboxes. It reports false if nobody has to give a place.
func (m *Manager) preemptLocked(asking Caller) (makeWay []*box, forgotten []*Session, ok bool) {
	victim := m.preemptVictimLocked(asking)
	if victim == nil {
		return nil, nil, false
	}
	why := &Preemption{Held: m.held[victim.caller], Of: m.cfg.MaxSessions}
	m.log.Info("stopping a session's runs to make room for another caller", "session_id", victim.id, "held", why.Held)
	m.kindLocked(victim.caller).Preemptions++
	m.rememberEvictedLocked(victim)
	makeWay, forgotten = m.evictLocked(victim)
	for _, b := range makeWay {
		b.preempted = why
		b.close()
	}
	return makeWay, forgotten, true
}

// preemptVictimLocked chooses the session to stop: of the largest holder one whose runs are all in
// the background, then the one that has run for the shortest time. Those that only start come last.
func (m *Manager) preemptVictimLocked(asking Caller) (victim *Session) {
	for _, s := range m.sessions {
		if len(s.boxes) == 0 || !m.isEntitledLocked(asking, s.caller) {
			continue
		}
		if victim == nil || m.compareForPreemptLocked(s, victim) < 0 {
			victim = s
		}
	}
	return victim
}

func (m *Manager) compareForPreemptLocked(a, b *Session) int {
	first := func(a, b bool) int { // true before false
		if a == b {
			return 0
		}
		if a {
			return -1
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(m.held[b.caller], m.held[a.caller]),
		first(len(a.active) > 0, len(b.active) > 0),
		first(a.inBackgroundLocked(), b.inBackgroundLocked()),
		b.newestRunLocked().Compare(a.newestRunLocked()),
		cmp.Compare(a.key, b.key),
	)
}

func (s *Session) inBackgroundLocked() bool {
	for r := range s.active {
		if r.background == nil || !r.background() {
			return false
		}
	}
	return len(s.active) == s.runs
}

func (s *Session) newestRunLocked() (newest time.Time) {
	for r := range s.active {
		if r.since.After(newest) {
			newest = r.since
		}
	}
	return newest
}

// noteActive remembers a run whose code is about to be sent, until done is called.
func (s *Session) noteActive(background func() bool) (done func()) {
	r := &activeRun{since: time.Now(), background: background}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.active == nil {
		s.active = map[*activeRun]struct{}{}
	}
	s.active[r] = struct{}{}
	return func() {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		delete(s.active, r)
	}
}

// take calls takeLocked, and waits where the server is full but has to make room for the caller.
func (m *Manager) take(ctx context.Context, want wanted) (*box, error) {
	m.mu.Lock()
	b, forgotten, err := m.takeLocked(want)
	var w *roomWaiter
	if errors.Is(err, ErrMaxSessions) && m.canPreemptLocked(want.s.caller) {
		w = &roomWaiter{caller: want.s.caller, moved: make(chan struct{}, 1)}
		m.waiting = append(m.waiting, w)
	}
	if w == nil {
		m.countRefusalLocked(want.s.caller, err)
	}
	m.mu.Unlock()
	m.forget(forgotten)
	if w == nil {
		return b, err
	}
	return m.awaitRoom(ctx, w, want)
}

// awaitRoom waits until w gets a sandbox or loses its right to one. Waiters are served in the order
// of what their callers hold; when one is due, the next in line preempts a run.
func (m *Manager) awaitRoom(ctx context.Context, w *roomWaiter, want wanted) (*box, error) {
	timer := time.NewTimer(roomWait)
	defer timer.Stop()
	for {
		due := false
		select {
		case <-w.moved:
		case <-timer.C:
			due = true
		case <-ctx.Done():
			m.mu.Lock()
			m.leaveRoomLocked(w)
			m.mu.Unlock()
			return nil, context.Cause(ctx)
		case <-m.ctx.Done():
			m.mu.Lock()
			m.leaveRoomLocked(w)
			m.mu.Unlock()
			return nil, ErrClosed
		}
		m.mu.Lock()
		w.due = w.due || due
		if m.nextWaiterLocked() != w {
			m.wakeLocked()
			m.mu.Unlock()
			continue
		}
		want.waiter, want.preempt = w, slices.ContainsFunc(m.waiting, func(w *roomWaiter) bool { return w.due })
		b, forgotten, err := m.takeLocked(want)
		if again := errors.Is(err, ErrMaxSessions) && m.canPreemptLocked(w.caller); !again {
			m.leaveRoomLocked(w)
			m.countRefusalLocked(w.caller, err)
			m.mu.Unlock()
			m.forget(forgotten)
			return b, err
		}
		m.mu.Unlock()
		m.forget(forgotten)
	}
}

// nextWaiterLocked returns the waiter whose caller holds least; of equals, the one that came first.
func (m *Manager) nextWaiterLocked() *roomWaiter {
	if len(m.waiting) == 0 {
		return nil
	}
	return slices.MinFunc(m.waiting, func(a, b *roomWaiter) int {
		return cmp.Compare(m.heldLocked(a.caller), m.heldLocked(b.caller))
	})
}

// wakeLocked has the next waiter look again: something may have become free.
func (m *Manager) wakeLocked() {
	if w := m.nextWaiterLocked(); w != nil {
		select {
		case w.moved <- struct{}{}:
		default: // it has not looked since the last time
		}
	}
}

func (m *Manager) leaveRoomLocked(w *roomWaiter) {
	m.waiting = slices.DeleteFunc(m.waiting, func(other *roomWaiter) bool { return other == w })
	m.wakeLocked()
}

// isFullLocked reports whether a session without a sandbox needs room to be made. What is free
// belongs to those that wait.
func (m *Manager) isFullLocked(w *roomWaiter) bool {
	reserved := len(m.waiting)
	if w != nil {
		reserved = 0
	}
	return m.cfg.MaxSessions > 0 && m.live+reserved >= m.cfg.MaxSessions
}
