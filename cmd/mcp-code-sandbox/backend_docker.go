package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"mcp-code-sandbox/internal/agentbin"
	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/version"
)

// checkDisk is docker's checkHost: the engine may be on another machine, the workspaces are on this
// one.
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
	o := opened{driver: engine, check: engine.CheckRuntime, catalogue: engine}
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
	// lookTimeout bounds how long "auto" waits for an engine. A healthy one answers in
	// milliseconds.
	lookTimeout = 3 * time.Second
	// reachTimeout bounds how long the start waits for an engine that the settings ask for.
	reachTimeout = 15 * time.Second
)

// reachEngine returns an error if no engine answers. A server that is configured to use an engine
// must not start as if it could run code. If an engine goes away later, the server waits for it.
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
	if known, ok := errors.AsType[*sandbox.Error](err); ok && known.Fix != "" {
		fix = known.Fix
	}
	if runtime.GOOS == "linux" {
		fix += ", or set SANDBOX_BACKEND=jail"
	}
	return fmt.Errorf("SANDBOX_BACKEND is docker, but no engine can be used: %s (%s)", reason(err), fix)
}

// checkSettings returns an error if the settings ask for a runtime or images but the jail was
// chosen, which has neither. A server must not isolate code in another way than its operator asked
// for.
func (i *isolation) checkSettings(s *settings) error {
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
		return refuse("correct SANDBOX_IMAGES (docker images lists them) or DOCKER_HOST, or set SANDBOX_BACKEND=jail",
			"SANDBOX_IMAGES is "+strings.Join(s.Images, ",")+", but the jail would be used, which has no images")
	}
	return nil
}

// ignoredSetting reports that the engine or the image in the settings is not used, or "".
func (i *isolation) ignoredSetting(s *settings, env map[string]string) string {
	switch {
	case i.name != backendJail:
		return ""
	case i.engineErr != nil && s.DockerHost != defaultEngine(env):
		return fmt.Sprintf("the jail is used, because the engine at DOCKER_HOST (%s) cannot be used: %s", s.DockerHost, reason(i.engineErr))
	case s.Image != "" && s.Backend == backendAuto:
		return fmt.Sprintf("the jail is used and not SANDBOX_IMAGE (%s): %s", s.Image, i.why)
	}
	return ""
}

// fixIgnored is the fix of an ignored setting.
const fixIgnored = "start the engine, correct the setting, or set SANDBOX_BACKEND=jail to say that this is intended"

// offer is what an engine offers to "auto".
type offer struct {
	runners int
	own     bool // one of its images is this project's
	asked   bool // the settings name images
}

// askEngine asks the settings' engine.
func askEngine(ctx context.Context, s *settings) (offer, error) {
	engine, err := newEngine(backendConfig{settings: s})
	if err != nil {
		return offer{}, err
	}
	defer engine.Close()
	set, _, _, err := engine.Runners(ctx)
	return offer{runners: len(set), own: engine.HasOwn(), asked: s.Image != "" || len(s.Images) > 0}, err
}

// choose returns the backend to use, and why. A labelled image of somebody else must not change how
// code is isolated.
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
		return backendJail, "the engine has images that are labelled as runners, but none of this project; " +
			"SANDBOX_BACKEND=docker or SANDBOX_IMAGES uses them"
	}
	return backendJail, "the engine has no image that is labelled as a runner"
}

// reason returns an error without its fix.
func reason(err error) string {
	if known, ok := errors.AsType[*sandbox.Error](err); ok {
		return known.Err.Error()
	}
	return err.Error()
}
