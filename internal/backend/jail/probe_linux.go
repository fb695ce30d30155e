package jail

import (
	"context"

	"mcp-code-sandbox/internal/backend/probe"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// Probe implements sandbox.Prober.
func (b *Backend) Probe(ctx context.Context) []sandbox.Check {
	ctx, cancel := context.WithTimeout(ctx, 3*startTimeout)
	defer cancel()
	checks := []sandbox.Check{b.probeRun(ctx, "sandbox", false)}
	groups := sandbox.Check{Name: "cgroups", Detail: b.cgroups.String()}
	switch {
	case !b.cgroups.Available():
		groups.Status = sandbox.Warn
		groups.Fix = "start the server as root, or as a user service with Delegate=yes; until then, memory and " +
			"process limits apply to each process, and CPU and socket buffers are not limited"
	case !b.cgroups.LimitsSockets():
		groups.Status = sandbox.Warn
		groups.Detail += ", which cannot limit TCP buffers"
		groups.Fix = "boot with cgroup version 2: systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
	}
	checks = append(checks, groups, b.ids.check())
	if checks[0].Status == sandbox.OK {
		c := b.probeRun(ctx, "network", true)
		if c.Status == sandbox.Fail {
			c.Status = sandbox.Warn // runs without network work
		}
		checks = append(checks, c)
	}
	return checks
}

// probeRun starts a sandbox, runs a program in it and reports the outcome.
func (b *Backend) probeRun(ctx context.Context, name string, network bool) sandbox.Check {
	trial := probe.Trial{
		Name: name, Dir: b.files, UID: -1, GID: -1, Spec: sandbox.Spec{Network: network},
		Run: wire.Run{Argv: []string{"true"}},
	}
	if b.ids.credential() != nil {
		trial.UID, trial.GID = b.ids.owner, b.ids.owner
	}
	return probe.Start(ctx, b, trial)
}
