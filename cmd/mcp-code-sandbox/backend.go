package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"mcp-code-sandbox/internal/agentbin"
	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/pool"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/version"
	"mcp-code-sandbox/internal/workspace"
)

// The backends' names, as in SANDBOX_BACKEND.
const (
	backendAuto   = "auto"
	backendJail   = "jail"
	backendDocker = "docker"
)

// lookTimeout is how long "auto" waits for an engine. One that is there answers in milliseconds.
const lookTimeout = 3 * time.Second

// reachTimeout is how long the start waits for an engine that the settings ask for.
const reachTimeout = 15 * time.Second

// isolation is the backend that was chosen.
type isolation struct {
	sandbox.Backend
	name    string
	why     string
	owner   workspace.Owner
	images  *docker.Backend // whose images are the runners; nil on the jail
	close   func()
	refused error           // why it could not be made
	noReply error           // why "auto" found no engine to use; nil: it was not asked, or there is one
	pool    *pool.Pool      // nil: no sandbox is ready before it is asked for
	closed  *closednet.List // what sandboxes with network, and services, cannot reach
}

// keepReady has sandboxes started ahead of their use.
func (i *isolation) keepReady(s *settings, dir string, log *slog.Logger) {
	size := s.poolSize(i.name)
	if i.refused != nil || size == 0 {
		return
	}
	total := 0
	if s.MaxSessions > 0 { // those that are nobody's yet are beside them
		total = s.MaxSessions + size
	}
	owner := i.owner
	i.pool = pool.New(pool.Config{
		Backend: i.Backend, Size: size, Total: total, Dir: filepath.Join(dir, "pool"), Budget: pool.Machine(), Logger: log,
		Own: func(dir string) error {
			if owner.UID < 0 && owner.GID < 0 {
				return nil
			}
			return os.Lchown(dir, owner.UID, owner.GID)
		},
	})
	i.Backend = i.pool
}

// isLocal reports whether sandboxes use this machine's memory.
func (i *isolation) isLocal(s *settings) bool {
	return i.name != backendDocker || strings.HasPrefix(s.DockerHost, "unix://")
}

// sessionCost is what an idle session takes. Only the jail of a root server has one copy of Python's libraries for all.
func (i *isolation) sessionCost(s *settings) doctor.SessionCost {
	if i.name == backendJail && os.Geteuid() == 0 && s.SharedZygote == "on" {
		return doctor.SharedSession
	}
	return doctor.SeparateSession
}

// ready is how many sandboxes wait for a session.
func (i *isolation) ready() float64 {
	if i.pool == nil {
		return 0
	}
	return float64(i.pool.Ready())
}

// newIsolation makes the backend that the settings ask for. One that cannot be made is not replaced by another: the result then
// refuses every run, with the reason and the fix.
func newIsolation(ctx context.Context, s *settings, i *instance.Instance, key secret.Value, log *slog.Logger) isolation {
	closed := s.closedNetworks(ctx, log)
	engine, engineErr := newEngine(s, i, key, closed, log)
	iso := isolation{owner: workspace.Owner{UID: -1, GID: -1}, close: func() {}, closed: closed}
	iso.name, iso.why = choose(ctx, s.Backend, runtime.GOOS, func(ctx context.Context) (offer, error) {
		if iso.noReply = engineErr; engineErr != nil {
			return offer{}, engineErr
		}
		o, err := offered(ctx, s, engine)
		iso.noReply = err
		return o, err
	})
	var err error
	switch iso.name {
	case backendDocker:
		if err = engineErr; err == nil {
			iso.Backend, iso.images, iso.close = engine, engine, engine.Close
			octx, cancel := context.WithTimeout(ctx, lookTimeout)
			defer cancel()
			iso.owner.UID, iso.owner.GID = engine.Owner(octx)
		}
	default:
		if engine != nil {
			engine.Close()
		}
		var closeJail func()
		if iso.Backend, iso.owner, closeJail, err = newJail(s, i, iso.closed, log); err == nil {
			iso.close = closeJail
		}
	}
	if err != nil {
		iso.Backend, iso.refused = refusing{err}, err
	}
	var closeWrappers func()
	closeBackend := iso.close
	iso.Backend, closeWrappers = withWrappers(s, iso.Backend, log)
	iso.close = func() { closeWrappers(); closeBackend() }
	return iso
}

// reachEngine returns an error when no engine answers, for a server that was told to use one: it must not start as if it could run
// code. An engine that goes away later is waited for.
func (i *isolation) reachEngine(ctx context.Context) error {
	err := i.refused
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(ctx, reachTimeout, fmt.Errorf("no answer within %v", reachTimeout))
		defer cancel()
		_, _, _, err = i.images.Runners(ctx)
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

// offered asks the engine.
func offered(ctx context.Context, s *settings, engine *docker.Backend) (offer, error) {
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

// newEngine makes the Docker backend; i is nil where no sandbox will be started.
func newEngine(s *settings, i *instance.Instance, key secret.Value, closed *closednet.List, log *slog.Logger) (*docker.Backend, error) {
	cfg := docker.Config{
		Host: s.DockerHost, Root: s.Root, HostRoot: s.HostPath, Version: version.String(), Agent: agentbin.Binary,
		Runtime: s.DockerRuntime, Image: s.Image, Images: s.Images, Closed: closed, Logger: log,
	}
	if i != nil {
		cfg.Dir, cfg.Instance, cfg.Installation = i.Dir(), i.ID(), installationName(key)
	}
	return docker.New(cfg)
}

// routed starts environments that isolate themselves by one backend, and all else by the other.
type routed struct {
	sandbox.Backend
	wrappers sandbox.Backend
}

var (
	_ sandbox.Prober   = routed{}
	_ sandbox.Reaper   = routed{}
	_ sandbox.Sweeper  = routed{}
	_ sandbox.Warmer   = routed{}
	_ sandbox.Preparer = routed{}
)

func (r routed) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Wrapper != "" {
		return r.wrappers.Start(ctx, spec)
	}
	return r.Backend.Start(ctx, spec)
}

func (r routed) Prepare(ctx context.Context, spec sandbox.Spec) (sandbox.Prepared, error) {
	if p, ok := r.Backend.(sandbox.Preparer); ok && spec.Wrapper == "" {
		return p.Prepare(ctx, spec)
	}
	return nil, errors.ErrUnsupported
}

func (r routed) Probe(ctx context.Context) []sandbox.Check {
	if p, ok := r.Backend.(sandbox.Prober); ok {
		return p.Probe(ctx)
	}
	return nil
}

func (r routed) Reap(ctx context.Context, instance string) error {
	if p, ok := r.Backend.(sandbox.Reaper); ok {
		return p.Reap(ctx, instance)
	}
	return nil
}

func (r routed) Warm(spec sandbox.Spec) {
	if w, ok := r.Backend.(sandbox.Warmer); ok && spec.Wrapper == "" {
		w.Warm(spec)
	}
}

func (r routed) Sweep(ctx context.Context, alive func(string) bool) error {
	if p, ok := r.Backend.(sandbox.Sweeper); ok {
		return p.Sweep(ctx, alive)
	}
	return nil
}

// refusing stands for a backend that cannot be made here. No isolation, no run.
type refusing struct{ err error }

var (
	_ sandbox.Backend = refusing{}
	_ sandbox.Prober  = refusing{}
)

func (r refusing) Start(context.Context, sandbox.Spec) (sandbox.Sandbox, error) { return nil, r.err }

func (r refusing) Probe(context.Context) []sandbox.Check {
	c := sandbox.Check{Name: "backend", Status: sandbox.Fail, Detail: r.err.Error(), Fix: "see above"}
	var known *sandbox.Error
	if errors.As(r.err, &known) {
		c.Detail = known.Op + ": " + known.Err.Error()
		if known.Fix != "" {
			c.Fix = known.Fix
		}
	}
	return []sandbox.Check{c}
}
