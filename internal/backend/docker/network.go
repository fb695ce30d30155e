package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// A sandbox with network is on a bridge of ours, without traffic between containers. Before any code comes into it, a
// container of a moment joins its network namespace, with the one capability that needs, and closes it toward everything that
// is not the internet. The sandbox itself never has that capability.

// hostRuntimes are those whose containers use the host's kernel, and with it the network namespace. Others copy its routes at
// their start, and what is closed later stays open.
var hostRuntimes = []string{"", "runc", "crun", "youki", "io.containerd.runc.v2"}

// ownKernel says whether containers have a kernel of their own.
func (b *Backend) ownKernel() bool { return !slices.Contains(hostRuntimes, b.cfg.Runtime) }

// addressesFor is how long the engine's host is believed to keep its addresses.
const addressesFor = time.Minute

// guard is what is known about networks.
type guard struct {
	mu    sync.Mutex
	made  bool // the bridge is there
	host  netguard.HostNetwork
	asked time.Time // when host was

	live      map[string]*guarded // containers with network, by id
	following bool                // live follows the list of what is closed
	wake      chan struct{}       // the list has changed
	leave     func()              // ends the subscription to the list

	n int // helpers so far

	proof  sandbox.Check // that a sandbox with network could be started
	proved time.Time
}

// networkName is the bridge's. Each instance has one of its own: an engine that is asked twice at the same moment makes two
// networks of one name, and then finds neither.
func (b *Backend) networkName() string { return "mcp-sandbox-" + b.cfg.Instance }

// ensureNetwork makes the bridge if there is none.
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
	if g.made {
		return nil
	}
	name := b.networkName()
	switch res, err := b.client.NetworkInspect(ctx, name, client.NetworkInspectOptions{}); {
	case err == nil && res.Network.Labels[labelInstance] != b.cfg.Instance:
		return &sandbox.Error{Op: op, Err: fmt.Errorf("the engine has a network %s that is not ours", name), Fix: "docker network rm " + name}
	case err == nil:
		g.made = true
		return nil
	case !cerrdefs.IsNotFound(err):
		return b.explain(ctx, op, err)
	}
	no := false
	opt := client.NetworkCreateOptions{Driver: "bridge", EnableIPv6: &no, Labels: b.labels("network")}
	if !e.podman { // which has no such option; the guard closes the bridge, too
		opt.Options = map[string]string{"com.docker.network.bridge.enable_icc": "false"}
	}
	_, err := b.client.NetworkCreate(ctx, name, opt)
	if err != nil && !cerrdefs.IsConflict(err) && !cerrdefs.IsAlreadyExists(err) {
		return b.explain(ctx, op, err)
	}
	g.made = true
	return nil
}

// removeNetworks removes the bridges of the installation's instances that which says yes to.
func (b *Backend) removeNetworks(ctx context.Context, which func(instance string) bool) error {
	ctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.NetworkList(ctx, client.NetworkListOptions{
		Filters: make(client.Filters).Add("label", labelInstallation+"="+b.cfg.Installation),
	})
	if err != nil {
		return b.explain(ctx, "list networks", err)
	}
	var last error
	for _, n := range list.Items {
		if n.Labels[labelInstallation] != b.cfg.Installation || !which(n.Labels[labelInstance]) {
			continue
		}
		if _, err := b.client.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{}); err != nil && !cerrdefs.IsNotFound(err) {
			last = b.explain(ctx, "remove a network", err)
		}
	}
	return last
}

func (b *Backend) networkMade() bool {
	b.guard.mu.Lock()
	defer b.guard.mu.Unlock()
	return b.guard.made
}

// networkLost makes the next start look for the bridge again: somebody may have removed it.
func (b *Backend) networkLost() {
	b.guard.mu.Lock()
	defer b.guard.mu.Unlock()
	b.guard.made = false
}

// hostNetwork asks the engine's host for its addresses and name servers, by a container without a network namespace of its own.
func (b *Backend) hostNetwork(ctx context.Context, img image, e *engine) (netguard.HostNetwork, error) {
	g := &b.guard
	g.mu.Lock()
	known, asked := g.host, g.asked
	g.mu.Unlock()
	if !asked.IsZero() && time.Since(asked) < addressesFor {
		return known, nil
	}
	const op = "learn the addresses of the engine's host"
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

// maxHelp bounds what a helper prints.
const maxHelp = 64 << 10

// help runs the agent's program once in a container of a moment, in the given network and with nothing else of anybody's, and
// returns what it prints. admin gives it the capability to change that network.
func (b *Backend) help(ctx context.Context, img image, e *engine, network string, admin bool, args ...string) (out []byte, err error) {
	binary, err := b.agents.path(b, img.goarch)
	if err != nil {
		return nil, err
	}
	b.guard.mu.Lock()
	b.guard.n++
	name := fmt.Sprintf("mcp-sandbox-helper-%s-%d", b.cfg.Instance, b.guard.n)
	b.guard.mu.Unlock()
	pids := int64(agent.OwnThreads)
	opt := client.ContainerCreateOptions{
		Name: name,
		Config: &container.Config{
			Image: img.ID, User: "65534:65534", Entrypoint: append([]string{agentPath}, args...), WorkingDir: "/",
			AttachStdout: true, AttachStderr: true, Labels: b.labels("helper"), Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
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
	if e.mapped { // a container's own mapping would have no say in another's network, nor in the host's
		opt.HostConfig.UsernsMode = "host"
	}
	id, err := b.create(ctx, opt)
	if err != nil {
		return nil, err
	}
	defer b.work.Go(func() { b.remove(id, name) })
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
