package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/netguard"
	"mcp-code-sandbox/internal/sandbox"
)

// A sandbox with network is on a bridge where containers cannot reach each other. Before any code
// arrives, a helper container with CAP_NET_ADMIN joins its network namespace and closes everything
// that is not the internet. The sandbox itself never has that capability.

const (
	// addressesFor is how long the addresses of the engine's host are assumed to stay the same.
	addressesFor = time.Minute
	// maxHelp bounds what a helper prints.
	maxHelp = 64 << 10

	opClose = "close the sandbox's network toward private addresses"
)

// hostRuntimes lists the runtimes that use the host's kernel and network namespaces. Others copy
// the routes when they start, so what is closed later would stay open.
var hostRuntimes = []string{"", "runc", "crun", "youki", "io.containerd.runc.v2"}

// ownKernel reports whether each container has its own kernel.
func (b *Backend) ownKernel() bool { return !slices.Contains(hostRuntimes, b.cfg.Runtime) }

// guard holds the state of networks.
type guard struct {
	mu     sync.Mutex
	exists bool // the bridge
	host   netguard.HostNetwork
	asked  time.Time // when host was

	live        map[string]*guarded // containers with network, by id
	following   bool                // followClosed runs
	wake        chan struct{}       // the list of closed networks has changed
	unsubscribe func()              // from that list

	helpers int // started so far

	proof  sandbox.Check // the last successful start with network, at proved
	proved time.Time
}

// guarded is a container that can reach only the internet.
type guarded struct {
	img image
	e   *engine

	mu     sync.Mutex
	config string // applied last
}

// networkName is the name of the bridge. Each instance has its own: an engine that gets two
// requests at the same time creates two networks of one name, and then finds neither.
func (b *Backend) networkName() string { return "mcp-sandbox-" + b.cfg.Instance }

// ensureNetwork creates the bridge if it does not exist.
func (b *Backend) ensureNetwork(ctx context.Context, e *engine) error {
	const op = "connect the sandbox to the network"
	if b.ownKernel() {
		return &sandbox.Error{
			Op: op, Err: fmt.Errorf("with the runtime %s nothing keeps a container from private addresses", b.cfg.Runtime),
			Fix: "run without network: true, or unset SANDBOX_DOCKER_RUNTIME", NetworkOnly: true,
		}
	}
	g := &b.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.exists {
		return nil
	}
	name := b.networkName()
	switch res, err := b.client.NetworkInspect(ctx, name, client.NetworkInspectOptions{}); {
	case err == nil && res.Network.Labels[labelInstance] != b.cfg.Instance:
		return &sandbox.Error{
			Op: op, Err: fmt.Errorf("the engine has a network %s that is not ours", name), Fix: "docker network rm " + name,
		}
	case err == nil:
		g.exists = true
		return nil
	case !cerrdefs.IsNotFound(err):
		return b.explain(ctx, op, err)
	}
	no := false
	opt := client.NetworkCreateOptions{Driver: "bridge", EnableIPv6: &no, Labels: b.labels("network")}
	if !e.podman { // Podman has no such option; netguard also closes the bridge
		opt.Options = map[string]string{"com.docker.network.bridge.enable_icc": "false"}
	}
	_, err := b.client.NetworkCreate(ctx, name, opt)
	if err != nil && !cerrdefs.IsConflict(err) && !cerrdefs.IsAlreadyExists(err) {
		return b.explain(ctx, op, err)
	}
	g.exists = true
	return nil
}

func (b *Backend) networkExists() bool {
	b.guard.mu.Lock()
	defer b.guard.mu.Unlock()
	return b.guard.exists
}

// forgetNetwork makes the next start look for the bridge again.
func (b *Backend) forgetNetwork() {
	b.guard.mu.Lock()
	defer b.guard.mu.Unlock()
	b.guard.exists = false
}

// removeNetworks removes the bridges of the installation's instances that match.
func (b *Backend) removeNetworks(ctx context.Context, match func(instance string) bool) error {
	ctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.NetworkList(ctx, client.NetworkListOptions{Filters: b.ownLabel()})
	if err != nil {
		return b.explain(ctx, "list networks", err)
	}
	var last error
	for _, n := range list.Items {
		if n.Labels[labelInstallation] != b.cfg.Installation || !match(n.Labels[labelInstance]) {
			continue
		}
		_, err := b.client.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) {
			last = b.explain(ctx, "remove a network", err)
		}
	}
	return last
}

// guardNetwork closes the network of a started container now and, until unguard, whenever the list
// of closed networks changes.
func (b *Backend) guardNetwork(ctx context.Context, id string, img image, e *engine) error {
	c := &guarded{img: img, e: e}
	g := &b.guard
	g.mu.Lock()
	g.live[id] = c // before the list is read, so that no change is missed
	follow := !g.following
	g.following = true
	g.mu.Unlock()
	if follow {
		b.work.Go(b.followClosed)
	}
	return b.closeNetwork(ctx, id, c)
}

func (b *Backend) unguard(id string) {
	b.guard.mu.Lock()
	defer b.guard.mu.Unlock()
	delete(b.guard.live, id)
}

// closeNetwork applies the current list, unless it was applied last.
func (b *Backend) closeNetwork(ctx context.Context, id string, c *guarded) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	host, err := b.hostNetwork(ctx, c.img, c.e)
	if err != nil {
		return err
	}
	cfg, err := b.guardConfig(host)
	if err != nil {
		return &sandbox.Error{Op: opClose, Err: err, Fix: "run without network: true"}
	}
	config, err := json.Marshal(cfg)
	if err != nil || string(config) == c.config {
		return err
	}
	out, err := b.help(ctx, c.img, c.e, "container:"+id, true, "guard", string(config))
	if err != nil {
		return b.explain(ctx, opClose, err)
	}
	if strings.TrimSpace(string(out)) != netguard.Done {
		return &sandbox.Error{Op: opClose, Err: errors.New("the helper did not confirm it"), Fix: "run without network: true"}
	}
	c.config = string(config)
	return nil
}

// followClosed closes new entries of the list to live containers. The engine's machine, which may
// be another one, does not report changes of its addresses: followClosed asks for them
// periodically.
func (b *Backend) followClosed() {
	g := &b.guard
	tick := time.NewTicker(addressesFor)
	defer tick.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-g.wake:
		case <-tick.C:
		}
		g.mu.Lock()
		g.asked = time.Time{}
		live := maps.Clone(g.live)
		g.mu.Unlock()
		for id, c := range live {
			ctx, cancel := timeout(b.ctx, startTimeout)
			err := b.closeNetwork(ctx, id, c)
			cancel()
			g.mu.Lock()
			_, lives := g.live[id]
			g.mu.Unlock()
			if err != nil && lives && b.ctx.Err() == nil {
				b.log.Warn("cannot close new addresses to a container; trying again", "container", id, "error", err)
			}
		}
	}
}

// guardConfig closes the networks of the list and the addresses of the engine's host.
func (b *Backend) guardConfig(host netguard.HostNetwork) (cfg netguard.Config, err error) {
	var engine []netip.Addr
	for _, text := range host.Addresses {
		if addr, err := netip.ParseAddr(text); err == nil {
			engine = append(engine, addr)
		}
	}
	closed, err := b.cfg.Closed.ForSandbox(engine...)
	if err != nil {
		return cfg, err
	}
	cfg.Resolvers = host.Resolvers
	for _, p := range closed {
		cfg.Unreachable = append(cfg.Unreachable, p.String())
	}
	for _, p := range b.cfg.Closed.Allowed() {
		cfg.Open = append(cfg.Open, p.Masked().String())
	}
	return cfg, nil
}

// hostNetwork returns the addresses and name servers of the engine's host. A helper in the host's
// network namespace finds them.
func (b *Backend) hostNetwork(ctx context.Context, img image, e *engine) (netguard.HostNetwork, error) {
	g := &b.guard
	g.mu.Lock()
	known, asked := g.host, g.asked
	g.mu.Unlock()
	if !asked.IsZero() && time.Since(asked) < addressesFor {
		return known, nil
	}
	const op = "find the addresses of the engine's host"
	out, err := b.help(ctx, img, e, "host", false, "addresses")
	if err != nil {
		return known, b.explain(ctx, op, err)
	}
	var host netguard.HostNetwork
	if err := json.Unmarshal(out, &host); err != nil {
		return known, &sandbox.Error{Op: op, Err: err, Fix: "run without network: true"}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.host, g.asked = host, time.Now()
	return host, nil
}

// help runs the agent's program once in a helper container on a network and returns what it prints.
// The container holds no data. admin gives it the capability to change the network.
func (b *Backend) help(ctx context.Context, img image, e *engine, network string, admin bool, args ...string) ([]byte, error) {
	opt, err := b.helperOptions(img, e, network, admin, args)
	if err != nil {
		return nil, err
	}
	id, err := b.create(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer b.work.Go(func() { b.remove(id, opt.Name) })
	res, err := b.client.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, err
	}
	defer res.Close()
	stop := context.AfterFunc(ctx, res.Close)
	defer stop()
	if _, err := b.client.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	if _, err := stdcopy.StdCopy(&stdout, &stderr, io.LimitReader(res.Conn, maxHelp)); err != nil {
		return nil, err
	}
	if said := strings.TrimSpace(stderr.String()); said != "" {
		return nil, errors.New(said)
	}
	return stdout.Bytes(), nil
}

func (b *Backend) helperOptions(
	img image, e *engine, network string, admin bool, args []string,
) (opt client.ContainerCreateOptions, err error) {
	binary, err := b.agents.path(b, img.goarch)
	if err != nil {
		return opt, err
	}
	b.guard.mu.Lock()
	b.guard.helpers++
	number := b.guard.helpers
	b.guard.mu.Unlock()
	pids := int64(agent.PIDReserve)
	opt = client.ContainerCreateOptions{
		Name: fmt.Sprintf("mcp-sandbox-helper-%s-%d", b.cfg.Instance, number),
		Config: &container.Config{
			Image: img.ID, User: "65534:65534", Entrypoint: append([]string{agentPath}, args...), WorkingDir: "/",
			AttachStdout: true, AttachStderr: true, Labels: b.labels("helper"), Healthcheck: noHealthcheck(),
		},
		HostConfig: &container.HostConfig{
			NetworkMode: container.NetworkMode(network), CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"},
			ReadonlyRootfs: true, IpcMode: "none", LogConfig: container.LogConfig{Type: "none"},
			Resources: container.Resources{Memory: 128 << 20, MemorySwap: 128 << 20, PidsLimit: &pids},
			Mounts:    []mount.Mount{{Type: mount.TypeBind, Source: b.hostPath(binary), Target: agentPath, ReadOnly: true}},
			Tmpfs:     map[string]string{},
		},
	}
	for _, path := range img.volumes {
		opt.HostConfig.Tmpfs[path] = "ro,size=4096"
	}
	if admin {
		opt.Config.User = "0:0"
		opt.HostConfig.CapAdd = []string{"NET_ADMIN"}
	}
	if e.mapped { // a mapped user has no rights in another container's network, nor in the host's
		opt.HostConfig.UsernsMode = "host"
	}
	return opt, nil
}
