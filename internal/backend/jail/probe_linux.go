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
		groups.Fix = "start the server as root, as a service with Delegate=yes, or in a login session, where it asks systemd " +
			"for a cgroup (XDG_RUNTIME_DIR must be set); until then, memory and process limits apply to each process, " +
			"and CPU and socket buffers are not limited"
	case !b.cgroups.LimitsCPU():
		groups.Status = sandbox.Warn
		groups.Detail += ", without the cpu controller"
		groups.Fix = "sudo systemctl edit user@.service, add the lines [Service] and Delegate=cpu memory pids, and log in " +
			"again; until then, CPU is not limited"
	case !b.cgroups.LimitsSockets():
		groups.Status = sandbox.Warn
		groups.Detail += ", which cannot limit TCP buffers"
		groups.Fix = "boot with cgroup version 2: systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
	}
	checks = append(checks, groups)
	switch scope, err := b.cgroups.Scope(); {
	case err != nil:
		checks = append(checks, sandbox.Check{
			Name: "systemd scope", Status: sandbox.Warn, Detail: err.Error(), Fix: "systemctl --user status says whether systemd works for this user",
		})
	case scope != "":
		checks = append(checks, sandbox.Check{Name: "systemd scope", Detail: scope + ", made for this server"})
	}
	checks = append(checks, b.ids.check())
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
