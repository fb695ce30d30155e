package session

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"time"
)

// roomWait is how long a caller that is entitled to room waits for a run to end. After that, the
// caller that holds the most loses a run.
const roomWait = 2 * time.Second

// roomWaiter is a run that waits until its session may have a sandbox. m.mu guards it.
type roomWaiter struct {
	caller Caller
	due    bool          // it has waited for roomWait
	wake   chan struct{} // gets a value when it should try again
}

// take returns the sandbox for a request. It waits if the server is full but the caller is entitled
// to room.
func (m *Manager) take(ctx context.Context, req sandboxRequest) (*sessionSandbox, error) {
	m.mu.Lock()
	sb, err := m.takeLocked(req)
	if !m.shouldWaitLocked(req.s.caller, err) {
		m.countRefusalLocked(req.s.caller, err)
		m.unlock()
		return sb, err
	}
	w := &roomWaiter{caller: req.s.caller, wake: make(chan struct{}, 1)}
	m.waiting = append(m.waiting, w)
	m.unlock()
	return m.awaitRoom(ctx, w, req)
}

func (m *Manager) shouldWaitLocked(caller Caller, err error) bool {
	return errors.Is(err, ErrMaxSessions) && m.canPreemptLocked(caller)
}

// awaitRoom waits until w gets a sandbox or is no longer entitled to one. Waiters are served in the
// order of what their callers hold. When any of them is due, the next in line preempts a run.
func (m *Manager) awaitRoom(ctx context.Context, w *roomWaiter, req sandboxRequest) (sb *sessionSandbox, err error) {
	timer := time.NewTimer(roomWait)
	defer timer.Stop()
	for {
		due := false
		select {
		case <-w.wake:
		case <-timer.C:
			due = true
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-m.ctx.Done():
			err = ErrClosed
		}
		m.mu.Lock()
		w.due = w.due || due
		if err == nil && m.nextWaiterLocked() != w {
			m.wakeLocked()
			m.mu.Unlock()
			continue
		}
		if err == nil {
			req.waiter = w
			req.preempt = slices.ContainsFunc(m.waiting, func(w *roomWaiter) bool { return w.due })
			sb, err = m.takeLocked(req)
		}
		if m.shouldWaitLocked(w.caller, err) {
			m.unlock()
			err = nil
			continue
		}
		m.waiting = slices.DeleteFunc(m.waiting, func(other *roomWaiter) bool { return other == w })
		m.wakeLocked()
		m.countRefusalLocked(w.caller, err)
		m.unlock()
		return sb, err
	}
}

// nextWaiterLocked returns the waiter of the caller that holds the least; of equals, the first to
// arrive.
func (m *Manager) nextWaiterLocked() *roomWaiter {
	if len(m.waiting) == 0 {
		return nil
	}
	return slices.MinFunc(m.waiting, func(a, b *roomWaiter) int {
		return cmp.Compare(m.heldLocked(a.caller), m.heldLocked(b.caller))
	})
}

// wakeLocked makes the next waiter try again, since something may have become free.
func (m *Manager) wakeLocked() {
	if w := m.nextWaiterLocked(); w != nil {
		notify(w.wake)
	}
}

// notify puts a value into a channel with room for one, unless it already has one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// isFullLocked reports whether a session without a sandbox must wait until room is made. Free
// places belong to the waiters.
func (m *Manager) isFullLocked(w *roomWaiter) bool {
	reserved := len(m.waiting)
	if w != nil {
		reserved = 0
	}
	return m.cfg.MaxSessions > 0 && m.live+reserved >= m.cfg.MaxSessions
}

// heldLocked returns how many sessions a caller counts as holding when it asks for one. The
// operator counts as holding nothing.
func (m *Manager) heldLocked(asking Caller) int {
	if asking == Local {
		return 0
	}
	return m.held[asking]
}

// isEntitledLocked reports whether asking may take a place from another caller, even if the session
// there runs code or was just used. Only a caller with more than an equal share loses one, and
// never the operator. Two callers with equal shares take nothing from each other.
func (m *Manager) isEntitledLocked(asking, from Caller) bool {
	return from != asking && from != Local && m.held[from] >= m.heldLocked(asking)+2
}

// canPreemptLocked reports whether asking is entitled to a place of any caller.
func (m *Manager) canPreemptLocked(asking Caller) bool {
	for holder := range m.held {
		if m.isEntitledLocked(asking, holder) {
			return true
		}
	}
	return false
}

// Preemption says why a run was stopped for another caller.
type Preemption struct {
	Held int // sessions with a sandbox that the run's caller had
	Of   int // how many the server may have
}

// preemptLocked stops the runs of one session to make room for one of asking's, and returns its
// sandboxes. It returns nil if asking is not entitled to a place.
func (m *Manager) preemptLocked(asking Caller) []*sessionSandbox {
	victim := m.preemptVictimLocked(asking)
	if victim == nil {
		return nil
	}
	why := &Preemption{Held: m.held[victim.caller], Of: m.cfg.MaxSessions}
	m.log.Info("stopping a session's runs to make room for another caller",
		"session_id", victim.id, "held", why.Held)
	m.stats.of(victim.caller).Preemptions++
	m.rememberEvictedLocked(victim)
	sandboxes := m.retireAllLocked(victim)
	for _, sb := range sandboxes {
		sb.preempted = why
		sb.close()
	}
	return sandboxes
}

func (m *Manager) preemptVictimLocked(asking Caller) (victim *Session) {
	for _, s := range m.sessions {
		if len(s.sandboxes) == 0 || !m.isEntitledLocked(asking, s.caller) {
			continue
		}
		if victim == nil || m.comparePreemptionLocked(s, victim) < 0 {
			victim = s
		}
	}
	return victim
}

// comparePreemptionLocked orders sessions by who is preempted first: one of the caller that holds
// the most, then one that already runs code, then one with background runs only, then the newest.
func (m *Manager) comparePreemptionLocked(a, b *Session) int {
	return cmp.Or(
		cmp.Compare(m.held[b.caller], m.held[a.caller]),
		trueFirst(len(a.active) > 0, len(b.active) > 0),
		trueFirst(a.isInBackgroundLocked(), b.isInBackgroundLocked()),
		b.newestRunLocked().Compare(a.newestRunLocked()),
		cmp.Compare(a.key, b.key),
	)
}

func trueFirst(a, b bool) int {
	rank := map[bool]int{true: 0, false: 1}
	return cmp.Compare(rank[a], rank[b])
}

// activeRun is a run that has been sent to its sandbox.
type activeRun struct {
	since      time.Time
	background func() bool // may be nil
}

// addActive records a run that is about to be sent, until done is called.
func (s *Session) addActive(background func() bool) (done func()) {
	r := &activeRun{since: time.Now(), background: background}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.active[r] = struct{}{}
	s.m.running++
	return func() {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		delete(s.active, r)
		s.m.running--
	}
}

// hasIdleProcessor reports whether there are two processors for each run: one may prepare for the
// next run.
func (m *Manager) hasIdleProcessor() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return 2*m.running <= runtime.GOMAXPROCS(0)
}

// isInBackgroundLocked reports whether nobody waits for any run of the session.
func (s *Session) isInBackgroundLocked() bool {
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
