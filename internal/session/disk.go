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

	// overshootFiles is likewise by how many files a caller may exceed its share and still run code to delete some.
	overshootFiles = 10_000
)

// measure walks the workspace if nobody has, so that diskLimit knows what was there before, and if it held too much: files may have
// been deleted since, and not by code.
func (s *Session) measure(ctx context.Context) {
	if !s.isMeasured() {
		return
	}
	s.usageMu.Lock()
	known := s.usage != nil && !exceeds(*s.usage, s.m.cfg.Quota)
	s.usageMu.Unlock()
	if known {
		return
	}
	s.walk(ctx)
}

// walk measures the workspace.
func (s *Session) walk(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastWalk)
	defer cancel()
	if u, err := s.ws.Usage(ctx, workspace.Usage{}); err == nil {
		s.setUsage(u)
	}
}

// isMeasured reports whether anything limits what the session holds, so that its runs are measured.
func (s *Session) isMeasured() bool {
	return s.m.cfg.Quota != (workspace.Usage{}) || s.limitsUsage()
}

// settle measures the workspace of a session whose sandboxes have ended if the account may differ from it: code may have written
// since, and files that were deleted but open have counted.
func (s *Session) settle(ctx context.Context, wasLive bool) {
	s.usageMu.Lock()
	same := s.usage != nil && s.m.countable(*s.usage) == s.m.stored.holds(s.entry)
	s.usageMu.Unlock()
	if s.isMeasured() && (wasLive || !same) {
		s.walk(ctx)
	}
}

func (s *Session) setUsage(u workspace.Usage) {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	s.usage = &u
	s.m.stored.setEntry(s.entry, s.m.countable(u))
}

// grow adds a file to what is known of the workspace, and reports whether anything is.
func (s *Session) grow(bytes int64) bool {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage == nil || s.usage.Unknown() {
		return false
	}
	s.usage = &workspace.Usage{Bytes: s.usage.Bytes + bytes, Files: s.usage.Files + 1}
	s.m.stored.setEntry(s.entry, s.m.countable(*s.usage))
	return true
}

// staleBytes and staleFiles are by how much meta.json may be wrong about a session's size before it is written for that alone.
const (
	staleBytes = 64 << 10
	staleFiles = 100
)

// isStale reports whether meta.json is far from what the session holds.
func (s *Session) isStale() bool {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage == nil {
		return false
	}
	now := s.m.countable(*s.usage)
	return max(now.Bytes-s.noted.Bytes, s.noted.Bytes-now.Bytes) > staleBytes || max(now.Files-s.noted.Files, s.noted.Files-now.Files) > staleFiles
}

// measured puts into a session's meta.json what it holds, if that is known.
func (s *Session) measured(md *meta) {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage != nil {
		use := s.m.countable(*s.usage)
		md.Bytes, md.Files, s.noted = &use.Bytes, &use.Files, use
	}
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
