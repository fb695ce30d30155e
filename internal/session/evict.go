package session

import (
	"slices"
	"strings"
	"time"
)

// makeRoomLocked ends the sandboxes of one session, which it returns, to make room for one of the
// caller's. With preempt it may be a session that runs code. The error is a *MaxSessionsError.
func (m *Manager) makeRoomLocked(caller Caller, now time.Time, preempt bool) ([]*sessionSandbox, error) {
	victim := m.victimLocked(caller, now)
	if victim == nil && preempt {
		if sandboxes := m.preemptLocked(caller); sandboxes != nil {
			return sandboxes, nil
		}
	}
	if victim == nil {
		return nil, m.fullErrorLocked(caller, now)
	}
	m.log.Info("ending an idle session's sandboxes to make room", "session_id", victim.id,
		"interpreters", strings.Join(victim.interpretersLocked(), ","))
	m.stats.of(victim.caller).Evictions++
	m.rememberEvictedLocked(victim)
	return m.retireAllLocked(victim), nil
}

// victimLocked returns the idle session to evict, or nil. A session without an interpreter comes
// first, then the longest idle interpreter that canEvictLocked allows, of the caller that holds the
// most (of equals, the one that asks). Sessions with a run, even a waiting one, stay.
func (m *Manager) victimLocked(asking Caller, now time.Time) (victim *Session) {
	holdsMore := func(a, b Caller) bool {
		if m.held[a] != m.held[b] {
			return m.held[a] > m.held[b]
		}
		return a == asking && b != asking
	}
	victimHasState := true
	for e := m.idle.Front(); e != nil; e = e.Next() { // least recently used first
		s := e.Value.(*Session)
		hasState := s.hasStateLocked()
		if len(s.turns) > 0 || hasState && !m.canEvictLocked(asking, s, now) {
			continue
		}
		if victim == nil || victimHasState && !hasState ||
			victimHasState == hasState && holdsMore(s.caller, victim.caller) {
			victim, victimHasState = s, hasState
		}
	}
	return victim
}

// canEvictLocked reports whether asking may end the idle interpreter of s: after EvictIdle if the
// caller of s holds more than asking, or at once if it holds more than its share.
func (m *Manager) canEvictLocked(asking Caller, s *Session, now time.Time) bool {
	if now.Sub(s.lastUsed) < m.cfg.EvictIdle {
		return m.isEntitledLocked(asking, s.caller)
	}
	return m.canTakeIdleLocked(asking, s.caller)
}

func (m *Manager) canTakeIdleLocked(asking, from Caller) bool {
	return from == asking || m.held[from] > m.heldLocked(asking)
}

// fullErrorLocked says why no session can make room for one of the caller's.
func (m *Manager) fullErrorLocked(caller Caller, now time.Time) error {
	full := &MaxSessionsError{EvictIdle: m.cfg.EvictIdle}
	for _, s := range m.sessions {
		if len(s.sandboxes) == 0 {
			continue
		}
		count, own := &full.Recent, &full.RecentOwn
		if s.runs > 0 || len(s.turns) > 0 {
			count, own = &full.Running, &full.RunningOwn
		} else if left := max(m.cfg.EvictIdle-now.Sub(s.lastUsed), 1); m.canTakeIdleLocked(caller, s.caller) &&
			(full.RetryAfter == 0 || left < full.RetryAfter) {
			full.RetryAfter = left
		}
		*count++
		if s.caller == caller {
			*own = append(*own, s.id)
		}
	}
	slices.Sort(full.RunningOwn)
	slices.Sort(full.RecentOwn)
	return full
}

// rememberEvictedLocked records the interpreters of a session that is about to lose them.
func (m *Manager) rememberEvictedLocked(victim *Session) {
	names := victim.interpretersLocked()
	if len(names) == 0 {
		return
	}
	m.evicted[victim.key] = append(m.evicted[victim.key], names...)
	victim.refs++ // until saveEvicted has written it
	m.wg.Go(func() { victim.saveEvicted(); victim.Release() })
}

// saveEvicted moves the record of evicted interpreters from m.evicted to meta.json, for the next
// run of each, in any server. A run that comes earlier takes it from m.evicted.
func (s *Session) saveEvicted() {
	lock := s.m.metaLock(s.key)
	lock.Lock()
	defer lock.Unlock()
	s.m.mu.Lock()
	names := slices.Clone(s.m.evicted[s.key])
	s.m.mu.Unlock()
	if len(names) == 0 {
		return
	}
	md, err := readMeta(s.dir)
	if err == nil {
		md.Evicted = slices.Compact(slices.Sorted(slices.Values(append(md.Evicted, names...))))
		s.writeMeta(md)
	}
	for _, name := range names {
		s.takeEvicted(name)
	}
}

// takeEvicted removes a name from m.evicted and reports whether it was there.
func (s *Session) takeEvicted(name string) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	pending := s.m.evicted[s.key]
	left := slices.DeleteFunc(slices.Clone(pending), func(n string) bool { return n == name })
	if s.m.evicted[s.key] = left; len(left) == 0 {
		delete(s.m.evicted, s.key)
	}
	return len(left) < len(pending)
}

// recordInterpreter records in meta.json that the session has had an interpreter. If the run
// started a new one, res says whether an earlier one is gone, and whether it was evicted.
func (s *Session) recordInterpreter(key interpreterKey, res *RunResult) {
	name := key.String()
	lock := s.m.metaLock(s.key)
	lock.Lock()
	defer lock.Unlock()
	md, err := readMeta(s.dir)
	if err != nil || !res.Fresh {
		return // it is only a notice
	}
	had := slices.Contains(md.State, name)
	evicted := slices.Contains(md.Evicted, name)
	md.Evicted = slices.DeleteFunc(md.Evicted, func(n string) bool { return n == name })
	evicted = s.takeEvicted(name) || evicted
	res.Forgotten, res.Evicted = had, had && evicted
	if had && !evicted {
		return
	}
	if !had {
		md.State = append(md.State, name)
	}
	s.writeMeta(md)
}
