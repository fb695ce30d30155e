package session

import (
	"context"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

const (
	// fileSlack lets a file that is stopped by its size exceed the room that there is.
	fileSlack = 4096
	// minGrowth is what somebody must have written to be the one that fills the disk.
	minGrowth = 1 << 20
	// heldTimeout is how long an agent may take to look at the files that its runs have open.
	heldTimeout = 2 * time.Second
	// idleLook is how often the free disk is looked at while interpreters are idle, and idleStep how much less of it must be free for
	// their sessions to be measured.
	idleLook = time.Second
	idleStep = 64 << 20
)

// diskWatch watches what a session writes while a run of it goes. The session's other runs have watches of their own.
type diskWatch struct {
	s       *Session
	b       *box
	limit   workspace.Usage
	full    bool
	over    func()
	began   time.Time
	was     workspace.Usage // see diskUsage
	base    int64           // the session's bytes when it began
	free    int64           // that the disk had then
	reserve int64
	grown   atomic.Int64 // bytes since then, as last measured

	cancel context.CancelFunc
	timer  *time.Timer
	done   chan struct{}
}

// watchDisk calls over once if the session's files, deleted ones that are open included, outgrow the limit or the caller's share, or if
// the disk is short and nobody has written more. After stop has returned it does nothing any more. A run that is over before the
// first walk costs a timer.
func (s *Session) watchDisk(b *box, limit workspace.Usage, full bool, over func()) *diskWatch {
	w := &diskWatch{s: s, b: b, limit: limit, full: full, over: over, began: time.Now(), was: s.diskUsage(limit)}
	if limit == (workspace.Usage{}) && !s.limitsBytes() {
		return w
	}
	s.usageMu.Lock()
	if s.usage != nil {
		w.base = s.m.countable(*s.usage)
	}
	s.usageMu.Unlock()
	w.free, _ = s.ws.Free()
	w.reserve = s.reserve()
	w.done = make(chan struct{})
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.Background())
	s.m.watchMu.Lock()
	s.m.watches[w] = struct{}{}
	s.m.watchMu.Unlock()
	first := firstWalk
	if full {
		first = fullWalk
	}
	w.timer = time.AfterFunc(first, func() {
		defer close(w.done)
		w.watch(ctx)
	})
	return w
}

func (w *diskWatch) stop() {
	if w.cancel == nil {
		return
	}
	w.cancel()
	if !w.timer.Stop() {
		<-w.done
	}
	w.s.m.watchMu.Lock()
	defer w.s.m.watchMu.Unlock()
	delete(w.s.m.watches, w)
	for o := range w.s.m.watches {
		if o.s == w.s {
			return
		}
	}
	if w.s.m.stopped == w.s {
		w.s.m.stopped = nil
	}
}

func (w *diskWatch) watch(ctx context.Context) {
	var next time.Time // of the walks, which cost more than a look at the disk
	for {
		if free, err := w.s.ws.Free(); err == nil && free < w.reserve {
			w.s.m.stopLargestWriter(ctx)
		}
		if now := time.Now(); !now.Before(next) {
			if w.isOver(ctx, now) {
				w.over()
				return
			}
			next = now.Add((1 + walkShare) * time.Since(now))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(minWalk):
		}
	}
}

// isOver measures and reports whether the run must be stopped for what its session holds.
func (w *diskWatch) isOver(ctx context.Context, now time.Time) bool {
	bound := w.limit
	if w.full && now.Sub(w.began) < cleanTime {
		bound = w.was
	}
	u, ok := w.measure(ctx, bound)
	return ok && (exceeds(u, bound) || w.exceedsCaller(u.Bytes))
}

// measure walks the workspace, at most until bound is exceeded, and adds what the walk does not see.
func (w *diskWatch) measure(ctx context.Context, bound workspace.Usage) (workspace.Usage, bool) {
	u, err := w.s.ws.Usage(ctx, bound)
	if err != nil {
		return u, false
	}
	held := w.s.held(ctx)
	bytes := w.s.m.countable(u) + held.Bytes
	if held.Hidden {
		bytes = max(bytes, w.base+w.unexplained())
	}
	w.grown.Store(bytes - w.base)
	w.s.m.stored.set(w.s.dir, bytes)
	if !u.Unknown() {
		u.Bytes = bytes
	}
	return u, true
}

// isHoarding reports whether an interpreter that was interrupted for what it wrote still has it, in files that nobody can delete.
func (w *diskWatch) isHoarding() bool {
	ctx, cancel := context.WithTimeout(context.Background(), lastWalk)
	defer cancel()
	u, ok := w.measure(ctx, workspace.Usage{})
	seen, err := w.s.ws.Usage(ctx, workspace.Usage{})
	return ok && err == nil && u.Bytes-seen.Bytes >= minGrowth && (exceeds(u, w.limit) || w.exceedsCaller(u.Bytes))
}

// exceedsCaller reports whether the caller's bytes are used up while the session, which holds so many, has grown.
func (w *diskWatch) exceedsCaller(bytes int64) bool {
	return w.s.limitsBytes() && bytes > w.base && w.s.m.excess(w.s.caller) > 0
}

// unexplained is by how much the disk has filled since the watch began, less what other sessions have written. It stands in for
// what cannot be seen of a run that hides open files.
func (w *diskWatch) unexplained() int64 {
	free, err := w.s.ws.Free()
	if err != nil || w.free == 0 {
		return 0
	}
	taken := w.free - free
	others := map[*Session]int64{}
	w.s.m.watchMu.Lock()
	defer w.s.m.watchMu.Unlock()
	for o := range w.s.m.watches {
		if o.s != w.s {
			others[o.s] = max(others[o.s], o.grown.Load())
		}
	}
	for _, grown := range others {
		taken -= grown
	}
	return max(taken, 0)
}

// held is what deleted files take that are open in the session's sandboxes.
func (s *Session) held(ctx context.Context) (sum sandbox.Held) {
	s.m.mu.Lock()
	var boxes []*box
	for b := range s.m.boxes {
		if b.s == s {
			boxes = append(boxes, b)
		}
	}
	s.m.mu.Unlock()
	for _, b := range boxes {
		select {
		case <-b.ready:
		default:
			continue
		}
		if b.err != nil {
			continue
		}
		h, err := b.held(ctx)
		if err != nil {
			h.Hidden = b.conn.Err() == nil
		}
		sum.Bytes += h.Bytes
		sum.Hidden = sum.Hidden || h.Hidden
	}
	return sum
}

func (b *box) held(ctx context.Context) (sandbox.Held, error) {
	if m, ok := b.sb.(sandbox.HeldMeter); ok {
		return m.Held()
	}
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	stream, err := b.conn.Open(wire.Frame{Type: wire.TypeRun, Run: &wire.Run{Held: true}})
	if err != nil {
		return sandbox.Held{}, err
	}
	for {
		f, err := stream.Recv(ctx)
		if err != nil {
			_ = stream.Close()
			return sandbox.Held{}, err
		}
		if f.Type == wire.TypeExit {
			return sandbox.Held{Bytes: f.Exit.HeldBytes, Hidden: f.Exit.HeldMore}, nil
		}
	}
}

// stopLargestWriter stops the runs of the session that has written the most since its runs began, or ends the sandboxes of an
// idle one that has. It does nothing while the last one that it stopped has not ended, and where nobody has written anything.
func (m *Manager) stopLargestWriter(ctx context.Context) {
	if !m.choosing.TryLock() {
		return
	}
	defer m.choosing.Unlock()
	m.watchMu.Lock()
	watches := make([]*diskWatch, 0, len(m.watches))
	for w := range m.watches {
		watches = append(watches, w)
	}
	stopped := m.stopped
	m.watchMu.Unlock()
	for _, w := range watches {
		if w.s == stopped {
			return
		}
	}
	var largest *diskWatch
	for _, w := range watches {
		w.measure(ctx, workspace.Usage{})
		if w.grown.Load() >= minGrowth && (largest == nil || w.grown.Load() > largest.grown.Load()) {
			largest = w
		}
	}
	if largest == nil || ctx.Err() != nil {
		return
	}
	m.log.Warn("the disk is nearly full: stopping the session that wrote the most", "session_id", largest.s.id, "bytes", largest.grown.Load())
	m.watchMu.Lock()
	m.stopped = largest.s
	m.watchMu.Unlock()
	for _, w := range watches {
		if w.s == largest.s {
			w.over()
		}
	}
}

// idleLoop watches what interpreters write between their cells.
func (m *Manager) idleLoop() {
	tick := time.NewTicker(idleLook)
	defer tick.Stop()
	step := int64(idleStep)
	if q := m.cfg.Quota.Bytes; q > 0 {
		step = min(step, q/4)
	}
	var last int64
	var next time.Time
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		sessions := m.idleInterpreters()
		if len(sessions) == 0 {
			last = 0
			continue
		}
		free, err := sessions[0].ws.Free()
		if last == 0 || free > last {
			last = free
		}
		if began := time.Now(); err == nil && last-free >= step && began.After(next) {
			for _, s := range sessions {
				m.checkIdle(s, free)
			}
			last, next = free, began.Add((1+walkShare)*time.Since(began))
		}
		for _, s := range sessions {
			s.Release()
		}
	}
}

// idleInterpreters holds the sessions that have an interpreter and no run.
func (m *Manager) idleInterpreters() (sessions []*Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.idle.Front(); e != nil; e = e.Next() {
		if s := e.Value.(*Session); s.statefulLocked() && s.ws != nil {
			s.refs++
			sessions = append(sessions, s)
		}
	}
	return sessions
}

// checkIdle ends the sandboxes of an idle session that has grown beyond what it may hold, or that grows while the disk is short.
func (m *Manager) checkIdle(s *Session, free int64) {
	limit, full := s.diskLimit()
	w := &diskWatch{s: s, limit: limit, was: s.diskUsage(limit), full: full, began: time.Now(), free: free}
	s.usageMu.Lock()
	if s.usage != nil {
		w.base = m.countable(*s.usage)
	}
	s.usageMu.Unlock()
	ctx, cancel := context.WithTimeout(m.ctx, lastWalk)
	defer cancel()
	over := w.isOver(ctx, w.began)
	if free < s.reserve() && w.grown.Load() >= minGrowth {
		over = true
	}
	if !over {
		return
	}
	m.mu.Lock()
	var forgotten []*Session
	if s.runs == 0 {
		m.log.Warn("ending the sandboxes of an idle session whose files grew too much", "session_id", s.id)
		_, forgotten = m.evictLocked(s)
	}
	m.mu.Unlock()
	m.forget(forgotten)
}
