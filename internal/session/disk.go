package session

import (
	"context"
	"fmt"
	"time"

	"mcp-code-sandbox/internal/workspace"
)

const (
	firstWalk = 100 * time.Millisecond // after the run began
	cleanTime = 5 * time.Second        // in a workspace beyond all limits: time to delete, while it does not grow
	fullWalk  = 10 * time.Millisecond  // firstWalk in such a workspace
	minWalk   = 250 * time.Millisecond // between two walks
	walkShare = 10                     // a walk may take a tenth of the time
	lastWalk  = 10 * time.Second       // bounds the walk after a run

	// fullFileBytes is enough for the code of a run in a full workspace and for temporary files, which programs need that do
	// nothing but delete; that the workspace does not grow is for watchDisk to see.
	fullFileBytes = 1 << 20

	// overshootBytes is added to twice the quota: what is beyond can only be removed without code.
	overshootBytes = 64 << 20

	// diskReserve is what a run must leave free of the file system: files that are deleted but open fill it unseen by
	// any walk. Where there is little room from the start, half of it will do.
	diskReserve = 1 << 30
)

// measure walks the workspace if nobody has, so that diskLimit knows what was there before, and if it held too much: files may have
// been deleted since, and not by code.
func (s *Session) measure(ctx context.Context) {
	if s.m.cfg.Quota == (workspace.Usage{}) {
		return
	}
	s.usageMu.Lock()
	known := s.usage != nil && !exceeds(*s.usage, s.m.cfg.Quota)
	s.usageMu.Unlock()
	if known {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastWalk)
	defer cancel()
	if u, err := s.ws.Usage(ctx, workspace.Usage{}); err == nil {
		s.setUsage(u)
	}
}

func (s *Session) setUsage(u workspace.Usage) {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	s.usage = &u
}

// diskLimit is what the workspace may hold during a run, and whether it holds too much already. Such a
// workspace may not grow, but code that deletes files must be able to run in it. The limit never rises above
// twice the quota, however large the last run managed to make the workspace before it was stopped.
func (s *Session) diskLimit() (limit workspace.Usage, full bool) {
	q := s.m.cfg.Quota
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage == nil || !exceeds(*s.usage, q) {
		return q, false
	}
	return workspace.Usage{
		Bytes: min(max(q.Bytes, s.usage.Bytes), 2*q.Bytes),
		Files: min(max(q.Files, s.usage.Files), 2*q.Files),
	}, true
}

// checkDisk returns an error that is workspace.ErrQuota when the workspace is so far beyond its quota that no code may run in it:
// a run can make a full workspace grow a little before it is stopped, so without this the next one, and the next, would go on.
// One that nobody can measure is left to fresh runs, which may then write nothing at all.
func (s *Session) checkDisk(ctx context.Context, persistent bool) error {
	if _, full := s.diskLimit(); !full {
		return nil
	}
	var most workspace.Usage // many files, which code makes in no time, are for code to delete
	if q := s.m.cfg.Quota; q.Bytes > 0 {
		most.Bytes = 2*q.Bytes + overshootBytes
	}
	ctx, cancel := context.WithTimeout(ctx, lastWalk)
	defer cancel()
	u, err := s.ws.Usage(ctx, most)
	if tooMuch := exceeds(u, most) && !u.Unknown() || persistent && u.Unknown(); err != nil || !tooMuch {
		return nil
	}
	return fmt.Errorf("%w: the session's files take more than twice the room that they may, so its code may not run. "+
		"Delete some of them without code, or close the session", workspace.ErrQuota)
}

// fullFileLimit is the largest file that a fresh run may write in a full workspace.
func (s *Session) fullFileLimit(code string) int64 {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage != nil && s.usage.Unknown() {
		return 1
	}
	return max(fullFileBytes, 2*int64(len(code)))
}

// diskUsage is what the workspace held when it was last measured, at least the limit, in the fields that are limited.
func (s *Session) diskUsage(limit workspace.Usage) workspace.Usage {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage != nil && limit.Bytes > 0 {
		limit.Bytes = max(limit.Bytes, s.usage.Bytes)
	}
	if s.usage != nil && limit.Files > 0 {
		limit.Files = max(limit.Files, s.usage.Files)
	}
	return limit
}

func exceeds(u, limit workspace.Usage) bool {
	return limit.Bytes > 0 && u.Bytes > limit.Bytes || limit.Files > 0 && u.Files > limit.Files
}

// DiskIsFull reports whether the file system that holds the session's files has hardly any space left.
func (s *Session) DiskIsFull() bool {
	const little = 4 << 20 // a write that failed may have left some
	free, err := s.ws.Free()
	return err == nil && free < little
}

// watchDisk calls over once if the workspace outgrows the limit, or what no walk sees fills the disk. After stop has
// returned it does nothing any more. A run that is over before the first walk costs a timer.
func (s *Session) watchDisk(limit workspace.Usage, full bool, over func()) (stop func()) {
	if limit == (workspace.Usage{}) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	began, was := time.Now(), s.diskUsage(limit)
	free, freeErr := s.ws.Free()
	reserve := min(diskReserve, free/2)
	first := firstWalk
	if full {
		first = fullWalk
	}
	t := time.AfterFunc(first, func() {
		defer close(done)
		var next time.Time // of the walks, which cost more than a look at the disk
		for {
			if free, err := s.ws.Free(); freeErr == nil && err == nil && free < reserve {
				over()
				return
			}
			if now := time.Now(); !now.Before(next) {
				bound := limit
				if full && now.Sub(began) < cleanTime {
					bound = was
				}
				if u, err := s.ws.Usage(ctx, bound); err == nil && exceeds(u, bound) {
					over()
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
	})
	return func() {
		cancel()
		if !t.Stop() {
			<-done
		}
	}
}
