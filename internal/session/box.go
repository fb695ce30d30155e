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
	"sync"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// boxKey is what cannot change on a started sandbox.
type boxKey struct {
	environment string
	network     bool
}

// box is one sandbox of a session, from the moment its start is asked for until nothing is left of it.
type box struct {
	s       *Session
	id      string // of the sandbox; valid after ready
	key     boxKey
	mounts  sandbox.Sources // what is mounted in it
	created time.Time

	ready chan struct{} // closed when the start has succeeded or failed
	err   error         // why it failed; valid after ready
	sb    sandbox.Sandbox
	conn  *wire.Conn

	closeOnce sync.Once
	closing   chan struct{} // closed to end it
	gone      chan struct{} // closed when nothing is left of it
	exit      sandbox.Exit  // valid after gone

	weight weight

	// Guarded by m.mu.
	runs         int
	interpreters map[interpreterKey]bool // those in it that live on
	zygotes      map[string]bool         // those that its agent knows
	retired      bool                    // out of its session's boxes: no new run gets it, and it ends with its last one
	preempted    *Preemption             // why its runs were stopped; nil: they were not
	stopped      bool                    // by StopSession
}

// wanted is what a run needs a sandbox for.
type wanted struct {
	s       *Session
	runner  runner.Runner
	mounts  sandbox.Sources
	network bool
	stops   uint64 // of the session when the run was asked for

	waiter  *roomWaiter // nil: it has not waited for room
	preempt bool        // another caller's run may be stopped to make room
}

// tell is what the agent needs to be told for a run to come from that zygote.
func (b *box) tell(z *sandbox.Zygote) *wire.Zygote {
	if z == nil {
		return nil
	}
	b.s.m.mu.Lock()
	defer b.s.m.mu.Unlock()
	if b.zygotes[z.Name] {
		return &wire.Zygote{Name: z.Name}
	}
	if b.zygotes == nil {
		b.zygotes = map[string]bool{}
	}
	b.zygotes[z.Name] = true
	w := wire.Zygote(*z)
	return &w
}

// close ends the sandbox and whatever runs in it. It does not wait.
func (b *box) close() { b.closeOnce.Do(func() { close(b.closing) }) }

func (b *box) expired(now time.Time, lifetime time.Duration) bool {
	return lifetime > 0 && now.Sub(b.created) >= lifetime
}

// dead reports whether it is known that no run can be started on the sandbox.
func (b *box) dead() bool {
	if b.isClosing() {
		return true
	}
	select {
	case <-b.ready:
		return b.err != nil || b.conn.Err() != nil
	default:
		return false
	}
}

// acquire returns a started sandbox of the session and counts one run on it, until release. Runs that need
// the same sandbox wait for one start, which goes on whether or not the one who asked for it is still there.
func (m *Manager) acquire(ctx context.Context, s *Session, r runner.Runner, network bool, stops uint64) (*box, error) {
	b, err := m.take(ctx, wanted{s: s, runner: r, mounts: sandbox.SourcesOf(r.Mounts), network: network, stops: stops})
	if err != nil {
		return nil, err
	}
	select {
	case <-b.ready:
		err = b.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		m.release(b)
		return nil, err
	}
	return b, nil
}

func (m *Manager) takeLocked(want wanted) (*box, []*Session, error) {
	s, r, mounts, network := want.s, want.runner, want.mounts, want.network
	if m.closed {
		return nil, nil, ErrClosed
	}
	if s.ended != nil || s.stops != want.stops {
		return nil, nil, errEnded
	}
	if limit := m.cfg.MaxRunsPerSession; limit > 0 && s.runs >= limit {
		return nil, nil, ErrTooManyRuns
	}
	now := time.Now()
	var forgotten []*Session
	key := boxKey{environment: environment(r), network: network}
	b := s.boxes[key]
	if b != nil && (b.dead() || b.expired(now, m.cfg.MaxLifetime) || !b.mounts.Same(mounts)) {
		forgotten = m.retireLocked(b) // never s itself: its holder has a reference
		b = nil
	}
	if b == nil {
		var way makeWay
		if len(s.boxes) == 0 && m.isFullLocked(want.waiter) {
			var gone []*Session
			var err error
			way.victims, gone, err = m.makeRoomLocked(s.caller, now, want.preempt)
			if forgotten = append(forgotten, gone...); err != nil {
				return nil, forgotten, err
			}
		}
		spec := m.spec(s, r, network)
		b = &box{s: s, key: key, mounts: mounts, created: now,
			ready: make(chan struct{}), closing: make(chan struct{}), gone: make(chan struct{})}
		if len(s.boxes) == 0 {
			m.live++
			m.held[s.caller]++
		}
		way.first = m.firstLocked(s.caller)
		s.boxes[key] = b
		m.boxes[b] = struct{}{}
		m.wg.Go(func() { m.serve(b, spec, way) })
	}
	b.runs++
	s.runs++
	s.begun++
	s.refs++
	m.kindLocked(s.caller).runs++
	if s.idle != nil {
		m.idle.Remove(s.idle)
		s.idle = nil
	}
	return b, forgotten, nil
}

// release ends what acquire began.
func (m *Manager) release(b *box) {
	s := b.s
	m.mu.Lock()
	b.runs--
	s.runs--
	m.kindLocked(s.caller).runs--
	s.lastUsed = time.Now()
	if b.retired && b.runs == 0 {
		b.close()
	}
	if s.runs == 0 && len(s.boxes) > 0 {
		s.idle = m.idle.PushBack(s)
		m.wakeLocked()
	}
	m.mu.Unlock()
	s.Release()
}

// evictLocked retires every sandbox of a session that has no runs.
func (m *Manager) evictLocked(s *Session) (boxes []*box, forgotten []*Session) {
	for _, b := range s.boxes {
		boxes = append(boxes, b)
		forgotten = append(forgotten, m.retireLocked(b)...)
	}
	return boxes, forgotten
}

// retireLocked takes the sandbox from its session, so that no further run gets it, and ends it when its
// last run has ended.
func (m *Manager) retireLocked(b *box) []*Session {
	if b.retired {
		return nil
	}
	b.retired = true
	if b.runs == 0 {
		b.close()
	}
	s := b.s
	delete(s.boxes, b.key)
	if s.ending == nil {
		s.ending = map[*box]struct{}{}
	}
	s.ending[b] = struct{}{}
	m.ending = append(m.ending, b)
	if len(s.boxes) > 0 {
		return nil
	}
	m.live--
	m.wakeLocked()
	if m.held[s.caller]--; m.held[s.caller] == 0 {
		delete(m.held, s.caller)
	}
	if s.idle != nil {
		m.idle.Remove(s.idle)
		s.idle = nil
	}
	return m.forgetLocked(s)
}

func (m *Manager) retire(b *box) {
	m.mu.Lock()
	forgotten := m.retireLocked(b)
	m.mu.Unlock()
	m.forget(forgotten)
}

// spec is that of a session's sandbox.
func (m *Manager) spec(s *Session, r runner.Runner, network bool) sandbox.Spec {
	var b [8]byte
	rand.Read(b[:]) // never fails
	spec := m.kind(r, network)
	spec.ID = s.key[:12] + "-" + hex.EncodeToString(b[:])
	spec.Session, spec.SessionID = s.key, s.id
	spec.Workspace = filepath.Join(s.dir, filesDir)
	return spec
}

// kind is what the sandboxes of all sessions have in common.
func (m *Manager) kind(r runner.Runner, network bool) sandbox.Spec {
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
		Zygotes: r.Zygotes(),
	}
}

// Spec describes the sandboxes of a runner without network, for any session.
func (m *Manager) Spec(r runner.Runner) sandbox.Spec { return m.kind(r, false) }

// serve is the life of one sandbox: it makes room, starts, lasts until it dies or is told to end, and goes.
func (m *Manager) serve(b *box, spec sandbox.Spec, way makeWay) {
	defer func() {
		m.mu.Lock()
		delete(m.boxes, b)
		delete(b.s.ending, b)
		m.ending = slices.DeleteFunc(m.ending, func(other *box) bool { return other == b })
		m.mu.Unlock()
		close(b.gone)
	}()
	if b.err = m.start(b, spec, way); b.err != nil {
		m.retire(b)
		close(b.ready)
		return
	}
	close(b.ready)
	select {
	case <-b.conn.Done(): // also when the sandbox has died
	case <-b.closing:
	}
	b.close() // it may have died by itself
	m.retire(b)
	b.hasten()
	lost := b.conn.Err()
	m.end(b)
	_ = b.conn.Close()
	if lost != nil && !errors.Is(lost, wire.ErrClosed) {
		m.log.Warn("sandbox lost", "session_id", b.s.id, "sandbox", b.id,
			"err", lost, "cause", string(b.exit.Cause), "detail", b.exit.Detail)
	}
}

func (m *Manager) dialer(sandboxID string) func(*wire.Stream, wire.Frame) {
	if m.cfg.Dial == nil {
		return nil
	}
	return func(s *wire.Stream, _ wire.Frame) {
		defer s.Close()
		m.cfg.Dial(m.ctx, sandboxID, s)
	}
}

// environment names what a sandbox is started with for a runner. Runners that share it, as TypeScript and
// JavaScript do, share sandboxes; a runner that was installed anew gets new ones.
func environment(r runner.Runner) string {
	if len(r.Mounts) == 0 && r.ImageID == "" {
		return r.Image
	}
	var b strings.Builder
	b.WriteString(r.ImageID)
	b.WriteByte(0)
	if r.MemoryMB > 0 {
		fmt.Fprintf(&b, "%d MB\x00", r.MemoryMB)
	}
	for _, m := range r.Mounts {
		b.WriteString(m.Source)
		b.WriteByte(0)
		b.WriteString(m.Target)
		b.WriteByte(0)
	}
	return b.String()
}
