package main

import (
	"context"
	"errors"
	"time"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/sandbox"
)

// recordRetention is how long the store keeps the record of a run.
const recordRetention = 30 * 24 * time.Hour

// keepClean calls clean now and at every interval.
func (a *app) keepClean(ctx context.Context) {
	tick := time.NewTicker(a.settings.CleanupInterval)
	defer tick.Stop()
	for {
		a.clean(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// clean removes what dead instances left, and old results and records.
func (a *app) clean(ctx context.Context) {
	warn := func(message string, err error) {
		if err != nil && ctx.Err() == nil {
			a.log.Warn(message, "error", err)
		}
	}
	dead, err := instance.Dead(a.settings.Root)
	warn("cannot look for dead instances", err)
	isDead := map[string]bool{} // this instance holds their locks
	for _, d := range dead {
		isDead[d.ID()] = true
	}
	err = a.isolation.Reap(ctx, func(id string) bool { return !isDead[id] && instance.Alive(a.settings.Root, id) })
	warn("cannot clean up after dead instances; trying again later", err)
	for _, d := range dead {
		if err != nil {
			d.Abandon()
			continue
		}
		if err := d.Close(); err != nil {
			a.log.Warn("cannot remove the directory of a dead instance", "instance", d.ID(), "error", err)
			continue
		}
		a.log.Info("cleaned up after a dead instance", "instance", d.ID())
	}
	warn("cannot delete old results", a.store.PurgeResults(ctx, a.store.Now().Add(-executor.ResultRetention), a.instance.ID()))
	warn("cannot delete old records", a.store.Purge(ctx, a.store.Now().Add(-recordRetention)))
}

// ready returns an error if the database does not answer, or if the server cannot run code, for
// which it starts a sandbox.
func (a *app) ready(ctx context.Context) error {
	return a.tasks.do(ctx, func(ctx context.Context) error {
		if err := a.store.Ping(ctx); err != nil {
			return err
		}
		return a.judge(a.isolation.Probe(ctx))
	})
}

// judge returns an error if the backend's checks failed or no runner works.
func (a *app) judge(checks []sandbox.Check) error {
	for _, c := range checks {
		if c.Status == sandbox.Fail {
			return &sandbox.Error{Op: c.Name, Err: errors.New(c.Detail), Fix: c.Fix}
		}
	}
	if len(a.environments.runners()) == 0 {
		return &sandbox.Error{Op: "find runners", Err: errNoRunners, Fix: a.isolation.installFix(a.settings)}
	}
	return nil
}

var errNoRunners = errors.New("no language environment can be used")

// reportReadiness starts a sandbox once and logs what is wrong before the first run finds out.
func (a *app) reportReadiness(ctx context.Context) {
	checks := a.isolation.Probe(ctx)
	if ctx.Err() != nil {
		return
	}
	prefix := "code can run here, but with restrictions: "
	if err := a.judge(checks); err != nil {
		a.log.Error("no code can run here; mcp-code-sandbox doctor reports why", "error", err)
		prefix = ""
	}
	for _, c := range checks {
		if c.Status == sandbox.Warn && !a.settings.ignores(c) {
			a.log.Warn(prefix+c.Name+": "+c.Detail, "fix", c.Fix)
		}
	}
	for _, p := range a.environments.missing() {
		a.log.Warn("a runner cannot be used", "runner", p.Runner, "problem", p.Problem, "fix", p.Fix)
	}
}

// warm prepares what the sandboxes of the present runners share, before the first run needs it.
func (a *app) warm(ctx context.Context) {
	if p := a.isolation.pool; p != nil {
		p.Cool(a.environments.runners().Names())
	}
	for _, r := range a.environments.runners() {
		if r.Zygote != nil {
			a.isolation.warm(ctx, a.sessions.Spec(r))
		}
	}
}
