package session

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/session/storage"
	"mcp-code-sandbox/internal/workspace"
)

const (
	// diskReserve and filesReserve are what runs and uploads leave free of the disk; see reserve.
	diskReserve  = 1 << 30
	filesReserve = 100_000
	// shortageGap is how long after a shortage was last seen the next one counts as new.
	shortageGap = time.Second
)

// diskGuard stops runs when the disk is short.
type diskGuard struct {
	choosing sync.Mutex // held by stopWriter; guards the next fields
	shortage storage.Shortage
	free     int64     // of the disk when the shortage began
	seen     time.Time // when it was last seen

	mu      sync.Mutex
	watches map[*diskWatch]struct{} // of all runs
	stopped *Session                // by stopWriter, until its runs have ended
}

// reserve returns what the session's runs and uploads must leave free of the disk. The operator may
// use half of the free space.
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

// DiskIsFull reports whether the disk that holds the session's files has almost no space left, or
// almost no room for files.
func (s *Session) DiskIsFull() bool {
	const little, few = 4 << 20, 16 // a write that failed may have left some
	d, err := s.ws.Disk()
	return err == nil && (d.FreeBytes < little || d.Files > 0 && d.FreeFiles < few)
}

// checkShortage returns a *DiskError if the disk is short and the session's caller has recently
// filled it the most. Before that it deletes the caller's closed sessions.
func (s *Session) checkShortage() error {
	for s.caller != Local {
		disk, err := s.ws.Disk()
		sh := storage.ShortageOf(disk, s.reserve())
		if fastest, _ := s.m.stored.Fastest(sh); err != nil || sh == storage.None || fastest != s.caller.ID {
			return nil
		}
		closed := s.m.stored.OldestClosed(s.caller.ID)
		if closed == "" {
			return &DiskError{}
		}
		s.m.deleteClosed(closed)
	}
	return nil
}

// stopWriter stops the runs of the caller that has recently filled the disk the most, in its
// session that has grown the most. It does nothing until the runs that it stopped last have ended.
func (m *Manager) stopWriter(ctx context.Context, sh storage.Shortage, disk workspace.Disk) {
	guard := &m.disk
	if !guard.choosing.TryLock() {
		return
	}
	defer guard.choosing.Unlock()
	guard.mu.Lock()
	watches, stopped := slices.Collect(maps.Keys(guard.watches)), guard.stopped
	guard.mu.Unlock()
	growth := map[*Session]int64{} // since the session's runs began
	for _, w := range watches {
		if w.s == stopped {
			return
		}
		w.measure(ctx, workspace.Usage{})
		growth[w.s] = max(growth[w.s], w.growth(sh))
	}
	fastest, most := m.stored.Fastest(sh)
	var operator int64 // of the operator only what runs counts
	for s, n := range growth {
		if s.caller == Local {
			operator += n
		}
	}
	if operator > most {
		fastest, most = Local.ID, operator
	}
	largest := largestGrowth(sh, growth, func(s *Session) bool { return s.caller.ID == fastest })
	if largest == nil && sh.IsGrowth(most) && guard.mustSpare(sh, sh.Free(disk)) {
		return
	}
	if largest == nil {
		largest = largestGrowth(sh, growth, func(*Session) bool { return true })
	}
	if largest == nil || ctx.Err() != nil {
		return
	}
	m.log.Warn("the disk is nearly full: stopping a session of the caller that wrote the most",
		"session_id", largest.id, "growth", growth[largest])
	guard.mu.Lock()
	guard.stopped = largest
	guard.mu.Unlock()
	for _, w := range watches {
		if w.s == largest {
			w.starved.Store(true)
			w.over()
		}
	}
}

// mustSpare reports whether running sessions must be left alone because the caller that filled the
// disk has no run to stop, and is refused further ones. It returns false after the disk has lost
// half of what was free when the shortage began. g.choosing is held.
func (g *diskGuard) mustSpare(sh storage.Shortage, free int64) bool {
	now := time.Now()
	if g.shortage != sh || now.Sub(g.seen) > shortageGap || free > g.free {
		g.shortage, g.free = sh, free
	}
	g.seen = now
	return free > g.free/2
}

func largestGrowth(sh storage.Shortage, growth map[*Session]int64, candidate func(*Session) bool) (largest *Session) {
	for s, n := range growth {
		if candidate(s) && sh.IsGrowth(n) && (largest == nil || n > growth[largest]) {
			largest = s
		}
	}
	return largest
}
