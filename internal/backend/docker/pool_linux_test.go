package docker_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/pool"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

// TestPool: a new session gets a pooled container and its directory.
func TestPool(t *testing.T) {
	engineHost(t)
	root := t.TempDir()
	inst := installation(t)
	b := open(t, root, func(c *docker.Config) { c.Installation = inst })
	h := harness(t, b)
	p := pool.New(pool.Config{Backend: b, Size: 1, Dir: filepath.Join(root, "pool"), Own: func(dir string) error {
		if os.Geteuid() != 0 {
			return nil
		}
		return os.Lchown(dir, h.Owner, h.Owner)
	}})
	kind := sandbox.Spec{Runner: "python", Image: h.Image}
	p.KeepReady(kind)
	eventually(t, "a container to be ready", func() bool { return p.Ready() == 1 })

	files := filepath.Join(root, "files")
	if !p.MakeWorkspace(files) {
		t.Fatal("no workspace")
	}
	kind.ID, kind.Session, kind.SessionID, kind.Workspace = sandboxtest.ID(), "key", "id", files
	start := time.Now()
	sb, err := p.Start(t.Context(), kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s in %v", sb.ID(), time.Since(start))
	if !strings.HasPrefix(sb.ID(), "pool-") {
		t.Errorf("%s was started for the session", sb.ID())
	}
	box := &sandboxtest.Sandbox{Sandbox: sb, Conn: wire.NewConn(sb.Conn(), wire.ServerSide, nil), Workspace: files}
	if res := box.Run(t, sandboxtest.Shell("ls -A /data; echo mine > /workspace/file; cat /mnt/data/file")); string(res.Stdout) != "mine\n" || res.Exit.Code != 0 {
		t.Errorf("%+v: %s%s", res.Exit, res.Stdout, res.Stderr)
	}
	if text, err := os.ReadFile(filepath.Join(files, "file")); err != nil || string(text) != "mine\n" {
		t.Errorf("%q, %v", text, err)
	}
	eventually(t, "a container to be ready", func() bool { return p.Ready() == 1 })
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = box.Conn.Close()
	if err := sb.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "pool")); !os.IsNotExist(err) {
		t.Errorf("directories are left: %v", err)
	}
	if left := containers(t, api(t, engineHost(t)), inst); len(left) > 0 {
		t.Errorf("containers are left: %v", left)
	}
}
