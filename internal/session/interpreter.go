package session

import (
	"context"
	"slices"
	"time"

	"mcp-code-sandbox/internal/wire"
)

// interpreterKey names an interpreter of a session that lives on between runs.
type interpreterKey struct {
	runner  string
	network bool
}

// takeTurn waits until no other run uses the interpreter. It gives up with ErrBusy after turnWait.
func (s *Session) takeTurn(ctx context.Context, key interpreterKey) (done func(), err error) {
	s.m.mu.Lock()
	turn := s.turns[key]
	if turn == nil {
		turn = make(chan struct{}, 1)
		if s.turns == nil {
			s.turns = map[interpreterKey]chan struct{}{}
		}
		s.turns[key] = turn
	}
	s.m.mu.Unlock()
	wait := time.NewTimer(turnWait)
	defer wait.Stop()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-wait.C:
		return nil, ErrBusy
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// noteState remembers, in meta.json, which runners have had an interpreter, so that the first run of another one can say
// that the state is lost, in this server or a later one, whoever saw the end.
func (s *Session) noteState(key interpreterKey, res *RunResult) {
	name := key.runner
	if key.network {
		name += "+network"
	}
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	md, err := s.readMeta()
	if err != nil {
		return // it is only a notice
	}
	had := slices.Contains(md.State, name)
	res.Forgotten = res.Fresh && had
	if had || !res.Fresh {
		return
	}
	md.State = append(md.State, name)
	if err := s.writeMeta(md); err != nil {
		s.m.log.Warn("cannot write a session's meta.json", "session_id", s.id, "err", err)
	}
}

// stateful reports whether the session has an interpreter that would lose its variables. Under m.mu.
func (s *Session) statefulLocked() bool {
	for _, b := range s.boxes {
		if b.stateful {
			return true
		}
	}
	return false
}

// maxDisplayBytes bounds one display, and maxDisplays those of a run: what is beyond is dropped.
const (
	maxDisplayBytes = 16 << 20
	maxDisplays     = 64
)

// display puts the frames of a display together.
type display struct {
	data  []byte
	count int
}

func (d *display) add(f wire.Frame, show func(mime string, data []byte)) {
	if len(d.data)+len(f.Data) <= maxDisplayBytes {
		d.data = append(d.data, f.Data...)
	}
	if f.More {
		return
	}
	data := d.data
	d.data = nil
	if d.count++; d.count <= maxDisplays && show != nil {
		show(f.MIME, data)
	}
}
