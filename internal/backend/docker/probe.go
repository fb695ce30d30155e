package docker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/backend/probe"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
)

const (
	// probeTimeout bounds a probe.
	probeTimeout = 60 * time.Second
	// networkProof is how long a successful probe of the network is valid: it takes three
	// containers.
	networkProof = 10 * time.Minute
)

// Probe implements sandbox.Prober.
func (b *Backend) Probe(ctx context.Context) []sandbox.Check {
	ctx, cancel := timeout(ctx, probeTimeout)
	defer cancel()
	b.forget() // the engine may have changed
	e, err := b.facts(ctx)
	if err == nil {
		err = b.checkUsable(e)
	}
	if err != nil {
		return []sandbox.Check{failure("engine", err)}
	}
	checks := []sandbox.Check{b.checkEngine(e)}
	if e.memory && e.looseTCP {
		checks = append(checks, sandbox.Check{
			Name: "memory", Status: sandbox.Warn,
			Detail: "the engine uses cgroup version 1, where its memory limit leaves out TCP buffers: a sandbox can hold any amount of them",
			Fix: "boot the engine's machine with cgroup version 2 (systemd.unified_cgroup_hierarchy=1 on the kernel's " +
				"command line), or use the jail",
		})
	}
	checks = append(checks, b.checkUser(e)...)
	set, _, _, err := b.Runners(ctx) // doctor reports the problems when it lists the runners
	if err != nil {
		return append(checks, failure("images", err))
	}
	checks = append(checks, b.checkImages(set))
	if len(set) == 0 {
		return checks
	}
	// Prefer an image with the agent: what another one does with a program is unknown.
	r := set[max(0, slices.IndexFunc(set, func(r runner.Runner) bool { return len(r.Argv) > 0 }))]
	run := b.probeRun(ctx, "sandbox", r, false)
	checks = append(checks, run)
	if run.Status != sandbox.OK {
		return checks
	}
	return append(append(checks, b.probeNetwork(ctx, r)), b.checkIsolation()...)
}

// failure is sandbox.Failure with general advice.
func failure(name string, err error) sandbox.Check {
	c := sandbox.Failure(name, err)
	c.Fix = cmp.Or(c.Fix, "see the engine's log")
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
	if b.cfg.Runtime != "" {
		c.Detail += ", with the runtime " + b.cfg.Runtime
	}
	var missing []string
	if !e.memory {
		missing = append(missing, "memory")
	}
	if !e.pids {
		missing = append(missing, "the number of processes")
	}
	switch {
	case len(missing) > 0:
		c.Status = sandbox.Warn
		c.Detail += ", which cannot limit " + strings.Join(missing, " and ")
		c.Fix = "give the engine cgroup controllers; a rootless one needs cgroup version 2 and systemd's Delegate=yes"
	case !e.seccomp:
		c.Status = sandbox.Warn
		c.Detail += ", which has no seccomp"
		c.Fix = "use a kernel and an engine with seccomp; the agent's own filter still applies"
	}
	return c
}

func (b *Backend) checkImages(set runner.Set) sandbox.Check {
	switch {
	case len(set) == 0 && len(b.cfg.Images) > 0:
		return sandbox.Check{
			Name: "images", Status: sandbox.Fail, Detail: "no labelled image on the engine is one of SANDBOX_IMAGES",
			Fix: "correct or unset SANDBOX_IMAGES; docker images lists what exists",
		}
	case len(set) == 0:
		return sandbox.Check{
			Name: "images", Status: sandbox.Fail, Detail: "no image on the engine is labelled sandbox.runner=true", Fix: "make images",
		}
	}
	var names []string
	for _, r := range set {
		names = append(names, r.Name+" by "+r.Image)
	}
	return sandbox.Check{Name: "images", Detail: strings.Join(names, ", ")}
}

// probeRun starts a sandbox, runs a program in it and reports the outcome.
func (b *Backend) probeRun(ctx context.Context, name string, r runner.Runner, network bool) sandbox.Check {
	trial := probe.Trial{Name: name, Dir: b.files, Spec: sandbox.Spec{ID: "-" + b.cfg.Instance, Image: r.ImageID, Network: network}}
	trial.UID, trial.GID = b.Owner(ctx)
	if len(r.Argv) > 0 { // else an empty program, for an image that takes it on its stdin
		trial.Run.Argv = []string{"true"}
	}
	c := probe.Start(ctx, b, trial)
	if c.Status == sandbox.Fail {
		c.Fix = cmp.Or(c.Fix, "see the engine's log")
	}
	return c
}

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
		c.Status = sandbox.Warn // runs without network work
	}
	return c
}

// checkIsolation reports how runs of one container are kept apart, if an agent has reported it.
func (b *Backend) checkIsolation() []sandbox.Check {
	b.mu.Lock()
	isolation := b.isolation
	b.mu.Unlock()
	if isolation == "" {
		return nil
	}
	c := sandbox.Check{Name: "runs", Detail: "runs of one session are kept apart by " + isolation}
	if strings.HasPrefix(isolation, noIsolation) {
		c.Status, c.Detail = sandbox.Warn, "overlapping runs of one session are not kept apart ("+isolation+"); sessions are"
		c.Fix = "use an engine whose kernel has Landlock (Linux 5.19 or newer)"
	}
	return []sandbox.Check{c}
}
