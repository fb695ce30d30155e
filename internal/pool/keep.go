package pool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"math"
	"os"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// kind is what sandboxes have in common that can stand in for each other.
type kind struct {
	spec  sandbox.Spec // without ID, Session, SessionID, Workspace
	floor int          // how many are ready though nobody asks
	tried bool         // one has been started, or tried to
	ready []*member    // oldest first

	score    float64 // how often it was asked for; halves every halfLife
	scored   time.Time
	failures int       // starts that failed, since the last that did not
	after    time.Time // the next start is not before
}

// kindOf is the kind that a spec asks for, or nil where none is ever ready: of sandboxes with network, which
// hold more than memory, and of environments that isolate themselves.
func kindOf(spec sandbox.Spec) *sandbox.Spec {
	if spec.Network || spec.Wrapper != "" {
		return nil
	}
	spec.ID, spec.Session, spec.SessionID, spec.Workspace = "", "", "", ""
	return &spec
}

func (k *kind) asked(now time.Time) {
	k.decay(now)
	k.score++
}

func (k *kind) decay(now time.Time) {
	if !k.scored.IsZero() {
		k.score *= math.Exp2(-float64(now.Sub(k.scored)) / float64(halfLife))
	}
	k.scored = now
}

func (k *kind) failed(now time.Time) {
	k.after = now.Add(min(firstWait<<min(k.failures, 10), longestWait))
	k.failures++
}

// want is how many should be ready.
func (k *kind) want(size int) int {
	return min(max(k.floor, int(math.Round(min(k.score, float64(size))))), size)
}

// never is when a kind is tried again that cannot be had.
const never = 24 * time.Hour

// keep starts and ends ready sandboxes until the pool is closed.
func (p *Pool) keep() {
	var since time.Time // of the wait for idle processors
	for {
		now := time.Now()
		k, first, wait := p.next(now)
		if k == nil {
			since = time.Time{}
		} else {
			cpu, memory := p.cfg.Budget()
			if since.IsZero() { // what it says is about earlier; and whoever has just taken one has code to run
				since, cpu = now, false
			}
			switch {
			case !memory:
				wait = scarce
			case !cpu && now.Sub(since) < patience && !first:
				wait = look
			default:
				since = time.Time{}
				p.fill(k)
				continue
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-p.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-p.wake:
			timer.Stop()
		}
	}
}

// next ends what is too old or not wanted any more, and returns the kind that most needs a sandbox, or nil and how long
// to wait for one. first reports that KeepReady asked for the kind and none has been started yet.
func (p *Pool) next(now time.Time) (needy *kind, first bool, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, tick
	}
	wait = tick
	need := 0
	var surplus []*member
	for s, k := range p.kinds {
		k.decay(now)
		want := k.want(p.cfg.Size)
		for len(k.ready) > 0 && (len(k.ready) > want || now.Sub(k.ready[0].born) >= lifetime) {
			surplus = append(surplus, k.ready[0])
			k.ready = k.ready[1:]
		}
		lacking := want - len(k.ready)
		switch {
		case lacking <= 0:
			if want == 0 && k.score < 0.01 {
				delete(p.kinds, s)
			}
		case now.Before(k.after):
			wait = min(wait, k.after.Sub(now))
		case lacking > need:
			needy, need = k, lacking
		}
	}
	p.endAllLocked(surplus)
	if p.cfg.Total > 0 && p.live >= p.cfg.Total || p.renaming && (p.cfg.Dir == "" || !canRename) {
		needy = nil // whoever ends, stirs
	}
	return needy, needy != nil && needy.floor > 0 && !needy.tried, wait
}

// fill starts a sandbox of a kind.
func (p *Pool) fill(k *kind) {
	p.mu.Lock()
	renaming := p.renaming
	p.live++
	k.tried = true
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.ctx, startTimeout)
	defer cancel()
	spec := k.spec
	var b [8]byte
	rand.Read(b[:]) // never fails
	spec.ID = "pool-" + hex.EncodeToString(b[:])
	mounts := sandbox.SourcesOf(spec.Mounts) // before: what is replaced meanwhile is not what it was
	start := p.prepare
	if renaming {
		start = p.stand
	}
	m, err := start(ctx, spec)
	if err != nil {
		p.leave()
		p.mu.Lock()
		defer p.mu.Unlock()
		if errors.Is(err, errors.ErrUnsupported) && !renaming {
			p.renameLocked()
			return
		}
		if k.failed(time.Now()); errors.Is(err, errors.ErrUnsupported) {
			k.after = time.Now().Add(never)
		} else if p.ctx.Err() == nil {
			p.log.Warn("cannot start a sandbox ahead of its use", "runner", spec.Runner, "err", err, "failures", k.failures)
		}
		return
	}
	m.born, m.mounts = time.Now(), mounts
	p.mu.Lock()
	unwanted := p.closed || p.renaming != renaming || p.kinds[slotOf(spec)] != k
	if !unwanted {
		k.ready, k.failures = append(k.ready, m), 0
	}
	p.mu.Unlock()
	p.watch(m.Sandbox, m)
	if unwanted {
		p.end(m)
	}
}

// prepare starts a sandbox to which a workspace can be attached.
func (p *Pool) prepare(ctx context.Context, spec sandbox.Spec) (*member, error) {
	sb, err := p.cfg.Backend.(sandbox.Preparer).Prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &member{Sandbox: sb, attach: sb.Attach}, nil
}

// stand starts a sandbox on a directory that has no name yet.
func (p *Pool) stand(ctx context.Context, spec sandbox.Spec) (*member, error) {
	if err := os.MkdirAll(p.cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(p.cfg.Dir, "workspace-") // for nobody else: 0700
	if err != nil {
		return nil, err
	}
	if p.cfg.Own != nil {
		err = p.cfg.Own(dir)
	}
	var stands fs.FileInfo
	if err == nil {
		stands, err = os.Lstat(dir)
	}
	var sb sandbox.Sandbox
	if err == nil {
		spec.Workspace, spec.Moves = dir, true
		sb, err = p.cfg.Backend.Start(ctx, spec)
	}
	if err != nil {
		_ = os.Remove(dir)
		return nil, err
	}
	return &member{Sandbox: sb, dir: dir, stands: stands}, nil
}
