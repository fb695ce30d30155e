package session

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session/storage"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

const (
	firstWalk = 100 * time.Millisecond // after the run began
	fullWalk  = 10 * time.Millisecond  // the same in a full workspace, or if the disk is nearly short
	cleanTime = 5 * time.Second        // how long a run may take to shrink a full workspace
	minWalk   = 250 * time.Millisecond // between two walks
	quietWalk = time.Second            // the same while the disk seems to lose nothing
	walkShare = 10                     // walks take at most 1/walkShare of the time

	// storedSlack is by how much files may grow when the file system stores what was written: an
	// ext4 file in many pieces needs blocks for the list of them.
	storedSlack = 64 << 10

	// heldTimeout is how long an agent may take to count the open files of its runs.
	heldTimeout = 2 * time.Second
	// nearPoll is the interval of reading the free disk space while it has less than nearReserve
	// times the reserve.
	nearPoll    = 25 * time.Millisecond
	nearReserve = 3
	// idlePoll is the interval of reading the free disk space while interpreters are idle.
	idlePoll = time.Second
	// The disk has lost much after lostBytes or lostFiles, or a quarter of a limit.
	lostBytes = 64 << 20
	lostFiles = 10_000
)

// diskWatch watches what a session writes during one run. See docs/sharing.md.
type diskWatch struct {
	s       *Session
	limit   workspace.Usage
	full    bool            // the workspace exceeded the quota when the run began
	was     workspace.Usage // what it held at the start, but at least limit
	base    workspace.Usage // its charged usage at the start
	free    int64           // free bytes of the disk at the start
	walked  workspace.Disk  // the disk at the last walk, or at the start
	began   time.Time
	reserve workspace.Usage
	over    func() // called once when a limit is exceeded

	grownBytes atomic.Int64 // since the start, as last measured
	grownFiles atomic.Int64
	starved    atomic.Bool // over was called because the disk is short
	hid        atomic.Bool // the last measurement found a process that hides its files

	cancel context.CancelFunc // nil: nothing is watched
	timer  *time.Timer
	done   chan struct{}
}

func (s *Session) newDiskWatch() *diskWatch {
	limit, full := s.diskLimit()
	w := &diskWatch{s: s, limit: limit, full: full, was: limit, began: time.Now()}
	if u, ok := s.knownUsage(); ok {
		w.base = s.m.countable(u)
		if limit.Bytes > 0 {
			w.was.Bytes = max(limit.Bytes, min(u.Bytes, math.MaxInt64-storedSlack)+storedSlack)
		}
		if limit.Files > 0 {
			w.was.Files = max(limit.Files, u.Files)
		}
	}
	return w
}

// watchDisk calls over if the session's files, including deleted ones that are open, exceed the
// limit or the caller's limit, or if the disk is short and the caller has written the most. It does
// nothing after stop has returned. A run that ends before the first walk costs a timer.
func (s *Session) watchDisk(over func()) *diskWatch {
	w := s.newDiskWatch()
	if !s.isMeasured() {
		return w
	}
	disk, _ := s.ws.Disk()
	w.over, w.free, w.reserve, w.done = over, disk.FreeBytes, s.reserve(), make(chan struct{})
	w.walked = disk
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.Background())
	guard := &s.m.disk
	guard.mu.Lock()
	guard.watches[w] = struct{}{}
	guard.mu.Unlock()
	first := firstWalk
	if w.full || w.isNear(disk) {
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
	guard := &w.s.m.disk
	guard.mu.Lock()
	defer guard.mu.Unlock()
	delete(guard.watches, w)
	for other := range guard.watches {
		if other.s == w.s {
			return
		}
	}
	if guard.stopped == w.s {
		guard.stopped = nil
	}
}

// watch reads the free disk often, and walks when it may have lost something. Walks cost more: on a
// busy machine, where every run takes long, they would be most of the server's work.
func (w *diskWatch) watch(ctx context.Context) {
	var next time.Time // no walk before it
	quiet := w.began.Add(quietWalk)
	for {
		pause, urgent := minWalk, w.full
		disk, err := w.s.ws.Disk()
		if err == nil {
			if sh := storage.ShortageOf(disk, w.reserve); sh != storage.None {
				w.s.m.stopWriter(ctx, sh, disk)
			}
			if w.isNear(disk) {
				pause, urgent = nearPoll, true
			}
		}
		urgent = urgent || err != nil || w.s.m.hasLost(w.walked, disk)
		if now := time.Now(); !now.Before(next) && (urgent || !now.Before(quiet)) {
			if w.isOver(ctx, now) {
				w.over()
				return
			}
			next = now.Add((1 + walkShare) * time.Since(now))
			w.walked, quiet = disk, now.Add(quietWalk)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// hasLost reports whether the disk has lost so much that a session may have exceeded a limit.
func (m *Manager) hasLost(before, now workspace.Disk) bool {
	bytes, files := int64(lostBytes), int64(lostFiles)
	for _, limit := range []workspace.Usage{m.cfg.Quota, {Bytes: m.cfg.CallerBytes, Files: m.cfg.CallerFiles}} {
		if limit.Bytes > 0 {
			bytes = min(bytes, limit.Bytes/4)
		}
		if limit.Files > 0 {
			files = min(files, int64(limit.Files)/4)
		}
	}
	return before.FreeBytes-now.FreeBytes >= bytes || before.FreeFiles-now.FreeFiles >= files
}

// isNear reports whether the disk is nearly short.
func (w *diskWatch) isNear(d workspace.Disk) bool {
	near := workspace.Usage{Bytes: nearReserve * w.reserve.Bytes, Files: nearReserve * w.reserve.Files}
	return storage.ShortageOf(d, near) != storage.None
}

// isOver measures the session and reports whether it holds too much.
func (w *diskWatch) isOver(ctx context.Context, now time.Time) bool {
	limit := w.limit
	if w.full && now.Sub(w.began) < cleanTime {
		limit = w.was
	}
	u, ok := w.measure(ctx, limit)
	return ok && (u.Exceeds(limit) || w.exceedsCaller(u))
}

// measure walks the workspace until limit is exceeded, and adds deleted files that are open.
func (w *diskWatch) measure(ctx context.Context, limit workspace.Usage) (workspace.Usage, bool) {
	u, err := w.s.ws.Usage(ctx, limit)
	if err != nil {
		return u, false
	}
	held := w.s.held(ctx)
	if held.Hidden {
		held = w.s.held(ctx)
	}
	use := w.s.m.countable(u)
	use.Bytes += held.Bytes
	// A process that is about to exec hides for a moment. One that means to hide still does at the
	// next walk.
	if w.hid.Swap(held.Hidden) && held.Hidden {
		use.Bytes = max(use.Bytes, w.base.Bytes+w.unexplained())
	}
	w.grownBytes.Store(use.Bytes - w.base.Bytes)
	w.grownFiles.Store(int64(use.Files - w.base.Files))
	w.s.account.Set(use)
	if u.Unmeasured == "" {
		u.Bytes = use.Bytes
	}
	return u, true
}

// isHoarding reports whether an interpreter that was interrupted for what it wrote still has it
// open, in deleted files that nobody else can free.
func (w *diskWatch) isHoarding() bool {
	ctx, cancel := context.WithTimeout(context.Background(), lastWalk)
	defer cancel()
	u, ok := w.measure(ctx, workspace.Usage{})
	seen, err := w.s.ws.Usage(ctx, workspace.Usage{})
	return ok && err == nil && storage.OfBytes.IsGrowth(u.Bytes-seen.Bytes) &&
		(u.Exceeds(w.limit) || w.exceedsCaller(u))
}

// exceedsCaller reports whether the caller exceeds its limit and the session, which holds u, has
// grown.
func (w *diskWatch) exceedsCaller(u workspace.Usage) bool {
	if !w.s.limitsUsage() {
		return false
	}
	over := w.s.m.excess(w.s.caller)
	return over.Bytes > 0 && u.Bytes > w.base.Bytes || over.Files > 0 && u.Files > w.base.Files
}

// growth returns by how much the session has grown in the short resource, as last measured.
func (w *diskWatch) growth(sh storage.Shortage) int64 {
	return sh.Of(workspace.Usage{Bytes: w.grownBytes.Load(), Files: int(w.grownFiles.Load())})
}

// unexplained returns by how much the disk has filled since the watch began, less what other
// sessions have written, or 0 if that is little: other programs write to the disk, too. It is the
// estimate for a run that hides its open files.
func (w *diskWatch) unexplained() int64 {
	disk, err := w.s.ws.Disk()
	if err != nil || w.free == 0 {
		return 0
	}
	taken := w.free - disk.FreeBytes
	others := map[*Session]int64{}
	guard := &w.s.m.disk
	guard.mu.Lock()
	defer guard.mu.Unlock()
	for other := range guard.watches {
		if other.s != w.s {
			others[other.s] = max(others[other.s], other.grownBytes.Load())
		}
	}
	for _, grown := range others {
		taken -= grown
	}
	if !storage.OfBytes.IsGrowth(taken) {
		return 0
	}
	return taken
}

// held returns the size of deleted files that are open in the session's sandboxes.
func (s *Session) held(ctx context.Context) (sum sandbox.Held) {
	s.m.mu.Lock()
	var sandboxes []*sessionSandbox
	for sb := range s.m.sandboxes {
		if sb.s == s {
			sandboxes = append(sandboxes, sb)
		}
	}
	s.m.mu.Unlock()
	for _, sb := range sandboxes {
		if !sb.isReady() || sb.err != nil {
			continue
		}
		h, err := sb.held(ctx)
		if err != nil {
			h.Hidden = sb.conn.Err() == nil
		}
		sum.Bytes += h.Bytes
		sum.Hidden = sum.Hidden || h.Hidden
	}
	return sum
}

func (sb *sessionSandbox) held(ctx context.Context) (sandbox.Held, error) {
	if m, ok := sb.inner.(sandbox.Meter); ok {
		if h, err := m.Held(); !errors.Is(err, errors.ErrUnsupported) {
			return h, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	stream, err := sb.conn.Open(wire.Frame{Type: wire.TypeRun, Run: &wire.Run{Held: true}})
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
	tick := time.NewTicker(idlePoll)
	defer tick.Stop()
	var last workspace.Disk
	var next time.Time
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		sessions := m.holdIdleInterpreters()
		if len(sessions) == 0 {
			last = workspace.Disk{}
			continue
		}
		disk, err := sessions[0].ws.Disk()
		last.FreeBytes = max(last.FreeBytes, disk.FreeBytes)
		last.FreeFiles = max(last.FreeFiles, disk.FreeFiles)
		if began := time.Now(); err == nil && m.hasLost(last, disk) && began.After(next) {
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

// holdIdleInterpreters returns the sessions that have an interpreter and no run. They must be
// released.
func (m *Manager) holdIdleInterpreters() (sessions []*Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.idle.Front(); e != nil; e = e.Next() {
		if s := e.Value.(*Session); s.hasStateLocked() && s.ws != nil {
			s.refs++
			sessions = append(sessions, s)
		}
	}
	return sessions
}

// checkIdle ends the sandboxes of an idle session that holds too much, or grows while the disk is
// short.
func (m *Manager) checkIdle(s *Session, disk workspace.Disk) {
	w := s.newDiskWatch()
	w.free = disk.FreeBytes
	w.hid.Store(true) // nothing is about to start
	ctx, cancel := context.WithTimeout(m.ctx, lastWalk)
	defer cancel()
	over := w.isOver(ctx, w.began)
	if sh := storage.ShortageOf(disk, s.reserve()); !over && !sh.IsGrowth(w.growth(sh)) {
		return
	}
	m.mu.Lock()
	defer m.unlock()
	if s.runs == 0 {
		m.log.Warn("ending the sandboxes of an idle session whose files grew too much", "session_id", s.id)
		m.retireAllLocked(s)
	}
}
