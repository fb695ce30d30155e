package docker_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// envRuntime names a runtime of the engine that gives each container its own kernel, such as
// gVisor's runsc.
const envRuntime = "SANDBOX_TEST_DOCKER_RUNTIME"

func ownKernel(t *testing.T) func(*docker.Config) {
	t.Helper()
	engineHost(t)
	name := os.Getenv(envRuntime)
	if name == "" {
		sandboxtest.Skip(t, envRuntime+" is not set: the engine has no runsc (see scripts/engine)")
	}
	return func(c *docker.Config) { c.Runtime = name }
}

// TestConformanceOwnKernel runs the suite on sandboxes that have their own kernels.
func TestConformanceOwnKernel(t *testing.T) {
	runtime := ownKernel(t)
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Harness {
		h := harness(t, open(t, t.TempDir(), runtime))
		h.Has.Namespaces, h.Has.Terminals, h.Has.Limits = true, true, false
		h.Has.HostKernel, h.Has.ProtectedInit = false, false
		return h
	})
}

// TestUnknownRuntime: the error about a missing runtime names it and those that exist.
func TestUnknownRuntime(t *testing.T) {
	b := open(t, t.TempDir(), func(c *docker.Config) { c.Runtime = "runcs" })
	want := func(what string, err error) {
		t.Helper()
		var known *sandbox.Error
		if !errors.As(err, &known) || !strings.Contains(err.Error(), "no runtime runcs") || !strings.Contains(known.Fix, "runc") {
			t.Errorf("%s: %v", what, err)
		}
	}
	want("at the server's start", b.CheckRuntime(t.Context()))
	_, err := b.Start(t.Context(), sandbox.Spec{ID: sandboxtest.ID(), Workspace: t.TempDir()})
	want("at a sandbox's start", err)
	if c := b.Probe(t.Context()); len(c) != 1 || c[0].Status != sandbox.Fail || !strings.Contains(c[0].Detail, "no runtime runcs") {
		t.Errorf("doctor: %+v", c)
	}
}

// TestDoctorOwnKernel: doctor reports that the runtime works, how runs are kept apart, and that
// there is no network.
func TestDoctorOwnKernel(t *testing.T) {
	b := open(t, t.TempDir(), ownKernel(t))
	said := map[string]sandbox.Check{}
	for _, c := range b.Probe(t.Context()) {
		said[c.Name] = c
	}
	for name, want := range map[string]struct {
		status sandbox.Status
		text   string
	}{
		"engine": {sandbox.OK, "with the runtime " + os.Getenv(envRuntime)}, "sandbox": {sandbox.OK, "ran a program"},
		"runs": {sandbox.OK, "namespaces"}, "network": {sandbox.Warn, "nothing keeps a container from private addresses"},
	} {
		if c := said[name]; c.Status != want.status || !strings.Contains(c.Detail, want.text) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}
