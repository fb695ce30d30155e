package docker_test

import (
	"os"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// envPodman names the socket of a Podman service with the image sandbox-base.
const envPodman = "SANDBOX_TEST_PODMAN_HOST"

// TestPodman runs the suite on Podman.
func TestPodman(t *testing.T) {
	host := os.Getenv(envPodman)
	if host == "" {
		sandboxtest.Skip(t, envPodman+" is not set: there is no Podman to test with (see scripts/engine)")
	}
	name := ownLanguage()
	id := build(t, api(t, host), "localhost/sandbox-base:latest", "FROM BASE\nLABEL sandbox.runner=true sandbox.language=python sandbox.protocol=agent\n", name+":test")
	inst := installation(t)
	b := open(t, t.TempDir(), func(c *docker.Config) { c.Host, c.Installation = host, inst })
	h := harnessWith(t, b, id)
	h.Has.FileLimit, h.Has.CgroupNamespace = false, false
	t.Run("Suite", func(t *testing.T) {
		sandboxtest.Run(t, func(*testing.T) sandboxtest.Harness { return h })
	})
	t.Run("Discovery", func(t *testing.T) {
		if set, _, _, err := b.Runners(t.Context()); err != nil || len(set) == 0 || strings.Contains(set[0].Image, "localhost/") {
			t.Errorf("%+v, %v", set, err)
		}
	})
	t.Run("Doctor", func(t *testing.T) {
		if checks := b.Probe(t.Context()); checks[0].Status == sandbox.Fail || !strings.Contains(checks[0].Detail, "Podman") {
			t.Errorf("%+v", checks)
		}
	})
	if left := containers(t, api(t, host), inst); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
