package session

import "errors"

// Stats are numbers about a Manager at one moment, by kind of caller. They name nobody.
type Stats struct {
	Local  CallerStats // of the operator
	Others CallerStats // of all other callers together
}

// CallerStats are the numbers of one kind of caller.
type CallerStats struct {
	Sessions      int // known to this process
	LiveSessions  int // of them, those with a sandbox
	LiveSandboxes int
	Interpreters  int // that live on
	ActiveRuns    int
	Waiting       int // runs that wait for room
	Counters
}

// Counters count up. Those of evictions and preemptions are of the caller that lost something.
type Counters struct {
	Evictions   uint64 // idle sessions that lost their sandboxes for another one
	Preemptions uint64 // sessions whose runs were stopped for another caller
	Refusals    uint64 // runs that found no room
}

// kind is what a Manager counts about one kind of caller.
type kind struct {
	Counters
	runs int
}

// kindLocked is that of the caller: the operator's, or that of all others.
func (m *Manager) kindLocked(c Caller) *kind {
	if c == Local {
		return &m.kinds[0]
	}
	return &m.kinds[1]
}

func (m *Manager) countRefusalLocked(c Caller, err error) {
	if errors.Is(err, ErrMaxSessions) {
		m.kindLocked(c).Refusals++
	}
}

// Stats returns numbers for metrics.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	var st Stats
	for i, of := range []*CallerStats{&st.Local, &st.Others} {
		of.Counters, of.ActiveRuns = m.kinds[i].Counters, m.kinds[i].runs
	}
	of := func(c Caller) *CallerStats {
		if c == Local {
			return &st.Local
		}
		return &st.Others
	}
	for _, s := range m.sessions {
		of(s.caller).Sessions++
		of(s.caller).Interpreters += len(s.interpretersLocked())
	}
	for c, n := range m.held {
		of(c).LiveSessions += n
	}
	for b := range m.boxes {
		of(b.s.caller).LiveSandboxes++
	}
	for _, w := range m.waiting {
		of(w.caller).Waiting++
	}
	return st
}

// Total returns the gauges of all callers together.
func (s Stats) Total() CallerStats {
	a, b := s.Local, s.Others
	return CallerStats{
		Sessions: a.Sessions + b.Sessions, LiveSessions: a.LiveSessions + b.LiveSessions, LiveSandboxes: a.LiveSandboxes + b.LiveSandboxes,
		Interpreters: a.Interpreters + b.Interpreters, ActiveRuns: a.ActiveRuns + b.ActiveRuns, Waiting: a.Waiting + b.Waiting,
	}
}
