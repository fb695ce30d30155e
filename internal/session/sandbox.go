package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session/cpuweight"
	"mcp-code-sandbox/internal/wire"
)

const (
	// startTimeout bounds one start, not counting the wait for its turn.
	startTimeout = 30 * time.Second
	// startWait bounds the wait for a turn to start.
	startWait = time.Minute
	// startAttempts bounds the retries of a start that times out. Retrying is safe: no code has
	// been executed.
	startAttempts = 2
	// closeTimeout is how long a sandbox may take to end before the server logs it. Ending hundreds
	// of processes is slow on a busy machine.
	closeTimeout = time.Minute
	// closeAttempts bounds the wait for an end. The kernel does not end a process during an fsync.
	closeAttempts = 10
	// endWait bounds the wait for another sandbox to end, to take its place or to close its
	// session.
	endWait = time.Second
)

// sandboxKey identifies a session's sandbox by the properties that are fixed at its start.
type sandboxKey struct {
	environment string
	network     bool
}

// sessionSandbox is one sandbox of a session, from the request to start it until it has ended.
type sessionSandbox struct {
	s       *Session
	key     sandboxKey
	sources sandbox.Sources // of its mounts
	created time.Time

	ctx   context.Context    // done when the sandbox must end
	close context.CancelFunc // ends the sandbox and its runs; does not wait

	ready  chan struct{} // closed after the start; guards the next fields
	err    error         // why the start failed
	id     string
	inner  sandbox.Sandbox
	conn   *wire.Conn
	weight *cpuweight.Weight

	gone chan struct{} // closed when the sandbox has ended; guards exit
	exit sandbox.Exit

	// m.mu guards the rest.
	runs         int
	interpreters map[interpreterKey]bool
	zygotes      map[string]bool // names of the zygotes that its agent knows
	retired      bool            // removed from its session: gets no new run, ends with its last one
	preempted    *Preemption     // why its runs were stopped; nil if they were not
	stopped      bool            // by StopSession
}

// isExpired reports whether the sandbox is too old for another run.
func (sb *sessionSandbox) isExpired(now time.Time) bool {
	lifetime := sb.s.m.cfg.MaxLifetime
	return lifetime > 0 && now.Sub(sb.created) >= lifetime
}

func (sb *sessionSandbox) isReady() bool {
	select {
	case <-sb.ready:
		return true
	default:
		return false
	}
}

// isDead reports whether the sandbox can no longer start runs.
func (sb *sessionSandbox) isDead() bool {
	return sb.ctx.Err() != nil || sb.isReady() && (sb.err != nil || sb.conn.Err() != nil)
}

// usage returns the sandbox's counters; zero where the backend cannot read them.
func (sb *sessionSandbox) usage() sandbox.Usage {
	if m, ok := sb.inner.(sandbox.Meter); ok {
		if u, err := m.Usage(); err == nil {
			return u
		}
	}
	return sandbox.Usage{}
}

// sandboxRequest describes the sandbox that a run needs.
type sandboxRequest struct {
	s       *Session
	runner  runner.Runner
	sources sandbox.Sources
	network bool
	stops   uint64 // Session.stops when the run was requested

	waiter  *roomWaiter // nil if the run has not waited for room
	preempt bool        // another caller's run may be stopped to make room
}

// acquire returns a started sandbox of the session and counts one run on it until release. Runs
// that need the same sandbox wait for one start, which continues even if they give up.
func (m *Manager) acquire(ctx context.Context, s *Session, r runner.Runner, network bool, stops uint64) (*sessionSandbox, error) {
	sb, err := m.take(ctx, sandboxRequest{
		s: s, runner: r, sources: sandbox.SourcesOf(r.Mounts), network: network, stops: stops,
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-sb.ready:
		err = sb.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		m.release(sb)
		return nil, err
	}
	return sb, nil
}

// takeLocked returns the session's sandbox for the request, which may not have started yet.
func (m *Manager) takeLocked(req sandboxRequest) (*sessionSandbox, error) {
	s := req.s
	switch limit := m.cfg.MaxRunsPerSession; {
	case m.closed, m.draining && len(s.sandboxes) == 0:
		return nil, ErrClosed
	case s.ended != nil || s.stops != req.stops:
		return nil, errEnded
	case limit > 0 && s.runs >= limit:
		return nil, ErrTooManyRuns
	}
	now := time.Now()
	key := sandboxKey{environment(req.runner), req.network}
	sb := s.sandboxes[key]
	if sb != nil && (sb.isDead() || sb.isExpired(now) || !sb.sources.Same(req.sources)) {
		m.retireLocked(sb)
		sb = nil
	}
	if sb == nil {
		var err error
		if sb, err = m.addLocked(req, key, now); err != nil {
			return nil, err
		}
	}
	sb.runs++
	s.runs++
	s.begun++
	s.refs++
	m.stats.of(s.caller).ActiveRuns++
	m.removeIdleLocked(s)
	return sb, nil
}

// addLocked makes room for a sandbox of the session and begins to start it.
func (m *Manager) addLocked(req sandboxRequest, key sandboxKey, now time.Time) (*sessionSandbox, error) {
	s := req.s
	var wait predecessors
	if len(s.sandboxes) == 0 && m.isFullLocked(req.waiter) {
		var err error
		if wait.evicted, err = m.makeRoomLocked(s.caller, now, req.preempt); err != nil {
			return nil, err
		}
	}
	sb := &sessionSandbox{s: s, key: key, sources: req.sources, created: now,
		ready: make(chan struct{}), gone: make(chan struct{}),
		interpreters: map[interpreterKey]bool{}, zygotes: map[string]bool{}}
	sb.ctx, sb.close = context.WithCancel(m.ctx)
	if len(s.sandboxes) == 0 {
		m.live++
		m.held[s.caller]++
	}
	wait.ending = m.excessEndingLocked(s.caller)
	s.sandboxes[key] = sb
	m.sandboxes[sb] = struct{}{}
	spec := m.spec(req)
	m.wg.Go(func() { m.serve(sb, spec, wait) })
	return sb, nil
}

func (m *Manager) removeIdleLocked(s *Session) {
	if s.idle != nil {
		m.idle.Remove(s.idle)
		s.idle = nil
	}
}

// release ends the run that acquire counted.
func (m *Manager) release(sb *sessionSandbox) {
	s := sb.s
	m.mu.Lock()
	sb.runs--
	s.runs--
	m.stats.of(s.caller).ActiveRuns--
	s.lastUsed = time.Now()
	if sb.retired && sb.runs == 0 {
		sb.close()
	}
	if s.runs == 0 && len(s.sandboxes) > 0 {
		s.idle = m.idle.PushBack(s)
		m.wakeLocked()
	}
	m.mu.Unlock()
	s.Release()
}

// retireAllLocked retires every sandbox of a session and returns them.
func (m *Manager) retireAllLocked(s *Session) (sandboxes []*sessionSandbox) {
	for _, sb := range s.sandboxes {
		sandboxes = append(sandboxes, sb)
		m.retireLocked(sb)
	}
	return sandboxes
}

// retireLocked removes the sandbox from its session, so that it gets no further run, and ends it
// when its last run has ended. Release m.mu with unlock.
func (m *Manager) retireLocked(sb *sessionSandbox) {
	if sb.retired {
		return
	}
	sb.retired = true
	if sb.runs == 0 {
		sb.close()
	}
	s := sb.s
	delete(s.sandboxes, sb.key)
	s.ending[sb] = struct{}{}
	m.ending = append(m.ending, sb)
	if len(s.sandboxes) > 0 {
		return
	}
	m.live--
	m.wakeLocked()
	if m.held[s.caller]--; m.held[s.caller] == 0 {
		delete(m.held, s.caller)
	}
	m.removeIdleLocked(s)
	m.forgetLocked(s)
}

func (m *Manager) retire(sb *sessionSandbox) {
	m.mu.Lock()
	defer m.unlock()
	m.retireLocked(sb)
}

// spec returns the Spec of a session's sandbox.
func (m *Manager) spec(req sandboxRequest) sandbox.Spec {
	var b [8]byte
	rand.Read(b[:]) // never fails
	spec := m.runnerSpec(req.runner, req.network)
	spec.ID = req.s.key[:12] + "-" + hex.EncodeToString(b[:])
	spec.Session, spec.SessionID = req.s.key, req.s.id
	spec.Workspace = filepath.Join(req.s.dir, filesDir)
	return spec
}

// runnerSpec returns the parts of a Spec that do not depend on the session.
func (m *Manager) runnerSpec(r runner.Runner, network bool) sandbox.Spec {
	limits := m.cfg.Limits
	if r.MemoryMB > 0 {
		limits.MemoryBytes = int64(r.MemoryMB) << 20
	}
	return sandbox.Spec{
		Runner:  r.Name,
		Image:   cmp.Or(r.ImageID, r.Image),
		Wrapper: r.Wrapper,
		Mounts:  r.Mounts,
		Network: network,
		Forward: m.cfg.Dial != nil,
		Limits:  limits,
		Zygotes: r.Zygotes(), Prestart: r.Prestarted(),
	}
}

// environment identifies the files and the image that a sandbox starts with. Runners with the same
// environment, such as TypeScript and JavaScript, share sandboxes. A runner that was reinstalled
// gets new ones.
func environment(r runner.Runner) string {
	if len(r.Mounts) == 0 && r.ImageID == "" {
		return r.Image
	}
	parts := []string{r.ImageID}
	if r.MemoryMB > 0 {
		parts = append(parts, fmt.Sprint(r.MemoryMB, " MB"))
	}
	for _, m := range r.Mounts {
		parts = append(parts, m.Source, m.Target)
	}
	return strings.Join(parts, "\x00")
}

// Spec describes the sandboxes of a runner without network, for any session.
func (m *Manager) Spec(r runner.Runner) sandbox.Spec { return m.runnerSpec(r, false) }

// serve manages one sandbox from its start to its end.
func (m *Manager) serve(sb *sessionSandbox, spec sandbox.Spec, wait predecessors) {
	defer func() {
		m.mu.Lock()
		delete(m.sandboxes, sb)
		delete(sb.s.ending, sb)
		m.ending = slices.DeleteFunc(m.ending, func(other *sessionSandbox) bool { return other == sb })
		m.mu.Unlock()
		close(sb.gone)
	}()
	if sb.err = m.awaitPredecessors(sb, wait); sb.err == nil {
		sb.err = m.start(sb, spec)
	}
	if sb.err != nil {
		m.retire(sb)
		close(sb.ready)
		return
	}
	close(sb.ready)
	select {
	case <-sb.conn.Done(): // also if the sandbox died
	case <-sb.ctx.Done():
	}
	sb.close()
	m.retire(sb)
	sb.weight.Restore()
	lost := sb.conn.Err()
	m.end(sb)
	_ = sb.conn.Close()
	if lost != nil && !errors.Is(lost, wire.ErrClosed) {
		m.log.Warn("sandbox lost", "session_id", sb.s.id, "sandbox", sb.id,
			"error", lost, "cause", string(sb.exit.Cause), "detail", sb.exit.Detail)
	}
}

// predecessors are the ending sandboxes that a new one waits for.
type predecessors struct {
	evicted []*sessionSandbox // to make room; waits at most endWait
	ending  []*sessionSandbox // see excessEndingLocked; waits at most startWait
}

// excessEndingLocked returns the ending sandboxes that must be gone before the caller's next one
// starts. They count towards MaxSessions, but only for their own caller, so that sandboxes that end
// slowly delay nobody else. All callers together may have twice as many.
func (m *Manager) excessEndingLocked(caller Caller) []*sessionSandbox {
	if m.cfg.MaxSessions <= 0 {
		return nil
	}
	var own, all []*sessionSandbox // oldest first
	for _, sb := range m.ending {
		if sb.ctx.Err() == nil {
			continue // a run still uses it
		}
		if all = append(all, sb); sb.s.caller == caller {
			own = append(own, sb)
		}
	}
	excess := func(sandboxes []*sessionSandbox, limit int) []*sessionSandbox {
		return sandboxes[:min(max(m.live+len(sandboxes)-limit, 0), len(sandboxes))]
	}
	first := excess(own, m.cfg.MaxSessions)
	if caller != Local {
		first = append(first, excess(all, 2*m.cfg.MaxSessions)...)
	}
	return first
}

// awaitPredecessors waits until sb may start. Its error is an *OverloadError, ErrClosed or
// errEnded.
func (m *Manager) awaitPredecessors(sb *sessionSandbox, wait predecessors) error {
	err := m.awaitGone(sb, wait.evicted, endWait)
	if err == nil || errors.Is(err, errSlowEnd) {
		err = m.awaitGone(sb, wait.ending, startWait)
	}
	return err
}

func (m *Manager) awaitGone(sb *sessionSandbox, sandboxes []*sessionSandbox, wait time.Duration) error {
	late := time.NewTimer(wait)
	defer late.Stop()
	for _, old := range sandboxes {
		select {
		case <-old.gone:
		case <-late.C:
			return overloaded(errSlowEnd)
		case <-sb.ctx.Done():
			switch {
			case m.ctx.Err() != nil:
				return ErrClosed
			case m.isPreempted(sb):
				return overloaded(errors.New("another caller needed the room"))
			}
			return errEnded
		}
	}
	return nil
}

func (m *Manager) isPreempted(sb *sessionSandbox) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return sb.preempted != nil
}

// start starts the sandbox when it is the caller's turn. The wait does not count as start time.
func (m *Manager) start(sb *sessionSandbox, spec sandbox.Spec) error {
	ctx, cancel := context.WithTimeout(sb.ctx, startWait)
	defer cancel()
	for attempt := 1; ; attempt++ {
		turn, err := m.starts.Acquire(ctx, sb.s.caller.ID, 1)
		if err == nil {
			err = m.startOnce(sb, spec)
			turn.Release()
		} else {
			err = overloaded(fmt.Errorf("waiting for earlier sandbox starts: %w", err))
		}
		var overload *OverloadError
		switch {
		case err == nil:
			return nil
		case m.ctx.Err() != nil:
			return ErrClosed
		case turn == nil && sb.ctx.Err() != nil && !m.isPreempted(sb):
			return errEnded
		case errors.As(err, &overload) && attempt < startAttempts && ctx.Err() == nil:
			m.log.Warn("a sandbox took too long to start; trying again",
				"session_id", sb.s.id, "runner", spec.Runner, "error", err)
		default:
			m.log.Error("cannot start a sandbox", "session_id", sb.s.id, "runner", spec.Runner, "error", err)
			return err
		}
	}
}

// startOnce tries to start the sandbox. Its error is an *OverloadError if that took too long.
func (m *Manager) startOnce(sb *sessionSandbox, spec sandbox.Spec) error {
	ctx, cancel := context.WithTimeoutCause(m.ctx, startTimeout,
		fmt.Errorf("the sandbox was not ready within %v: %w", startTimeout, context.DeadlineExceeded))
	defer cancel()
	began := time.Now()
	inner, err := m.cfg.Backend.Start(ctx, spec)
	switch {
	case err != nil && ctx.Err() != nil:
		return overloaded(context.Cause(ctx))
	case errors.Is(err, context.DeadlineExceeded):
		return overloaded(err)
	case err != nil:
		return err
	}
	sb.inner, sb.id = inner, inner.ID() // a pooled sandbox has its own ID
	sb.conn = wire.NewConn(inner.Conn(), wire.ServerSide, m.dialer(sb.id))
	sb.weight = m.weights.Weigh(sb.s.caller.ID, inner, sb.usage)
	m.log.Debug("sandbox started", "session_id", sb.s.id, "sandbox", sb.id, "runner", spec.Runner,
		"network", spec.Network, "duration_ms", time.Since(began).Milliseconds())
	return nil
}

func (m *Manager) dialer(sandboxID string) func(*wire.Stream, wire.Frame) {
	if m.cfg.Dial == nil {
		return nil
	}
	return func(s *wire.Stream, f wire.Frame) {
		defer s.Close()
		m.cfg.Dial(m.ctx, sandboxID, f.Host, s)
	}
}

// end closes the sandbox. It returns when the sandbox has ended, or after closeAttempts timeouts.
func (m *Manager) end(sb *sessionSandbox) {
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		err := sb.inner.Close(ctx)
		if err == nil {
			sb.exit, _ = sb.inner.Wait(ctx)
		}
		cancel()
		if err == nil {
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) || attempt == closeAttempts || m.ctx.Err() != nil {
			m.log.Error("cannot end a sandbox", "session_id", sb.s.id, "sandbox", sb.id, "error", err)
			return
		}
		m.log.Warn("a sandbox is slow to end", "session_id", sb.s.id, "sandbox", sb.id)
	}
}
