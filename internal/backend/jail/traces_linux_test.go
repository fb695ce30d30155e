package jail_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

// processes finds the processes of sandboxes with a workspace under dir, and their slirp4netns: by
// their mounts or, because ordinary users cannot read those, as descendants of bubblewrap.
func processes(t *testing.T, dir string) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	cmdlines, parents := map[int]string{}, map[int]int{}
	found := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		mounts, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "mountinfo"))
		cmdlines[pid] = string(cmdline)
		if stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat")); err == nil {
			fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
			parents[pid], _ = strconv.Atoi(fields[1])
		}
		if strings.Contains(string(mounts), dir) || strings.Contains(string(cmdline), "--info-fd") && strings.Contains(string(cmdline), dir) {
			found[pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for pid, cmdline := range cmdlines {
			_, target, slirp := strings.Cut(cmdline, "--userns-path=/proc/")
			target, _, _ = strings.Cut(target, "/")
			of, _ := strconv.Atoi(target)
			if !found[pid] && (found[parents[pid]] || slirp && found[of]) {
				found[pid], grown = true, true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// groups finds the cgroups of an instance.
func groups(t *testing.T, instance string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a group that ended meanwhile
		}
		if d.IsDir() && strings.Contains(d.Name(), "mcp-code-sandbox-"+instance) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// mounts returns the host's mounts that a sandbox could have made: of the test's directories, or on
// the launcher's stage.
func mounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var ours strings.Builder
	for line := range strings.Lines(string(b)) {
		point := strings.Fields(line)[4]
		if strings.Contains(line, "/"+t.Name()) || point == "/mnt" || strings.HasPrefix(point, "/mnt/") || point == "/dev/net/tun" {
			ours.WriteString(line)
		}
	}
	return ours.String()
}

// TestCancelledStart: a start that is cancelled at any moment leaves nothing behind.
func TestCancelledStart(t *testing.T) {
	instance := sandboxtest.ID()
	b := open(t, t.TempDir(), instance)
	uid, _ := jail.Owner()
	ws := sandboxtest.Workspace(t, uid)
	before, groupsBefore := mounts(t), groups(t, instance)
	var cancelled int
	for i := range 40 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*500*time.Microsecond)
		sb, err := b.Start(ctx, sandbox.Spec{ID: sandboxtest.ID(), Workspace: ws, Network: i%8 == 7 && os.Geteuid() == 0})
		cancel()
		if err == nil {
			if err := sb.Close(t.Context()); err != nil {
				t.Error(err)
			}
			continue
		}
		cancelled++
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cancelled after %d × 0.5 ms: %v", i, err)
		}
		if left := processes(t, ws); len(left) > 0 {
			t.Fatalf("cancelled after %d × 0.5 ms: processes %v are left", i, left)
		}
	}
	if cancelled < 5 {
		t.Errorf("only %d starts were cancelled", cancelled)
	}
	if after := mounts(t); after != before {
		t.Errorf("mounts of the host have changed:\n%s\n%s", before, after)
	}
	if after := groups(t, instance); !slices.Equal(after, groupsBefore) {
		t.Errorf("cgroups are left: %v", after)
	}
}

// TestHostView: seen from the host, a sandbox's processes have its sandbox uid and nothing of the
// server.
func TestHostView(t *testing.T) {
	needMachineRoot(t, "the sandbox has a cgroup")
	before := mounts(t)
	instance := sandboxtest.ID()
	h := harness(t, open(t, t.TempDir(), instance))
	b := sandboxtest.Start(t, h, sandbox.Spec{Forward: true})
	r := b.Begin(t, sandboxtest.Shell("echo up; sleep 1000"))
	r.Until(t, "up\n")
	pids := processes(t, b.Workspace)
	if len(pids) < 3 { // agent, run-init, shell
		t.Fatalf("found only the processes %v", pids)
	}
	uid := uidOf(t, b)
	if uid == 0 || uid == jail.OwnerUID {
		t.Errorf("the sandbox's uid is %d", uid)
	}
	for _, pid := range pids {
		for _, name := range []string{"Uid", "Gid"} {
			for _, id := range strings.Fields(status(fmt.Sprintf("/proc/%d", pid), name)) {
				if id != strconv.Itoa(uid) {
					t.Errorf("process %d has %s %s, the sandbox has %d", pid, name, id, uid)
				}
			}
		}
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && strings.Contains(string(env), "GOCACHE") {
			t.Errorf("process %d has the server's environment", pid)
		}
	}
	if after := mounts(t); after != before {
		t.Errorf("mounts of the host have changed")
	}
	if len(groups(t, instance)) == 0 {
		t.Error("the sandbox is in no cgroup")
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := processes(t, b.Workspace); len(left) > 0 {
		t.Errorf("processes %v are left after Close", left)
	}
}

// uidOf returns the uid of a sandbox's agent.
func uidOf(t *testing.T, b *sandboxtest.Sandbox) int {
	t.Helper()
	agents := agentsOf(t, b.Workspace)
	if len(agents) != 1 {
		t.Fatalf("agents: %v", agents)
	}
	uid, err := strconv.Atoi(strings.Fields(status(agents[0], "Uid"))[0])
	if err != nil {
		t.Fatal(err)
	}
	return uid
}

const (
	envRoot     = "JAILTEST_ROOT"
	envInstance = "JAILTEST_INSTANCE"
	envSpace    = "JAILTEST_WORKSPACE"
)

// roleServer starts a sandbox with a run in it, prints a line and waits to be killed.
func roleServer() {
	err := func() error {
		b, err := openBackend(os.Getenv(envRoot), os.Getenv(envInstance))
		if err != nil {
			return err
		}
		_, tun := os.Stat("/dev/net/tun")
		sb, err := b.Start(context.Background(), sandbox.Spec{
			ID: sandboxtest.ID(), Workspace: os.Getenv(envSpace), Network: os.Geteuid() == 0 && tun == nil,
		})
		if err != nil {
			return err
		}
		conn := wire.NewConn(sb.Conn(), wire.ServerSide, nil)
		run := sandboxtest.Shell("trap '' HUP INT TERM; (setsid sleep 1000 &) ; echo up; while :; do sleep 1000; done")
		s, err := conn.Open(wire.Frame{Type: wire.TypeRun, Run: &run})
		if err != nil {
			return err
		}
		f, err := s.Recv(context.Background())
		fmt.Printf("%s", f.Data)
		if err == nil {
			_, err = io.Copy(io.Discard, os.Stdin) // returns if the test dies
		}
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestKilledServer: a killed server leaves no process and no mount. Another one removes its
// cgroups, and no others.
func TestKilledServer(t *testing.T) {
	root, dead := t.TempDir(), sandboxtest.ID()
	living := sandboxtest.ID()
	h := harness(t, open(t, root, living))
	beside := sandboxtest.Start(t, h, sandbox.Spec{})
	besideRun := beside.Begin(t, sandboxtest.Shell("echo up; sleep 1000"))
	besideRun.Until(t, "up\n")
	livingGroups := groups(t, living)

	ws := sandboxtest.Workspace(t, h.Owner)
	before, processesBefore := mounts(t), processes(t, ws)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = sandboxtest.Env("server", envRoot+"="+root, envInstance+"="+dead, envSpace+"="+ws)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "up\n" {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("the server printed %q, %v", line, err)
	}
	var ends []unix.PollFd
	for _, pid := range processes(t, ws) {
		if slices.Contains(processesBefore, pid) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		ends = append(ends, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	if len(ends) < 2 {
		t.Fatalf("found only %d processes of the sandbox", len(ends))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for i := range ends { // a pidfd is readable when the process has ended
		if n, err := unix.Poll(ends[i:i+1], 5000); n != 1 {
			t.Errorf("a process of the killed server's sandbox has not ended: %v", err)
		}
	}
	if left := processes(t, ws); len(left) > len(processesBefore) {
		t.Errorf("processes %v are left", left)
	}
	if after := mounts(t); after != before {
		t.Errorf("mounts of the host have changed")
	}

	if h.Has.Limits && len(groups(t, dead)) == 0 {
		t.Error("the killed server left no cgroup: the test shows nothing")
	}
	reaper := open(t, root, sandboxtest.ID())
	for range 2 { // the second call has nothing to do
		if err := reaper.Reap(t.Context(), func(instance string) bool { return instance != dead }); err != nil {
			t.Error(err)
		}
	}
	if left := groups(t, dead); len(left) > 0 {
		t.Errorf("not reaped: %v", left)
	}
	if after := groups(t, living); !slices.Equal(after, livingGroups) {
		t.Errorf("another instance's cgroups: %v, were %v", after, livingGroups)
	}
	homes, err := os.ReadFile(filepath.Join(root, living, "jail", "cgroups.json"))
	for _, name := range []string{"*", "t-*", "?" + living[1:]} { // no instance has such a name
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, name, "jail"), 0o700),
			os.WriteFile(filepath.Join(root, name, "jail", "cgroups.json"), homes, 0o600))
	}
	err = errors.Join(err, reaper.Reap(t.Context(), func(instance string) bool { return instance == living }))
	if err != nil {
		t.Error(err)
	}
	if after := groups(t, living); !slices.Equal(after, livingGroups) {
		t.Errorf("another instance's cgroups: %v, were %v", after, livingGroups)
	}
	beside.Alive(t)
	besideRun.Send(t, wire.TypeKill)
	if res := besideRun.Wait(t); res.Exit.Signal != 9 {
		t.Errorf("%+v", res.Exit)
	}
}

// TestClose: a closed backend ends its own sandboxes only, and starts no more.
func TestClose(t *testing.T) {
	root := t.TempDir()
	a, err := openBackend(root, sandboxtest.ID())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	b := open(t, root, sandboxtest.ID())
	uid, _ := jail.Owner()
	boxA := sandboxtest.Start(t, sandboxtest.Harness{Backend: a, Owner: uid}, sandbox.Spec{})
	boxB := sandboxtest.Start(t, sandboxtest.Harness{Backend: b, Owner: uid}, sandbox.Spec{})
	a.Close()
	a.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if exit, err := boxA.Wait(ctx); err != nil || exit.Cause != sandbox.CauseLost {
		t.Errorf("the closed backend's sandbox: %+v, %v", exit, err)
	}
	if _, err := a.Start(ctx, sandbox.Spec{ID: sandboxtest.ID(), Workspace: boxA.Workspace}); err == nil {
		t.Error("a closed backend starts sandboxes")
	}
	boxB.Alive(t)
}

// TestPrestartedRunInit: the prestarted run-init has no privileges, and its death costs no run.
func TestPrestartedRunInit(t *testing.T) {
	needRoot(t, "reads other users' /proc")
	b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
	b.Alive(t)
	first := awaitRunInit(t, b.Workspace)
	b.Alive(t) // by the prestarted run-init
	next := first
	await(t, "the run's run-init to end", func() bool { // a result may come before its run-init exits
		next = awaitRunInit(t, b.Workspace)
		return next != first
	})
	killed(t, next, next)
	b.Alive(t)
}

// awaitRunInit returns the run-init that waits for a run, once it has dropped all privileges.
func awaitRunInit(t *testing.T, workspace string) int {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		for _, pid := range processes(t, workspace) {
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if strings.HasPrefix(string(cmdline), "run-init\x00") && powerless(t, pid) {
				return pid
			}
		}
		<-tick.C
	}
	t.Fatal("no run-init without privileges waits")
	return 0
}

// powerless reports whether no thread of a process has a capability or can get one.
func powerless(t *testing.T, pid int) bool {
	t.Helper()
	const none = "0000000000000000"
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, task := range tasks {
		status, _ := os.ReadFile(task)
		for _, line := range []string{"CapPrm:\t" + none, "CapEff:\t" + none, "CapBnd:\t" + none, "CapAmb:\t" + none, "NoNewPrivs:\t1", "Seccomp:\t2"} {
			if !strings.Contains(string(status), line+"\n") {
				return false
			}
		}
	}
	return len(tasks) > 0
}
