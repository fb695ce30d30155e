package docker_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestVisibleMounts pins which host paths a container's mount table shows, since nothing can hide
// them: those of its own workspace, of the agent and of the engine's files for this container, and
// no others.
func TestVisibleMounts(t *testing.T) {
	b := open(t, t.TempDir())
	box := sandboxtest.Start(t, harness(t, b), sandbox.Spec{})
	other := sandboxtest.Start(t, harness(t, b), sandbox.Spec{})
	res := box.Run(t, sandboxtest.Shell("cat /proc/self/mountinfo"))
	if strings.Contains(string(res.Stdout), path.Base(path.Dir(other.Workspace))+"/"+path.Base(other.Workspace)) {
		t.Errorf("another session's workspace is seen:\n%s", res.Stdout)
	}
	known := []string{"/data", "/mnt/data", "/workspace", "/.sandbox-agent", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}
	seen := 0
	for line := range strings.Lines(string(res.Stdout)) {
		left, right, _ := strings.Cut(line, " - ")
		f := strings.Fields(left)
		kind, _, _ := strings.Cut(right, " ")
		if root := f[3]; root == "/" || slices.Contains([]string{"proc", "sysfs", "tmpfs", "devtmpfs", "cgroup", "cgroup2", "devpts", "mqueue"}, kind) {
			continue
		}
		if seen++; !slices.Contains(known, f[4]) {
			t.Errorf("a mount that the documentation does not know: %s", line)
		}
	}
	if seen < 4 {
		t.Errorf("%d mounts of the host's: %s%s", seen, res.Stdout, res.Stderr)
	}
}
