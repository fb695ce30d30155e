package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// probeTimeout bounds a probe.
const probeTimeout = 60 * time.Second

// Probe implements sandbox.Prober.
func (b *Backend) Probe(ctx context.Context) []sandbox.Check {
	ctx, cancel := timeout(ctx, probeTimeout)
	defer cancel()
	b.forget() // what was true may not be any more
	e, err := b.facts(ctx)
	if err == nil {
		err = b.usable(e)
	}
	if err != nil {
		return []sandbox.Check{failure("engine", err)}
	}
	checks := []sandbox.Check{b.checkEngine(e)}
	if e.memory && e.looseTCP {
		checks = append(checks, sandbox.Check{
			Name: "memory", Status: sandbox.Warn,
			Detail: "the engine uses cgroup version 1, where its memory limit leaves out TCP buffers: a sandbox can hold any amount of them",
			Fix:    "boot the engine's machine with cgroup version 2 (systemd.unified_cgroup_hierarchy=1 on the kernel's command line), or use the jail",
		})
	}
	checks = append(checks, b.checkUser(e)...)
	set, _, _, err := b.Runners(ctx) // whoever lists the runners reports their problems
	if err != nil {
		return append(checks, failure("images", err))
	}
	if len(set) == 0 {
		c := sandbox.Check{Name: "images", Status: sandbox.Fail, Detail: "no image on the engine is labelled sandbox.runner=true", Fix: "make images"}
		if len(b.cfg.Images) > 0 {
			c.Detail, c.Fix = "no labelled image on the engine is one of SANDBOX_IMAGES", "correct or unset SANDBOX_IMAGES; docker images lists what there is"
		}
		return append(checks, c)
	}
	var names []string
	for _, r := range set {
		names = append(names, r.Name+" by "+r.Image)
	}
	checks = append(checks, sandbox.Check{Name: "images", Detail: strings.Join(names, ", ")})
	// One with the agent, if there is one: nobody knows what another image makes of a program.
	i := max(0, slices.IndexFunc(set, func(r runner.Runner) bool { return len(r.Argv) > 0 }))
	run := b.probeRun(ctx, "sandbox", set[i], false)
	checks = append(checks, run)
	if run.Status != sandbox.OK {
		return checks
	}
	checks = append(checks, b.probeNetwork(ctx, set[i]))
	b.mu.Lock()
	isolation := b.isolation
	b.mu.Unlock()
	if isolation != "" {
		c := sandbox.Check{Name: "runs", Detail: "runs of one session are kept apart by " + isolation}
		if strings.HasPrefix(isolation, noIsolation) {
			c.Status, c.Detail = sandbox.Warn, "runs of one session that overlap are not kept apart ("+isolation+"); sessions are"
			c.Fix = "use an engine whose kernel has Landlock (Linux 5.19 or newer)"
		}
		checks = append(checks, c)
	}
	return checks
}

// networkProof is how long it is believed that networks work: proving it costs three containers.
const networkProof = 10 * time.Minute

func (b *Backend) probeNetwork(ctx context.Context, r runner.Runner) sandbox.Check {
	b.guard.mu.Lock()
	last, when := b.guard.proof, b.guard.proved
	b.guard.mu.Unlock()
	if !when.IsZero() && time.Since(when) < networkProof {
		return last
	}
	c := b.probeRun(ctx, "network", r, true)
	switch c.Status {
	case sandbox.OK:
		b.guard.mu.Lock()
		b.guard.proof, b.guard.proved = c, time.Now()
		b.guard.mu.Unlock()
	case sandbox.Fail:
		c.Status = sandbox.Warn // runs without network are possible
	}
	return c
}

func (b *Backend) checkEngine(e *engine) sandbox.Check {
	c := sandbox.Check{Name: "engine", Detail: e.version + " at " + b.client.DaemonHost()}
	switch {
	case e.rootless:
		c.Detail += ", rootless"
	case e.mapped:
		c.Detail += fmt.Sprintf(", with users mapped to %d and up", e.uidBase)
	}
	var missing []string
	for _, what := range []struct {
		there bool
		name  string
	}{{e.memory, "memory"}, {e.pids, "the number of processes"}} {
		if !what.there {
			missing = append(missing, what.name)
		}
	}
	if b.cfg.Runtime != "" {
		c.Detail += ", with the runtime " + b.cfg.Runtime
	}
	switch {
	case len(missing) > 0:
		c.Status = sandbox.Warn
		c.Detail += ", which cannot limit " + strings.Join(missing, " and ")
		c.Fix = "give the engine cgroup controllers; a rootless one needs cgroup version 2 and systemd's Delegate=yes"
	case !e.seccomp:
		c.Status = sandbox.Warn
		c.Detail += ", which has no seccomp"
		c.Fix = "use a kernel and an engine with seccomp; the agent's own filter still holds"
	}
	return c
}

// failure is the check of something that does not work.
func failure(name string, err error) sandbox.Check {
	c := sandbox.Check{Name: name, Status: sandbox.Fail, Detail: err.Error(), Fix: "see the engine's log"}
	var known *sandbox.Error
	if errors.As(err, &known) {
		c.Detail = known.Op + ": " + known.Err.Error()
		if known.Fix != "" {
			c.Fix = known.Fix
		}
	}
	return c
}

// probeRun starts a sandbox, runs a program in it and says how it went.
func (b *Backend) probeRun(ctx context.Context, name string, r runner.Runner, network bool) sandbox.Check {
	start := time.Now()
	if err := b.tryRun(ctx, "probe-"+name, r, network); err != nil {
		return failure(name, err)
	}
	return sandbox.Check{Name: name, Detail: fmt.Sprintf("started, ran a program and ended in %d ms", time.Since(start).Milliseconds())}
}

func (b *Backend) tryRun(ctx context.Context, id string, r runner.Runner, network bool) error {
	if err := os.MkdirAll(b.files, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(b.files, id+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if uid, gid := b.Owner(ctx); uid >= 0 {
		if err := os.Lchown(dir, uid, gid); err != nil {
			return err
		}
	}
	box, err := b.Start(ctx, sandbox.Spec{ID: filepath.Base(dir) + "-" + b.cfg.Instance, Image: r.ImageID, Workspace: dir, Network: network})
	if err != nil {
		return err
	}
	defer box.Close(context.WithoutCancel(ctx))
	frame := &wire.Run{} // an empty program, for an image that takes it on its stdin
	if len(r.Argv) > 0 {
		frame.Argv = []string{"true"}
	}
	exit, err := wire.Execute(ctx, box.Conn(), frame)
	if err != nil {
		return err
	}
	if exit.Error != "" || exit.Code != 0 {
		return fmt.Errorf("a run inside ended with %d %s", exit.Code, exit.Error)
	}
	return nil
}
