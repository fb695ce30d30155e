package jail_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/runners"
)

// zygoteHarness is a harness that forks all Python runs from zygotes.
func zygoteHarness(t *testing.T, b *jail.Backend) sandboxtest.Harness {
	t.Helper()
	t.Setenv("CANARY", "of the server") // no fork may have it
	h := harness(t, b)
	h.Zygote = &wire.Zygote{Name: "python", Argv: []string{"/usr/bin/python3"}, Reads: []string{"PYTHON"}, Source: zygoteSource(t),
		Preload: []string{"multiprocessing.process"}, OnUse: []string{"xml.dom.minidom"}}
	h.SharedZygote = os.Geteuid() == 0 // other users start their own
	return h
}

func zygoteSource(t *testing.T) []byte {
	t.Helper()
	source, err := runners.Files.ReadFile("python/zygote.py")
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// sharedZygotes finds the shared zygotes of this process, without their forks and bubblewrap.
func sharedZygotes(t *testing.T) (found []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	parents := map[int]int{}
	for _, path := range stats {
		if stat, err := os.ReadFile(path); err == nil {
			fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			parents[pid], _ = strconv.Atoi(fields[1])
		}
	}
	for pid, parent := range parents {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if parents[parent] == os.Getpid() && bytes.HasSuffix(cmdline, []byte("/.zygote\x00shared-zygote\x00")) {
			found = append(found, pid)
		}
	}
	return found
}

func theSharedZygote(t *testing.T) int {
	t.Helper()
	found := sharedZygotes(t)
	if len(found) != 1 {
		t.Fatalf("shared zygotes: %v", found)
	}
	return found[0]
}

// killed kills pid, unless it is 0, and returns when victim has ended.
func killed(t *testing.T, pid, victim int) {
	t.Helper()
	fd, err := unix.PidfdOpen(victim, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if pid > 0 {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); n != 1 {
		t.Fatalf("process %d has not ended: %v", victim, err)
	}
}

// described returns the harness's zygote for a Spec.
func described(h sandboxtest.Harness) []sandbox.Zygote {
	z := h.Zygote
	return []sandbox.Zygote{sandbox.Zygote(*z)}
}

// TestTwoZygotes: each run is forked from the zygote that it names.
func TestTwoZygotes(t *testing.T) {
	h := zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
	light := *h.Zygote
	light.Name, light.Preload = "light", []string{"colorsys"}
	spec := sandbox.Spec{}
	if h.SharedZygote {
		spec.Zygotes = append(described(h), sandbox.Zygote(light))
	}
	box := sandboxtest.Start(t, sandboxtest.Harness{Backend: h.Backend, Owner: h.Owner}, spec)
	for _, c := range []struct {
		zygote *wire.Zygote
		want   string
	}{{h.Zygote, "True False\n"}, {&light, "False True\n"}, {h.Zygote, "True False\n"}, {&light, "False True\n"}} {
		run := sandboxtest.Python("import sys; print('multiprocessing.process' in sys.modules, 'colorsys' in sys.modules)")
		run.Zygote = c.zygote
		res := box.Run(t, run)
		for n := 0; n < 1000 && !res.Exit.Forked; n++ { // until the zygote is ready
			res = box.Run(t, run)
		}
		if !res.Exit.Forked || string(res.Stdout) != c.want {
			t.Errorf("%s: %+v %s%s", c.zygote.Name, res.Exit, res.Stdout, res.Stderr)
		}
	}
}

// TestZygoteOnRequest: a sandbox that starts for a waiting run gets the zygote of most runs, and
// the others when a run needs them.
func TestZygoteOnRequest(t *testing.T) {
	needRoot(t, "shared zygotes enter sandboxes of another uid")
	b := open(t, t.TempDir(), sandboxtest.ID())
	h := zygoteHarness(t, b)
	light := *h.Zygote
	light.Name, light.Preload = "light", nil
	spec := sandbox.Spec{Zygotes: append(described(h), sandbox.Zygote(light))}
	plain := sandboxtest.Harness{Backend: b, Owner: h.Owner}
	forked := func(box *sandboxtest.Sandbox, z *wire.Zygote) bool {
		run := sandboxtest.Python("")
		run.Zygote = z
		return box.Run(t, run).Exit.Forked
	}
	first := sandboxtest.Start(t, plain, spec)
	for n := 0; !forked(first, h.Zygote) || !forked(first, &light); n++ { // until both are ready
		if n == 1000 {
			t.Fatal("the shared zygotes do not become ready")
		}
	}
	zygotes := sharedZygotes(t)
	forks := func() (most, least int) {
		var n [2]int
		for i, pid := range zygotes {
			children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
			if err != nil {
				t.Fatal(err)
			}
			n[i] = len(strings.Fields(string(children)))
		}
		return max(n[0], n[1]), min(n[0], n[1])
	}
	if most, least := forks(); len(zygotes) != 2 || most != 1 || least != 1 {
		t.Fatalf("%d shared zygotes, at most %d and at least %d forks", len(zygotes), most, least)
	}
	second := sandboxtest.Start(t, plain, spec)
	if !forked(second, &light) {
		t.Error("the zygote of most runs is not there")
	}
	if _, least := forks(); least != 1 {
		t.Error("a zygote is there that no run has asked for")
	}
	if !forked(second, h.Zygote) {
		t.Error("a run did not get the zygote that it asked for")
	}
}

// TestSharedZygoteLife: a shared zygote may end at any time. Runs go on, and a new one starts
// later.
func TestSharedZygoteLife(t *testing.T) {
	needRoot(t, "shared zygotes enter sandboxes of another uid")
	for name, victim := range map[string]func(shared int) int{
		"killed": func(shared int) int { return shared },
		"its bubblewrap killed": func(shared int) int {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", shared))
			parent, _ := strconv.Atoi(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1])
			return parent
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
			old := sandboxtest.Start(t, h, sandbox.Spec{})
			first := theSharedZygote(t)
			killed(t, victim(first), first)
			old.Probe(t, "") // from its zygote, still
			sandboxtest.Start(t, h, sandbox.Spec{}).Probe(t, "")
			sandboxtest.Start(t, h, sandbox.Spec{}).Probe(t, "")
			if again := theSharedZygote(t); again == first {
				t.Error("no new shared zygote was started")
			}
		})
	}
	t.Run("stuck", func(t *testing.T) {
		h := zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
		old := sandboxtest.Start(t, h, sandbox.Spec{})
		first := theSharedZygote(t)
		if err := unix.Kill(first, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			sandboxtest.Start(t, sandboxtest.Harness{Backend: h.Backend, Owner: h.Owner}, sandbox.Spec{Zygotes: described(h)}).Alive(t)
		}
		killed(t, 0, first)
		if err := old.Close(t.Context()); err != nil { // waits for its zygote
			t.Error(err)
		}
		sandboxtest.Start(t, h, sandbox.Spec{}).Probe(t, "")
	})
	t.Run("closed", func(t *testing.T) {
		for _, warm := range []bool{false, true} { // during its start, and later
			b := open(t, t.TempDir(), sandboxtest.ID())
			h := zygoteHarness(t, b)
			box := sandboxtest.Start(t, sandboxtest.Harness{Backend: b, Owner: h.Owner}, sandbox.Spec{Zygotes: described(h)})
			if warm {
				_ = sandboxtest.Start(t, h, sandbox.Spec{}).Close(t.Context())
			}
			_ = box.Close(t.Context())
			b.Close()
			if left := sharedZygotes(t); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		}
	})
	t.Run("runner reinstalled", func(t *testing.T) {
		h := zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
		dir := filepath.Join(t.TempDir(), "runner")
		install := func(version string) {
			if err := os.Rename(dir, dir+"-old"); err != nil && version != "1" {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "version"), []byte(version), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var seen []int
		for _, version := range []string{"1", "2"} {
			install(version)
			b := sandboxtest.Start(t, h, sandbox.Spec{Mounts: []sandbox.Mount{{Source: dir, Target: "/opt/runner"}}})
			b.Probe(t, "v = open('/opt/runner/version').read()\nif v != '"+version+"': breach('is still version', v)")
			seen = append(seen, theSharedZygote(t))
		}
		if seen[0] == seen[1] {
			t.Error("the shared zygote is the old runner's")
		}
	})
	shares := append([]byte("import mmap\nheld = mmap.mmap(-1, 4096)\n"), zygoteSource(t)...)
	for says, source := range map[string][]byte{
		"broken here":       []byte("raise SystemExit('broken here')"),
		"has shared memory": shares, // one run could write there what others read
	} {
		t.Run(says, func(t *testing.T) {
			log := &lockedLog{wrote: make(chan struct{}, 1)}
			b, err := openLogging(t.TempDir(), sandboxtest.ID(), slog.New(slog.NewTextHandler(log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			h := harness(t, b)
			spec := sandbox.Spec{Zygotes: []sandbox.Zygote{{Name: "broken", Argv: []string{"/usr/bin/python3"}, Source: source}}}
			sandboxtest.Start(t, h, spec).Alive(t)
			<-log.wrote
			sandboxtest.Start(t, h, spec).Alive(t)
			b.Close()
			if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), says) {
				t.Errorf("%d warnings: %s", n, log)
			}
		})
	}
}

// TestCloseAwaitsForks closes a backend after a sandbox that has asked for a fork and has not got
// it. The shared zygote is slow to report the fork, and the fork is slow to end.
func TestCloseAwaitsForks(t *testing.T) {
	needRoot(t, "shared zygotes enter sandboxes of another uid")
	const slow = `
import array, os, socket, time
server = socket.socket(fileno=3)
server.recv(1 << 20)
server.send(b"ready %d" % os.getpid())
_, [(_, _, fds)], _, _ = server.recvmsg(64, socket.CMSG_SPACE(64))
gate = array.array("i", fds)[0]
pid = os.fork()
if pid == 0:
    os.read(gate, 1)
    os.closerange(0, 64)  # a process closes its files before it leaves its namespaces
    time.sleep(0.3)
    os._exit(0)
time.sleep(0.3)
server.send(b"forked %d" % pid)
server.recv(1)
`
	b := open(t, t.TempDir(), sandboxtest.ID())
	h := harness(t, b)
	box := sandboxtest.Start(t, h, sandbox.Spec{Zygotes: []sandbox.Zygote{{Name: "slow", Argv: []string{"/usr/bin/python3"}, Source: []byte(slow)}}})
	// Nothing here waits for the zygote, which a busy machine starts late.
	deadline := time.Now().Add(10 * time.Second)
	for len(sharedZygotes(t)) == 0 && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	shared := theSharedZygote(t)
	var fork int
	for fork == 0 && time.Now().Before(deadline) {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", shared))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Sscan(string(children), &fork)
	}
	if err := box.Close(t.Context()); err != nil {
		t.Error(err)
	}
	b.Close()
	if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", fork)); fork == 0 || err == nil {
		t.Errorf("the fork %d is left, with the mounts\n%s", fork, mounts)
	}
}

// TestSharedZygoteRotation: an old shared zygote is replaced, so that later sandboxes get a new
// address space layout. No run waits for the new one, running sandboxes keep their zygotes, and the
// old one ends.
func TestSharedZygoteRotation(t *testing.T) {
	needRoot(t, "shared zygotes enter sandboxes of another uid")
	agent, err := sandboxtest.Agent("")
	if err != nil {
		t.Fatal(err)
	}
	instance := sandboxtest.ID()
	backend, err := jail.New(jail.Config{Dir: t.TempDir(), Instance: instance, AgentBinary: agent, SharedZygoteLife: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	h := zygoteHarness(t, backend)
	random := func(b *sandboxtest.Sandbox) string {
		t.Helper()
		res := b.Run(t, sandboxtest.Python(`
import ctypes
libc.getauxval.argtypes, libc.getauxval.restype = [ctypes.c_ulong], ctypes.c_void_p
print(ctypes.string_at(libc.getauxval(25), 16).hex())  # AT_RANDOM
`))
		if !res.Exit.Forked || len(res.Stdout) != 33 {
			t.Fatalf("%+v %s%s", res.Exit, res.Stdout, res.Stderr)
		}
		return string(res.Stdout)
	}
	old := sandboxtest.Start(t, h, sandbox.Spec{})
	first, shared := random(old), theSharedZygote(t)
	for n := 0; ; n++ {
		b := sandboxtest.Start(t, h, sandbox.Spec{}) // starts a successor, which is ready some time later
		now := random(b)
		if err := b.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now != first {
			break
		}
		if n == 1000 {
			t.Fatal("sandboxes still share AT_RANDOM with the first")
		}
	}
	if random(old) != first {
		t.Error("a sandbox has lost its zygote")
	}
	fd, err := unix.PidfdOpen(shared, 0)
	if err == nil { // otherwise it has been reaped
		defer unix.Close(fd)
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); n != 1 {
			t.Errorf("the old shared zygote has not ended: %v", err)
		}
	}
	backend.Close()
	if left := sharedZygotes(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// zygotesOf lists the forks of a shared zygote.
func zygotesOf(t *testing.T, shared int) string {
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", shared, shared))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(children))
}

// TestZygoteLost: a run outlives the zygote that forked it, and its exit is reported correctly.
func TestZygoteLost(t *testing.T) {
	needRoot(t, "shared zygotes enter sandboxes of another uid")
	h := zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
	b := sandboxtest.Start(t, h, sandbox.Spec{})
	gate := filepath.Join(b.Workspace, "gate")
	for exit, want := range map[string]wire.Exit{"sys.exit(7)": {Code: 7}, "os.kill(os.getpid(), 15)": {Code: 143, Signal: 15}} {
		if err := unix.Mkfifo(gate, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(gate, 0o666); err != nil {
			t.Fatal(err)
		}
		r := b.Begin(t, sandboxtest.Python("print('up', flush=True)\nopen('/data/gate').read()\n"+exit))
		r.Until(t, "up\n")
		zygote, err := strconv.Atoi(zygotesOf(t, theSharedZygote(t)))
		if err != nil {
			t.Fatal(err)
		}
		killed(t, zygote, zygote)
		if err := os.WriteFile(gate, nil, 0); err != nil {
			t.Fatal(err)
		}
		if res := r.Wait(t); res.Exit.Code != want.Code || res.Exit.Signal != want.Signal || !res.Exit.Forked {
			t.Errorf("%s: %+v %s", exit, res.Exit, res.Stderr)
		}
		if err := os.Remove(gate); err != nil {
			t.Fatal(err)
		}
		b = sandboxtest.Start(t, h, sandbox.Spec{Workspace: b.Workspace})
	}
}

// TestZygoteFails: a zygote that fails to start is not tried again after every run.
func TestZygoteFails(t *testing.T) {
	b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
	tries := filepath.Join(b.Workspace, "tries")
	run := sandboxtest.Shell("true")
	run.Zygote = &wire.Zygote{Name: "broken", Argv: []string{"/usr/bin/python3"}, Source: []byte("open('/data/tries', 'a').write('x')")}
	after := 0
	for i := 0; i < 1000 && after < 30; i++ {
		if res := b.Run(t, run); res.Exit.Code != 0 {
			t.Fatalf("%+v", res.Exit)
		}
		if x, _ := os.ReadFile(tries); len(x) > 0 {
			after++
		}
	}
	if x, err := os.ReadFile(tries); string(x) != "x" {
		t.Errorf("tries: %q, %v", x, err)
	}
}

// TestPrestartedFork: the prestarted process of the next run has no capabilities and no descriptors
// of the zygote. If it dies, no run is lost.
func TestPrestartedFork(t *testing.T) {
	needRoot(t, "shared zygotes enter sandboxes of another uid")
	b := sandboxtest.Start(t, zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
	zygote := zygotesOf(t, theSharedZygote(t))
	next := func() (pid int) {
		t.Helper()
		await(t, "a fork of the zygote to wait", func() bool {
			children, _ := os.ReadFile("/proc/" + zygote + "/task/" + zygote + "/children")
			pid, _ = strconv.Atoi(strings.TrimSpace(string(children)))
			return pid > 0 && reads(pid)
		})
		return pid
	}
	forked := func(code string) {
		t.Helper()
		if res := b.Run(t, sandboxtest.Python(code)); string(res.Stdout) != "4\n" || res.Exit.Code != 0 || !res.Exit.Forked {
			t.Fatalf("%+v %s %s", res.Exit, res.Stdout, res.Stderr)
		}
	}
	forked("print(4)")
	pid := next()
	proc := fmt.Sprintf("/proc/%d", pid)
	for name, want := range map[string]string{"CapEff": strings.Repeat("0", 16), "CapPrm": strings.Repeat("0", 16), "CapBnd": strings.Repeat("0", 16), "NoNewPrivs": "1"} {
		if got := status(proc, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil || len(fds) != 4 {
		t.Errorf("descriptors: %v, %v", fds, err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(proc + "/fd/" + fd.Name()); to != "/dev/null" && !strings.HasPrefix(to, "pipe:") {
			t.Errorf("descriptor %s is %s", fd.Name(), to)
		}
	}
	forked(fmt.Sprintf("import os\nprint(4 if os.getpid() == %s else os.getpid())", status(proc, "NSpid")[strings.LastIndex(status(proc, "NSpid"), "\t")+1:]))
	pid = next()
	killed(t, pid, pid)
	forked("print(4)")
	n, _ := strconv.Atoi(zygote)
	next()
	killed(t, n, n) // the agent notices although the fork is alive
	if res := b.Run(t, sandboxtest.Python("print(4)")); string(res.Stdout) != "4\n" {
		t.Errorf("%+v %s", res.Exit, res.Stderr)
	}
}

// TestZygoteFromOutside: a fork of the shared zygote is in all namespaces and cgroups of its
// sandbox's agent, and has nothing else.
func TestZygoteFromOutside(t *testing.T) {
	needRoot(t, "shared zygotes enter sandboxes of another uid")
	b := open(t, t.TempDir(), sandboxtest.ID())
	h := zygoteHarness(t, b)
	sandboxtest.Start(t, h, sandbox.Spec{})
	shared := theSharedZygote(t)
	zygote := zygotesOf(t, shared)
	agent := ""
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		ns, _ := os.Readlink(p + "/ns/pid")
		if its, _ := os.Readlink("/proc/" + zygote + "/ns/pid"); ns == its && strings.HasSuffix(status(p, "NSpid"), "\t1") {
			agent = p
		}
	}
	if agent == "" {
		t.Fatalf("zygotes %q are in no sandbox", zygote)
	}
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		mine, _ := os.Readlink("/proc/" + zygote + "/ns/" + ns)
		its, _ := os.Readlink(agent + "/ns/" + ns)
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		if mine != its || mine == own {
			t.Errorf("%s namespace: zygote %s, agent %s, host %s", ns, mine, its, own)
		}
	}
	groups := func(p string) string { b, _ := os.ReadFile(p + "/cgroup"); return string(b) }
	if limited(t, b) && groups("/proc/"+zygote) != groups(agent) {
		t.Errorf("control groups: %s\nthe agent's: %s", groups("/proc/"+zygote), groups(agent))
	}
	fds, err := os.ReadDir("/proc/" + zygote + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink("/proc/" + zygote + "/fd/" + fd.Name())
		n, _ := strconv.Atoi(fd.Name())
		ok := n <= 2 && to == "/dev/null" || n == 3 && strings.HasPrefix(to, "socket:") || n > 3 && (strings.HasPrefix(to, "pid:[") || to == "anon_inode:[pidfd]")
		if !ok {
			t.Errorf("descriptor %d is %s", n, to)
		}
	}
	owner, _ := jail.Owner()
	caps := fmt.Sprintf("%016x", 1<<unix.CAP_SYS_ADMIN|1<<unix.CAP_SYS_CHROOT) // of the sandbox's user namespace
	for name, want := range map[string]string{
		"CapEff": caps, "CapPrm": caps, "CapInh": strings.Repeat("0", 16), "CapBnd": strings.Repeat("0", 16), "CapAmb": strings.Repeat("0", 16),
		"NoNewPrivs": "1", "Threads": "1", "Groups": "", "Uid": status(agent, "Uid"), "Gid": status(agent, "Gid"),
	} {
		if got := status("/proc/"+zygote, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"CapEff": strings.Repeat("0", 16), "CapBnd": strings.Repeat("0", 16), "NoNewPrivs": "1",
		"Uid": strings.TrimSpace(strings.Repeat(fmt.Sprintf("%d\t", owner), 4))} {
		if got := status(fmt.Sprintf("/proc/%d", shared), name); got != want {
			t.Errorf("the shared zygote's %s: %q, want %q", name, got, want)
		}
	}
	if env, _ := os.ReadFile("/proc/" + zygote + "/environ"); len(env) == 0 || bytes.Contains(env, []byte("CANARY")) {
		t.Errorf("environment: %q", env)
	}
}

// status returns a line of a process's status file.
func status(proc, name string) string {
	b, _ := os.ReadFile(proc + "/status")
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

type lockedLog struct {
	wrote chan struct{}
	mu    sync.Mutex
	b     bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
