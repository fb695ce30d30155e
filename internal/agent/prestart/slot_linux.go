package prestart

import (
	"sync"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/agent/runinit"
)

// waiting is a Process in the slot.
type waiting interface {
	Process
	// suits reports whether the process is alive and was started as this run needs it.
	suits(spec *runinit.Spec) bool
	// life returns how long the process may wait for a run.
	life() time.Duration
	// isBooted reports whether it runs a booted program.
	isBooted() bool
}

// slot holds the process that waits for the next run, if any. A booted program would use a run's
// memory and processes, so it starts when no run is active, and the next run takes it or ends it.
type slot struct {
	running atomic.Int64 // runs

	mu      sync.Mutex
	process waiting
	expiry  *time.Timer
}

// beginRun counts a run. A cell has no use for a booted program, so it ends one.
func (s *slot) beginRun(cell bool) (end func()) {
	s.running.Add(1)
	if cell {
		s.mu.Lock()
		if p := s.process; p != nil && p.isBooted() {
			s.process = nil
			s.expiry.Stop()
			go p.Discard()
		}
		s.mu.Unlock()
	}
	return func() { s.running.Add(-1) }
}

// fill starts a process if none waits. boot, unless nil, has it start its program, if no run is
// active. A failure leaves the start to the next run.
func (s *slot) fill(start func() (waiting, error), boot func(waiting) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		p, err := start()
		if err != nil {
			return
		}
		s.process = p
		s.expiry = time.AfterFunc(p.life(), func() { s.drop(p) })
	}
	p := s.process
	if boot == nil || p.isBooted() || s.running.Load() > 0 || !boot(p) {
		return
	}
	s.expiry.Stop()
	s.expiry = time.AfterFunc(p.life(), func() {
		if s.drop(p) {
			s.fill(start, nil)
		}
	})
}

// drop discards p if it still waits.
func (s *slot) drop(p waiting) bool {
	s.mu.Lock()
	waits := s.process == p
	if waits {
		s.process = nil
	}
	s.mu.Unlock()
	if waits {
		p.Discard()
	}
	return waits
}

// take returns the process if it suits the run. Otherwise it discards the process and returns nil.
func (s *slot) take(spec *runinit.Spec) Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.process
	if p == nil {
		return nil
	}
	s.process = nil
	s.expiry.Stop()
	if !p.suits(spec) {
		go p.Discard()
		return nil
	}
	return p
}
