package jail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

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
	checks = append(checks, groups)
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
	start := time.Now()
	if err := b.tryRun(ctx, "probe-"+name, network); err != nil {
		c := sandbox.Check{Name: name, Status: sandbox.Fail, Detail: err.Error()}
		if known, ok := errors.AsType[*sandbox.Error](err); ok {
			c.Detail, c.Fix = known.Op+": "+known.Err.Error(), known.Fix
		}
		return c
	}
	return sandbox.Check{Name: name, Detail: fmt.Sprintf("started, ran a program and ended in %d ms", time.Since(start).Milliseconds())}
}

func (b *Backend) tryRun(ctx context.Context, id string, network bool) error {
	dir, err := os.MkdirTemp(b.files, id+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if b.credential() != nil {
		if err := os.Lchown(dir, b.uid, b.uid); err != nil {
			return err
		}
	}
	sb, err := b.Start(ctx, sandbox.Spec{ID: filepath.Base(dir), Workspace: dir, Network: network})
	if err != nil {
		return err
	}
	defer sb.Close(context.WithoutCancel(ctx))
	exit, err := wire.Execute(ctx, sb.Conn(), &wire.Run{Argv: []string{"true"}})
	if err != nil {
		return err
	}
	if exit.Error != "" || exit.Code != 0 {
		return fmt.Errorf("a run in the sandbox ended with %d %s", exit.Code, exit.Error)
	}
	return nil
}
