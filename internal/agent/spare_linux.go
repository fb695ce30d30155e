package agent

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/proc"
)

// spareLife is how long a run-init waits for a run before its memory is given back, and bootedLife how long one does whose
// program waits with it and takes more.
const (
	spareLife  = 5 * time.Minute
	bootedLife = time.Minute
)

// spare is the run-init that waits for the next run. Its start is most of what a run costs over the program's own: a
// process, namespaces, mounts. So it is started after each run, for the one to come. It has made its mounts and dropped
// its privileges, has seen nothing of any run, and no user process shares a namespace with it.
//
// Where programs can wait for their code, it has started one, too: see boot. Such a program never lives beside a run, whose memory and
// processes it would take: it is started when no run is going on, and the next one has it or ends it.
type spare struct {
	runs atomic.Int64 // those going on

	mu   sync.Mutex
	init *initProcess
	end  *time.Timer
	life time.Duration // zero: spareLife
}

// begin counts a run until the function that it returns is called. A cell has no use for a program that waits.
func (s *spare) begin(cell bool) (done func()) {
	s.runs.Add(1)
	if cell {
		s.mu.Lock()
		if p := s.init; p != nil && p.booted != nil {
			s.init = nil
			s.end.Stop()
			go p.discard()
		}
		s.mu.Unlock()
	}
	return func() { s.runs.Add(-1) }
}

// prepare starts one if none waits, and has it start a program, if there is one. A failure is the next run's business.
func (s *spare) prepare(b *boot, start func() (*initProcess, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.init
	if p == nil {
		var err error
		if p, err = start(); err != nil {
			return
		}
		s.init = p
		life := cmp.Or(s.life, spareLife)
		if p.fork != nil || p.ahead != nil && p.ahead.zygote.lone { // it would keep the zygote's memory
			life = zygoteLife
		}
		s.end = time.AfterFunc(life, func() { s.letGo(p) })
	}
	if b == nil || p.booted != nil || s.runs.Load() > 0 || !p.boot(b) {
		return
	}
	s.end.Stop()
	s.end = time.AfterFunc(bootedLife, func() {
		if s.letGo(p) {
			s.prepare(nil, start)
		}
	})
}

// letGo ends p if it still waits.
func (s *spare) letGo(p *initProcess) bool {
	s.mu.Lock()
	waits := s.init == p
	if waits {
		s.init = nil
	}
	s.mu.Unlock()
	if waits {
		p.discard()
	}
	return waits
}

// take returns the one that waits, if it is alive and right for the run; else nil.
func (s *spare) take(spec *initSpec) *initProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.init
	if p == nil {
		return nil
	}
	s.init = nil
	s.end.Stop()
	if p.tmpBytes != spec.TmpBytes || p.booted != nil && !p.booted.suits(spec) || proc.HasExited(p.proc.Pid) {
		_ = p.proc.Kill()
		go p.discard()
		return nil
	}
	if p.booted != nil {
		p.dropOutput()
	}
	return p
}

// discard ends a run-init that has no run.
func (p *initProcess) discard() {
	_ = p.proc.Kill()
	proc.AwaitExit(p.proc.Pid)
	_, _ = p.reap()
	p.close()
}
