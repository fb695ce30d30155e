package jail_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/userns"
)

func TestMain(m *testing.M) { sandboxtest.Main(m, map[string]func(){"server": roleServer}) }

func TestConformance(t *testing.T) {
	t.Run("Exec", func(t *testing.T) {
		sandboxtest.Run(t, func(t *testing.T) sandboxtest.Harness { return harness(t, open(t, t.TempDir(), sandboxtest.ID())) })
	})
	t.Run("Zygote", func(t *testing.T) {
		sandboxtest.Run(t, func(t *testing.T) sandboxtest.Harness {
			return zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
		})
	})
	t.Run("Attached", func(t *testing.T) {
		needRoot(t, "only root's sandboxes can be prepared")
		sandboxtest.Run(t, func(t *testing.T) sandboxtest.Harness {
			b := open(t, t.TempDir(), sandboxtest.ID())
			h := zygoteHarness(t, b)
			h.Backend = attaching{b}
			return h
		})
	})
}

// attaching is a backend that starts all sandboxes without a workspace and attaches it.
type attaching struct{ *jail.Backend }

func (b attaching) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	workspace := spec.Workspace
	spec.Workspace = ""
	p, err := b.Prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := p.Attach(ctx, workspace); err != nil {
		_ = p.Close(context.WithoutCancel(ctx))
		if spec.Workspace = workspace; gives() && ctx.Err() == nil { // another sandbox may have it, as in TestUIDsOnDisk
			return b.Backend.Start(ctx, spec)
		}
		return nil, err
	}
	return p, nil
}

// gives reports whether workspaces belong to the uids of sandboxes on disk: root of an outer
// namespace may not map them.
func gives() bool { return sandboxtest.CurrentUserMode() == sandboxtest.UserRange }

// open opens a backend under root, which other instances may share.
func open(t *testing.T, root, instance string, closed ...*closednet.List) *jail.Backend {
	t.Helper()
	b, err := openBackend(root, instance, closed...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func openBackend(root, instance string, closed ...*closednet.List) (*jail.Backend, error) {
	return openLogging(root, instance, nil, closed...)
}

func openLogging(root, instance string, log *slog.Logger, closed ...*closednet.List) (*jail.Backend, error) {
	agent, err := sandboxtest.Agent("")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, instance)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	cfg := jail.Config{Dir: dir, Instance: instance, AgentBinary: agent, Logger: log}
	if len(closed) > 0 {
		cfg.Closed = closed[0]
	}
	return jail.New(cfg)
}

func harness(t *testing.T, b *jail.Backend) sandboxtest.Harness {
	uid, _ := jail.Owner()
	has := sandboxtest.All()
	has.Limits = limited(t, b)
	return sandboxtest.Harness{Backend: b, Owner: uid, Gives: gives(), Has: has}
}

// limited reports whether the backend has cgroups. Root must have them.
func limited(t *testing.T, b *jail.Backend) bool {
	t.Helper()
	for _, c := range b.Probe(t.Context()) {
		if c.Name != "cgroups" {
			continue
		}
		t.Log("cgroups:", c.Detail)
		if c.Status != 0 && userns.UID() == 0 {
			sandboxtest.Skip(t, "no cgroups: "+c.Detail)
		}
		return c.Status == 0
	}
	t.Fatal("the probe has no check for cgroups")
	return false
}

// TestProbe: the probe reports what works on this machine, and a fix for what does not.
func TestProbe(t *testing.T) {
	b := open(t, t.TempDir(), sandboxtest.ID())
	seen := map[string]sandbox.Check{}
	for _, c := range b.Probe(t.Context()) {
		seen[c.Name] = c
		if c.Detail == "" || c.Status != sandbox.OK && c.Fix == "" {
			t.Errorf("a check has no detail or no fix: %+v", c)
		}
	}
	if c := seen["sandbox"]; c.Status != sandbox.OK || c.Detail == "" {
		t.Errorf("no sandbox can be started: %+v", c)
	}
	if c := seen["network"]; c.Status != sandbox.OK {
		sandboxtest.Skip(t, "no network for sandboxes: "+c.Detail)
	}
}

// needRoot skips a test that needs root, be it of an outer namespace. If root started this test
// binary as an ordinary user, root runs the test.
func needRoot(t *testing.T, why string) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv(sandboxtest.AgentEnv) != "":
		t.Skip("tested as root")
	default:
		sandboxtest.Skip(t, "needs root: "+why)
	}
}

// needMachineRoot is needRoot for what root of an outer namespace cannot do.
func needMachineRoot(t *testing.T, why string) {
	t.Helper()
	if needRoot(t, why); userns.UID() != 0 {
		t.Skip("tested as root")
	}
}

// TestAsOrdinaryUser runs all other tests as an ordinary user, whose server may have an outer
// namespace or not.
func TestAsOrdinaryUser(t *testing.T) {
	if sandboxtest.CurrentUserMode() != "" || os.Geteuid() != 0 {
		t.Skip("all of it is run as an ordinary user")
	}
	for _, mode := range []sandboxtest.UserMode{sandboxtest.UserOutside, sandboxtest.UserAlone, sandboxtest.UserRange} {
		t.Run(string(mode), func(t *testing.T) {
			if out := sandboxtest.AsUser(t, mode); !strings.Contains(out, "--- PASS: TestConformance") {
				t.Error("the conformance tests did not pass")
			}
		})
	}
}
