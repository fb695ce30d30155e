package jail

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

const (
	// zygotePause is the least time between two starts of a shared zygote that does not become
	// ready.
	zygotePause = time.Minute
	// sharedZygoteLife bounds how long sandboxes share what a process gets at its start: its
	// address space layout, stack canary and hash seed.
	sharedZygoteLife = time.Hour
)

// sharedZygotes are a backend's shared zygotes, by name.
type sharedZygotes struct {
	backend *Backend

	mu     sync.Mutex
	slots  map[string]*zygoteSlot
	closed bool
	work   sync.WaitGroup // goroutines that watch and end them
}

// zygoteSlot holds the shared zygote of one name.
type zygoteSlot struct {
	current   *sharedZygote // nil if the last start failed
	successor *sharedZygote // replaces current, which is old, when it is ready
	retryAt   time.Time     // no start before
	warned    bool          // of a failure, since the last one that was ready
}

// adoption is a shared zygote of which a sandbox gets a fork.
type adoption struct {
	*sharedZygote
	soon      bool // it has imported its libraries
	onRequest bool // the fork enters the sandbox when its agent asks for it
}

// acquire returns the shared zygotes for a spec. It starts those that do not run; none is returned
// while it cannot be started. The caller calls release when it needs no more forks of them.
// A sandbox that starts for a waiting run gets only the last at once, which most runs need.
func (zs *sharedZygotes) acquire(spec sandbox.Spec) (all []adoption) {
	if zs.backend.cfg.NoSharedZygotes || os.Geteuid() != 0 {
		return nil
	}
	for i, z := range spec.Zygotes {
		if shared := zs.acquireOne(spec, z); shared != nil {
			soon := shared.isReady()
			all = append(all, adoption{shared, soon, soon && spec.Workspace != "" && i < len(spec.Zygotes)-1})
		}
	}
	return all
}

func release(zygotes []adoption) {
	for _, z := range zygotes {
		z.users.Done()
	}
}

func (zs *sharedZygotes) acquireOne(spec sandbox.Spec, z sandbox.Zygote) *sharedZygote {
	key := zygoteKey(spec, z)
	zs.mu.Lock()
	defer zs.mu.Unlock()
	if zs.closed {
		return nil
	}
	slot := zs.slots[z.Name]
	if slot == nil {
		slot = &zygoteSlot{}
		zs.slots[z.Name] = slot
	}
	current := slot.current
	if current != nil && (current.key != key || current.isOutdated()) {
		slot.retryAt = time.Time{} // it did not fail
		zs.endLocked(slot)
		current = nil
	}
	switch {
	case current == nil || current.dead.Load():
		slot.current = zs.startLocked(slot, spec, z, key)
	case slot.successor == nil && current.isReady() &&
		time.Since(current.started) > cmp.Or(zs.backend.cfg.SharedZygoteLife, sharedZygoteLife):
		slot.successor = zs.startLocked(slot, spec, z, key)
	}
	if slot.current != nil {
		slot.current.users.Add(1)
	}
	return slot.current
}

// reacquire returns the shared zygote that is like one that was acquired earlier, or nil.
func (zs *sharedZygotes) reacquire(earlier *sharedZygote) *sharedZygote {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	z := zs.slots[earlier.spec.Name].current
	if zs.closed || z == nil || z.key != earlier.key || z.dead.Load() {
		return nil
	}
	z.users.Add(1)
	return z
}

// startLocked starts a shared zygote for the slot, unless one has failed recently.
func (zs *sharedZygotes) startLocked(slot *zygoteSlot, spec sandbox.Spec, z sandbox.Zygote, key string) *sharedZygote {
	if time.Now().Before(slot.retryAt) {
		return nil
	}
	slot.retryAt = time.Now().Add(zygotePause)
	shared, err := zs.backend.startSharedZygote(spec, z, key)
	if err != nil {
		zs.warnLocked(slot, z.Name, err, "")
		return nil
	}
	zs.work.Go(func() { zs.watch(shared, slot) })
	return shared
}

// watch follows a shared zygote until it has ended and nobody waits for a fork of it.
func (zs *sharedZygotes) watch(z *sharedZygote, slot *zygoteSlot) {
	defer z.users.Wait()
	err := z.awaitReady()
	if err != nil {
		z.kill()
		<-z.gone
	}
	close(z.ready)
	if err == nil {
		zs.becomeReady(z, slot)
	}
	<-z.gone
	zs.mu.Lock()
	defer zs.mu.Unlock()
	if slot.successor == z {
		slot.successor = nil
	}
	if !z.ending.Load() {
		zs.warnLocked(slot, z.spec.Name, errors.Join(errors.New("it has ended"), err), z.proc.output.String())
	}
}

// becomeReady replaces a shared zygote by its successor. The old one ends when it has served the
// sandboxes that already wait for it.
func (zs *sharedZygotes) becomeReady(z *sharedZygote, slot *zygoteSlot) {
	zs.backend.log.Debug("shared zygote is ready", "zygote", z.spec.Name)
	zs.mu.Lock()
	defer zs.mu.Unlock()
	slot.warned, slot.retryAt = false, time.Time{}
	if slot.successor != z {
		return
	}
	old := slot.current
	slot.current, slot.successor = z, nil
	if old != nil {
		zs.work.Go(func() {
			old.users.Wait()
			old.end()
		})
	}
}

// warnLocked logs that a shared zygote does not work: as a warning the first time.
func (zs *sharedZygotes) warnLocked(slot *zygoteSlot, zygote string, err error, detail string) {
	level := slog.LevelWarn
	if slot.warned {
		level = slog.LevelDebug
	}
	slot.warned = true
	zs.backend.log.Log(context.Background(), level, "no shared zygote: each sandbox imports libraries itself",
		"zygote", zygote, "error", err, "detail", detail)
}

// endLocked empties a slot.
func (zs *sharedZygotes) endLocked(slot *zygoteSlot) {
	for _, z := range []*sharedZygote{slot.current, slot.successor} {
		if z != nil {
			zs.work.Go(z.end)
		}
	}
	slot.current, slot.successor = nil, nil
}

// close ends all shared zygotes and returns when nothing is left of them, and no fork of them is on
// its way into a sandbox.
func (zs *sharedZygotes) close() {
	zs.mu.Lock()
	zs.closed = true
	for _, slot := range zs.slots {
		zs.endLocked(slot)
	}
	zs.mu.Unlock()
	zs.work.Wait()
}
