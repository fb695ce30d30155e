package session

import (
	"context"
	"slices"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/wire"
)

// interpreterKey names an interpreter of a session that lives on between runs.
type interpreterKey struct {
	runner  string
	network bool
}

// String is the interpreter's name in meta.json.
func (k interpreterKey) String() string {
	if k.network {
		return k.runner + "+network"
	}
	return k.runner
}

// Behind is what a run waits for: the run that has the interpreter, and those that got in line before it.
type Behind struct {
	RunID string    // of the run that has the interpreter, as its request named it
	Since time.Time // when that one got it
	Ahead int       // runs before this one, that one included
}

// turn is a run's place in the line for an interpreter. The first in line has the interpreter.
type turn struct {
	runID string
	since time.Time     // when it became the first; guarded by m.mu
	moved chan struct{} // gets a value when a run before it has left
}

// takeTurn waits until no other run uses the interpreter, in the order of the calls. It asks req.KeepWaiting every turnWait, and
// gives up with ErrBusy. Until done is called, the session is not evicted.
func (s *Session) takeTurn(ctx context.Context, key interpreterKey, req RunRequest) (done func(), err error) {
	t := &turn{runID: req.ID, since: time.Now(), moved: make(chan struct{}, 1)}
	s.m.mu.Lock()
	if s.turns == nil {
		s.turns = map[interpreterKey][]*turn{}
	}
	s.turns[key] = append(s.turns[key], t)
	s.m.mu.Unlock()
	wait := time.NewTimer(turnWait)
	defer wait.Stop()
	var last Behind
	for {
		behind := s.behind(key, t)
		if changed := behind == nil && last.Ahead > 0 || behind != nil && *behind != last; changed && req.Queued != nil {
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

// behind returns what t waits for, nil when it is the first in line.
func (s *Session) behind(key interpreterKey, t *turn) *Behind {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	line := s.turns[key]
	if line[0] == t {
		return nil
	}
	return &Behind{RunID: line[0].runID, Since: line[0].since, Ahead: slices.Index(line, t)}
}

// leaveTurn takes t out of the line and tells those behind it.
func (s *Session) leaveTurn(key interpreterKey, t *turn) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	line := s.turns[key]
	i := slices.Index(line, t)
	line = slices.Delete(line, i, i+1)
	if s.turns[key] = line; len(line) == 0 {
		delete(s.turns, key)
		s.m.wakeLocked() // the session may be idle now
		return
	}
	if i == 0 {
		line[0].since = time.Now()
	}
	for _, next := range line[i:] {
		select {
		case next.moved <- struct{}{}:
		default: // it has not looked since the last one
		}
	}
}

// noteSwitch remembers which of the runner's two interpreters, with and without network, ran last. It reports whether the run
// before used the other one and that one is still alive: the code may expect its variables.
func (s *Session) noteSwitch(r runner.Runner, network bool) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	before, known := s.network[r.Name]
	if s.network == nil {
		s.network = map[string]bool{}
	}
	s.network[r.Name] = network
	other := s.boxes[boxKey{environment(r), !network}]
	return known && before != network && other != nil && other.interpreters[interpreterKey{r.Name, !network}] && !other.dead()
}

// maxDisplayBytes bounds the displays of a run together, and maxDisplays their number. What is beyond them is dropped.
const (
	maxDisplayBytes = 16 << 20
	maxDisplays     = 64
)

// displays counts what a run shows.
type displays struct {
	bytes  int // of all, those that were dropped included
	count  int // of those that are complete
	beyond bool
}

func (d *displays) add(f wire.Frame, show func(Display)) {
	d.bytes = min(d.bytes, maxDisplayBytes) + len(f.Data)
	d.beyond = d.beyond || d.bytes > maxDisplayBytes || d.count >= maxDisplays
	part := Display{MIME: f.MIME, Data: f.Data, More: f.More, Beyond: d.beyond}
	if d.beyond {
		part.Data = nil
	}
	if !f.More {
		d.count++
	}
	if show != nil {
		show(part)
	}
}
