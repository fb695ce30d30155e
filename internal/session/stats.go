package session

import "errors"

// Stats are numbers about a Manager at one moment, by kind of caller. They identify no caller.
type Stats struct {
	Local  CallerStats // of the operator
	Others CallerStats // of all other callers together
}

// CallerStats are the numbers of one kind of caller.
type CallerStats struct {
	Sessions      int // known to this process
	LiveSessions  int // sessions with a sandbox
	LiveSandboxes int
	Interpreters  int
	ActiveRuns    int
	Waiting       int // runs that wait for room
	Counters
}

// Counters only grow. An eviction or preemption counts for the caller that lost something.
type Counters struct {
	Evictions   uint64 // idle sessions that lost their sandboxes to another one
	Preemptions uint64 // sessions that lost their runs to another caller
	Refusals    uint64 // runs that found no room
}

func (st *Stats) of(c Caller) *CallerStats {
	if c == Local {
		return &st.Local
	}
	return &st.Others
}

func (m *Manager) countRefusalLocked(c Caller, err error) {
	if errors.Is(err, ErrMaxSessions) {
		m.stats.of(c).Refusals++
	}
}

// Stats returns numbers for metrics.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := m.stats
	for _, s := range m.sessions {
		st.of(s.caller).Sessions++
		st.of(s.caller).Interpreters += len(s.interpretersLocked())
	}
	for c, n := range m.held {
		st.of(c).LiveSessions += n
	}
	for sb := range m.sandboxes {
		st.of(sb.s.caller).LiveSandboxes++
	}
	for _, w := range m.waiting {
		st.of(w.caller).Waiting++
	}
	return st
}
