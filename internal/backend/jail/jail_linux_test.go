package jail_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
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
		return nil, err
	}
	return p, nil
}

// ordinaryUser is a uid without an account.
const ordinaryUser = 123456

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
	return sandboxtest.Harness{Backend: b, Owner: uid, Has: has}
}

// limited reports whether the backend has cgroups. Root must have them.
func limited(t *testing.T, b *jail.Backend) bool {
	t.Helper()
	for _, c := range b.Probe(t.Context()) {
		if c.Name != "cgroups" {
			continue
		}
		t.Log("cgroups:", c.Detail)
		if c.Status != 0 && os.Geteuid() == 0 {
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

// needRoot skips a test that ordinary users cannot run. If root started this test binary as an
// ordinary user, root runs the test.
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

// TestAsOrdinaryUser runs all other tests as an ordinary user.
func TestAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("all of it is run as an ordinary user")
	}
	dir, err := os.MkdirTemp("", "jailtest-user-") // not below a directory of root's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, p := range []struct {
		path string
		mode os.FileMode
	}{{dir, 0o755}, {filepath.Join(dir, "tmp"), 0o700}, {filepath.Join(dir, "dev"), 0o755}} {
		if err := os.MkdirAll(p.path, p.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p.path, p.mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(dir, "tmp"), ordinaryUser, ordinaryUser); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{"test": "/proc/self/exe", "agent": sandboxtest.AgentFile()} {
		b, err := os.ReadFile(source)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	uid := strconv.Itoa(ordinaryUser)
	args := []string{"-test.v", "-test.timeout=3m"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	become := []string{"setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", filepath.Join(dir, "test")}
	if _, err := os.Stat("/dev/net/tun"); err == nil {
		// If only root may open the device, the ordinary user sees another one, as on most
		// machines.
		lend := `mount -t tmpfs none "$0" && mknod -m 666 "$0/tun" c 10 200 && mount --bind "$0/tun" /dev/net/tun && exec "$@"`
		become = append([]string{"unshare", "--mount", "sh", "-c", lend, filepath.Join(dir, "dev")}, become...)
	}
	cmd := exec.CommandContext(t.Context(), become[0], append(become[1:], args...)...)
	cmd.Dir = filepath.Join(dir, "tmp")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "TMPDIR=" + cmd.Dir, "HOME=" + cmd.Dir, sandboxtest.AgentEnv + "=" + filepath.Join(dir, "agent"),
		sandboxtest.RequireAll + "=" + os.Getenv(sandboxtest.RequireAll),
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: TestConformance") {
		t.Errorf("as uid %d: %v", ordinaryUser, err)
	}
}
