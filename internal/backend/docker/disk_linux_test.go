package docker_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestFullDisk: if the engine's disk is full, a start fails with the reason and leaves nothing, and
// running sandboxes keep running. Starts work again when there is space. A full disk of the
// workspace is an error of the program.
func TestFullDisk(t *testing.T) {
	e := startEngine(t, `
for name in data small; do
	mkdir -p "$dir/$name"
	mount -t tmpfs -o size=32m,mode=711 none "$dir/$name"
done
chmod 1777 "$dir/small"`, noNetwork...)
	c := api(t, e.Host)
	inst := installation(t)
	b, h := e.open(t, t.TempDir(), func(c *docker.Config) { c.Installation = inst })
	box := sandboxtest.Start(t, h, sandbox.Spec{Workspace: filepath.Join(e.dir, "small"), Mounts: usr})
	box.Alive(t)

	// The engine's disks are in its mount namespace.
	filler := filepath.Join(fmt.Sprintf("/proc/%d/root", e.cmd.Process.Pid), e.dir, "data", "filler")
	fill(t, filler)
	spec := sandbox.Spec{ID: sandboxtest.ID(), Image: h.Image, Workspace: sandboxtest.Workspace(t, h.Owner), Mounts: usr}
	sb, err := b.Start(t.Context(), spec)
	if err == nil {
		_ = sb.Close(t.Context())
		t.Fatal("started without space on the engine's disk")
	}
	var known *sandbox.Error
	if !errors.As(err, &known) || !strings.Contains(err.Error(), "no space left on device") || !strings.Contains(known.Fix, "docker system prune") {
		t.Errorf("a start without space: %v", err)
	}
	eventually(t, "the failed container to be gone", func() bool { return len(containers(t, c, inst)) == 1 })
	box.Alive(t)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	spec.ID = sandboxtest.ID()
	sandboxtest.Start(t, h, spec).Alive(t)

	res := box.Run(t, sandboxtest.Python(`
import errno
try:
    with open("/data/filler", "wb", buffering=0) as f:
        while True: f.write(bytes(1 << 20))
except OSError as e: print(e.errno == errno.ENOSPC)
`))
	if string(res.Stdout) != "True\n" || res.Exit.Code != 0 {
		t.Errorf("a program that fills the disk: %q %s %+v", res.Stdout, res.Stderr, res.Exit)
	}
	box.Alive(t)
	if res := box.Run(t, sandboxtest.Shell("rm /data/filler && echo back >/data/back && cat /data/back")); string(res.Stdout) != "back\n" {
		t.Errorf("with space again: %q %s %+v", res.Stdout, res.Stderr, res.Exit)
	}
}

// fill writes a file until nothing more fits.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		_, err := f.Write(make([]byte, size))
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			t.Fatal(err)
		}
	}
}
