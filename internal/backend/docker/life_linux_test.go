package docker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

const patience = 30 * time.Second

// containers lists the names of an installation's containers, whatever their state.
func containers(t *testing.T, c *client.Client, installation string) (names []string) {
	t.Helper()
	list, err := c.ContainerList(t.Context(), client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", "sandbox.installation="+installation),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		names = append(names, strings.TrimPrefix(item.Names[0], "/"))
	}
	slices.Sort(names)
	return names
}

// eventually waits until another process has made ok true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited %v for %s", patience, what)
		case <-tick.C:
		}
	}
}

// TestContainer checks the options of a container, as the engine reports them.
func TestContainer(t *testing.T) {
	c := api(t, engineHost(t))
	root := t.TempDir()
	cfg := config(t, root)
	b := open(t, root, func(c *docker.Config) { c.Installation, c.Instance = cfg.Installation, cfg.Instance })
	id := sandboxtest.ID()
	const MB = 1 << 20
	sandboxtest.Start(t, harness(t, b), sandbox.Spec{
		ID: id, SessionID: "a conversation/with=odd,characters", Limits: sandbox.Limits{MemoryBytes: 200 * MB, CPUs: 0.5, PIDs: 50, TmpBytes: 20 * MB},
	})
	res, err := c.ContainerInspect(t.Context(), "mcp-sandbox-"+id, client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, conf := res.Container.HostConfig, res.Container.Config
	for name, ok := range map[string]bool{
		"network none":         h.NetworkMode == "none",
		"no capability":        slices.Equal(h.CapDrop, []string{"ALL"}) && len(h.CapAdd) == 0,
		"no new privileges":    slices.ContainsFunc(h.SecurityOpt, func(o string) bool { return strings.HasPrefix(o, "no-new-privileges") }) && len(h.SecurityOpt) == 1,
		"not privileged":       !h.Privileged && len(h.Devices) == 0 && h.PidMode == "" && h.UTSMode == "" && h.UsernsMode == "",
		"read-only root":       h.ReadonlyRootfs,
		"memory and no swap":   h.Memory == 200*MB && h.MemorySwap == 200*MB,
		"half a CPU":           h.CPUPeriod > 0 && h.CPUQuota*2 == h.CPUPeriod,
		"processes":            h.PidsLimit != nil && *h.PidsLimit > 50 && *h.PidsLimit < 200,
		"sized tmpfs":          strings.Contains(h.Tmpfs["/tmp"], "size=20971520"),
		"no log":               h.LogConfig.Type == "none",
		"not root":             conf.User == "1000:1000" || os.Geteuid() != 0,
		"label app":            conf.Labels["app"] == "llm-sandbox",
		"label session_id":     conf.Labels["session_id"] == "a conversation/with=odd,characters",
		"label installation":   conf.Labels["sandbox.installation"] == cfg.Installation,
		"label instance":       conf.Labels["sandbox.instance"] == cfg.Instance,
		"label version":        conf.Labels["sandbox.server-version"] == "test",
		"nothing of ours":      !slices.ContainsFunc(conf.Env, func(e string) bool { return strings.Contains(e, "REQUIRE_ALL") }),
		"no health check":      conf.Healthcheck == nil || slices.Equal(conf.Healthcheck.Test, []string{"NONE"}),
		"no restart":           h.RestartPolicy.Name == "" || h.RestartPolicy.Name == container.RestartPolicyDisabled,
		"no published port":    len(h.PortBindings) == 0 && !h.PublishAllPorts,
		"stdin closes with us": conf.OpenStdin && conf.StdinOnce && !conf.Tty,
	} {
		if !ok {
			t.Errorf("%s is not so: %+v\n%+v", name, h, conf)
		}
	}
	var writable []string
	for _, m := range res.Container.Mounts {
		if strings.Contains(m.Source, "docker.sock") {
			t.Errorf("the engine's socket is inside: %+v", m)
		}
		if m.RW && m.Type == "bind" {
			writable = append(writable, m.Destination)
		}
	}
	slices.Sort(writable)
	if want := []string{"/data", "/mnt/data", "/workspace"}; !slices.Equal(writable, want) {
		t.Errorf("writable inside: %v, want %v", writable, want)
	}
}

// TestKilledFromOutside: a sandbox ends with its container, and the next start works.
func TestKilledFromOutside(t *testing.T) {
	c := api(t, engineHost(t))
	cfg := config(t, t.TempDir())
	b := open(t, cfg.Root, func(c *docker.Config) { c.Installation = cfg.Installation })
	h := harness(t, b)
	for name, kill := range map[string]func(id string) error{
		"kill": func(id string) error {
			_, err := c.ContainerKill(t.Context(), id, client.ContainerKillOptions{Signal: "KILL"})
			return err
		},
		"remove": func(id string) error {
			_, err := c.ContainerRemove(t.Context(), id, client.ContainerRemoveOptions{Force: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			box := sandboxtest.Start(t, h, sandbox.Spec{})
			box.BeginUntil(t, "up\n", sandboxtest.Shell("echo up; sleep 1000"))
			if err := kill("mcp-sandbox-" + box.ID()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if exit, err := box.Wait(ctx); err != nil || exit.Cause != sandbox.CauseLost {
				t.Errorf("%+v, %v", exit, err)
			}
			sandboxtest.Start(t, h, sandbox.Spec{}).Alive(t)
		})
	}
	eventually(t, "the containers to be gone", func() bool { return len(containers(t, c, cfg.Installation)) == 0 })
}

// TestFailedStart: whatever fails, nothing is left, and the error has a fix.
func TestFailedStart(t *testing.T) {
	c := api(t, engineHost(t))
	script := func(text string) func(*docker.Config) {
		return func(c *docker.Config) {
			c.Agent = func(string) ([]byte, error) { return []byte("#!/bin/sh\n" + text), nil }
		}
	}
	for _, test := range []struct {
		name   string
		change func(*docker.Config)
		spec   func(*sandbox.Spec)
		says   string
	}{
		{"the agent hangs", script("exec sleep 1000"), nil, "deadline"},
		{"the agent fails", script("echo no such luck >&2; exit 3"), nil, "no such luck"},
		{"the agent ends without a word", script("exit 3"), nil, "exit code 3"},
		{"the agent is no program", func(c *docker.Config) { c.Agent = func(string) ([]byte, error) { return []byte("\x7fELF"), nil } }, nil, "format error"},
		{"the agent speaks another language", script("echo hello, world, this is more than four bytes; sleep 1000"), nil, "protocol"},
		{"there is no agent", func(c *docker.Config) { c.Agent = func(string) ([]byte, error) { return nil, errors.New("not built") } }, nil, "make build"},
		{"a mount has no place", nil, func(s *sandbox.Spec) {
			s.Mounts = []sandbox.Mount{{Source: "/usr/share", Target: "/etc/passwd/here"}}
		}, "container"},
		{"a mount has no source", nil, func(s *sandbox.Spec) {
			s.Mounts = []sandbox.Mount{{Source: filepath.Join(t.TempDir(), "missing"), Target: "/here"}}
		}, "SANDBOX_HOST_PATH"},
		{"no such image", nil, func(s *sandbox.Spec) { s.Image = "sha256:" + strings.Repeat("0", 64) }, "make images"},
		{"no image", nil, func(s *sandbox.Spec) { s.Image = "" }, "make images"},
		{"no such runtime", func(c *docker.Config) { c.Runtime = "no-such-runtime" }, nil, "SANDBOX_DOCKER_RUNTIME"},
		{"network by another runtime", func(c *docker.Config) { c.Runtime = "runsc" }, func(s *sandbox.Spec) { s.Network = true }, "network: true"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := config(t, t.TempDir())
			b := open(t, cfg.Root, func(c *docker.Config) { c.Installation = cfg.Installation }, func(c *docker.Config) {
				if test.change != nil {
					test.change(c)
				}
			})
			h := harness(t, b)
			spec := sandbox.Spec{ID: sandboxtest.ID(), Image: h.Image, Workspace: sandboxtest.Workspace(t, h.Owner)}
			if test.spec != nil {
				test.spec(&spec)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			sb, err := b.Start(ctx, spec)
			if err == nil {
				_ = sb.Close(t.Context())
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v\nwant something about %q", err, test.says)
			}
			if left := containers(t, c, cfg.Installation); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestEngineHangs: starts, ends and probes of a hung engine end in time. When the engine answers
// again, all works.
func TestEngineHangs(t *testing.T) {
	g := newGate(t, engineHost(t))
	c := api(t, engineHost(t))
	cfg := config(t, t.TempDir())
	b := open(t, cfg.Root, func(c *docker.Config) { c.Installation, c.Host = cfg.Installation, g.Host })
	h := harness(t, b)
	box := sandboxtest.Start(t, h, sandbox.Spec{})
	box.Alive(t)

	g.Hang(true)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	spec := sandbox.Spec{ID: sandboxtest.ID(), Image: h.Image, Workspace: sandboxtest.Workspace(t, h.Owner)}
	if _, err := b.Start(ctx, spec); err == nil {
		t.Error("started by an engine that hangs")
	}
	cctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := box.Close(cctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close by an engine that hangs: %v", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v to see that the engine hangs", took)
	}

	g.Hang(false)
	eventually(t, "the containers to be gone", func() bool { return len(containers(t, c, cfg.Installation)) == 0 })
	sandboxtest.Start(t, h, sandbox.Spec{}).Alive(t)
}

// TestEngineAway: when an engine goes away, its runs are lost. When it is back, it is used again
// and cleaned up.
func TestEngineAway(t *testing.T) {
	g := newGate(t, engineHost(t))
	c := api(t, engineHost(t))
	cfg := config(t, t.TempDir())
	b := open(t, cfg.Root, func(c *docker.Config) { c.Installation, c.Host = cfg.Installation, g.Host })
	h := harness(t, b)
	box := sandboxtest.Start(t, h, sandbox.Spec{})
	box.BeginUntil(t, "up\n", sandboxtest.Shell("echo up; sleep 1000"))

	g.Away()
	select {
	case <-box.Conn.Done():
	case <-time.After(patience):
		t.Fatal("the connection lives on")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	spec := sandbox.Spec{ID: sandboxtest.ID(), Image: h.Image, Workspace: sandboxtest.Workspace(t, h.Owner)}
	_, err := b.Start(ctx, spec)
	var known *sandbox.Error
	if !errors.As(err, &known) || !strings.Contains(known.Fix, "DOCKER_HOST") {
		t.Errorf("a start without an engine: %v", err)
	}
	if checks := b.Probe(ctx); len(checks) != 1 || checks[0].Status != sandbox.Fail || checks[0].Fix == "" {
		t.Errorf("a probe without an engine: %+v", checks)
	}

	g.Back(t)
	if exit, err := box.Wait(ctx); err != nil || exit.Cause != sandbox.CauseLost {
		t.Errorf("%+v, %v", exit, err)
	}
	eventually(t, "the container to be gone", func() bool { return len(containers(t, c, cfg.Installation)) == 0 })
	spec.ID = sandboxtest.ID()
	sandboxtest.Start(t, h, spec).Alive(t)
}

// TestOrphans: Reap removes what dead instances of this installation left, and nothing else.
func TestOrphans(t *testing.T) {
	host := engineHost(t)
	c := api(t, host)
	cfg := config(t, t.TempDir())
	b := open(t, cfg.Root, func(c *docker.Config) { c.Installation, c.Instance = cfg.Installation, cfg.Instance })
	h := harness(t, b)
	mine := sandboxtest.Start(t, h, sandbox.Spec{})
	other := installation(t)
	plant := func(installation, instance string) string {
		t.Helper()
		labels := map[string]string{"app": "llm-sandbox", "session_id": "x"}
		if installation != "" {
			labels["sandbox.installation"], labels["sandbox.instance"] = installation, instance
		}
		res, err := c.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Name:   "mcp-sandbox-" + sandboxtest.ID(),
			Config: &container.Config{Image: h.Image, Labels: labels, Entrypoint: []string{"sleep", "1000"}}, HostConfig: &container.HostConfig{NetworkMode: "none"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_, _ = c.ContainerRemove(context.Background(), res.ID, client.ContainerRemoveOptions{Force: true})
		})
		if _, err := c.ContainerStart(t.Context(), res.ID, client.ContainerStartOptions{}); err != nil {
			t.Fatal(err)
		}
		return res.ID
	}
	there := func(id string) bool {
		_, err := c.ContainerInspect(t.Context(), id, client.ContainerInspectOptions{})
		return err == nil
	}
	reaped, dead, living, halfway := plant(cfg.Installation, "reaped"), plant(cfg.Installation, "dead"), plant(cfg.Installation, "living"), plant(cfg.Installation, cfg.Instance)
	foreign, unlabelled := plant(other, "dead"), plant("", "")

	if err := b.Reap(t.Context(), func(instance string) bool { return instance == "living" || instance == "dead" }); err != nil {
		t.Fatal(err)
	}
	mine.Alive(t)
	if there(reaped) || !there(dead) || !there(living) {
		t.Error("Reap took the wrong ones")
	}
	if err := b.Reap(t.Context(), func(instance string) bool { return instance == "living" }); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		id   string
		want bool
	}{"dead": {dead, false}, "halfway": {halfway, false}, "living": {living, true}, "foreign": {foreign, true}, "unlabelled": {unlabelled, true}} {
		if there(c.id) != c.want {
			t.Errorf("%s: there is %v, want %v", name, !c.want, c.want)
		}
	}
	mine.Alive(t)
}

// TestServerDies: when a server is killed, its processes end. The next server removes the
// container.
func TestServerDies(t *testing.T) {
	g := newGate(t, engineHost(t))
	c := api(t, engineHost(t))
	cfg := config(t, t.TempDir())
	dead, err := docker.New(func() docker.Config { cfg := cfg; cfg.Host = g.Host; return cfg }())
	if err != nil {
		t.Fatal(err)
	}
	h := harness(t, dead)
	sb, err := dead.Start(t.Context(), sandbox.Spec{ID: sandboxtest.ID(), Image: h.Image, Workspace: sandboxtest.Workspace(t, h.Owner)})
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.NewConn(sb.Conn(), wire.ServerSide, nil)
	defer conn.Close()
	g.Away() // all that the engine sees of a server's death
	eventually(t, "process 1 to end with its connection", func() bool {
		res, err := c.ContainerInspect(t.Context(), "mcp-sandbox-"+sb.ID(), client.ContainerInspectOptions{})
		return err == nil && !res.Container.State.Running
	})
	dead.Close()
	next := open(t, cfg.Root, func(c *docker.Config) { c.Installation = cfg.Installation })
	if err := next.Reap(t.Context(), func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if left := containers(t, c, cfg.Installation); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
