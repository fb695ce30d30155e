package session

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

const (
	// fileSlack lets a file that is stopped by its size exceed the room that there is.
	fileSlack = 4096
	// heldTimeout is how long an agent may take to look at the files that its runs have open.
	heldTimeout = 2 * time.Second
	// nearLook is how often the free disk is looked at while it has less than nearReserve times the reserve.
	nearLook    = 25 * time.Millisecond
	nearReserve = 3
	// idleLook is how often the free disk is looked at while interpreters are idle, and idleStep how much less of it must be free for
	// their sessions to be measured.
	idleLook = time.Second
	idleStep = 64 << 20
	// idleFiles is likewise how many files fewer there must be room for.
	idleFiles = 10_000
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
	base    workspace.Usage // what the session held when it began
	free    int64           // bytes that the disk had then
	reserve workspace.Usage
	grown   atomic.Int64 // bytes since then, as last measured
	made    atomic.Int64 // files, likewise
	starved atomic.Bool  // over was called because the disk is short

	cancel context.CancelFunc
	timer  *time.Timer
	done   chan struct{}
}

// watchDisk calls over once if the session's files, deleted ones that are open included, outgrow the limit or the caller's share, or if
// the disk is short and the caller has written the most. After stop has returned it does nothing any more. A run that is over before the
// first walk costs a timer.
func (s *Session) watchDisk(b *box, limit workspace.Usage, full bool, over func()) *diskWatch {
	w := &diskWatch{s: s, b: b, limit: limit, full: full, over: over, began: time.Now(), was: s.diskUsage(limit)}
	if limit == (workspace.Usage{}) && !s.limitsUsage() {
		return w
	}
	s.usageMu.Lock()
	if s.usage != nil {
		w.base = s.m.countable(*s.usage)
	}
	s.usageMu.Unlock()
	disk, _ := s.ws.Disk()
	w.free = disk.FreeBytes
	w.reserve = s.reserve()
	w.done = make(chan struct{})
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.Background())
	s.m.watchMu.Lock()
	s.m.watches[w] = struct{}{}
	s.m.watchMu.Unlock()
	first := firstWalk
	if full || w.isNear(disk) {
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
		pause := minWalk
		if disk, err := w.s.ws.Disk(); err == nil {
			if sh := shortageOf(disk, w.reserve); sh != enough {
				w.s.m.stopWriter(ctx, sh, disk)
			}
			if w.isNear(disk) {
				pause = nearLook
			}
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
		case <-time.After(pause):
		}
	}
}

// isNear reports whether the disk is close to being short.
func (w *diskWatch) isNear(d workspace.Disk) bool {
	return shortageOf(d, workspace.Usage{Bytes: nearReserve * w.reserve.Bytes, Files: nearReserve * w.reserve.Files}) != enough
}

// isOver measures and reports whether the run must be stopped for what its session holds.
func (w *diskWatch) isOver(ctx context.Context, now time.Time) bool {
	bound := w.limit
	if w.full && now.Sub(w.began) < cleanTime {
		bound = w.was
	}
	u, ok := w.measure(ctx, bound)
	return ok && (exceeds(u, bound) || w.exceedsCaller(u))
}

// measure walks the workspace, at most until bound is exceeded, and adds what the walk does not see.
func (w *diskWatch) measure(ctx context.Context, bound workspace.Usage) (workspace.Usage, bool) {
	u, err := w.s.ws.Usage(ctx, bound)
	if err != nil {
		return u, false
	}
	held := w.s.held(ctx)
	use := w.s.m.countable(u)
	use.Bytes += held.Bytes
	if held.Hidden {
		use.Bytes = max(use.Bytes, w.base.Bytes+w.unexplained())
	}
	w.grown.Store(use.Bytes - w.base.Bytes)
	w.made.Store(int64(use.Files - w.base.Files))
	w.s.m.stored.setEntry(w.s.entry, use)
	if !u.Unknown() {
		u.Bytes = use.Bytes
	}
	return u, true
}

// isHoarding reports whether an interpreter that was interrupted for what it wrote still has it, in files that nobody can delete.
func (w *diskWatch) isHoarding() bool {
	ctx, cancel := context.WithTimeout(context.Background(), lastWalk)
	defer cancel()
	u, ok := w.measure(ctx, workspace.Usage{})
	seen, err := w.s.ws.Usage(ctx, workspace.Usage{})
	return ok && err == nil && u.Bytes-seen.Bytes >= minGrowth && (exceeds(u, w.limit) || w.exceedsCaller(u))
}

// exceedsCaller reports whether the caller's share is used up while the session, which holds so much, has grown.
func (w *diskWatch) exceedsCaller(u workspace.Usage) bool {
	if !w.s.limitsUsage() {
		return false
	}
	over := w.s.m.excess(w.s.caller)
	return over.Bytes > 0 && u.Bytes > w.base.Bytes || over.Files > 0 && u.Files > w.base.Files
}

// growth is by how much the session has grown in what the disk is short of, as last measured.
func (w *diskWatch) growth(sh shortage) int64 {
	if sh == ofFiles {
		return w.made.Load()
	}
	return w.grown.Load()
}

// unexplained is by how much the disk has filled since the watch began, less what other sessions have written. It stands in for
// what cannot be seen of a run that hides open files.
func (w *diskWatch) unexplained() int64 {
	disk, err := w.s.ws.Disk()
	if err != nil || w.free == 0 {
		return 0
	}
	taken := w.free - disk.FreeBytes
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
	if m, ok := b.sb.(sandbox.Meter); ok {
		if h, err := m.Held(); !errors.Is(err, errors.ErrUnsupported) {
			return h, err
		}
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

// idleLoop watches what interpreters write between their cells.
func (m *Manager) idleLoop() {
	tick := time.NewTicker(idleLook)
	defer tick.Stop()
	step := int64(idleStep)
	if q := m.cfg.Quota.Bytes; q > 0 {
		step = min(step, q/4)
	}
	few := int64(idleFiles)
	if q := m.cfg.Quota.Files; q > 0 {
		few = min(few, int64(q)/4)
	}
	var last workspace.Disk
	var next time.Time
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		sessions := m.idleInterpreters()
		if len(sessions) == 0 {
			last = workspace.Disk{}
			continue
		}
		disk, err := sessions[0].ws.Disk()
		last.FreeBytes, last.FreeFiles = max(last.FreeBytes, disk.FreeBytes), max(last.FreeFiles, disk.FreeFiles)
		filled := last.FreeBytes-disk.FreeBytes >= step || last.FreeFiles-disk.FreeFiles >= few
		if began := time.Now(); err == nil && filled && began.After(next) {
			for _, s := range sessions {
				m.checkIdle(s, disk)
			}
			last, next = disk, began.Add((1+walkShare)*time.Since(began))
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
func (m *Manager) checkIdle(s *Session, disk workspace.Disk) {
	limit, full := s.diskLimit()
	w := &diskWatch{s: s, limit: limit, was: s.diskUsage(limit), full: full, began: time.Now(), free: disk.FreeBytes}
	s.usageMu.Lock()
	if s.usage != nil {
		w.base = m.countable(*s.usage)
	}
	s.usageMu.Unlock()
	ctx, cancel := context.WithTimeout(m.ctx, lastWalk)
	defer cancel()
	over := w.isOver(ctx, w.began)
	if sh := shortageOf(disk, s.reserve()); sh.isGrowth(w.growth(sh)) {
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
