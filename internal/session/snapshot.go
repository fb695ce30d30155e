package session

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"

	"mcp-code-sandbox/internal/workspace"
)

const (
	// maxKept and maxKeptByAll are how many files one session, and all sessions of a server
	// together, remember between runs.
	maxKept      = 20_000
	maxKeptByAll = 1_000_000
)

// userLink is a symbolic link next to the workspace. It names the server that remembers the
// session's files.
const userLink = "user"

// kept is the content of the workspace after the session's last run. It saves the next run a walk
// if nothing can have changed since.
type kept struct {
	scan   *workspace.Scan
	begun  uint64 // Session.begun at the snapshot
	writes uint64 // Workspace.Writes at the snapshot
}

// keepLocked replaces what the session remembers, within the bounds. It keeps nothing if something
// may still write: an interpreter, or a sandbox that is ending.
func (s *Session) keepLocked(k kept) {
	if s.kept.scan != nil {
		s.m.kept -= s.kept.scan.Indexed()
	}
	s.kept = kept{}
	if k.scan == nil || s.hasStateLocked() || len(s.ending) > 0 {
		return
	}
	if n := k.scan.Indexed(); n <= maxKept && s.m.kept+n <= maxKeptByAll {
		s.m.kept += n
		s.kept = k
	}
}

// snapshot returns the content of the workspace before a run.
func (s *Session) snapshot(ctx context.Context) (*workspace.Scan, error) {
	s.m.mu.Lock()
	k := s.kept
	alone := k.begun == s.begun && s.runs == 0
	s.m.mu.Unlock()
	if k.scan == nil || !alone || k.writes != s.ws.Writes() {
		ctx, cancel := context.WithTimeout(ctx, lastWalk)
		defer cancel()
		var err error
		k.scan, err = s.ws.Scan(ctx, workspace.ScanOptions{Limit: s.m.cfg.Quota, Index: true})
		if err != nil {
			return nil, err
		}
		s.setUsage(k.scan.Usage())
	}
	k.scan.Settle(ctx)
	return k.scan, nil
}

// scan scans the workspace after a run, and remembers the result for the next run.
func (s *Session) scan(opt workspace.ScanOptions) (*workspace.Scan, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lastWalk)
	defer cancel()
	s.m.mu.Lock()
	begun, alone := s.begun, s.runs == 1
	s.m.mu.Unlock()
	writes := s.ws.Writes()
	found, err := s.ws.Scan(ctx, opt)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.keepLocked(kept{})
	if err != nil {
		return nil, err
	}
	if alone && begun == s.begun && s.runs == 1 && opt.Index {
		s.keepLocked(kept{found, begun, writes})
	}
	return found, nil
}

// claim records that this server uses the session. If another server on the same root has used it,
// nothing is remembered: that one may have changed files.
func (s *Session) claim() {
	path := filepath.Join(s.dir, userLink)
	if last, err := os.Readlink(path); err == nil && last == s.m.name {
		return
	}
	s.m.mu.Lock()
	s.keepLocked(kept{})
	s.m.mu.Unlock()
	temp := filepath.Join(s.dir, ".user-"+rand.Text())
	if err := os.Symlink(s.m.name, temp); err != nil {
		return // then nothing is remembered
	}
	if err := os.Rename(temp, path); err != nil {
		_ = os.Remove(temp)
	}
}

// disclaim removes the claim. If it belongs to another server, that server only has to scan again.
func (s *Session) disclaim() { _ = os.Remove(filepath.Join(s.dir, userLink)) }
