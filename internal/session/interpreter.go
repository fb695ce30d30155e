package session

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"mcp-code-sandbox/internal/runner"
)

// turnWait is how long a run waits for its turn in an interpreter before it asks KeepWaiting.
const turnWait = 60 * time.Second

// interpreterKey identifies an interpreter of a session.
type interpreterKey struct {
	runner  string
	network bool
}

// String returns the interpreter's name in meta.json.
func (k interpreterKey) String() string {
	if k.network {
		return k.runner + "+network"
	}
	return k.runner
}

// hasStateLocked reports whether the session has an interpreter, and so variables to lose.
func (s *Session) hasStateLocked() bool {
	for _, sb := range s.sandboxes {
		if len(sb.interpreters) > 0 {
			return true
		}
	}
	return false
}

// hasInterpreter reports whether an interpreter of a runner lives.
func (s *Session) hasInterpreter(r runner.Runner, key interpreterKey) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	sb := s.sandboxes[sandboxKey{environment(r), key.network}]
	return sb != nil && sb.interpreters[key] && !sb.isDead()
}

// interpretersLocked returns the names of the session's interpreters, sorted.
func (s *Session) interpretersLocked() []string {
	names := map[string]struct{}{}
	for _, sb := range s.sandboxes {
		for key := range sb.interpreters {
			names[key.String()] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// addInterpreter records that an interpreter is about to live in the sandbox.
func (sb *sessionSandbox) addInterpreter(key interpreterKey) {
	sb.s.m.mu.Lock()
	defer sb.s.m.mu.Unlock()
	sb.interpreters[key] = true
}

// Behind says which runs another run waits for.
type Behind struct {
	RunID string    // of the run that has the interpreter
	Since time.Time // when that run got it
	Ahead int       // runs before the waiting one, including that run
}

// turn is a run's place in the queue for an interpreter. The first in the queue has the
// interpreter.
type turn struct {
	runID string
	since time.Time     // when it became the first; guarded by m.mu
	moved chan struct{} // gets a value when a run before it has left
	end   context.CancelCauseFunc
}

// errRestarted ends a run whose interpreter is restarted.
var errRestarted = errors.New("the interpreter was restarted")

// takeTurn waits until it is the run's turn in the interpreter. It asks req.KeepWaiting every
// turnWait and gives up with ErrBusy. Until done is called, the session is not evicted.
// A restart ends the runs before it, whose contexts end cancels.
func (s *Session) takeTurn(
	ctx context.Context, end context.CancelCauseFunc, key interpreterKey, req RunRequest,
) (done func(), err error) {
	t := &turn{runID: req.ID, since: time.Now(), moved: make(chan struct{}, 1), end: end}
	s.m.mu.Lock()
	if req.Restart {
		for _, before := range s.turns[key] {
			before.end(errRestarted)
		}
	}
	s.turns[key] = append(s.turns[key], t)
	s.m.mu.Unlock()
	wait := time.NewTimer(turnWait)
	defer wait.Stop()
	var last Behind
	for {
		behind := s.behind(key, t)
		changed := behind == nil && last.Ahead > 0 || behind != nil && *behind != last
		if changed && req.Queued != nil {
			req.Queued(behind)
		}
		if behind == nil {
			return func() { s.leaveTurn(key, t) }, nil
		}
		last = *behind
		select {
		case <-t.moved:
			continue
		case <-wait.C:
			if wait.Reset(turnWait); req.KeepWaiting != nil && req.KeepWaiting() {
				continue
			}
			err = ErrBusy
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		s.leaveTurn(key, t)
		return nil, err
	}
}

// behind returns what t waits for, or nil if it is the first in the queue.
func (s *Session) behind(key interpreterKey, t *turn) *Behind {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	queue := s.turns[key]
	if queue[0] == t {
		return nil
	}
	return &Behind{RunID: queue[0].runID, Since: queue[0].since, Ahead: slices.Index(queue, t)}
}

// leaveTurn removes t from the queue and notifies the runs behind it.
func (s *Session) leaveTurn(key interpreterKey, t *turn) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	queue := s.turns[key]
	i := slices.Index(queue, t)
	queue = slices.Delete(queue, i, i+1)
	if s.turns[key] = queue; len(queue) == 0 {
		delete(s.turns, key)
		s.m.wakeLocked() // the session may be idle now
		return
	}
	if i == 0 {
		queue[0].since = time.Now()
	}
	for _, next := range queue[i:] {
		notify(next.moved)
	}
}

// recordNetwork records whether the runner's last persistent run had network. It reports whether
// the run before used the other interpreter, which is still alive: the code may expect its
// variables.
func (s *Session) recordNetwork(r runner.Runner, network bool) (switched bool) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	before, known := s.network[r.Name]
	s.network[r.Name] = network
	other := s.sandboxes[sandboxKey{environment(r), !network}]
	return known && before != network && other != nil &&
		other.interpreters[interpreterKey{r.Name, !network}] && !other.isDead()
}
