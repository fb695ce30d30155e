package jail_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
// The agent drops CAP_NET_ADMIN after it has set up routes. It keeps CAP_NET_BIND_SERVICE to listen
// for names.
func TestAgentCapabilities(t *testing.T) {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		sandboxtest.Skip(t, err.Error())
	}
	const needed = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_CHROOT | 1<<unix.CAP_SETPCAP | 1<<unix.CAP_SYS_RESOURCE
	for name, tc := range map[string]struct {
		spec sandbox.Spec
		caps int
	}{
		"alone":   {sandbox.Spec{}, needed},
		"forward": {sandbox.Spec{Forward: true}, needed | 1<<unix.CAP_NET_BIND_SERVICE},
		"network": {sandbox.Spec{Forward: true, Network: true}, needed},
	} {
		t.Run(name, func(t *testing.T) {
			runs := fmt.Sprintf("%016x", tc.caps)
			b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), tc.spec)
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

// TestNoCapabilitiesOutside: no process that the jail starts has, or can get, a capability in the
// server's own user namespace, where an ordinary user's server is root.
func TestNoCapabilitiesOutside(t *testing.T) {
	needRoot(t, "ordinary users outside of an outer namespace have no capability to give")
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		sandboxtest.Skip(t, err.Error())
	}
	h := zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
	b := sandboxtest.Start(t, h, sandbox.Spec{Network: true})
	b.Alive(t)
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, proc := range childrenOf(t, os.Getpid()) {
		name := status(proc, "Name")
		seen[name] = true
		if ns, err := os.Readlink(proc + "/ns/user"); err != nil || ns != own {
			continue
		}
		for _, set := range []string{"CapEff", "CapPrm", "CapInh", "CapAmb"} {
			if got := status(proc, set); strings.Trim(got, "0") != "" {
				t.Errorf("%s of %s: %s", set, name, got)
			}
		}
		if status(proc, "NoNewPrivs") != "1" && strings.Trim(status(proc, "CapBnd"), "0") != "" {
			t.Errorf("%s can get capabilities by executing a program", name)
		}
	}
	if !seen["bwrap"] || !seen["slirp4netns"] {
		t.Errorf("found only %v", seen)
	}
}

// childrenOf returns the directories in /proc of the processes that pid has started, and theirs.
func childrenOf(t *testing.T, pid int) (list []string) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		text, _ := os.ReadFile(task) // the thread may have ended
		for _, child := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(child)
			if err != nil {
				t.Fatal(err)
			}
			list = append(append(list, "/proc/"+child), childrenOf(t, n)...)
		}
	}
	return list
}
