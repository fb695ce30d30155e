package jail_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

// TestAhead: if a processor is idle, the next run's process waits while code runs. The code cannot
// see it. Otherwise it starts after the run.
func TestAhead(t *testing.T) {
	needRoot(t, "reads other users' /proc")
	b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
	run := sandboxtest.Shell("echo up; until [ -e /data/go ]; do sleep 0.01; done; cd /proc; echo [0-9]*; readlink /proc/self/ns/pid")
	run.Ahead = true
	r := b.BeginUntil(t, "up\n", run)
	var inits []int
	await(t, "a second run-init", func() bool {
		inits = slices.DeleteFunc(runInits(t, b.Workspace), func(pid int) bool { return !powerless(t, pid) })
		return len(inits) == 2
	})
	namespaces := []string{pidNamespace(inits[0]), pidNamespace(inits[1])}
	if err := os.WriteFile(filepath.Join(b.Workspace, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	seen := strings.Fields(string(r.Wait(t).Stdout))
	if len(seen) != 4 || seen[1] != "1" || !slices.Contains(namespaces, seen[3]) { // up, run-init, the shell
		t.Errorf("the code saw %q", seen)
	}
	next := strings.Fields(string(b.Run(t, sandboxtest.Shell("readlink /proc/self/ns/pid")).Stdout))
	if len(next) != 1 || !slices.Contains(namespaces, next[0]) || next[0] == seen[3] {
		t.Errorf("the next run was in %q, the first in %v of %v", next, seen, namespaces)
	}

	// In a new sandbox, no earlier run is about to prestart something.
	b = sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
	r = b.BeginUntil(t, "up\n", sandboxtest.Shell("echo up; sleep 60"))
	b.Run(t, wire.Run{Held: true}) // whatever the run frame starts has begun
	if inits := runInits(t, b.Workspace); len(inits) != 1 {
		t.Errorf("run-inits without an idle processor: %v", inits)
	}
	r.Send(t, wire.TypeKill)
	r.Wait(t)
}

func pidNamespace(pid int) string {
	ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return ns
}

func runInits(t *testing.T, workspace string) []int {
	t.Helper()
	return slices.DeleteFunc(processes(t, workspace), func(pid int) bool {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return !strings.HasPrefix(string(cmdline), "run-init\x00")
	})
}

// TestThreads: the agent has many threads while code could fill the pid limit, and few when idle.
func TestThreads(t *testing.T) {
	needRoot(t, "reads other users' /proc")
	b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
	r := b.BeginUntil(t, "up\n", sandboxtest.Shell("echo up; sleep 60"))
	agents := agentsOf(t, b.Workspace)
	if len(agents) != 1 {
		t.Fatalf("agents: %v", agents)
	}
	threads := func(proc string) int {
		all, _ := filepath.Glob(proc + "/task/*")
		return len(all)
	}
	if n := threads(agents[0]); n < 12 {
		t.Errorf("the agent has %d threads during a run", n)
	}
	r.Send(t, wire.TypeKill)
	r.Wait(t)
	await(t, "the agent to end its threads", func() bool { return threads(agents[0]) <= 4 })
	if n := threads(fmt.Sprintf("/proc/%d", awaitRunInit(t, b.Workspace))); n > 5 {
		t.Errorf("the prestarted run-init has %d threads", n)
	}
	b.Alive(t)
}
