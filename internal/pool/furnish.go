package pool

import (
	"errors"
	"os"
	"time"
)

// hold is how long a sandbox whose directory has become a session's workspace waits for the session to need it.
const hold = 30 * time.Second

// promise is a sandbox that stands on a session's workspace, before the session has asked for one.
type promise struct {
	*member
	kind *kind
	end  *time.Timer
}

// MakeWorkspace makes a new session's workspace at path by renaming the directory of a ready sandbox. A Start with
// that Workspace may then return the sandbox. It reports whether it did; an existing path stays as it is.
//
// Nobody knows yet what the session will run, so it gets the kind that is asked for most.
func (p *Pool) MakeWorkspace(path string) bool {
	m, k := p.popular()
	if m == nil {
		return false
	}
	if err := renameNew(m.dir, path); err != nil {
		p.end(m)
		p.log.Debug("a ready sandbox's directory could not become a workspace", "err", err)
		return false
	}
	m.dir = "" // the session's, now
	pr := &promise{member: m, kind: k}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.end(m)
		return true
	}
	defer p.mu.Unlock()
	if old := p.promised[path]; old != nil { // of a session that has been closed
		p.endAllLocked([]*member{p.breakLocked(path, old)})
	}
	p.promised[path] = pr
	pr.end = time.AfterFunc(hold, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.promised[path] == pr {
			p.endAllLocked([]*member{p.breakLocked(path, pr)})
		}
	})
	return true
}

// popular takes a ready sandbox of the kind that is asked for most.
func (p *Pool) popular() (*member, *kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.renaming {
		return nil, nil
	}
	var most *kind
	for _, k := range p.kinds {
		if len(k.ready) > 0 && (most == nil || k.score+float64(k.floor) > most.score+float64(most.floor)) {
			most = k
		}
	}
	if most == nil {
		return nil, nil
	}
	m := most.ready[0]
	most.ready = most.ready[1:]
	p.stir()
	return m, most
}

// redeemLocked returns the sandbox that stands on a workspace, if it is of that kind; one of another has no use any more.
func (p *Pool) redeemLocked(workspace string, k *kind) *member {
	pr := p.promised[workspace]
	if pr == nil {
		return nil
	}
	m := p.breakLocked(workspace, pr)
	if pr.kind != k {
		p.endAllLocked([]*member{m})
		return nil
	}
	return m
}

// breakLocked forgets a promise.
func (p *Pool) breakLocked(path string, pr *promise) *member {
	pr.end.Stop()
	delete(p.promised, path)
	return pr.member
}

// standsOn makes sure that a workspace is the directory on which the sandbox stands: a session can be closed, and another of
// its name begin.
func (m *member) standsOn(workspace string) error {
	now, err := os.Lstat(workspace)
	if err != nil {
		return err
	}
	if !os.SameFile(m.stands, now) {
		return errors.New("the workspace is another directory by now")
	}
	return nil
}
