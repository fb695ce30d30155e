// Package docker isolates code in containers of a Docker Engine, or of Podman behind the same API.
//
// An image that is labelled sandbox.protocol=agent gets the agent as its process 1, bind-mounted, over whose stdin and stdout
// everything else goes: a run on a started sandbox makes no call of the engine's. Any other image is contract 1's: it takes
// the code on its stdin, in a container per run, and the package speaks the agent's side of the wire protocol itself.
//
// The package knows no session and no workspace, only where one lies. It runs on every system that the server runs on: the
// containers are the engine's, which may be in a virtual machine.
package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
)

// Labels of our containers and networks. The first two are contract 4's.
const (
	labelApp          = "app"
	labelSession      = "session_id"
	labelInstallation = "sandbox.installation"
	labelInstance     = "sandbox.instance"
	labelVersion      = "sandbox.server-version"
	labelRole         = "sandbox.role"

	appName = "llm-sandbox"
)

// Config of a Backend.
type Config struct {
	// Host is the engine's address, as in DOCKER_HOST. Empty: the system's usual one.
	Host string
	// Root holds the workspaces and Dir, which is a directory of this server instance alone. It may be empty where nothing
	// will be started.
	Root, Dir string
	// HostRoot is Root as the engine's machine names it, where the server itself is in a container. Empty: the same.
	HostRoot string
	// Installation is common to the servers on one root and to no others; Instance is this one's.
	Installation, Instance string
	Version                string
	// Agent returns the agent for an architecture by Go's name for it.
	Agent func(goarch string) ([]byte, error)
	// Runtime is the engine's name of an OCI runtime, such as runsc. Empty: its default.
	Runtime string
	// Image serves Python, whatever other images say. Empty: none.
	Image string
	// Images lists the labelled images that may be used, as ParseImage takes them. Empty: all.
	Images []string
	// Closed lists what a sandbox with network cannot reach, besides the addresses of the engine's host.
	Closed *closednet.List
	Logger *slog.Logger // nil is silent
}

// Backend starts containers.
type Backend struct {
	cfg    Config
	log    *slog.Logger
	client *client.Client
	files  string // what is mounted into containers

	ctx    context.Context // ends with the backend
	cancel context.CancelFunc
	work   sync.WaitGroup

	agents agents
	guard  guard

	mu     sync.Mutex
	engine *engine             // nil until it has answered
	used   bool                // a container was asked for
	images map[string]image    // by id
	own    bool                // images has one of this project
	live   map[string]struct{} // names of the containers that are somebody's

	isolation string // of runs in one container, as the last agent said
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Prober   = (*Backend)(nil)
	_ sandbox.Reaper   = (*Backend)(nil)
	_ runner.Catalogue = (*Backend)(nil)
)

const (
	// callTimeout bounds a call that the engine answers at once when it is well.
	callTimeout = 10 * time.Second
	// createTimeout bounds the making of a container, which may wait for a slow disk.
	createTimeout = 60 * time.Second
	// closeTimeout bounds the removal of what is left when the backend ends.
	closeTimeout = 5 * time.Second
)

// New returns a backend. It does not need the engine yet: one that is away, or hangs, may come back. Close releases it.
func New(cfg Config) (*Backend, error) {
	b := &Backend{cfg: cfg, log: cfg.Logger, images: map[string]image{}, live: map[string]struct{}{}}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	options := []client.Opt{client.WithUserAgent("mcp-code-sandbox/" + cfg.Version)}
	if cfg.Host != "" {
		options = append(options, client.WithHost(cfg.Host))
	}
	var err error
	if b.client, err = client.New(options...); err != nil {
		return nil, &sandbox.Error{Op: "reach the engine", Err: err, Fix: "set DOCKER_HOST to an address such as unix:///var/run/docker.sock"}
	}
	b.files = filepath.Join(cfg.Dir, "docker")
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.guard.live, b.guard.wake = map[string]*guarded{}, make(chan struct{}, 1)
	b.guard.leave = cfg.Closed.Subscribe(func() {
		select {
		case b.guard.wake <- struct{}{}:
		default: // somebody is about to look
		}
	})
	return b, nil
}

// Close releases what New took and removes what is left of this instance's containers. Every sandbox must be closed before.
func (b *Backend) Close() {
	b.guard.leave()
	b.cancel()
	b.work.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if b.touched() {
		if err := b.removeAll(ctx, func(instance, _ string) bool { return instance == b.cfg.Instance }); err != nil {
			b.log.Warn("containers may be left; the next start removes them", "error", err)
		}
		_ = b.removeNetworks(ctx, func(instance string) bool { return instance == b.cfg.Instance })
	}
	_ = b.client.Close()
	if b.cfg.Dir != "" {
		_ = os.RemoveAll(b.files)
	}
}

// touched says whether anything can be on the engine that is ours.
func (b *Backend) touched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// engine is what the engine says of itself.
type engine struct {
	version  string
	machine  string // its host name
	dir      string // its data, on its machine
	podman   bool
	goarch   string
	rootless bool
	// mapped says that uids in containers are others outside: by uidBase and gidBase more.
	mapped           bool
	uidBase, gidBase int
	runtimes         []string
	seccomp          bool
	memory, pids     bool // can limit them
	looseTCP         bool // limits memory by cgroup version 1, which leaves out the buffers of sockets
}

// facts asks the engine about itself, once. An engine that was away is asked anew.
func (b *Backend) facts(ctx context.Context) (*engine, error) {
	b.mu.Lock()
	known := b.engine
	b.mu.Unlock()
	if known != nil {
		return known, nil
	}
	ctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	res, err := b.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, b.explain(ctx, "reach the engine", err)
	}
	info := res.Info
	if info.OSType != "" && info.OSType != "linux" {
		return nil, &sandbox.Error{Op: "reach the engine", Err: fmt.Errorf("it runs %s containers", info.OSType), Fix: "switch Docker Desktop to Linux containers"}
	}
	e := &engine{version: info.ServerVersion, machine: info.Name, dir: info.DockerRootDir, goarch: goarch(info.Architecture), memory: info.MemoryLimit, pids: info.PidsLimit,
		looseTCP: info.CgroupVersion == "1" && !b.ownKernel()}
	version, err := b.client.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return nil, b.explain(ctx, "reach the engine", err)
	}
	for _, c := range version.Components {
		if strings.Contains(c.Name, "Podman") {
			e.podman, e.version = true, "Podman "+c.Version
		}
	}
	if e.podman {
		if e.rootless, err = b.podmanRootless(ctx); err != nil {
			return nil, b.explain(ctx, "reach the engine", err)
		}
		if e.rootless && info.CgroupVersion == "1" { // it tells what the machine can, of which it leaves out what its user cannot
			e.memory, e.pids = false, false
		}
	}
	for name := range info.Runtimes {
		e.runtimes = append(e.runtimes, name)
	}
	for _, option := range info.SecurityOptions {
		name, _, _ := strings.Cut(strings.TrimPrefix(option, "name="), ",")
		switch name {
		case "rootless":
			e.rootless = true
		case "userns":
			e.mapped = true
		case "seccomp":
			e.seccomp = true
		}
	}
	if e.mapped {
		if e.uidBase, e.gidBase, err = remap(info.DockerRootDir); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.engine = e
	return e, nil
}

// podmanRootless asks for the one thing that Podman says of itself in a field of its own, which the client does not know.
func (b *Backend) podmanRootless(ctx context.Context) (bool, error) {
	dial := b.client.Dialer()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/info", nil)
	if err != nil {
		return false, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	var info struct{ Rootless bool }
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&info); err != nil {
		return false, fmt.Errorf("the answer of Podman: %w", err)
	}
	return info.Rootless, nil
}

// goarch is Go's name of an architecture that the kernel names.
func goarch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// timeout is context.WithTimeout with a cause that says whose fault it was.
func timeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w within %v", errHangs, d))
}

var errHangs = errors.New("the engine did not answer")

// hostPath is the engine's name of a path of ours.
func (b *Backend) hostPath(name string) string {
	if b.cfg.HostRoot == "" {
		return name
	}
	rel, err := filepath.Rel(b.cfg.Root, name)
	if err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return name
	}
	// The engine's machine runs Linux, whatever this one does.
	return path.Join(b.cfg.HostRoot, filepath.ToSlash(rel))
}
