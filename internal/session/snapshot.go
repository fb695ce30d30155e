package session

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"

	"mcp-code-sandbox/internal/workspace"
)

const (
	// maxKept is how many files a session remembers between runs, and maxKeptByAll how many all of a server's do together.
	maxKept      = 20_000
	maxKeptByAll = 1_000_000
)

// userLink is the link, beside the workspace, that names the server which used the session last, while that one remembers it.
const userLink = "user"

// kept is what the workspace held when the session's last run had ended. While nobody can have changed anything since, it spares the
// next run a walk.
type kept struct {
	scan   *workspace.Scan
	begun  uint64 // s.begun then
	writes uint64 // the workspace's, then
}

// keepLocked replaces what the session remembers, within the bounds. Nothing is remembered of a session in which something may
// go on to write: an interpreter that lives on, or a sandbox that ends.
func (s *Session) keepLocked(k kept) {
	if s.kept.scan != nil {
		s.m.kept -= s.kept.scan.Indexed()
	}
	s.kept = kept{}
	if k.scan == nil || s.statefulLocked() || len(s.ending) > 0 {
		return
	}
	if n := k.scan.Indexed(); n <= maxKept && s.m.kept+n <= maxKeptByAll {
		s.m.kept += n
		s.kept = k
	}
}

// snapshot returns what the workspace holds now, before a run.
func (s *Session) snapshot(ctx context.Context) (*workspace.Scan, error) {
	s.m.mu.Lock()
	k := s.kept
	alone := k.begun == s.begun && s.runs == 0
	s.m.mu.Unlock()
	if k.scan == nil || !alone || k.writes != s.ws.Writes() {
		ctx, cancel := context.WithTimeout(ctx, lastWalk)
		defer cancel()
		var err error
		if k.scan, err = s.ws.Scan(ctx, workspace.ScanOptions{Limit: s.m.cfg.Quota, Index: true}); err != nil {
			return nil, err
		}
		s.setUsage(k.scan.Usage())
	}
	k.scan.Settle(ctx)
	return k.scan, nil
}

// scan looks at the workspace after a run. It remembers what is there for the next one.
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

// claim notes that this server uses the session. What another one, on the same root, may have changed is not remembered.
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
		return // nothing is remembered, then
	}
	if err := os.Rename(temp, path); err != nil {
		_ = os.Remove(temp)
	}
}

// disclaim says that nothing is remembered any more. Should it hit the claim of another, that one looks again, and no more.
func (s *Session) disclaim() { _ = os.Remove(filepath.Join(s.dir, userLink)) }
