// Package pool keeps sandboxes ready, so that a session's first run need not wait for the start of one.
//
// A [Pool] is a backend that decorates another. Sandboxes are kept by kind: all that a Spec says but for whom it is. A kind
// that is asked for often has several, one that nobody asks for none; they are started one after the other, when the
// machine has nothing better to do. A ready sandbox has run nobody's code, and one that was handed out never comes back.
//
// It gets its session's workspace in one of two ways. Where the backend is a [sandbox.Preparer] it is started without one,
// and the session's is attached. Elsewhere it stands on a directory of its own, without a name yet, which
// becomes the workspace of a new session by one rename.
//
// The package knows no sessions, runners or ways to isolate.
package pool

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// Config of a Pool.
type Config struct {
	Backend sandbox.Backend
	// Size is how many sandboxes of one kind are ready at most. Zero: none ever is.
	Size int
	// Total is how many sandboxes there may be, of all kinds and those in use included, for one to be kept ready.
	// The ready ones make way for those in use. Zero: any number.
	Total int
	// Dir is a directory of this pool's alone, on the file system of the sessions, for sandboxes whose workspace must be there
	// when they start. It is made when it is needed, and removed by Close. Empty: there will be no such sandboxes.
	Dir string
	// Own gives a new directory in Dir to the user that sandboxes have outside; nil: the server's own.
	Own func(dir string) error
	// Budget says whether the machine has idle processors, since it was last asked, and free memory; nil: it does.
	Budget func() (cpu, memory bool)
	Logger *slog.Logger // nil is silent
}

const (
	// lifetime is how long a sandbox is kept ready; then another takes its place.
	lifetime = 30 * time.Minute
	// halfLife is how fast it is forgotten that a kind was asked for.
	halfLife = 5 * time.Minute
	// tick is how often to look for kinds that nobody asks for and sandboxes that are too old.
	tick = 30 * time.Second
	// look is how often to look for idle processors, and patience how long: a start takes little, and a machine
	// that is always busy is one whose callers wait.
	look     = 30 * time.Millisecond
	patience = 2 * time.Second
	// scarce is how often to look for free memory.
	scarce = 5 * time.Second

	startTimeout = 30 * time.Second
	closeTimeout = 10 * time.Second
	// After a failed start of a kind, the next waits, and longer each time.
	firstWait, longestWait = time.Second, time.Minute
)

// Pool is a backend that has sandboxes ready.
type Pool struct {
	cfg Config
	log *slog.Logger

	ctx    context.Context // ends with the pool; ready sandboxes are started under it
	cancel context.CancelFunc
	wake   chan struct{} // something has changed
	work   sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	renaming bool // nothing can be attached here: sandboxes stand on directories of their own
	kinds    map[slot]*kind
	promised map[string]*promise // by workspace
	live     int                 // sandboxes that are starting, ready or in use
}

var _ sandbox.Backend = (*Pool)(nil)

// slot is the place of a kind. When a runner is installed anew, its new kind takes the place of the old.
type slot struct {
	runner  string
	network bool
}

func slotOf(spec sandbox.Spec) slot { return slot{spec.Runner, spec.Network} }

// member is a ready sandbox.
type member struct {
	sandbox.Sandbox
	attach func(ctx context.Context, workspace string) error // nil: it stands on dir
	dir    string                                            // to be removed with the sandbox
	stands fs.FileInfo                                       // of the directory that it stands on
	mounts sandbox.Sources                                   // what is mounted in it
	born   time.Time
}

// New returns a Pool. Close ends it, before the backend's own end.
func New(cfg Config) *Pool {
	p := &Pool{cfg: cfg, log: cfg.Logger, wake: make(chan struct{}, 1), kinds: map[slot]*kind{}, promised: map[string]*promise{}}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.cfg.Budget == nil {
		p.cfg.Budget = func() (bool, bool) { return true, true }
	}
	if _, ok := cfg.Backend.(sandbox.Preparer); !ok {
		p.renaming = true
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.work.Go(p.keep)
	return p
}

// Start implements sandbox.Backend: it hands out a ready sandbox if there is one, else it starts one.
func (p *Pool) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if m := p.take(spec); m != nil {
		err := p.give(ctx, m, spec)
		if err == nil {
			return m.Sandbox, nil
		}
		p.end(m) // whatever came of it: no other session gets it
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		p.log.Debug("a ready sandbox could not be used; starting another", "sandbox", m.ID(), "err", err)
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

// give makes a ready sandbox the session's.
func (p *Pool) give(ctx context.Context, m *member, spec sandbox.Spec) error {
	if !m.mounts.Same(sandbox.SourcesOf(spec.Mounts)) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if k := p.kinds[slotOf(spec)]; k != nil { // the others may be as old
			p.endAllLocked(k.ready)
			k.ready = nil
		}
		return errors.New("what is mounted in it has been replaced")
	}
	if m.attach == nil {
		return m.standsOn(spec.Workspace)
	}
	err := m.attach(ctx, spec.Workspace)
	if errors.Is(err, errors.ErrUnsupported) {
		p.log.Info("workspaces cannot be attached to sandboxes here; new sessions alone find one ready", "err", err)
		p.mu.Lock()
		p.renameLocked()
		p.mu.Unlock()
	}
	return err
}

// renameLocked gives up attaching, and with it what is ready for that.
func (p *Pool) renameLocked() {
	if !p.renaming {
		p.renaming = true
		p.endAllLocked(p.dropAllLocked())
	}
}

// take returns a ready sandbox for a spec, or nil, and notes that one was asked for.
func (p *Pool) take(spec sandbox.Spec) *member {
	want := kindOf(spec)
	if want == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.cfg.Size <= 0 {
		return nil
	}
	k := p.kindLocked(*want)
	k.asked(time.Now())
	p.stir()
	if p.renaming {
		return p.redeemLocked(spec.Workspace, k)
	}
	if len(k.ready) == 0 {
		return nil
	}
	m := k.ready[0]
	k.ready = k.ready[1:]
	return m
}

// kindLocked returns the kind of a spec. It takes the place of an older one of the same runner.
func (p *Pool) kindLocked(spec sandbox.Spec) *kind {
	s := slotOf(spec)
	k := p.kinds[s]
	if k != nil && reflect.DeepEqual(k.spec, spec) {
		return k
	}
	if k != nil {
		p.endAllLocked(k.ready)
	}
	k = &kind{spec: spec}
	p.kinds[s] = k
	return k
}

// KeepReady keeps at least one sandbox like spec ready. It starts the first at once, busy or not: the backend
// then makes what such sandboxes share.
func (p *Pool) KeepReady(spec sandbox.Spec) {
	want := kindOf(spec)
	if want == nil || p.cfg.Size <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.kindLocked(*want).floor = 1
		p.stir()
	}
}

// Cool takes back what KeepReady was told of runners that are not named: there are none of theirs ready soon.
func (p *Pool) Cool(runners []string) {
	named := map[string]bool{}
	for _, name := range runners {
		named[name] = true
	}
	p.mu.Lock()
	for s, k := range p.kinds {
		if !named[s.runner] {
			k.floor, k.score = 0, 0
		}
	}
	p.mu.Unlock()
	p.stir()
}

// Ready is how many sandboxes are ready.
func (p *Pool) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, k := range p.kinds {
		n += len(k.ready)
	}
	return n
}

// Close ends the ready sandboxes, and the start of one that is under way, and returns when nothing is left of them. Those
// that were handed out are their holders'. Start goes on to work, without the pool.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.endAllLocked(p.dropAllLocked())
	p.mu.Unlock()
	p.cancel()
	done := make(chan struct{})
	go func() {
		p.work.Wait()
		if p.cfg.Dir != "" {
			_ = os.Remove(p.cfg.Dir) // what is in it is not this pool's any more
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

func (p *Pool) dropAllLocked() (dropped []*member) {
	for _, k := range p.kinds {
		dropped = append(dropped, k.ready...)
		k.ready = nil
	}
	for path, pr := range p.promised {
		dropped = append(dropped, p.breakLocked(path, pr))
	}
	return dropped
}

// stir has the keeper look at everything again.
func (p *Pool) stir() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// end closes a sandbox that nobody has, and waits.
func (p *Pool) end(m *member) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		p.log.Error("cannot end a sandbox", "sandbox", m.ID(), "err", err)
	}
	if m.dir != "" {
		_ = os.Remove(m.dir) // it is empty
	}
}

// endAllLocked is end without waiting. Close waits.
func (p *Pool) endAllLocked(members []*member) {
	for _, m := range members {
		p.work.Go(func() { p.end(m) })
	}
}

// enter counts a sandbox that is about to be started for somebody. A ready one that must make way for it is returned.
func (p *Pool) enter() (victim *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live++
	if p.cfg.Total <= 0 || p.live <= p.cfg.Total {
		return nil
	}
	var least *kind
	for _, k := range p.kinds {
		if len(k.ready) > 0 && (least == nil || k.score < least.score) {
			least = k
		}
	}
	if least == nil {
		return nil
	}
	victim, least.ready = least.ready[0], least.ready[1:]
	return victim
}

func (p *Pool) leave() {
	p.mu.Lock()
	p.live--
	p.mu.Unlock()
	p.stir()
}

// watch counts a sandbox until it has ended. One that dies while it is ready is m.
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
			p.log.Warn("a ready sandbox has died", "sandbox", sb.ID(), "cause", string(exit.Cause), "detail", exit.Detail)
			p.end(m)
		}
		p.leave()
	})
}

// remove takes a sandbox out of the ready ones, if it is one of them.
func (p *Pool) remove(m *member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path, pr := range p.promised {
		if pr.member == m {
			p.breakLocked(path, pr)
			return true
		}
	}
	for _, k := range p.kinds {
		for i, each := range k.ready {
			if each == m {
				k.ready = append(k.ready[:i:i], k.ready[i+1:]...)
				k.failed(time.Now()) // or one that always dies would be started for ever
				return true
			}
		}
	}
	return false
}
