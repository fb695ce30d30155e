package jail_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// agentsOf finds the agents of the sandboxes with a workspace. Each is process 1 of a pid
// namespace.
func agentsOf(t *testing.T, workspace string) (agents []string) {
	t.Helper()
	for _, pid := range processes(t, workspace) {
		proc := fmt.Sprintf("/proc/%d", pid)
		cmdline, _ := os.ReadFile(proc + "/cmdline")
		if strings.HasPrefix(string(cmdline), "/.sandbox-agent\x00") && len(strings.Fields(status(proc, "NSpid"))) == 2 {
			agents = append(agents, proc)
		}
	}
	return agents
}

// TestAgentCapabilities: no thread of an agent has, or can get, more capabilities than runs need.
// The agent drops CAP_NET_ADMIN after it has set up routes.
func TestAgentCapabilities(t *testing.T) {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		sandboxtest.Skip(t, err.Error())
	}
	runs := fmt.Sprintf("%016x", 1<<unix.CAP_SYS_ADMIN|1<<unix.CAP_SYS_CHROOT|1<<unix.CAP_SETPCAP|1<<unix.CAP_SYS_RESOURCE)
	for _, network := range []bool{false, true} {
		t.Run(fmt.Sprintf("network %v", network), func(t *testing.T) {
			b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{Network: network})
			b.Alive(t)
			agents := agentsOf(t, b.Workspace)
			if len(agents) != 1 {
				t.Fatalf("agents: %v", agents)
			}
			tasks, err := filepath.Glob(agents[0] + "/task/*")
			if err != nil || len(tasks) < 2 {
				t.Fatalf("threads: %v, %v", tasks, err)
			}
			for _, task := range tasks {
				for _, set := range []string{"CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"} {
					if got := status(task, set); got != runs && got != "" { // the thread has ended
						t.Errorf("%s of %s: %s, want %s", set, task, got, runs)
					}
				}
			}
		})
	}
}

// TestRootWithoutIDs: no sandbox has root's uid, even if the server has no other.
func TestRootWithoutIDs(t *testing.T) {
	needMachineRoot(t, "is root in a small user namespace")
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = sandboxtest.Env("server", envRoot+"="+t.TempDir(), envInstance+"="+sandboxtest.ID(), envSpace+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{Size: 1}}, GidMappings: []syscall.SysProcIDMap{{Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "sandboxes must not be root") {
		t.Errorf("it started: %v\n%s", err, out)
	}
}
