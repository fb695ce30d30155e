// Package pool keeps sandboxes ready, so that a session's first run does not wait for a start.
//
// A [Pool] is a [sandbox.Backend] that decorates another. It keeps sandboxes by kind: everything in
// a Spec that does not name a session. A kind in high demand has several, one without demand none.
// They are started one after the other while the machine is idle. A pooled sandbox has run no code,
// and one that was handed out never comes back.
//
// A pooled sandbox gets its workspace in one of two ways. If the backend is a [sandbox.Preparer],
// the pool attaches the session's workspace. Otherwise the sandbox is started on a directory of the
// pool, which becomes the workspace of a new session by a rename.
//
// The package knows no sessions, no languages and no way to isolate.
package pool

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// Config of a Pool.
type Config struct {
	Backend sandbox.Backend
	// Size bounds the ready sandboxes of one kind. Zero turns the pool off.
	Size int
	// Total bounds all sandboxes, ready or in use. Ready ones make room for those in use. Zero: no
	// bound.
	Total int
	// Dir belongs to the pool alone, on the file system of the workspaces. It holds the directories
	// of sandboxes that cannot attach a workspace later. If it is empty, the pool keeps no such
	// sandboxes.
	Dir string
	// Own gives a new directory in Dir to the uid of sandboxes; nil: it stays the server's.
	Own func(dir string) error
	// Budget reports whether processors have been idle since its last call, and memory is free;
	// nil: both.
	Budget func() (cpu, memory bool)
	Logger *slog.Logger // nil is silent
}

const closeTimeout = 10 * time.Second

// Pool is a backend that keeps sandboxes ready.
type Pool struct {
	cfg Config
	log *slog.Logger

	ctx    context.Context // ends with the pool; pooled sandboxes are started under it
	cancel context.CancelFunc
	wake   chan struct{} // for the keeper: something has changed
	work   sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	byRename bool               // workspaces cannot be attached: sandboxes are started on directories in Dir
	kinds    map[string]*kind   // by runner
	reserved map[string]*member // by workspace
	live     int                // sandboxes that are starting, ready or in use
}

var _ sandbox.Backend = (*Pool)(nil)

// member is a pooled sandbox: ready, or reserved for the workspace that its directory has become.
type member struct {
	sandbox.Sandbox
	kind   *kind
	born   time.Time
	mounts sandbox.Sources                                   // as they were before the start
	attach func(ctx context.Context, workspace string) error // nil: it was started on a directory

	dir    string      // in Config.Dir, removed with the sandbox; empty once it is a workspace
	info   fs.FileInfo // identifies the directory
	expiry *time.Timer // of its reservation
}

// New returns a Pool. Close it before the backend.
func New(cfg Config) *Pool {
	p := &Pool{
		cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1),
		kinds: map[string]*kind{}, reserved: map[string]*member{},
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.cfg.Budget == nil {
		p.cfg.Budget = func() (bool, bool) { return true, true }
	}
	_, attaches := cfg.Backend.(sandbox.Preparer)
	p.byRename = !attaches
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.work.Go(p.keep)
	return p
}

// Start implements sandbox.Backend. It hands out a ready sandbox, or else starts one.
func (p *Pool) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if m := p.take(spec); m != nil {
		err := p.assign(ctx, m, spec)
		if err == nil {
			return m.Sandbox, nil
		}
		p.end(m) // it may have the workspace, so no other session gets it
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		p.log.Debug("cannot use a pooled sandbox; starting another", "sandbox", m.ID(), "error", err)
	}
	if victim := p.enter(); victim != nil {
		p.end(victim)
	}
	sb, err := p.cfg.Backend.Start(ctx, spec)
	if err != nil {
		p.leave()
		return nil, err
	}
	p.watch(sb, nil)
	return sb, nil
}

// take returns a ready sandbox for a spec, or nil, and records the demand.
func (p *Pool) take(spec sandbox.Spec) *member {
	want, ok := kindOf(spec)
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.cfg.Size <= 0 {
		return nil
	}
	k := p.kindLocked(want)
	k.recordDemand(time.Now())
	if want.Prestart != nil { // without one, a first run takes ten times as long as the next
		k.floor, k.tried = 1, true
	}
	p.notify()
	if p.byRename {
		return p.claimLocked(spec.Workspace, k)
	}
	return k.takeOldest()
}

// kindLocked returns the kind of a spec. It replaces an older one of the same runner, as when that
// is reinstalled.
func (p *Pool) kindLocked(spec sandbox.Spec) *kind {
	k := p.kinds[spec.Runner]
	if k != nil && reflect.DeepEqual(k.spec, spec) {
		return k
	}
	if k != nil {
		p.endLocked(k.takeAll()...)
	}
	k = &kind{spec: spec}
	p.kinds[spec.Runner] = k
	return k
}

// assign gives a sandbox the session's workspace.
func (p *Pool) assign(ctx context.Context, m *member, spec sandbox.Spec) error {
	if !m.mounts.Same(sandbox.SourcesOf(spec.Mounts)) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.endLocked(m.kind.takeAll()...) // they may be as old
		return errors.New("its mounts are stale")
	}
	if m.attach == nil {
		return m.checkWorkspace(spec.Workspace)
	}
	err := m.attach(ctx, spec.Workspace)
	if errors.Is(err, errors.ErrUnsupported) {
		p.log.Info("cannot attach workspaces to sandboxes here; only new sessions get a pooled one", "error", err)
		p.mu.Lock()
		p.switchToRenameLocked()
		p.mu.Unlock()
	}
	return err
}

// switchToRenameLocked gives up attaching, and with it the sandboxes that are ready for it.
func (p *Pool) switchToRenameLocked() {
	if !p.byRename {
		p.byRename = true
		p.endAllLocked()
	}
}

// KeepReady keeps at least one sandbox like spec ready. It starts the first at once, busy or not:
// the backend then makes what such sandboxes share.
func (p *Pool) KeepReady(spec sandbox.Spec) {
	want, ok := kindOf(spec)
	if !ok || p.cfg.Size <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.kindLocked(want).floor = 1
		p.notify()
	}
}

// Cool drops the demand for runners that are not named, and what KeepReady asked for.
func (p *Pool) Cool(runners []string) {
	p.mu.Lock()
	for runner, k := range p.kinds {
		if !slices.Contains(runners, runner) {
			k.floor, k.demand = 0, 0
		}
	}
	p.mu.Unlock()
	p.notify()
}

// Ready returns the number of ready sandboxes.
func (p *Pool) Ready() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kinds {
		n += len(k.ready)
	}
	return n
}

// Close ends the pooled sandboxes and a start in progress, and returns when nothing is left of
// them. Sandboxes that were handed out stay. Start still works, without the pool.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.endAllLocked()
	p.mu.Unlock()
	p.cancel()
	done := make(chan struct{})
	go func() {
		p.work.Wait()
		if p.cfg.Dir != "" {
			_ = os.Remove(p.cfg.Dir) // fails if it still holds something, which is not the pool's
		}
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// notify makes the keeper look at everything again.
func (p *Pool) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// end closes a pooled sandbox and waits.
func (p *Pool) end(m *member) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		p.log.Error("cannot end a sandbox", "sandbox", m.ID(), "error", err)
	}
	if m.dir != "" {
		_ = os.Remove(m.dir) // it is empty
	}
}

// endLocked is end without waiting. Close waits.
func (p *Pool) endLocked(members ...*member) {
	for _, m := range members {
		p.work.Go(func() { p.end(m) })
	}
}

// endAllLocked ends all pooled sandboxes.
func (p *Pool) endAllLocked() {
	for _, k := range p.kinds {
		p.endLocked(k.takeAll()...)
	}
	for workspace := range p.reserved {
		p.endLocked(p.unreserveLocked(workspace))
	}
}

// enter counts a sandbox that is about to be started for a session. It returns a ready one that
// must make room for it.
func (p *Pool) enter() (victim *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live++
	if p.cfg.Total <= 0 || p.live <= p.cfg.Total {
		return nil
	}
	return p.takeFromLocked(func(a, b *kind) bool { return a.demand < b.demand })
}

// takeFromLocked takes a ready sandbox of the kind that is better than all others, or returns nil.
func (p *Pool) takeFromLocked(better func(a, b *kind) bool) *member {
	var best *kind
	for _, k := range p.kinds {
		if len(k.ready) > 0 && (best == nil || better(k, best)) {
			best = k
		}
	}
	if best == nil {
		return nil
	}
	return best.takeOldest()
}

// leave is the opposite of enter.
func (p *Pool) leave() {
	p.mu.Lock()
	p.live--
	p.mu.Unlock()
	p.notify()
}

// watch counts a sandbox until it has ended. m is the sandbox if it is pooled, or nil.
func (p *Pool) watch(sb sandbox.Sandbox, m *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.work.Go(func() {
		exit, err := sb.Wait(p.ctx)
		if err != nil {
			return // the pool ends
		}
		if m != nil && p.remove(m) {
			p.log.Warn("a pooled sandbox died", "sandbox", sb.ID(), "cause", string(exit.Cause), "detail", exit.Detail)
			p.end(m)
		}
		p.leave()
	})
}

// remove removes a dead sandbox from the pool. It reports false if the sandbox was handed out
// before.
func (p *Pool) remove(m *member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(m.kind.ready, m); i >= 0 {
		m.kind.ready = slices.Delete(m.kind.ready, i, i+1)
		m.kind.fail(time.Now()) // or one that always dies would be started forever
		return true
	}
	for workspace, reserved := range p.reserved {
		if reserved == m {
			p.unreserveLocked(workspace)
			return true
		}
	}
	return false
}
