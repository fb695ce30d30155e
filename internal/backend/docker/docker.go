// Package docker isolates code in containers of a Docker Engine, or of Podman behind the same API.
//
// An image labelled sandbox.protocol=agent gets the agent as its process 1, bind-mounted.
// Everything else goes over the agent's stdin and stdout: a run in a started sandbox makes no call
// to the engine. Any other image is contract 1's: it takes code on its stdin, in one container per
// run.
//
// The package knows no sessions and no files. It runs on every system that the server runs on: the
// containers belong to the engine, which may run in a virtual machine.
package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
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

// Config configures a Backend.
type Config struct {
	// Host is the engine's address, as in DOCKER_HOST. If empty, it is the system's usual one.
	Host string
	// Root holds the workspaces and Dir. Dir belongs to this server instance alone; it may be empty
	// if nothing will be started.
	Root, Dir string
	// HostRoot is the path of Root on the engine's machine, if the server itself runs in a
	// container.
	HostRoot string
	// Installation identifies the servers that share Root, and Instance this one.
	Installation, Instance string
	Version                string
	// Agent returns the agent for an architecture, as GOARCH names it.
	Agent func(goarch string) ([]byte, error)
	// Runtime is an OCI runtime that the engine knows, such as runsc. If empty, it is the engine's
	// default.
	Runtime string
	// Image serves Python and wins over every other image. It may be empty.
	Image string
	// Images lists the labelled images that may be used, as ParseImage accepts them. If empty, all
	// may be.
	Images []string
	// Closed lists what a sandbox with network cannot reach, in addition to the addresses of the
	// engine's host.
	Closed *closednet.List
	Logger *slog.Logger // nil is silent
}

// Backend starts containers.
type Backend struct {
	cfg    Config
	log    *slog.Logger
	client *client.Client
	files  string // what containers mount

	ctx    context.Context // done when the backend ends
	cancel context.CancelFunc
	work   sync.WaitGroup

	agents agents
	guard  guard

	mu        sync.Mutex
	engine    *engine             // nil until it has answered
	used      bool                // a container was asked for
	images    map[string]image    // by id
	hasOwn    bool                // images has one of this project
	live      map[string]struct{} // names of the containers in use
	isolation string              // between runs in one container, as the last agent reported it
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Prober   = (*Backend)(nil)
	_ sandbox.Reaper   = (*Backend)(nil)
	_ runner.Catalogue = (*Backend)(nil)
)

const (
	// callTimeout bounds a call that a healthy engine answers at once.
	callTimeout = 10 * time.Second
	// createTimeout bounds the creation of a container, which may wait for a slow disk.
	createTimeout = 60 * time.Second
	// closeTimeout bounds the clean-up when the backend ends.
	closeTimeout = 5 * time.Second
)

// New returns a backend. It does not call the engine, which may be unavailable for now. Close
// releases the backend.
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
		return nil, &sandbox.Error{
			Op: "reach the engine", Err: err, Fix: "set DOCKER_HOST to an address such as unix:///var/run/docker.sock",
		}
	}
	b.files = filepath.Join(cfg.Dir, "docker")
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.guard.live, b.guard.wake = map[string]*guarded{}, make(chan struct{}, 1)
	b.guard.unsubscribe = cfg.Closed.Subscribe(func() {
		select {
		case b.guard.wake <- struct{}{}:
		default: // a wake-up is pending
		}
	})
	return b, nil
}

// Close releases what New took and removes this instance's containers. Every sandbox must be closed
// before.
func (b *Backend) Close() {
	b.guard.unsubscribe()
	b.cancel()
	b.work.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	b.mu.Lock()
	used := b.used
	b.mu.Unlock()
	if used {
		isOwn := func(instance, _ string) bool { return instance == b.cfg.Instance }
		if err := b.removeContainers(ctx, isOwn); err != nil {
			b.log.Warn("containers may be left; the next start removes them", "error", err)
		}
		_ = b.removeNetworks(ctx, func(instance string) bool { return instance == b.cfg.Instance })
	}
	_ = b.client.Close()
	if b.cfg.Dir != "" {
		_ = os.RemoveAll(b.files)
	}
}

var errHangs = errors.New("the engine did not answer")

// timeout is context.WithTimeout with a cause that blames the engine.
func timeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w within %v", errHangs, d))
}

// hostPath translates a path of the server to one of the engine's machine.
func (b *Backend) hostPath(name string) string {
	if b.cfg.HostRoot == "" {
		return name
	}
	rel, err := filepath.Rel(b.cfg.Root, name)
	if err != nil || !filepath.IsLocal(rel) {
		return name
	}
	// The engine's machine always runs Linux.
	return path.Join(b.cfg.HostRoot, filepath.ToSlash(rel))
}

// agents holds the agent's binaries as files that containers mount.
type agents struct {
	mu    sync.Mutex
	paths map[string]string // by architecture
}

func (a *agents) path(b *Backend, goarch string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if path, ok := a.paths[goarch]; ok {
		return path, nil
	}
	binary, err := b.cfg.Agent(goarch)
	if err != nil {
		return "", &sandbox.Error{Op: "unpack the agent", Err: err, Fix: "make build"}
	}
	path := filepath.Join(b.files, "agent-"+goarch)
	err = os.MkdirAll(b.files, 0o755)
	if err == nil {
		err = os.WriteFile(path, binary, 0o755)
	}
	if err == nil {
		err = os.Chmod(path, 0o755) // regardless of the umask
	}
	if err != nil {
		return "", fmt.Errorf("unpack the agent: %w", err)
	}
	if a.paths == nil {
		a.paths = map[string]string{}
	}
	a.paths[goarch] = path
	return path, nil
}
