package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
)

// startWait is how long the start of a background run waits for its refusal: it is short beside any client's limit, and long
// beside the start of a sandbox.
const startWait = time.Second

// cancelWait bounds how long CancelRun waits for the end: the time an interpreter has to heed an interrupt, and more.
const cancelWait = 4 * time.Second

const (
	followedOutput = 1 << 20 // bytes kept of the output of a followed run, while it is in memory
	maxLingering   = 8       // followed runs that have ended and stay in memory
)

// errStopped is why a run is cancelled whose server stops.
var errStopped = errors.New("the server stops")

// run is one run that is going.
type run struct {
	id      string
	caller  session.Caller
	req     Request // without code and environment
	runner  string
	started time.Time
	cancel  context.CancelFunc
	stop    func()        // cancel, by a server that stops
	begun   chan struct{} // closed when the code has been sent to its sandbox
	queued  chan struct{} // closed when the run waits for another one for the first time
	done    chan struct{} // closed when the run has ended and, of a background run, its result is stored

	memory   memory
	tapeHold *hold

	mu         sync.Mutex
	tape       tape
	printed    signal // wakes those who follow
	listeners  map[*listener]struct{}
	waits      *waits    // nil while it waits for no other run
	sent       time.Time // when the code was sent to its sandbox
	background bool      // it goes on without the one who started it
	ended      bool

	// Set before done is closed.
	res Result
	err error
}

// listener is who hears of a run. Either part may be nil.
type listener struct {
	output func(Stream, []byte)
	queued func(*Queue)
}

// waits is what a run waits for.
type waits struct {
	session.Behind
	tool string // of the run that it names
}

func (w *waits) queue() *Queue {
	if w == nil {
		return nil
	}
	return &Queue{RunID: w.RunID, Tool: w.tool, Running: time.Since(w.Since), Ahead: w.Ahead}
}

// wait notes what the run waits for; nil: nothing any more.
func (r *run) wait(w *waits) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waits == nil && w != nil {
		select {
		case <-r.queued:
		default:
			close(r.queued)
		}
	}
	r.waits = w
	r.printed.wake()
	for l := range r.listeners {
		if l.queued != nil {
			l.queued(w.queue())
		}
	}
}

// begin notes that the code has been sent to its sandbox.
func (r *run) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = time.Now()
	close(r.begun)
}

// queue is what the run waits for; nil: nothing.
func (r *run) queue() *Queue {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits.queue()
}

// output takes what the program prints.
func (r *run) output(stream Stream, p []byte) {
	r.growTape(len(p))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tape.limit > 0 {
		r.tape.write(stream, p)
		r.printed.wake()
	}
	for l := range r.listeners {
		if l.output != nil {
			l.output(stream, p)
		}
	}
}

// growTape asks for the memory that the tape needs to keep n more bytes.
func (r *run) growTape(n int) {
	for {
		r.mu.Lock()
		limit, next := r.tape.limit, r.tape.wants(n)
		r.mu.Unlock()
		if next == 0 {
			return
		}
		ok := r.tapeHold.grow(2 * int64(next-limit)) // it takes up to twice its limit
		r.mu.Lock()
		if ok && next <= r.tape.full { // not shrunk meanwhile
			r.tape.limit = next
		} else {
			r.tape.full = min(r.tape.full, limit)
		}
		r.mu.Unlock()
	}
}

// shrinkTape frees what the tape keeps beyond what needs no asking.
func (r *run) shrinkTape() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tape.shrink(freeOutput)
}

// listen tells l what is printed and what the run waits for from now on, and what it waits for now, until stop is called.
func (r *run) listen(l listener) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners[&l] = struct{}{}
	if l.queued != nil && r.waits != nil {
		l.queued(r.waits.queue())
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.listeners, &l)
	}
}

// state is the run as it is while it goes.
func (r *run) state(cursor int64) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.req.Timeout
	if !r.sent.IsZero() {
		left = max(0, left-time.Since(r.sent))
	}
	return Result{
		Running: true, TimeLeft: left, RunID: r.id, Session: r.req.Session, Runner: r.runner, Tool: r.req.Tool, Started: r.started,
		Timeout: r.req.Timeout, Persistent: r.req.Persistent, Once: r.req.Once, Recent: r.tape.since(cursor, false),
		Queued: r.waits.queue(),
	}
}

// detach makes it a background run, unless it has ended.
func (r *run) detach() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.background = true
	return true
}

// end says that it has ended, and reports whether it did so in the background.
func (r *run) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.background
}

func (r *run) hasEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

func (r *run) isBackground() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.background
}

// runs are those that are going, and a few followed ones that have ended: the store keeps less of their output.
type runs struct {
	mu        sync.Mutex
	closed    bool
	byID      map[string]*run
	lingering []*run // oldest first
}

// add takes a run in. It refuses a background run when its session has as many as it may have.
func (rs *runs) add(r *run, limit int) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	switch {
	case !r.req.Background:
	case rs.closed:
		return session.ErrClosed
	case limit > 0 && rs.backgroundLocked(r) >= limit:
		return session.ErrTooManyRuns
	}
	rs.byID[r.id] = r
	return nil
}

// detach makes r a background run. It reports false when it has ended, or when its session has as many as it may have.
func (rs *runs) detach(r *run, limit int) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closed || limit > 0 && rs.backgroundLocked(r) >= limit {
		return false
	}
	return r.detach()
}

// backgroundLocked counts the background runs of r's session.
func (rs *runs) backgroundLocked(r *run) (n int) {
	for _, other := range rs.byID {
		if other != r && other.caller == r.caller && other.req.Session == r.req.Session && other.isBackground() && !other.hasEnded() {
			n++
		}
	}
	return n
}

// remove drops a run that has ended. A followed one stays until more of them have ended, or memory is short: whoever follows
// may still be reading.
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

// forget drops a run that has lingered.
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

// tool returns the tool of the run of that id, empty when it has ended.
func (rs *runs) tool(id string) string {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r := rs.byID[id]; r != nil {
		return r.req.Tool
	}
	return ""
}

// cancelSession ends the runs of a session.
func (rs *runs) cancelSession(caller session.Caller, id string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.byID {
		if r.caller == caller && r.req.Session == id {
			r.cancel()
		}
	}
}

// close ends all, lets no more go on in the background, and waits until they have ended, or ctx is done.
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

// Run executes code and returns when nothing of it is left running, or earlier, with a Result that is Running, where the request
// says so. The failure of the program, and of the sandbox under it, is a Result; a refusal or a sandbox that cannot be started is
// an *Error. A done ctx ends a run that has not been left to go on, which gives a Result with the cause cancelled.
func (e *Executor) Run(ctx context.Context, caller session.Caller, req Request) (Result, error) {
	r, mute, err := e.start(ctx, caller, req)
	if err != nil {
		return Result{}, err
	}
	defer mute()
	defer share.ScopeOf(ctx).Defer(r.memory.use())
	res, err := e.await(ctx, r, req)
	if err != nil {
		return Result{}, err
	}
	return e.answer(ctx, caller, res, r.memory.size()), nil
}

// await returns when the run has ended, or goes on in the background.
func (e *Executor) await(ctx context.Context, r *run, req Request) (Result, error) {
	if req.Begun != nil {
		req.Begun(r.id)
	}
	if req.Background {
		timer := time.NewTimer(startWait)
		defer timer.Stop()
		select {
		case <-r.done:
			return r.res, r.err
		case <-r.begun:
		case <-r.queued:
		case <-timer.C:
		}
		e.noteRunning(r)
		return r.state(0), nil
	}
	defer context.AfterFunc(ctx, func() {
		if !r.isBackground() {
			r.cancel()
		}
	})()
	var patience <-chan time.Time // for ever
	if req.Handover > 0 && e.cfg.Store != nil {
		timer := time.NewTimer(req.Handover)
		defer timer.Stop()
		patience = timer.C
	}
	select {
	case <-r.done:
		return r.res, r.err
	case <-patience:
	}
	if ctx.Err() == nil && e.runs.detach(r, e.cfg.Sessions.MaxRunsPerSession()) {
		e.log.InfoContext(ctx, "run goes on in the background", "run_id", r.id)
		e.noteRunning(r)
		return r.state(0), nil
	}
	<-r.done
	return r.res, r.err
}

// start checks a request and lets its run go. After mute is called, the request's Output gets no more.
func (e *Executor) start(ctx context.Context, caller session.Caller, req Request) (_ *run, mute func(), err error) {
	rn, err := e.check(req)
	if err != nil {
		return nil, nil, err
	}
	if err := e.checkServices(ctx, caller, rn, req.Services); err != nil {
		return nil, nil, err
	}
	if req.Background && e.cfg.Store == nil {
		return nil, nil, refuse(CodeBackendUnavailable, "This server keeps no results, so nothing can run in the background.")
	}
	if req.Timeout <= 0 {
		req.Timeout = e.cfg.ExecTimeout
		if rn.TimeoutSeconds > 0 {
			req.Timeout = time.Duration(rn.TimeoutSeconds) * time.Second
		}
	} else if most := max(e.cfg.MaxExecTimeout, e.cfg.ExecTimeout); req.Timeout > most {
		return nil, nil, refuse(CodeInvalidTimeout, "A run may take %s at most.", seconds(most))
	}
	if req.Observer == nil {
		req.Observer = silent{}
	}
	// It has the caller's values, but not its end: that is for Run to pass on.
	runCtx, cancelWith := context.WithCancelCause(context.WithoutCancel(ctx))
	cancel := func() { cancelWith(nil) }
	now := time.Now()
	r := &run{
		id: e.ids.next(now), caller: caller, req: req, runner: rn.Name, started: now, cancel: cancel,
		stop: func() { cancelWith(errStopped) }, background: req.Background,
		begun: make(chan struct{}), queued: make(chan struct{}), done: make(chan struct{}), listeners: map[*listener]struct{}{},
	}
	r.memory.pool, r.memory.caller = e.memory, caller.ID
	r.req.Code, r.req.Env, r.req.Services, r.req.Output, r.req.Queued, r.req.Begun = "", nil, nil, nil, nil, nil
	r.req.Observer = nil
	if req.Background || req.Handover > 0 {
		r.tape.full = e.cfg.MaxOutputBytes
		if req.Followed {
			r.tape.full = max(r.tape.full, followedOutput)
		}
		r.tape.limit = r.tape.full
		if r.tapeHold = r.memory.hold(r.shrinkTape); r.tapeHold != nil {
			r.tape.limit = min(r.tape.full, freeOutput)
		}
	}
	if err := e.runs.add(r, e.cfg.Sessions.MaxRunsPerSession()); err != nil {
		cancel()
		return nil, nil, e.wrap(err)
	}
	log := e.log.With("session_id", req.Session, "run_id", r.id)
	mute = r.listen(listener{req.Output, req.Queued})
	e.runStarted(r)
	go e.carryOut(runCtx, log, r, rn, req)
	return r, mute, nil
}

// carryOut executes a run to its end and tells everybody who waits for it.
func (e *Executor) carryOut(ctx context.Context, log *slog.Logger, r *run, rn runner.Runner, req Request) {
	defer r.cancel()
	done := r.memory.use()
	r.res, r.err = e.executeRecovering(ctx, log, r, rn, req)
	if req.Once {
		// Nothing of the session is kept but its files, for as long as those of closed sessions.
		if err := e.closeSession(context.WithoutCancel(ctx), r.caller, req.Session); err != nil && r.err == nil && !r.res.NotStarted {
			log.WarnContext(ctx, "cannot close the session of a single run", "err", err)
		}
	}
	background := r.end()
	e.keepResult(log, r, background)
	e.runs.remove(r)
	e.runEnded(r)
	done()
	close(r.done)
}

// executeRecovering is execute for a goroutine that nobody else guards: a defect of ours costs one run, not the server.
func (e *Executor) executeRecovering(ctx context.Context, log *slog.Logger, r *run, rn runner.Runner, req Request) (res Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			log.ErrorContext(ctx, "a run panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = errors.New("the run panicked")
		}
	}()
	return e.execute(ctx, log, r, rn, req)
}
