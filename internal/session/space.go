package session

import (
	"context"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/workspace"
)

const (
	// diskReserve and filesReserve are what runs and uploads must leave free of the file system. See reserve.
	diskReserve  = 1 << 30
	filesReserve = 100_000
	// minGrowth and minFiles are what somebody must have written, or made, to be the one that fills the disk.
	minGrowth = 1 << 20
	minFiles  = 1000
)

// shortage is what the disk is short of.
type shortage int

const (
	enough shortage = iota
	ofBytes
	ofFiles
)

func shortageOf(d workspace.Disk, reserve workspace.Usage) shortage {
	switch {
	case d.FreeBytes < reserve.Bytes:
		return ofBytes
	case d.FreeFiles < int64(reserve.Files):
		return ofFiles
	}
	return enough
}

// isGrowth reports whether somebody who has grown so much takes part in the shortage.
func (sh shortage) isGrowth(n int64) bool {
	return sh == ofBytes && n >= minGrowth || sh == ofFiles && n >= minFiles
}

// reserve is what the session's runs and uploads must leave free of the disk. The operator may use half of what is left.
func (s *Session) reserve() workspace.Usage {
	d, err := s.ws.Disk()
	if err != nil {
		return workspace.Usage{}
	}
	if s.caller == Local {
		return workspace.Usage{Bytes: min(diskReserve, d.FreeBytes/2), Files: int(min(filesReserve, d.FreeFiles/2))}
	}
	return workspace.Usage{Bytes: min(diskReserve, d.Bytes/16), Files: int(min(filesReserve, d.Files/8))}
}

// DiskIsFull reports whether the file system that holds the session's files has hardly any space left, or room for files.
func (s *Session) DiskIsFull() bool {
	const little, few = 4 << 20, 16 // a write that failed may have left some
	d, err := s.ws.Disk()
	return err == nil && (d.FreeBytes < little || d.Files > 0 && d.FreeFiles < few)
}

// recentMinutes is for how long it counts against a caller, where the disk is short, that its sessions have grown.
const recentMinutes = 10

// growth is by how much a caller's sessions have grown in one minute, less what was deleted.
type growth struct {
	minute int64 // since 1970
	use    workspace.Usage
}

func (acc *account) grow(bytes int64, files int) {
	now := time.Now().Unix() / 60
	g := &acc.recent[now%recentMinutes]
	if g.minute != now {
		*g = growth{minute: now}
	}
	g.use.Bytes += bytes
	g.use.Files += files
}

// fastest returns the caller whose sessions have grown the most lately in what the disk is short of, and by how much, or nobody. The
// operator is never it: what counts of the operator's is what runs.
func (a *accounts) fastest(sh shortage) (fastest Caller, most int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now().Unix() / 60
	for c, acc := range a.callers {
		var sum workspace.Usage
		for _, g := range acc.recent {
			if now-g.minute < recentMinutes {
				sum.Bytes += g.use.Bytes
				sum.Files += g.use.Files
			}
		}
		if n := sh.of(sum); c != Local && sh.isGrowth(n) && n > most {
			fastest, most = c, n
		}
	}
	return fastest, most
}

func (sh shortage) of(u workspace.Usage) int64 {
	if sh == ofFiles {
		return int64(u.Files)
	}
	return u.Bytes
}

// DiskError says that the disk is short and that the caller's sessions, which have grown the most lately, may not grow for now. It
// matches syscall.ENOSPC.
type DiskError struct{}

func (*DiskError) Error() string {
	return "the disk is nearly full, and the caller has filled it the most lately"
}

// Is reports whether target is syscall.ENOSPC.
func (*DiskError) Is(target error) bool { return target == syscall.ENOSPC }

// checkShortage returns a *DiskError where the disk is short and nobody has filled it more, lately, than the session's caller. The
// caller's closed sessions go first.
func (s *Session) checkShortage() error {
	for s.caller != Local {
		disk, err := s.ws.Disk()
		sh := shortageOf(disk, s.reserve())
		if fastest, _ := s.m.stored.fastest(sh); err != nil || sh == enough || fastest != s.caller {
			return nil
		}
		closed := s.m.stored.oldestClosed(s.caller, true)
		if closed == "" {
			return &DiskError{}
		}
		s.m.deleteClosed(closed)
	}
	return nil
}

// patience is how long it takes to forget what was free when the last shortage began.
const patience = time.Second

// mustSpare reports whether those who write must be left alone, since the one who filled the disk has nothing running that could be
// stopped, and is refused further runs. It is false once the disk has lost half of what was free then. m.choosing is held.
func (m *Manager) mustSpare(sh shortage, disk workspace.Disk) bool {
	free := disk.FreeBytes
	if sh == ofFiles {
		free = disk.FreeFiles
	}
	now := time.Now()
	if m.spared.shortage != sh || now.Sub(m.spared.at) > patience || free > m.spared.free {
		m.spared.shortage, m.spared.free = sh, free
	}
	m.spared.at = now
	return free > m.spared.free/2
}

// stopWriter stops the runs of the caller that has filled the disk the most lately, in the session that has grown the most since its
// runs began. It does nothing while the last one that it stopped has not ended, and where nobody has written anything.
func (m *Manager) stopWriter(ctx context.Context, sh shortage, disk workspace.Disk) {
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
	sessions := map[*Session]int64{} // by how much those have grown that run
	for _, w := range watches {
		if w.s == stopped {
			return
		}
		w.measure(ctx, workspace.Usage{})
		sessions[w.s] = max(sessions[w.s], w.growth(sh))
	}
	fastest, most := m.stored.fastest(sh)
	if n := sumOf(sessions, Local); n > most {
		fastest, most = Local, n
	}
	largest := largestOf(sh, sessions, func(s *Session) bool { return s.caller == fastest })
	if largest == nil && sh.isGrowth(most) && m.mustSpare(sh, disk) {
		return
	}
	if largest == nil {
		largest = largestOf(sh, sessions, func(*Session) bool { return true })
	}
	if largest == nil || ctx.Err() != nil {
		return
	}
	m.log.Warn("the disk is nearly full: stopping a session of the caller who wrote the most", "session_id", largest.id, "growth", sessions[largest])
	m.watchMu.Lock()
	m.stopped = largest
	m.watchMu.Unlock()
	for _, w := range watches {
		if w.s == largest {
			w.starved.Store(true)
			w.over()
		}
	}
}

func sumOf(sessions map[*Session]int64, caller Caller) (sum int64) {
	for s, n := range sessions {
		if s.caller == caller {
			sum += n
		}
	}
	return sum
}

func largestOf(sh shortage, sessions map[*Session]int64, candidate func(*Session) bool) (largest *Session) {
	for s, n := range sessions {
		if candidate(s) && sh.isGrowth(n) && (largest == nil || n > sessions[largest]) {
			largest = s
		}
	}
	return largest
}
