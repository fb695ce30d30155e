// Package cpuweight divides the processors among sandboxes that run code, and ends fork bombs.
//
// A sandbox loses weight with the CPU time that its runs use. Callers that run code at the same
// time have equal weights, however many sandboxes each of them has. The package knows no sessions.
package cpuweight

import (
	"sync"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// steps are the weights of a sandbox by the CPU time it has used since its first run began. Most
// runs end before the first step. `make bench BENCH='-run hostile'` measures their effect.
var steps = []struct {
	used  time.Duration
	share float64
}{
	{100 * time.Millisecond, 1.0 / 8},
	{300 * time.Millisecond, 1.0 / 16},
}

const (
	// minPoll and maxPoll bound the interval between measurements, which grows while the sandbox
	// runs code.
	minPoll = 25 * time.Millisecond
	maxPoll = 2 * time.Second
	// maxRefused is how many refused forks end a run. An ordinary program gives up long before, and
	// a refusal costs the kernel about as much as a fork.
	maxRefused = 256
	// maxForking is how many processes may fork at once in a run that has grown by 1/grownPart of
	// its process limit. Forks lock every library that a process maps: hundreds of them delay
	// everybody.
	maxForking = 12
	grownPart  = 8
)

// Config configures Callers.
type Config struct {
	Exempt string       // the caller that is exempt from sharing one weight
	PIDs   int          // the process limit of a sandbox; zero: none
	Go     func(func()) // starts a goroutine; the caller waits for it
}

// Callers counts the sandboxes of each caller that run code.
type Callers struct {
	cfg     Config
	mu      sync.Mutex
	running map[string]int
}

// New returns an empty Callers.
func New(cfg Config) *Callers { return &Callers{cfg: cfg, running: map[string]int{}} }

// Weight is the CPU weight of one sandbox. Its methods are safe for concurrent use. A nil Weight is
// that of a sandbox which cannot be weighed.
type Weight struct {
	callers *Callers
	caller  string
	sandbox sandbox.Weigher
	usage   func() sandbox.Usage

	mu   sync.Mutex
	runs map[*func()]struct{} // functions that stop them

	// Since the first of the runs began:
	began  time.Time
	base   time.Duration // CPU time of the sandbox at that time
	before sandbox.Usage // at that time
	bomb   bool          // they are a fork bomb
	ending bool          // a run is being ended: its processes keep their full weight
	done   chan struct{} // closed when the last run has ended

	share float64 // as set last
}

// Weigh returns the weight of a caller's sandbox, or nil if the backend cannot weigh it.
func (c *Callers) Weigh(caller string, sb sandbox.Sandbox, usage func() sandbox.Usage) *Weight {
	w, ok := sb.(sandbox.Weigher)
	if !ok {
		return nil
	}
	return &Weight{callers: c, caller: caller, sandbox: w, usage: usage, runs: map[*func()]struct{}{}}
}

// Begin weighs the sandbox, which has the counters now, for one more run until done is called. It
// calls stop, without waiting for it, if the runs are a fork bomb. Only the first of overlapping
// runs restores the full weight, so that code cannot keep it by asking for runs.
func (w *Weight) Begin(now sandbox.Usage, stop func()) (done func()) {
	if w == nil {
		return func() {}
	}
	used, err := w.sandbox.CPUTime()
	if err != nil {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs[&stop] = struct{}{}; len(w.runs) == 1 {
		w.began, w.base, w.before = time.Now(), used, now
		w.bomb, w.ending, w.done = false, false, make(chan struct{})
		w.callers.add(w.caller, 1)
		w.setLocked(w.callers.share(w.caller))
		done := w.done
		w.callers.cfg.Go(func() { w.watch(done) })
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.runs, &stop); len(w.runs) == 0 {
			close(w.done)
			w.callers.add(w.caller, -1)
		}
	}
}

// watch adjusts the weight until the last run has ended.
func (w *Weight) watch(done <-chan struct{}) {
	timer := time.NewTimer(minPoll)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return
		case <-timer.C:
		}
		used, err := w.sandbox.CPUTime()
		if err != nil {
			return // the sandbox has ended
		}
		select {
		case <-done:
			return
		default:
			timer.Reset(w.adjust(used, w.isBomb()))
		}
	}
}

// adjust sets the weight by the CPU time used, stops a fork bomb, and returns when to measure
// again.
func (w *Weight) adjust(used time.Duration, bomb bool) time.Duration {
	full := w.callers.share(w.caller)
	w.mu.Lock()
	defer w.mu.Unlock()
	if bomb {
		w.bomb = true
		for stop := range w.runs {
			go (*stop)() // it calls IsCrowded, which locks w.mu
		}
	}
	share := full
	for _, step := range steps {
		if used-w.base >= step.used {
			share = full * step.share
		}
	}
	if !w.ending {
		w.setLocked(share)
	}
	return min(max(time.Since(w.began)/8, minPoll), maxPoll)
}

// isBomb reports whether the runs are a fork bomb: at the process limit, or on the way there.
func (w *Weight) isBomb() bool {
	w.mu.Lock()
	before := w.before
	w.mu.Unlock()
	usage := w.usage()
	if usage.PIDsRefused > before.PIDsRefused+maxRefused {
		return true
	}
	if limit := w.callers.cfg.PIDs; limit == 0 || usage.PIDs < before.PIDs+limit/grownPart {
		return false
	}
	forking, err := w.sandbox.Forking()
	return err == nil && forking >= maxForking
}

// Restore gives a sandbox in which something is being ended its full weight: hundreds of processes
// that die slowly delay everybody.
func (w *Weight) Restore() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ending = true
	w.setLocked(1)
}

// IsCrowded reports whether the runs have reached their process limit.
func (w *Weight) IsCrowded() bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.runs) > 0 && (w.bomb || w.usage().PIDsRefused > w.before.PIDsRefused)
}

// setLocked sets the weight if it changes. A failure only costs fairness.
func (w *Weight) setLocked(share float64) {
	if share != w.share && w.sandbox.Weigh(share) == nil {
		w.share = share
	}
}

func (c *Callers) add(caller string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[caller] += n; c.running[caller] == 0 {
		delete(c.running, caller)
	}
}

// share is the full weight of each of a caller's sandboxes.
func (c *Callers) share(caller string) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.running) < 2 || caller == c.cfg.Exempt {
		return 1
	}
	return 1 / float64(max(c.running[caller], 1))
}
