package session

import (
	"context"
	"fmt"
	"time"

	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

const (
	lastWalk = 10 * time.Second // bounds a walk outside a run

	// fullFileBytes is the largest file that a run may write in a full workspace: enough for its
	// code and for temporary files of programs that only delete. watchDisk ensures that files
	// shrink.
	fullFileBytes = 1 << 20

	// overshootBytes is added to twice the quota. Above that, code cannot run: files can only be
	// deleted through the API.
	overshootBytes = 64 << 20
	// overshootFiles is how many files a caller may have above its limit and still run code that
	// deletes files.
	overshootFiles = 10_000

	// fileSlack lets a file that is stopped by its size exceed the rest of the caller's limit.
	fileSlack = 4096
)

// isMeasured reports whether any limit applies to what the session holds.
func (s *Session) isMeasured() bool {
	return s.m.cfg.Quota != (workspace.Usage{}) || s.limitsUsage()
}

// knownUsage returns what the workspace holds, as last measured, plus later uploads.
func (s *Session) knownUsage() (u workspace.Usage, ok bool) {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage == nil {
		return workspace.Usage{}, false
	}
	return *s.usage, true
}

func (s *Session) setUsage(u workspace.Usage) {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	s.usage = &u
	s.account.Set(s.m.countable(u))
}

// addFile adds a file to the known usage. It returns false if the usage is unknown.
func (s *Session) addFile(bytes int64) bool {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage == nil || s.usage.Unmeasured != "" {
		return false
	}
	s.usage = &workspace.Usage{Bytes: s.usage.Bytes + bytes, Files: s.usage.Files + 1}
	s.account.Set(s.m.countable(*s.usage))
	return true
}

// countable returns the usage to charge. A tree that cannot be measured is charged the largest size
// that a workspace can reach.
func (m *Manager) countable(u workspace.Usage) workspace.Usage {
	most := workspace.Usage{Bytes: 1 << 50, Files: 1 << 30}
	if q := m.cfg.Quota.Bytes; q > 0 {
		most.Bytes = 2*q + overshootBytes
	}
	if q := m.cfg.Quota.Files; q > 0 {
		most.Files = 2*q + overshootFiles
	}
	u.Bytes, u.Files = min(u.Bytes, most.Bytes), min(u.Files, most.Files)
	return u
}

// measure walks the workspace before a run if its usage is unknown or exceeds the quota: somebody
// may have deleted files since, without code.
func (s *Session) measure(ctx context.Context) {
	if !s.isMeasured() {
		return
	}
	if u, ok := s.knownUsage(); !ok || u.Exceeds(s.m.cfg.Quota) {
		s.walk(ctx)
	}
}

// settle measures the workspace after its sandboxes have ended, if the account may be wrong: code
// may have written since, and deleted files that were open have counted.
func (s *Session) settle(ctx context.Context, wasLive bool) {
	u, ok := s.knownUsage()
	if s.isMeasured() && (wasLive || !ok || s.m.countable(u) != s.account.Usage()) {
		s.walk(ctx)
	}
}

func (s *Session) walk(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastWalk)
	defer cancel()
	if u, err := s.ws.Usage(ctx, workspace.Usage{}); err == nil {
		s.setUsage(u)
	}
}

// checkDisk returns an error if the limits of the session, the caller or the disk forbid a run.
func (s *Session) checkDisk(ctx context.Context, persistent bool) error {
	if err := s.checkQuota(ctx, persistent); err != nil {
		return err
	}
	if err := s.checkCaller(); err != nil {
		return err
	}
	return s.checkShortage()
}

// checkQuota returns workspace.ErrQuota if the workspace exceeds twice its quota: each run can make
// a full workspace grow a little before it is stopped. A tree that cannot be measured allows only
// fresh runs, which may not write in it.
func (s *Session) checkQuota(ctx context.Context, persistent bool) error {
	if _, full := s.diskLimit(); !full {
		return nil
	}
	var most workspace.Usage // of bytes only: code makes many files fast, and may delete them
	if q := s.m.cfg.Quota; q.Bytes > 0 {
		most.Bytes = 2*q.Bytes + overshootBytes
	}
	ctx, cancel := context.WithTimeout(ctx, lastWalk)
	defer cancel()
	u, err := s.ws.Usage(ctx, most)
	switch {
	case err == nil && u.Unmeasured != "" && persistent:
		return &workspace.UnmeasuredError{Why: u.Unmeasured}
	case err != nil || u.Unmeasured != "" || !u.Exceeds(most):
		return nil
	}
	return fmt.Errorf("%w: the session's files take more than twice the allowed space, so no code can run. "+
		"Delete some of them without code, or close the session", workspace.ErrQuota)
}

// checkCaller returns a *CallerError if the caller's limit is reached, unless code may run to
// delete files.
func (s *Session) checkCaller() error {
	if !s.limitsUsage() {
		return nil
	}
	over := s.m.excess(s.caller)
	if over.Bytes < 0 && over.Files < 0 {
		return nil
	}
	u, _ := s.knownUsage()
	if u.Files > 0 && over.Bytes <= overshootBytes && over.Files <= overshootFiles {
		return nil
	}
	return s.callerError(over)
}

// diskLimit returns what the workspace may hold during a run, and whether it exceeds the quota.
// Such a workspace may not grow, but code may run in it to delete files. The limit never exceeds
// twice the quota, however much the last run wrote before it was stopped.
func (s *Session) diskLimit() (limit workspace.Usage, full bool) {
	q := s.m.cfg.Quota
	u, ok := s.knownUsage()
	if !ok || !u.Exceeds(q) {
		return q, false
	}
	return workspace.Usage{
		Bytes: min(max(q.Bytes, u.Bytes), 2*q.Bytes),
		Files: min(max(q.Files, u.Files), 2*q.Files),
	}, true
}

// runLimits returns the limits that the agent enforces. callerBound says that the file size limit
// comes from the rest of the caller's.
func (s *Session) runLimits(req RunRequest, full bool) (limits wire.RunLimits, callerBound bool) {
	limits = wire.RunLimits{TmpBytes: s.m.cfg.Limits.TmpBytes, FileBytes: s.m.cfg.Limits.FileBytes}
	if req.Persistent { // an interpreter keeps its limit for life, even if there is room again
		return limits, false
	}
	fullLimit := max(fullFileBytes, 2*int64(len(req.Code)))
	if u, _ := s.knownUsage(); u.Unmeasured != "" {
		fullLimit = 1
	}
	if full {
		limits.FileBytes = fullLimit
	}
	if s.limitsUsage() && s.m.cfg.CallerBytes > 0 {
		left := max(-s.m.excess(s.caller).Bytes, fullLimit) + fileSlack
		if limits.FileBytes == 0 || left < limits.FileBytes {
			return wire.RunLimits{TmpBytes: limits.TmpBytes, FileBytes: left}, true
		}
	}
	return limits, false
}
