package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/agentbin"
	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/pool"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/version"
	"mcp-code-sandbox/internal/workspace"
)

// The names of the backends, as in SANDBOX_BACKEND. backendAuto chooses one.
const (
	backendAuto   = "auto"
	backendJail   = "jail"
	backendDocker = "docker"
)

// backend is an entry of the list of backends. What it says holds even if the backend cannot be opened here.
type backend struct {
	name string
	open func(context.Context, backendConfig) (opened, error)
	// poolSize is how many sandboxes of a kind are kept ready, unless the settings say otherwise.
	poolSize int
	// checkHost reports what doctor says about this machine.
	checkHost func(context.Context, *settings) []sandbox.Check
	// isLocal reports whether sandboxes use this machine's memory, and sessionCost how much an idle session takes.
	isLocal     func(*settings) bool
	sessionCost func(*settings) doctor.SessionCost
}

// backends lists every backend. To add one, write its open function and add a line.
func backends() []backend {
	always := func(*settings) bool { return true }
	separate := func(*settings) doctor.SessionCost { return doctor.SeparateSession }
	return []backend{
		{name: backendJail, open: openJail, poolSize: 2, checkHost: checkKernel, isLocal: always, sessionCost: jailCost},
		{name: backendDocker, open: openDocker, checkHost: checkDisk, isLocal: isLocalEngine, sessionCost: separate},
	}
}

// backendNamed returns the backend of that name. The settings accept no other.
func backendNamed(name string) backend {
	all := backends()
	return all[max(0, slices.IndexFunc(all, func(b backend) bool { return b.name == name }))]
}

// backendNames lists what SANDBOX_BACKEND may be.
func backendNames() []string {
	names := []string{backendAuto}
	for _, b := range backends() {
		names = append(names, b.name)
	}
	return names
}

// backendConfig is what a backend is opened with. A zero instance opens one that only lists its runners.
type backendConfig struct {
	settings *settings
	instance *instance.Instance
	key      secret.Value    // of the installation
	closed   *closednet.List // what sandboxes with network cannot reach
	log      *slog.Logger
}

// driver is what every backend implements. One may also be a sandbox.Preparer.
type driver interface {
	sandbox.Backend
	sandbox.Prober
	sandbox.Reaper
	Close()
}

// opened is a backend that can be used.
type opened struct {
	driver
	owner     workspace.Owner  // of what sandboxes write
	catalogue runner.Catalogue // nil: the runners are directories on this machine
}

// isolation is the backend that was chosen, and what sessions start sandboxes with.
type isolation struct {
	backend
	opened
	why      string
	sessions sandbox.Backend // the backend, behind the pool and beside the wrappers
	pool     *pool.Pool      // nil: no sandbox is kept ready
	wrappers wrappers
	refused  error           // why the backend could not be opened
	noReply  error           // why "auto" found no engine to use; nil: it was not asked, or there is one
	closed   *closednet.List // what sandboxes with network, and services, cannot reach
}

// newIsolation opens the backend that the settings ask for. It never replaces one that cannot be opened by another:
// the result then refuses every run, with the reason and the fix.
func newIsolation(ctx context.Context, s *settings, i *instance.Instance, key secret.Value, log *slog.Logger) isolation {
	iso := isolation{closed: s.closedNetworks(ctx, log)}
	iso.choose(ctx, s)
	iso.opened, iso.refused = iso.backend.open(ctx, backendConfig{settings: s, instance: i, key: key, closed: iso.closed, log: log})
	if iso.refused != nil {
		iso.opened = opened{driver: refusing{iso.refused}, owner: workspace.Owner{UID: -1, GID: -1}}
	}
	iso.wrappers = newWrappers(s, iso.driver, log)
	iso.sessions = router{iso.driver, iso.wrappers}
	return iso
}

// choose picks the backend.
func (i *isolation) choose(ctx context.Context, s *settings) {
	var name string
	name, i.why = choose(ctx, s.Backend, runtime.GOOS, func(ctx context.Context) (o offer, err error) {
		o, i.noReply = askEngine(ctx, s)
		return o, i.noReply
	})
	i.backend = backendNamed(name)
}

// wrappers starts environments that isolate themselves.
type wrappers interface {
	sandbox.Backend
	Close()
}

// close ends the backend. Every sandbox must be closed before.
func (i *isolation) close() {
	if i.wrappers != nil {
		i.wrappers.Close()
	}
	if i.driver != nil {
		i.driver.Close()
	}
}

// keepReady puts a pool of ready sandboxes before the backend.
func (i *isolation) keepReady(s *settings, dir string, log *slog.Logger) {
	size := s.poolSize(i.name)
	if i.refused != nil || size == 0 {
		return
	}
	total := 0
	if s.MaxSessions > 0 { // ready sandboxes belong to no session yet
		total = s.MaxSessions + size
	}
	owner := i.owner
	i.pool = pool.New(pool.Config{
		Backend: i.driver, Size: size, Total: total, Dir: filepath.Join(dir, "pool"), Budget: pool.Machine(), Logger: log,
		Own: func(dir string) error {
			if owner.UID < 0 && owner.GID < 0 {
				return nil
			}
			return os.Lchown(dir, owner.UID, owner.GID)
		},
	})
	i.sessions = router{i.pool, i.wrappers}
}

// makeWorkspace returns session.Config's MakeWorkspace.
func (i *isolation) makeWorkspace() func(path string) bool {
	if i.pool == nil {
		return nil
	}
	return i.pool.MakeWorkspace
}

// warm has the backend make what sandboxes like spec share, before the first run needs it.
func (i *isolation) warm(ctx context.Context, spec sandbox.Spec) {
	if i.pool != nil {
		i.pool.KeepReady(spec)
		return
	}
	if p, ok := i.driver.(sandbox.Preparer); ok {
		if sb, err := p.Prepare(ctx, spec); err == nil {
			_ = sb.Close(ctx)
		}
	}
}

// ready counts the sandboxes that wait for a session.
func (i *isolation) ready() float64 {
	if i.pool == nil {
		return 0
	}
	return float64(i.pool.Ready())
}

// checkKernel is the jail's checkHost.
func checkKernel(ctx context.Context, s *settings) []sandbox.Check {
	return doctor.System().Check(ctx, s.Root)
}

// jailCost is the jail's sessionCost. Only a root server has one copy of Python's libraries for all sandboxes.
func jailCost(s *settings) doctor.SessionCost {
	if os.Geteuid() == 0 && s.SharedZygote == "on" {
		return doctor.SharedSession
	}
	return doctor.SeparateSession
}

// checkDisk is docker's checkHost: the engine may be on another machine, the workspaces are on this one.
func checkDisk(_ context.Context, s *settings) []sandbox.Check {
	return doctor.System().CheckDisk(s.Root)
}

func isLocalEngine(s *settings) bool { return strings.HasPrefix(s.DockerHost, "unix://") }

// openDocker opens the Docker backend.
func openDocker(ctx context.Context, c backendConfig) (opened, error) {
	engine, err := newEngine(c)
	if err != nil {
		return opened{}, err
	}
	o := opened{driver: engine, catalogue: engine}
	if c.instance != nil {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		o.owner.UID, o.owner.GID = engine.Owner(ctx)
	}
	return o, nil
}

func newEngine(c backendConfig) (*docker.Backend, error) {
	s := c.settings
	cfg := docker.Config{
		Host: s.DockerHost, Root: s.Root, HostRoot: s.HostPath, Version: version.String(), Agent: agentbin.Binary,
		Runtime: s.DockerRuntime, Image: s.Image, Images: s.Images, Closed: c.closed, Logger: c.log,
	}
	if c.instance != nil {
		cfg.Dir, cfg.Instance, cfg.Installation = c.instance.Dir(), c.instance.ID(), installationName(c.key)
	}
	return docker.New(cfg)
}

const (
	// lookTimeout bounds how long "auto" waits for an engine. A healthy one answers in milliseconds.
	lookTimeout = 3 * time.Second
	// reachTimeout bounds how long the start waits for an engine that the settings ask for.
	reachTimeout = 15 * time.Second
)

// reachEngine returns an error when no engine answers, for a server that was told to use one: it must not start as if it could run
// code. An engine that goes away later is waited for.
func (i *isolation) reachEngine(ctx context.Context) error {
	err := i.refused
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(ctx, reachTimeout, fmt.Errorf("no answer within %v", reachTimeout))
		defer cancel()
		_, _, _, err = i.catalogue.Runners(ctx)
	}
	if err == nil {
		return nil
	}
	fix := "start it, set DOCKER_HOST to its address"
	var known *sandbox.Error
	if errors.As(err, &known) && known.Fix != "" {
		fix = known.Fix
	}
	if runtime.GOOS == "linux" {
		fix += ", or set SANDBOX_BACKEND=jail"
	}
	return fmt.Errorf("SANDBOX_BACKEND is docker, but no engine can be used: %s (%s)", reason(err), fix)
}

// checkAsked returns an error when the settings ask for a runtime or for images and the jail, which has none, was chosen: a
// server must not isolate code in another way than its operator asked for.
func (i *isolation) checkAsked(s *settings) error {
	if i.name != backendJail {
		return nil
	}
	refuse := func(fix, asked string) error {
		return &sandbox.Error{Op: "choose a backend", Fix: fix, Err: fmt.Errorf("%s (%s)", asked, i.why)}
	}
	switch {
	case s.DockerRuntime != "":
		return refuse("start an engine that has runner images and set SANDBOX_BACKEND=docker, or unset SANDBOX_DOCKER_RUNTIME",
			"SANDBOX_DOCKER_RUNTIME is "+s.DockerRuntime+", but the jail would be used, which has no such runtime")
	case s.Backend == backendAuto && len(s.Images) > 0:
		return refuse("correct SANDBOX_IMAGES (docker images lists what there is) or DOCKER_HOST, or set SANDBOX_BACKEND=jail",
			"SANDBOX_IMAGES is "+strings.Join(s.Images, ",")+", but the jail would be used, which has no images")
	}
	return nil
}

// ignored says in a line that the engine or the image that the settings name is not used; empty: it is, or none is named.
func (i *isolation) ignored(s *settings, env map[string]string) string {
	switch {
	case i.name != backendJail:
		return ""
	case i.noReply != nil && s.DockerHost != defaultEngine(env):
		return fmt.Sprintf("the jail is used, because the engine at DOCKER_HOST (%s) cannot be used: %s", s.DockerHost, reason(i.noReply))
	case s.Image != "" && s.Backend == backendAuto:
		return fmt.Sprintf("the jail is used and not SANDBOX_IMAGE (%s): %s", s.Image, i.why)
	}
	return ""
}

// fixIgnored is what to do about that.
const fixIgnored = "start the engine, correct the setting, or set SANDBOX_BACKEND=jail to say that this is intended"

// offer is what an engine has for "auto".
type offer struct {
	runners    int
	own, asked bool // one is this project's image; the settings name images
}

// askEngine asks the engine of the settings.
func askEngine(ctx context.Context, s *settings) (offer, error) {
	engine, err := newEngine(backendConfig{settings: s})
	if err != nil {
		return offer{}, err
	}
	defer engine.Close()
	set, _, _, err := engine.Runners(ctx)
	return offer{runners: len(set), own: engine.HasOwn(), asked: s.Image != "" || len(s.Images) > 0}, err
}

// choose says which backend it is to be, and why. A stranger's image with a label must not change what isolates code.
func choose(ctx context.Context, setting, goos string, ask func(context.Context) (offer, error)) (name, why string) {
	if setting != backendAuto {
		return setting, "SANDBOX_BACKEND says so"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, fmt.Errorf("no answer within %v", lookTimeout))
	defer cancel()
	o, err := ask(ctx)
	switch {
	case err == nil && o.runners > 0 && o.asked:
		return backendDocker, "an engine has images that SANDBOX_IMAGE or SANDBOX_IMAGES names"
	case err == nil && o.own:
		return backendDocker, "an engine has this project's images"
	case goos != "linux":
		return backendDocker, "the jail needs Linux"
	case err != nil:
		return backendJail, "no engine can be used: " + reason(err)
	case o.asked:
		return backendJail, "the engine has no labelled image that SANDBOX_IMAGE or SANDBOX_IMAGES names"
	case o.runners > 0:
		return backendJail, "the engine has images that are labelled as runners, but none of this project; SANDBOX_BACKEND=docker or SANDBOX_IMAGES uses them"
	}
	return backendJail, "the engine has no image that is labelled as a runner"
}

// reason is an error without its advice.
func reason(err error) string {
	var known *sandbox.Error
	if errors.As(err, &known) {
		return known.Err.Error()
	}
	return err.Error()
}

// router starts environments that isolate themselves with one backend, and all others with the other.
type router struct{ others, wrappers sandbox.Backend }

func (r router) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Wrapper != "" {
		return r.wrappers.Start(ctx, spec)
	}
	return r.others.Start(ctx, spec)
}

// refusing replaces a backend that cannot be opened here. Without isolation no code runs.
type refusing struct{ err error }

func (r refusing) Start(context.Context, sandbox.Spec) (sandbox.Sandbox, error) { return nil, r.err }
func (r refusing) Reap(context.Context, func(instance string) bool) error       { return nil }
func (r refusing) Close()                                                       {}

func (r refusing) Probe(context.Context) []sandbox.Check {
	c := sandbox.Failure("backend", r.err)
	c.Fix = cmp.Or(c.Fix, "see above")
	return []sandbox.Check{c}
}
