package docker_test

import (
	"os"
	"testing"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m, nil) }

// TestConformance runs the suite on the engine's image for Python.
func TestConformance(t *testing.T) {
	host := os.Getenv(envHost)
	if host == "" {
		sandboxtest.Skip(t, envHost+" is not set: no engine to test with (see scripts/engine)")
	}
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Harness {
		root := t.TempDir()
		b, err := docker.New(docker.Config{
			Host: host, Root: root, Dir: root, Installation: "conformance", Instance: sandboxtest.ID(), Agent: sandboxtest.Agent,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		uid, _ := b.Owner(t.Context())
		return sandboxtest.Harness{Backend: b, Owner: uid, Image: imageID(t, b, "python"), Has: sandboxtest.Container()}
	})
}
