package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"slices"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/workspace"
)

// The names of the backends, as in SANDBOX_BACKEND. backendAuto chooses one.
const (
	backendAuto   = "auto"
	backendJail   = "jail"
	backendDocker = "docker"
)

// backend is an entry of the list of backends. It is valid even if the backend cannot be opened
// here.
type backend struct {
	name string
	open func(context.Context, backendConfig) (opened, error)
	// poolSize is how many sandboxes of a kind are kept ready, unless the settings say otherwise.
	poolSize int
	// hasImages: the backend's runners are images, not directories on this machine.
	hasImages bool
	// checkHost returns doctor's checks of this machine.
	checkHost func(context.Context, *settings) []sandbox.Check
	// isLocal reports whether sandboxes use this machine's memory; sessionCost, how much an idle
	// session uses.
	isLocal     func(*settings) bool
	sessionCost func(*settings) doctor.SessionCost
}

// backends lists every backend. To add one, write its open function and add a line.
func backends() []backend {
	always := func(*settings) bool { return true }
	separate := func(*settings) doctor.SessionCost { return doctor.SeparateSession }
	return []backend{
		{name: backendJail, open: openJail, poolSize: 2, checkHost: checkKernel, isLocal: always, sessionCost: jailCost},
		{name: backendDocker, open: openDocker, hasImages: true, checkHost: checkDisk, isLocal: isLocalEngine, sessionCost: separate},
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

// backendConfig opens a backend. Without an instance, the backend only lists its runners.
type backendConfig struct {
	settings *settings
	instance *instance.Instance
	key      secret.Value    // of the installation
	closed   *closednet.List // what sandboxes with network cannot reach
	log      *slog.Logger
}

// driver is implemented by every backend. A backend may also be a sandbox.Preparer.
type driver interface {
	sandbox.Backend
	sandbox.Prober
	sandbox.Reaper
	Close()
}

// opened is a backend that has been opened.
type opened struct {
	driver
	// check returns an error if a server must not start with this backend.
	check     func(context.Context) error
	owner     workspace.Owner  // of what sandboxes write
	catalogue runner.Catalogue // nil: the runners are directories on this machine
}

// checkKernel is the jail's checkHost.
func checkKernel(ctx context.Context, s *settings) []sandbox.Check {
	return doctor.System().Check(ctx, s.Root)
}

// jailCost is the jail's sessionCost. A server that is root, if only in its outer namespace, has
// one copy of Python's libraries for all sandboxes.
func jailCost(s *settings) doctor.SessionCost {
	if os.Geteuid() == 0 && s.SharedZygote == "on" {
		return doctor.SharedSession
	}
	return doctor.SeparateSession
}

// router starts environments that isolate themselves with one backend, and all others with the
// other.
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
