package docker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// envHost names the engine to test with. It is not DOCKER_HOST, so that no test uses a developer's
// own by accident.
const envHost = "SANDBOX_TEST_DOCKER_HOST"

// engineHost returns the address of the engine, or skips the test.
func engineHost(t *testing.T) string {
	t.Helper()
	host := os.Getenv(envHost)
	if host == "" {
		sandboxtest.Skip(t, envHost+" is not set: there is no engine to test with (see scripts/engine)")
	}
	return host
}

// api returns a client of the engine, for what the backend does not do.
func api(t *testing.T, host string) *client.Client {
	t.Helper()
	c, err := client.New(client.WithHost(host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// installation returns a new installation, which the backends of one test share.
func installation(t *testing.T) string {
	return strings.ReplaceAll(sandboxtest.ID(), "t-", "test")
}

// open opens a backend of a new instance under root.
func open(t *testing.T, root string, change ...func(*docker.Config)) *docker.Backend {
	t.Helper()
	b, err := docker.New(config(t, root, change...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func config(t *testing.T, root string, change ...func(*docker.Config)) docker.Config {
	t.Helper()
	cfg := docker.Config{
		Root: root, Installation: installation(t), Instance: strings.TrimPrefix(sandboxtest.ID(), "t-"), Version: "test",
		Agent: sandboxtest.Agent,
	}
	for _, c := range change {
		c(&cfg)
	}
	if cfg.Host == "" {
		cfg.Host = engineHost(t)
	}
	cfg.Dir = filepath.Join(root, "instances", cfg.Instance)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// imageID returns the engine's image for a language.
func imageID(t *testing.T, b *docker.Backend, language string) string {
	t.Helper()
	set, _, problems, err := b.Runners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, ok := set.Lookup(language)
	if !ok {
		t.Fatalf("the engine has no image for %s: %v %v", language, set.Names(), problems)
	}
	return r.ImageID
}

func harness(t *testing.T, b *docker.Backend) sandboxtest.Harness {
	t.Helper()
	return harnessWith(t, b, imageID(t, b, "python"))
}

func harnessWith(t *testing.T, b *docker.Backend, image string) sandboxtest.Harness {
	t.Helper()
	uid, _ := b.Owner(t.Context())
	return sandboxtest.Harness{Backend: b, Owner: uid, Image: image, Has: sandboxtest.Container()}
}
