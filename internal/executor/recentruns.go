package executor

import (
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

// keptRuns is how many runs of a session are listed.
const keptRuns = 20

// RunInfo is a run in a list of a session's runs.
type RunInfo struct {
	ID, Runner string
	Tag        string // the request's
	Started    time.Time
	Running    bool
	Queued     *Queue // what it waits for, if it is Running and does
	// Of a run that has ended:
	Duration time.Duration
	ExitCode int
	Cause    sandbox.Cause
}

// RecentRuns lists the last runs of a session through this executor, newest first, whoever started them.
func (e *Executor) RecentRuns(caller session.Caller, sessionID string) []RunInfo {
	list := e.activity.runs(usedKey{caller, sessionID})
	for i := range list {
		if r := e.runs.find(caller, list[i].ID); r != nil && list[i].Running {
			list[i].Queued = r.queue()
		}
	}
	return list
}

func (a *activity) runs(key usedKey) []RunInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	if el := a.byID[key]; el != nil {
		return slices.Clone(el.Value.(*use).runs)
	}
	return nil
}

// WatchRuns has changed called whenever a run of a caller's has started or ended. It must not block.
func (e *Executor) WatchRuns(changed func(session.Caller)) {
	e.activity.mu.Lock()
	defer e.activity.mu.Unlock()
	e.activity.runWatchers = append(e.activity.runWatchers, changed)
}

// runStarted lists a run. One that closes its session is not listed: nobody can ask for it by its session.
func (e *Executor) runStarted(r *run) {
	if r.req.Once {
		return
	}
	a := &e.activity
	a.mu.Lock()
	u := a.useLocked(usedKey{r.caller, r.req.Session})
	u.runs = slices.Insert(u.runs, 0, RunInfo{ID: r.id, Runner: r.runner, Tag: r.req.Tag, Started: r.started, Running: true})
	u.runs = u.runs[:min(len(u.runs), keptRuns)]
	a.mu.Unlock()
	a.tellRuns(r.caller)
}

// runEnded notes how a run ended, and forgets one that was refused.
func (e *Executor) runEnded(r *run) {
	if r.req.Once {
		return
	}
	a := &e.activity
	a.mu.Lock()
	if el := a.byID[usedKey{r.caller, r.req.Session}]; el != nil {
		u := el.Value.(*use)
		i := slices.IndexFunc(u.runs, func(info RunInfo) bool { return info.ID == r.id })
		switch {
		case i < 0:
		case r.err != nil:
			u.runs = slices.Delete(u.runs, i, i+1)
		default:
			u.runs[i] = RunInfo{ID: r.id, Runner: r.runner, Tag: r.req.Tag, Started: r.started, Duration: r.res.Duration, ExitCode: r.res.ExitCode, Cause: r.res.Cause}
		}
	}
	a.mu.Unlock()
	a.tellRuns(r.caller)
}

func (a *activity) tellRuns(caller session.Caller) {
	a.mu.Lock()
	watchers := slices.Clone(a.runWatchers)
	a.mu.Unlock()
	for _, changed := range watchers {
		changed(caller)
	}
}

// signal wakes everybody who waits for it. The zero value is ready.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

// wait returns a channel that the next wake closes.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}

// outputAfter returns a channel that is closed once there is output after the cursor; nil when nobody follows.
func (r *run) outputAfter(cursor int64, follow bool) <-chan struct{} {
	if !follow {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tape.end() > cursor {
		now := make(chan struct{})
		close(now)
		return now
	}
	return r.printed.wait()
}
