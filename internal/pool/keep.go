package pool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

const (
	// lifetime bounds how long a sandbox is kept ready.
	lifetime = 30 * time.Minute
	// tick is the interval at which the keeper looks for kinds without demand and for old
	// sandboxes.
	tick = 30 * time.Second
	// The keeper looks for idle processors every idleTick, but for at most idlePatience: a start
	// costs little, and on a machine that is always busy, callers would have to wait for a start.
	idleTick     = 30 * time.Millisecond
	idlePatience = 2 * time.Second
	// memoryTick is the interval at which the keeper checks the free memory.
	memoryTick = 5 * time.Second
	// never is the pause before the next start of a kind that cannot be pooled.
	never = 24 * time.Hour

	startTimeout = 30 * time.Second
)

// keep starts and ends pooled sandboxes until the pool is closed.
func (p *Pool) keep() {
	var since time.Time // when the wait for idle processors began
	for {
		now := time.Now()
		k, first, wait := p.next(now)
		if k == nil {
			since = time.Time{}
		} else {
			cpu, memory := p.cfg.Budget()
			if since.IsZero() { // Budget measures the past, but the session that just took a sandbox is about to run code
				since, cpu = now, false
			}
			switch {
			case !memory:
				wait = memoryTick
			case !cpu && now.Sub(since) < idlePatience && !first:
				wait = idleTick
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

// next ends sandboxes that are too old or too many. It returns the kind that lacks most sandboxes,
// or nil and how long to wait. first reports that KeepReady asked for the kind and none has been
// tried.
func (p *Pool) next(now time.Time) (neediest *kind, first bool, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = tick
	if p.closed {
		return nil, false, wait
	}
	most := 0
	for runner, k := range p.kinds {
		k.decay(now)
		target := k.target(p.cfg.Size)
		for len(k.ready) > 0 && (len(k.ready) > target || now.Sub(k.ready[0].born) >= lifetime) {
			p.endLocked(k.takeOldest())
		}
		lacking := target - len(k.ready)
		switch {
		case lacking <= 0:
			if target == 0 && k.demand < 0.01 {
				delete(p.kinds, runner)
			}
		case now.Before(k.retryAt):
			wait = min(wait, k.retryAt.Sub(now))
		case lacking > most:
			neediest, most = k, lacking
		}
	}
	full := p.cfg.Total > 0 && p.live >= p.cfg.Total // leave wakes the keeper
	if neediest == nil || full || p.byRename && (p.cfg.Dir == "" || !canRename) {
		return nil, false, wait
	}
	return neediest, neediest.floor > 0 && !neediest.tried, wait
}

// fill starts a sandbox of a kind.
func (p *Pool) fill(k *kind) {
	p.mu.Lock()
	byRename := p.byRename
	k.tried = true
	p.live++
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.ctx, startTimeout)
	defer cancel()
	spec := k.spec
	var b [8]byte
	rand.Read(b[:]) // never fails
	spec.ID = "pool-" + hex.EncodeToString(b[:])
	mounts := sandbox.SourcesOf(spec.Mounts) // before the start, so that a change during it is noticed
	start := p.startWithoutWorkspace
	if byRename {
		start = p.startOnDirectory
	}
	m, err := start(ctx, spec)
	if err != nil {
		p.leave()
		p.recordFailure(k, byRename, err)
		return
	}
	m.kind, m.born, m.mounts = k, time.Now(), mounts
	p.mu.Lock()
	unwanted := p.closed || p.byRename != byRename || p.kinds[spec.Runner] != k
	if !unwanted {
		k.ready, k.failures = append(k.ready, m), 0
	}
	p.mu.Unlock()
	p.watch(m.Sandbox, m)
	if unwanted {
		p.end(m)
	}
}

// recordFailure decides when and how to retry a start.
func (p *Pool) recordFailure(k *kind, byRename bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	unsupported := errors.Is(err, errors.ErrUnsupported)
	if unsupported && !byRename {
		p.switchToRenameLocked()
		return
	}
	k.fail(time.Now())
	switch {
	case unsupported:
		k.retryAt = time.Now().Add(never)
	case p.ctx.Err() == nil:
		p.log.Warn("cannot start a pooled sandbox", "runner", k.spec.Runner, "error", err, "failures", k.failures)
	}
}

// startWithoutWorkspace starts a sandbox to which a workspace can be attached.
func (p *Pool) startWithoutWorkspace(ctx context.Context, spec sandbox.Spec) (*member, error) {
	sb, err := p.cfg.Backend.(sandbox.Preparer).Prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &member{Sandbox: sb, attach: sb.Attach}, nil
}
