package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/workspace"
)

// place is a workspace of live sandboxes whose files belong to an identity: the kernel cannot show
// them with other ids. All sandboxes of the workspace have that identity.
type place struct {
	key     placeKey
	id      *identity
	holders int           // guarded by places.mu
	ready   chan struct{} // closed when the files belong to the identity
	err     error         // set before ready is closed
}

type placeKey struct{ dev, ino uint64 }

// places are the workspaces of live sandboxes that cannot be mapped.
type places struct {
	ids   *identities
	clone func(dir string, mapping *os.File) (*os.File, error) // makes a mapped mount

	mu   sync.Mutex
	held map[placeKey]*place
	maps map[uint64]bool // by device: whether its files can be shown with other ids
}

// errTaken says that a sandbox with another identity uses the workspace.
var errTaken = errors.New("a sandbox with another uid uses the workspace")

// choose returns the identity for a new sandbox with a workspace: that of the sandboxes that use
// it or have used it last, where this matters.
func (p *places) choose(dir string) (*identity, error) {
	var st unix.Stat_t
	if p.ids.why == "" && unix.Lstat(dir, &st) == nil {
		p.mu.Lock()
		at := p.held[placeKey{st.Dev, st.Ino}]
		mapped := p.maps[st.Dev]
		p.mu.Unlock()
		if at != nil {
			if id := p.ids.join(at.id); id != nil {
				return id, nil
			}
		} else if !mapped && p.ids.ids.contains(int(st.Uid)) {
			if id := p.ids.acquireUID(int(st.Uid)); id != nil {
				return id, nil
			}
		}
	}
	return p.ids.acquire()
}

// hold makes a workspace belong to an identity, as its sandbox sees it. mapping is for its mount.
// Where files cannot be mapped, it gives them to the identity, unless another one has them:
// errTaken. The caller releases the place.
func (p *places) hold(ctx context.Context, dir string, id *identity) (mapping *os.File, at *place, err error) {
	if id.mapping == nil {
		return nil, nil, nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil, nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	can, err := p.canMap(dir, st.Dev, id)
	if err != nil {
		return nil, nil, err
	}
	if can {
		return id.mapping, nil, p.give(ctx, dir, st.Uid, p.ids.owner)
	}
	at, isNew := p.enter(placeKey{st.Dev, st.Ino}, id)
	if at == nil {
		return nil, nil, errTaken
	}
	if isNew {
		at.err = p.give(ctx, dir, st.Uid, id.uid)
		close(at.ready)
	}
	select {
	case <-at.ready:
		err = at.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		p.release(at)
		return nil, nil, err
	}
	return nil, at, nil
}

// enter adds a holder to a place, or returns nil if the place has another identity.
func (p *places) enter(key placeKey, id *identity) (at *place, isNew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at = p.held[key]
	switch {
	case at == nil:
		at, isNew = &place{key: key, id: id, ready: make(chan struct{})}, true
		p.held[key] = at
	case at.id != id:
		return nil, false
	}
	at.holders++
	return at, isNew
}

func (p *places) release(at *place) {
	if at == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if at.holders--; at.holders == 0 {
		delete(p.held, at.key)
	}
}

// canMap reports whether the kernel can show the files of a directory with other ids. Some file
// systems cannot, and a user namespace's root may not.
func (p *places) canMap(dir string, dev uint64, id *identity) (bool, error) {
	p.mu.Lock()
	can, known := p.maps[dev]
	p.mu.Unlock()
	if known {
		return can, nil
	}
	tree, err := p.clone(dir, id.mapping)
	_ = tree.Close()
	if failed, ok := errors.AsType[*os.PathError](err); ok && failed.Op != "mount_setattr" && !errors.Is(err, unix.ENOSYS) {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.maps[dev] = err == nil
	return err == nil, nil
}

// give gives a workspace to a uid, if it belongs to the owner uid or to the uid of a sandbox.
func (p *places) give(ctx context.Context, dir string, from uint32, to int) error {
	if int(from) == to || int(from) != p.ids.owner && !p.ids.ids.contains(int(from)) {
		return nil
	}
	ws, err := workspace.Open(dir, workspace.Owner{UID: to, GID: to})
	if err == nil {
		defer ws.Close()
		err = ws.Adopt(ctx)
	}
	if err == nil && to != p.ids.owner {
		err = ws.Publish() // for the server's user
	}
	if err != nil {
		return fmt.Errorf("give the workspace to the sandbox: %w", err)
	}
	return nil
}
