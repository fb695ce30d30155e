package session

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// MaxSessionsError says that every sandbox the server may have is in use and none of them can make
// room. It matches ErrMaxSessions.
type MaxSessionsError struct {
	Running   int           // sessions that run code
	Recent    int           // sessions whose interpreter is idle, but not for long enough to be evicted
	EvictIdle time.Duration // how long that is
	// RunningOwn and RecentOwn are the ids of those that are the caller's own, in order.
	RunningOwn, RecentOwn []string
	// RetryAfter is when the first of them can be evicted if nobody uses it; zero: one must end first.
	RetryAfter time.Duration
}

func (e *MaxSessionsError) Error() string {
	return fmt.Sprintf("%v (%d run code, %d were used recently)", ErrMaxSessions, e.Running, e.Recent)
}

// Is reports whether target is ErrMaxSessions.
func (e *MaxSessionsError) Is(target error) bool { return target == ErrMaxSessions }

// makeRoomLocked evicts one session to make room for one of caller's, and returns its sandboxes.
// With preempt it may be one that runs code. The error is a *MaxSessionsError.
func (m *Manager) makeRoomLocked(caller Caller, now time.Time, preempt bool) (makeWay []*box, forgotten []*Session, err error) {
	victim := m.victimLocked(caller, now)
	if victim == nil && preempt {
		if makeWay, forgotten, ok := m.preemptLocked(caller); ok {
			return makeWay, forgotten, nil
		}
	}
	if victim == nil {
		return nil, nil, m.fullLocked(caller, now)
	}
	m.log.Info("ending an idle session's sandboxes to make room", "session_id", victim.id, "interpreters", strings.Join(victim.interpretersLocked(), ","))
	m.kindLocked(victim.caller).Evictions++
	m.rememberEvictedLocked(victim)
	makeWay, forgotten = m.evictLocked(victim)
	return makeWay, forgotten, nil
}

// rememberEvictedLocked notes the interpreters of a session that is about to lose them.
func (m *Manager) rememberEvictedLocked(victim *Session) {
	names := victim.interpretersLocked()
	if len(names) == 0 {
		return
	}
	m.evicted[victim.key] = append(m.evicted[victim.key], names...)
	victim.refs++ // until noteEvicted has written it
	m.wg.Go(func() { victim.noteEvicted(); victim.Release() })
}

// victimLocked applies the eviction rule, or returns nil. A session without an interpreter comes
// first, then the longest idle interpreter that canTakeLocked allows, of the caller that holds the
// most (of equals, the one that asks). It skips sessions with a run, even one that waits.
func (m *Manager) victimLocked(asking Caller, now time.Time) (victim *Session) {
	more := func(a, b Caller) bool {
		if m.held[a] != m.held[b] {
			return m.held[a] > m.held[b]
		}
		return a == asking && b != asking
	}
	stateful := true                                  // of the victim
	for e := m.idle.Front(); e != nil; e = e.Next() { // least recently used first
		s := e.Value.(*Session)
		if len(s.turns) > 0 {
			continue
		}
		has := s.statefulLocked()
		if has && !m.canTakeLocked(asking, s, now) {
			continue
		}
		if victim == nil || stateful && !has || stateful == has && more(s.caller, victim.caller) {
			victim, stateful = s, has
		}
	}
	return victim
}

// canTakeLocked reports whether asking may end the idle interpreter of s: one that has been idle for
// EvictIdle, or just now if the caller of s is beyond its share. Nobody takes from a caller that
// holds less than the one that asks would.
func (m *Manager) canTakeLocked(asking Caller, s *Session, now time.Time) bool {
	if now.Sub(s.lastUsed) < m.cfg.EvictIdle {
		return m.isEntitledLocked(asking, s.caller)
	}
	return m.mayGiveLocked(asking, s.caller)
}

func (m *Manager) mayGiveLocked(asking, from Caller) bool {
	return from == asking || m.held[from] > m.heldLocked(asking)
}

// fullLocked says why no session can make room for one of caller's.
func (m *Manager) fullLocked(caller Caller, now time.Time) error {
	full := &MaxSessionsError{EvictIdle: m.cfg.EvictIdle}
	for _, s := range m.sessions {
		if len(s.boxes) == 0 {
			continue
		}
		count, own := &full.Recent, &full.RecentOwn
		if s.runs > 0 || len(s.turns) > 0 {
			count, own = &full.Running, &full.RunningOwn
		} else if left := max(m.cfg.EvictIdle-now.Sub(s.lastUsed), 1); m.mayGiveLocked(caller, s.caller) &&
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

// statefulLocked reports whether the session has an interpreter that would lose its variables.
func (s *Session) statefulLocked() bool {
	for _, b := range s.boxes {
		if len(b.interpreters) > 0 {
			return true
		}
	}
	return false
}

// interpretersLocked names the interpreters of the session, as meta.json does.
func (s *Session) interpretersLocked() []string {
	names := map[string]struct{}{}
	for _, b := range s.boxes {
		for key := range b.interpreters {
			names[key.String()] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// noteEvicted writes to meta.json which interpreters were evicted, for the next run of each, in any
// server. Until then the note is in m.evicted, from where a faster run takes it.
func (s *Session) noteEvicted() {
	lock := s.m.metaLock(s.key)
	lock.Lock()
	defer lock.Unlock()
	s.m.mu.Lock()
	names := slices.Clone(s.m.evicted[s.key])
	s.m.mu.Unlock()
	if len(names) == 0 {
		return
	}
	md, err := s.readMeta()
	if err == nil {
		md.Evicted = slices.Compact(slices.Sorted(slices.Values(append(md.Evicted, names...))))
		err = s.writeMeta(md)
	}
	if err != nil {
		s.m.log.Warn("cannot note in a session's meta.json that it was evicted", "session_id", s.id, "err", err)
	}
	for _, name := range names {
		s.takeEvicted(name)
	}
}

// takeEvicted takes a name out of m.evicted and reports whether it was there.
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

// noteState remembers, in meta.json, which runners have had an interpreter, so that the first run
// of another one can say that the state is lost, and whether it was evicted, in this server or a
// later one, whoever saw the end.
func (s *Session) noteState(key interpreterKey, res *RunResult) {
	name := key.String()
	lock := s.m.metaLock(s.key)
	lock.Lock()
	defer lock.Unlock()
	md, err := s.readMeta()
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
	if err := s.writeMeta(md); err != nil {
		s.m.log.Warn("cannot write a session's meta.json", "session_id", s.id, "err", err)
	}
}

// metaLock is held while a session's meta.json is changed. All Sessions of one key, the last one
// and the next, share it.
func (m *Manager) metaLock(key string) *sync.Mutex {
	var i [1]byte
	_, _ = hex.Decode(i[:], []byte(key[:2])) // a key is hex
	return &m.metaLocks[i[0]]
}
