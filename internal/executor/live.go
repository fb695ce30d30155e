package executor

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/session"
)

// maxLingering bounds the followed runs that stay in memory after their end.
const maxLingering = 8

// run is one run of this process, until its result is stored.
type run struct {
	id        string
	caller    session.Caller
	req       Request // without code, environment and functions
	runner    string
	started   time.Time
	log       *slog.Logger
	cancel    func()
	stop      func()        // cancels with errStopped
	begun     chan struct{} // closed when the code was sent to its sandbox, or first had to wait
	markBegun func()        // closes begun, once
	done      chan struct{} // closed when the run has ended and a background run's result is stored

	memory memory

	mu         sync.Mutex
	tape       tape
	printed    chan struct{} // closed at the next output or change of the queue; nil if nobody waits
	listeners  map[*listener]struct{}
	place      *place    // in the queue for the interpreter; nil if the run does not wait
	sent       time.Time // when the run's time began; see begin
	background bool      // Run has returned, or will not wait for the end
	ended      bool

	// Set before done is closed.
	res Result
	err error
}

// listener is notified about a run while a call waits for it. Either function may be nil.
type listener struct {
	output func(Stream, []byte)
	queued func(*Queue)
}

// place is a run's place in the queue for an interpreter.
type place struct {
	session.Behind
	tool string // of the run that has the interpreter
}

func (p *place) queue() *Queue {
	if p == nil {
		return nil
	}
	return &Queue{RunID: p.RunID, Tool: p.tool, Running: time.Since(p.Since), Ahead: p.Ahead}
}

// setQueue records the run's place in the queue, or nil when it is the run's turn.
func (r *run) setQueue(p *place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p != nil {
		r.markBegun()
	}
	r.place = p
	r.wakeLocked()
	for l := range r.listeners {
		if l.queued != nil {
			l.queued(p.queue())
		}
	}
}

// queue returns what the run waits for, or nil.
func (r *run) queue() *Queue {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.place.queue()
}

// begin records that the code has been sent to its sandbox, or before it what installs packages.
func (r *run) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent.IsZero() {
		r.sent = time.Now()
	}
	r.markBegun()
}

// elapsed returns how much of the run's time has passed.
func (r *run) elapsed() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.elapsedLocked()
}

func (r *run) elapsedLocked() time.Duration {
	if r.sent.IsZero() {
		return 0
	}
	return time.Since(r.sent)
}

// output passes on what the program prints.
func (r *run) output(stream Stream, p []byte) {
	r.tape.grow(&r.mu, func() int64 { return r.tape.end() + int64(len(p)) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tape.limit > 0 {
		r.tape.write(stream, p)
		r.wakeLocked()
	}
	for l := range r.listeners {
		if l.output != nil {
			l.output(stream, p)
		}
	}
}

// shrinkTape frees the tape's memory, except for what needs no hold.
func (r *run) shrinkTape() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tape.shrink(freeOutput)
}

// outputAfter returns a channel that is closed once there is output after the cursor, or the place
// in the queue changes.
func (r *run) outputAfter(cursor int64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tape.end() > cursor {
		now := make(chan struct{})
		close(now)
		return now
	}
	if r.printed == nil {
		r.printed = make(chan struct{})
	}
	return r.printed
}

func (r *run) wakeLocked() {
	if r.printed != nil {
		close(r.printed)
		r.printed = nil
	}
}

// listen adds l until stop is called. It calls l at once if the run is queued.
func (r *run) listen(l listener) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners[&l] = struct{}{}
	if l.queued != nil && r.place != nil {
		l.queued(r.place.queue())
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.listeners, &l)
	}
}

// summary returns the part of the Result that is known from the start.
func (r *run) summary() Result {
	return Result{RunID: r.id, Session: r.req.Session, Runner: r.runner, Tool: r.req.Tool, Started: r.started,
		Timeout: r.req.Timeout, Persistent: r.req.Persistent, Once: r.req.Once}
}

// state returns the Result of a run that has not ended.
func (r *run) state(cursor int64) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.summary()
	res.Running, res.TimeLeft = true, max(0, res.Timeout-r.elapsedLocked())
	res.Recent, res.Queued = r.tape.since(cursor, false), r.place.queue()
	return res
}

// result returns the Result of a run that has ended.
func (r *run) result(cursor int64) (Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.res
	res.Recent = r.tape.since(cursor, true)
	return res, r.err
}

// end records that the run has ended and reports whether it was in the background.
func (r *run) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.background
}

// inBackground reports whether the run is active and no Run call waits for its end.
func (r *run) inBackground() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.background && !r.ended
}

// runs holds the active runs. It also keeps a few followed runs that have ended, since the store
// keeps less of their output.
type runs struct {
	mu        sync.Mutex
	closed    bool
	byID      map[string]*run
	lingering []*run // oldest first
}

// add adds a run. It refuses a background run if its session already has limit background runs.
func (rs *runs) add(r *run, limit int) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	switch {
	case !r.req.Background:
	case rs.closed:
		return session.ErrClosed
	case rs.isFullLocked(r, limit):
		return session.ErrTooManyRuns
	}
	rs.byID[r.id] = r
	return nil
}

// detach makes r a background run. It reports false if r has ended or its session already has limit
// background runs.
func (rs *runs) detach(r *run, limit int) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closed || rs.isFullLocked(r, limit) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.background = r.background || !r.ended
	return r.background
}

// isFullLocked reports whether r's session has limit background runs besides r.
func (rs *runs) isFullLocked(r *run, limit int) bool {
	n := 0
	for _, other := range rs.byID {
		if other != r && other.caller == r.caller && other.req.Session == r.req.Session && other.inBackground() {
			n++
		}
	}
	return limit > 0 && n >= limit
}

// remove drops a run that has ended. A followed run lingers, because a client may still be reading
// it, until maxLingering others have ended or memory is short.
func (rs *runs) remove(r *run) {
	gone := r
	rs.mu.Lock()
	if r.req.Followed && r.err == nil {
		gone = nil
		rs.lingering = append(rs.lingering, r)
		if len(rs.lingering) > maxLingering {
			gone, rs.lingering = rs.lingering[0], slices.Delete(rs.lingering, 0, 1)
		}
	}
	if gone != nil {
		delete(rs.byID, gone.id)
	}
	rs.mu.Unlock()
	if gone != r {
		r.memory.linger(true)
	}
	if gone != nil {
		gone.memory.linger(false)
	}
}

// forget drops a run that lingers.
func (rs *runs) forget(r *run) {
	rs.mu.Lock()
	if i := slices.Index(rs.lingering, r); i >= 0 {
		rs.lingering = slices.Delete(rs.lingering, i, i+1)
		delete(rs.byID, r.id)
	}
	rs.mu.Unlock()
	r.memory.linger(false)
}

// find returns the caller's run of that id, or nil.
func (rs *runs) find(caller session.Caller, id string) *run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r := rs.byID[id]; r != nil && r.caller == caller {
		return r
	}
	return nil
}

// cancelSession cancels the runs of a session.
func (rs *runs) cancelSession(caller session.Caller, id string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.byID {
		if r.caller == caller && r.req.Session == id {
			r.cancel()
		}
	}
}

// drain waits until no run is active, or ctx is done.
func (rs *runs) drain(ctx context.Context) {
	for {
		active := rs.active()
		if len(active) == 0 {
			return
		}
		for _, r := range active {
			select {
			case <-r.done:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (rs *runs) active() (all []*run) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.byID {
		select {
		case <-r.done: // it lingers
		default:
			all = append(all, r)
		}
	}
	return all
}

// close stops all runs, refuses background runs from now on, and waits for the end of all or of
// ctx.
func (rs *runs) close(ctx context.Context) error {
	rs.mu.Lock()
	rs.closed = true
	all := slices.Collect(maps.Values(rs.byID))
	rs.mu.Unlock()
	for _, r := range all {
		r.stop()
	}
	for _, r := range all {
		select {
		case <-r.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// runIDs makes ids like run_20260206T123456Z_a1b2, each once per process.
type runIDs struct {
	mu     sync.Mutex
	second time.Time
	start  uint16 // the second's first suffix: processes that share a store rarely collide
	used   int    // suffixes used of the second
}

func (g *runIDs) next(now time.Time) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch second := now.UTC().Truncate(time.Second); {
	case second.After(g.second):
		g.second, g.start, g.used = second, uint16(rand.Uint32()), 0
	case g.used > 0xffff: // borrow from the next second
		g.second, g.used = g.second.Add(time.Second), 0
	}
	id := fmt.Sprintf("run_%s_%04x", g.second.Format("20060102T150405Z"), g.start+uint16(g.used))
	g.used++
	return id
}
