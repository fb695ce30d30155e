package session

import (
	"sync"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// steps are the weights of a sandbox by the CPU time that it has used since a run was asked for. Most runs end before the first.
// `make bench BENCH='-run hostile'` measures what they are good for.
var steps = []struct {
	burnt time.Duration
	share float64
}{
	{100 * time.Millisecond, 1.0 / 4},
	{300 * time.Millisecond, 1.0 / 8},
	{time.Second, 1.0 / 16},
}

const (
	// minLook and maxLook bound how often a sandbox's use is looked at while it has runs: less often, the longer they last.
	minLook = 25 * time.Millisecond
	maxLook = 2 * time.Second
	// maxRefused is how many forks a run is refused before it is ended. A program that only needs too much gives up long before,
	// and a refusal costs the kernel about as much as a fork.
	maxRefused = 256
	// maxForking is how many processes of a run that has grown by a part of its limit may fork on beside their own parents. Each
	// fork, and each end, locks every library that the process has mapped: hundreds of them hold up everybody's processes.
	maxForking = 12
	grownPart  = 8
)

// weight is what a sandbox has beside others that want the processors.
type weight struct {
	mu      sync.Mutex
	runs    map[*supervised]struct{}
	began   time.Time     // of the first of them, as base and refused
	base    time.Duration // the sandbox's CPU time
	refused uint64        // forks
	pids    int           // processes
	bomb    bool          // they fork without end
	share   float64       // as it was set last
	dying   bool          // a run is being ended: its processes have the full weight to do so
	done    chan struct{} // closed with the last run
}

// weigh has the sandbox yield to others by what its runs use, and ends those of a fork bomb, until done is called. A run beside
// another one does not restore the weight, or code that computes could call for runs to keep it.
func (m *Manager) weigh(b *box, run *supervised) (done func()) {
	sb, ok := b.sb.(sandbox.Weigher)
	if !ok {
		return func() {}
	}
	used, err := sb.CPUTime()
	if err != nil {
		return func() {}
	}
	w := &b.weight
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs == nil {
		w.runs = map[*supervised]struct{}{}
	}
	if w.runs[run] = struct{}{}; len(w.runs) == 1 {
		usage := usageOf(b.sb)
		w.began, w.base, w.refused, w.pids = time.Now(), used, usage.PIDsRefused, usage.PIDs
		w.bomb, w.dying, w.done = false, false, make(chan struct{})
		m.addRunning(b.s.caller, 1)
		w.setLocked(sb, m.callerShare(b.s.caller))
		done := w.done
		m.wg.Go(func() { m.watchUse(b, sb, done) })
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.runs, run); len(w.runs) == 0 {
			close(w.done)
			m.addRunning(b.s.caller, -1)
		}
	}
}

// watchUse looks at what the sandbox uses until its last run has ended.
func (m *Manager) watchUse(b *box, sb sandbox.Weigher, done <-chan struct{}) {
	timer := time.NewTimer(minLook)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return
		case <-timer.C:
		}
		used, err := sb.CPUTime()
		if err != nil {
			return // the sandbox has ended
		}
		select {
		case <-done:
			return
		default:
			timer.Reset(b.weight.adjust(sb, used, m.isBomb(b, sb), m.callerShare(b.s.caller)))
		}
	}
}

// adjust acts on what the sandbox has used, and returns when to look again.
func (w *weight) adjust(sb sandbox.Weigher, used time.Duration, bomb bool, full float64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bomb {
		w.bomb = true
		for run := range w.runs {
			go run.stop(sandbox.CausePIDsLimit) // which takes the lock
		}
	}
	share := full
	for _, step := range steps {
		if used-w.base >= step.burnt {
			share = full * step.share
		}
	}
	if !w.dying {
		w.setLocked(sb, share)
	}
	return min(max(time.Since(w.began)/8, minLook), maxLook)
}

// isBomb reports whether the sandbox's runs are a fork bomb: at its limit, or on the way there.
func (m *Manager) isBomb(b *box, sb sandbox.Weigher) bool {
	b.weight.mu.Lock()
	refused, pids := b.weight.refused, b.weight.pids
	b.weight.mu.Unlock()
	usage := usageOf(b.sb)
	if usage.PIDsRefused > refused+maxRefused {
		return true
	}
	if limit := m.cfg.Limits.PIDs; limit == 0 || usage.PIDs < pids+limit/grownPart {
		return false
	}
	forking, err := sb.Forking()
	return err == nil && forking >= maxForking
}

// hasten gives a sandbox of which something is being ended the full weight: hundreds of processes that die slowly are in
// everybody's way.
func (b *box) hasten() {
	sb, ok := b.sb.(sandbox.Weigher)
	if !ok {
		return
	}
	b.weight.mu.Lock()
	defer b.weight.mu.Unlock()
	b.weight.dying = true
	b.weight.setLocked(sb, 1)
}

// isCrowded reports whether the runs have as many processes as they may have, and want more.
func (b *box) isCrowded() bool {
	w := &b.weight
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.runs) > 0 && (w.bomb || usageOf(b.sb).PIDsRefused > w.refused)
}

// setLocked sets the weight if it is another. That it could not be set only costs fairness.
func (w *weight) setLocked(sb sandbox.Weigher, share float64) {
	if share != w.share && sb.Weigh(share) == nil {
		w.share = share
	}
}

// addRunning counts the sandboxes of a caller that run code.
func (m *Manager) addRunning(caller Caller, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running[caller] += n; m.running[caller] == 0 {
		delete(m.running, caller)
	}
}

// callerShare is the weight of each of a caller's sandboxes. Callers who run code at the same time have equal weights, however
// many sandboxes each has; the operator's are never less than a sandbox's own.
func (m *Manager) callerShare(caller Caller) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.running) < 2 || caller == Local {
		return 1
	}
	return 1 / float64(max(m.running[caller], 1))
}
