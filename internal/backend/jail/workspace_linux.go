package jail

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/userns"
	"mcp-code-sandbox/internal/workspace"
)

// place is a workspace of live sandboxes whose files belong to an identity: the kernel cannot show
// them with other ids, or there are no others. All sandboxes of the workspace have that identity.
type place struct {
	key     placeKey
	id      *identity
	holders int           // guarded by places.mu
	ready   chan struct{} // closed when the files belong to the identity
	err     error         // set before ready is closed
	dir     *os.File      // the directory, locked for this server; set before ready is closed
}

type placeKey struct{ dev, ino uint64 }

// lock is what servers lock while sandboxes with a uid use the place. Code inside cannot.
func (k placeKey) lock(uid int) int64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, [3]uint64{k.dev, k.ino, uint64(uid)})
	return placesAt + int64(h.Sum64()>>3)
}

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

// The errors of servers that cannot share a workspace: the uid of one is none of the other's, or
// they have no place for locks.
var (
	errInUse = &sandbox.Error{
		Op: "share the session", Err: errors.New("another server uses the session's files, with a uid that this one's sandboxes cannot have"),
		Fix: "end its sandbox with mcp-code-sandbox sessions stop KEY (sessions list shows it), or stop that server",
	}
	errNoAgreement = &sandbox.Error{
		Op: "share the session", Err: errors.New("another server uses the session's files, and the two have no directory below /run to agree on a uid"),
		Fix: "end its sandbox with mcp-code-sandbox sessions stop KEY (sessions list shows it), or stop that server; " +
			"or run loginctl enable-linger as its user and start both servers again",
	}
)

// choose returns the identity for a new sandbox with a workspace: that of the sandboxes that use
// it, perhaps of another server, or have used it last, where this matters.
func (p *places) choose(dir string) (*identity, error) {
	var st unix.Stat_t
	if p.ids.why == "" && unix.Lstat(dir, &st) == nil {
		key := placeKey{st.Dev, st.Ino}
		p.mu.Lock()
		at := p.held[key]
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
			if id, err := p.ids.borrow(int(st.Uid), key.lock(int(st.Uid))); id != nil || err != nil {
				return id, err
			}
		}
	}
	return p.ids.acquire()
}

// hold makes a workspace belong to an identity, as its sandbox sees it. mapping is for its mount.
// Where files cannot be mapped, it gives them to the identity, unless another one has them:
// errTaken, or errInUse if that will not change soon. The caller releases the place.
func (p *places) hold(ctx context.Context, dir string, id *identity) (mapping *os.File, at *place, err error) {
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
		at.err = p.claim(ctx, dir, at)
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

// claim gives the files of a new place to its identity, unless another server uses them. While a
// server has a place, it holds a shared lock of the directory. Code inside can share that lock,
// too; this only keeps its own files from another uid.
func (p *places) claim(ctx context.Context, dir string, at *place) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	at.dir = os.NewFile(uintptr(fd), dir)
	uid, err := lockDir(at.dir, unix.LOCK_EX)
	if err == nil {
		err = p.give(ctx, dir, uid, at.id.uid)
	}
	if err == nil || err == errTaken {
		uid, err = lockDir(at.dir, unix.LOCK_SH) // the kernel lets others in between
	}
	switch {
	case err != nil:
		return err
	case int(uid) == at.id.uid:
		p.ids.lock(unix.F_RDLCK, at.key.lock(at.id.uid))
		return nil
	case !p.canGive(uid):
		return fmt.Errorf("the session's files belong to uid %d, which this server cannot take them from", uid)
	case p.ids.why != "" || !p.ids.ids.contains(int(uid)):
		return errInUse
	case p.ids.locks == nil:
		return errNoAgreement
	}
	return errTaken
}

// lockDir locks a directory, or returns errTaken instead of waiting. It returns the uid of its
// owner, which nobody else changes from then on.
func lockDir(dir *os.File, how int) (uid uint32, err error) {
	var st unix.Stat_t
	err = unix.Flock(int(dir.Fd()), how|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return 0, errTaken
	}
	if err == nil {
		err = unix.Fstat(int(dir.Fd()), &st)
	}
	if err != nil {
		return 0, &os.PathError{Op: "lock", Path: dir.Name(), Err: err}
	}
	return st.Uid, nil
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
		if at.err == nil {
			p.ids.lock(unix.F_UNLCK, at.key.lock(at.id.uid))
		}
		if at.dir != nil { // a child that has yet to start its program may have the descriptor, too
			_ = unix.Flock(int(at.dir.Fd()), unix.LOCK_UN)
			_ = at.dir.Close()
		}
	}
}

// canMap reports whether the kernel can show the files of a directory with other ids. Some file
// systems cannot, and a user namespace's root may not.
func (p *places) canMap(dir string, dev uint64, id *identity) (bool, error) {
	p.mu.Lock()
	can, known := p.maps[dev]
	p.mu.Unlock()
	if known || id.mapping == nil {
		return can, nil
	}
	tree, err := p.clone(dir, id.mapping)
	_ = tree.Close()
	failed, ok := errors.AsType[*os.PathError](err)
	if refused := ok && (failed.Op == "mount_setattr" || failed.Err == unix.ENOSYS); err != nil && !refused {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.maps[dev] = err == nil
	return err == nil, nil
}

// canGive reports whether a workspace of a uid can be given to another one: it belongs to the owner
// uid, to the user whose outer namespace this is, or to the uid of a sandbox.
func (p *places) canGive(from uint32) bool {
	return int(from) == p.ids.owner || from == 0 && userns.Current().Inside || p.ids.ids.contains(int(from))
}

// give gives a workspace to a uid, if that is possible and needed.
func (p *places) give(ctx context.Context, dir string, from uint32, to int) error {
	if int(from) == to || !p.canGive(from) {
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
