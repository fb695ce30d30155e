package jail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/cgroup"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/userns"
	"mcp-code-sandbox/internal/workspace"
)

// Config of a Backend.
type Config struct {
	// Dir belongs to this server instance alone. The directories of other instances are its
	// siblings, each named after its instance.
	Dir      string
	Instance string
	// AgentBinary is the agent, built for this machine.
	AgentBinary []byte
	// Closed lists the networks that a sandbox with network cannot reach.
	Closed *closednet.List
	// UserBus is the socket of the message bus on which to ask the user's systemd for a cgroup; ""
	// means not to.
	UserBus string
	// NoSharedZygotes makes each sandbox import its runner's libraries itself.
	NoSharedZygotes bool
	// SharedZygoteLife is the age at which a shared zygote is replaced; zero means an hour. The
	// next start of a sandbox starts the successor, which takes over when it is ready.
	SharedZygoteLife time.Duration
	Logger           *slog.Logger // nil is silent
}

// Backend starts bubblewrap sandboxes.
type Backend struct {
	cfg     Config
	log     *slog.Logger
	bwrap   string // path of the program
	files   string // directory of the files that sandboxes mount
	ids     *identities
	places  places
	launch  *launcher
	cgroups *cgroup.Hierarchy
	zygotes *sharedZygotes
	nets    userNets

	done     chan struct{} // closed by Close
	close    sync.Once
	watching sync.WaitGroup // WatchSockets
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Prober   = (*Backend)(nil)
	_ sandbox.Reaper   = (*Backend)(nil)
	_ sandbox.Preparer = (*Backend)(nil)
)

// New prepares the backend. It starts no sandbox: Probe checks whether it can.
func New(cfg Config) (*Backend, error) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, &sandbox.Error{
			Op: "find bubblewrap", Err: errors.New("bwrap is not installed"), Fix: "apt-get install bubblewrap",
		}
	}
	b := &Backend{
		cfg: cfg, log: cfg.Logger, bwrap: path, files: filepath.Join(cfg.Dir, "jail"), done: make(chan struct{}),
	}
	b.zygotes = &sharedZygotes{backend: b, slots: map[string]*zygoteSlot{}}
	b.nets.live, b.nets.unsubscribe = map[*userNet]struct{}{}, func() {}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.ids = newIdentities()
	if err := b.ids.checkRoot(); err != nil {
		return nil, err
	}
	b.places = places{ids: b.ids, clone: b.cloneTree, held: map[placeKey]*place{}, maps: map[uint64]bool{}}
	if err := b.writeFiles(); err != nil {
		return nil, fmt.Errorf("prepare the jail: %w", err)
	}
	if b.launch, err = newLauncher(os.Geteuid() == 0); err != nil {
		return nil, &sandbox.Error{Op: "prepare the jail", Err: err, Fix: seeDoctor}
	}
	b.cgroups = cgroup.Find(cfg.Instance, cfg.UserBus)
	if scope, _ := b.cgroups.Scope(); scope != "" && b.cgroups.Available() {
		b.log.Info("systemd has delegated a cgroup, so limits apply to whole sandboxes", "unit", scope,
			"note", "the server ends with the user's last login, unless loginctl enable-linger was called")
	}
	b.watching.Go(func() { b.cgroups.WatchSockets(b.done) })
	homes, err := json.Marshal(b.cgroups.Homes())
	if err == nil {
		err = os.WriteFile(filepath.Join(b.files, "cgroups.json"), homes, 0o600)
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("prepare the jail: %w", err)
	}
	b.nets.unsubscribe = cfg.Closed.Subscribe(b.refilter)
	return b, nil
}

// Close ends the backend. Sandboxes that are still open die.
func (b *Backend) Close() {
	b.close.Do(func() {
		b.nets.unsubscribe()
		b.zygotes.close()
		b.launch.close()
		close(b.done)
		b.watching.Wait()
		b.cgroups.Close()
		b.ids.close()
		_ = os.RemoveAll(b.files)
	})
}

// WorkspaceOwner returns whom workspaces belong to on disk. In an outer namespace that is the user,
// or the sandbox of any of the user's servers: only Start gives files away, which they agree on.
func (b *Backend) WorkspaceOwner() workspace.Owner {
	uid, gid := Owner()
	if userns.Current().Inside {
		uid, gid = 0, 0
	}
	return workspace.Owner{UID: uid, GID: gid, First: b.ids.ids.first, End: b.ids.ids.end}
}

// NewGroup makes a cgroup for processes that are not the jail's: those of environments that isolate
// themselves. It returns nil if no cgroups can be made. Reap removes what a killed server leaves.
func (b *Backend) NewGroup(id string, l sandbox.Limits) (*cgroup.Group, error) {
	return b.cgroups.Create(id, l)
}

// Reap implements sandbox.Reaper. The kernel has ended a dead instance's processes and mounts, but
// not its cgroups. cgroups.json in the instance's directory lists where they are.
func (b *Backend) Reap(ctx context.Context, alive func(instance string) bool) error {
	instances := filepath.Dir(b.cfg.Dir)
	entries, err := os.ReadDir(instances)
	errs := []error{err}
	for _, e := range entries {
		instance := e.Name()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !e.IsDir() || instance == b.cfg.Instance || strings.ContainsAny(instance, "*?[") || alive(instance) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(instances, instance, "jail", "cgroups.json"))
		var homes []string
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("reap %s: %w", instance, err))
		case json.Unmarshal(text, &homes) == nil: // an instance that died while writing it started no sandbox
			cgroup.Reap(instance, homes)
		}
	}
	return errors.Join(errs...)
}
