package agent

import (
	"cmp"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// spareLife is how long a run-init waits for a run before its memory is given back.
const spareLife = 5 * time.Minute

// spare is the run-init that waits for the next run. Its start is most of what a run costs over the program's own: a
// process, namespaces, mounts. So it is started after each run, for the one to come. It has made its mounts and dropped
// its privileges, has seen nothing of any run, and no user process shares a namespace with it.
type spare struct {
	mu   sync.Mutex
	init *initProcess
	end  *time.Timer
	life time.Duration // zero: spareLife
}

// prepare starts one if none waits. A failure is the next run's business.
func (s *spare) prepare(start func() (*initProcess, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.init != nil {
		return
	}
	p, err := start()
	if err != nil {
		return
	}
	s.init = p
	life := cmp.Or(s.life, spareLife)
	if p.fork != nil { // it would keep the zygote's memory
		life = zygoteLife
	}
	s.end = time.AfterFunc(life, func() {
		if s.drop(p) {
			p.discard()
		}
	})
}

func (s *spare) drop(p *initProcess) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.init != p {
		return false
	}
	s.init = nil
	return true
}

// take returns the one that waits, if it is alive and has a /tmp of that size; else nil.
func (s *spare) take(tmpBytes int64) *initProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.init
	if p == nil {
		return nil
	}
	s.init = nil
	s.end.Stop()
	if p.tmpBytes != tmpBytes || hasEnded(p.proc.Pid) {
		go p.discard()
		return nil
	}
	return p
}

// discard ends a run-init that has no run.
func (p *initProcess) discard() {
	_ = p.proc.Kill()
	ended(p.proc.Pid)
	_, _ = p.reap()
	p.close()
}

// hasEnded reports whether a child that has not been waited for has ended.
func hasEnded(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != nil || info.Signo != 0
}
