package pool

import (
	"context"
	"errors"
	"os"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// reservationTime is how long a sandbox waits, after its directory has become a workspace, for its
// session.
const reservationTime = 30 * time.Second

// startOnDirectory starts a sandbox on a new directory that MakeWorkspace can rename.
func (p *Pool) startOnDirectory(ctx context.Context, spec sandbox.Spec) (m *member, err error) {
	if err := os.MkdirAll(p.cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(p.cfg.Dir, "workspace-") // with mode 0700
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(dir)
		}
	}()
	if p.cfg.Own != nil {
		if err := p.cfg.Own(dir); err != nil {
			return nil, err
		}
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	spec.Workspace, spec.Moves = dir, true
	sb, err := p.cfg.Backend.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &member{Sandbox: sb, dir: dir, info: info}, nil
}

// MakeWorkspace makes a new session's workspace at path by renaming the directory of a ready
// sandbox, which a Start with that Workspace may then return. The sandbox is of the kind in highest
// demand. It reports false, and leaves path alone, if path exists or no sandbox is ready.
func (p *Pool) MakeWorkspace(path string) bool {
	p.mu.Lock()
	var m *member
	if !p.closed && p.byRename {
		m = p.takeFromLocked(func(a, b *kind) bool {
			return a.demand+float64(a.floor) > b.demand+float64(b.floor)
		})
	}
	p.mu.Unlock()
	if m == nil {
		return false
	}
	p.notify()
	if err := renameNew(m.dir, path); err != nil {
		p.end(m)
		p.log.Debug("cannot make a workspace of a pooled sandbox's directory", "error", err)
		return false
	}
	m.dir = "" // it is the session's now
	if !p.reserve(path, m) {
		p.end(m)
	}
	return true
}

// reserve keeps a sandbox for the session with that workspace, unless the pool is closed.
func (p *Pool) reserve(workspace string, m *member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	if p.reserved[workspace] != nil { // for a session that has been closed
		p.endLocked(p.unreserveLocked(workspace))
	}
	p.reserved[workspace] = m
	m.expiry = time.AfterFunc(reservationTime, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.reserved[workspace] == m {
			p.endLocked(p.unreserveLocked(workspace))
		}
	})
	return true
}

func (p *Pool) unreserveLocked(workspace string) *member {
	m := p.reserved[workspace]
	m.expiry.Stop()
	delete(p.reserved, workspace)
	return m
}

// claimLocked returns the sandbox that is reserved for a workspace, if it is of that kind. One of
// another kind has no use any more.
func (p *Pool) claimLocked(workspace string, k *kind) *member {
	if p.reserved[workspace] == nil {
		return nil
	}
	m := p.unreserveLocked(workspace)
	if m.kind != k {
		p.endLocked(m)
		return nil
	}
	return m
}

// checkWorkspace makes sure that a workspace is the directory on which the sandbox was started: its
// session may have been closed, and a new one have the same name.
func (m *member) checkWorkspace(workspace string) error {
	info, err := os.Lstat(workspace)
	if err != nil {
		return err
	}
	if !os.SameFile(m.info, info) {
		return errors.New("the workspace has been replaced")
	}
	return nil
}
