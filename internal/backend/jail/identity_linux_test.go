package jail_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

// ownerOf returns the uid and gid of a file on disk.
func ownerOf(t *testing.T, path string) (uid, gid int) {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	return int(st.Uid), int(st.Gid)
}

// TestUIDs: each sandbox has a uid of its own, which owns nothing on disk. Sandboxes of one
// workspace write to the same files at the same time.
func TestUIDs(t *testing.T) {
	needUIDs(t)
	h := harness(t, open(t, t.TempDir(), sandboxtest.ID()))
	a := sandboxtest.Start(t, h, sandbox.Spec{})
	first := uidOf(t, a)
	b := sandboxtest.Start(t, h, sandbox.Spec{Workspace: a.Workspace})
	c := sandboxtest.Start(t, h, sandbox.Spec{})
	if other := uidOf(t, c); other == first || other == jail.OwnerUID || first == jail.OwnerUID {
		t.Errorf("uids: %d and %d", first, other)
	}
	if !gives() { // root of an outer namespace may not look
		for _, fd := range descriptors(t, agentsOf(t, c.Workspace)[0]) {
			if strings.HasPrefix(fd, "user:[") {
				t.Errorf("the agent has the namespace %s", fd)
			}
		}
	}
	a.Probe(t, `
open("/data/file", "w").write("a")
os.mkdir("/data/dir", 0o700)
if os.stat("/data/file").st_uid != 1000 or os.stat("/data").st_uid != 1000: breach("does not own its files", os.stat("/data"))
`)
	b.Probe(t, `
open("/data/file", "a").write("b")
open("/data/dir/other", "w").close()
os.chmod("/data/dir", 0o755)
`)
	a.Probe(t, `
if open("/data/file").read() != "ab" or os.stat("/data/dir/other").st_gid != 1000: breach("cannot use the other sandbox's files")
`)
	owner := jail.OwnerUID
	if gives() {
		owner = first
	}
	for _, name := range []string{"", "file", "dir", "dir/other"} {
		if uid, gid := ownerOf(t, filepath.Join(a.Workspace, name)); uid != owner || gid != owner {
			t.Errorf("/data/%s belongs to %d:%d on disk", name, uid, gid)
		}
	}
	// A process that is left of a sandbox keeps its uid from the next one.
	left := exec.Command("setpriv", "--reuid", strconv.Itoa(first), "--clear-groups", "cat")
	in, err := left.StdinPipe()
	if err == nil {
		err = left.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, "a process of the uid", func() bool {
		return strings.HasPrefix(status(fmt.Sprintf("/proc/%d", left.Process.Pid), "Uid"), strconv.Itoa(first))
	})
	if err := errors.Join(a.Close(t.Context()), b.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	d := sandboxtest.Start(t, h, sandbox.Spec{})
	if uidOf(t, d) == first {
		t.Error("a sandbox has the uid of a process")
	}
	_ = in.Close()
	_ = left.Wait()
	if e := sandboxtest.Start(t, h, sandbox.Spec{}); uidOf(t, e) != first {
		t.Error("a uid is not used again")
	}
}

// TestUIDsAtOnce: sandboxes that start at the same time have different uids, unless they have the
// same workspace and its files cannot be mapped.
func TestUIDsAtOnce(t *testing.T) {
	needUIDs(t)
	h := harness(t, open(t, t.TempDir(), sandboxtest.ID()))
	shared := sandboxtest.Workspace(t, h.Owner)
	var all sync.WaitGroup
	for i := range 12 {
		ws := shared
		if i%2 == 0 {
			ws = sandboxtest.Workspace(t, h.Owner)
		}
		all.Go(func() {
			sb, err := h.Backend.Start(t.Context(), sandbox.Spec{ID: sandboxtest.ID(), Workspace: ws})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = sb.Close(context.Background()) })
		})
	}
	all.Wait()
	uids := map[string]int{}
	for _, agent := range agentsOf(t, filepath.Dir(shared)) {
		uids[status(agent, "Uid")]++
	}
	want := 12
	if gives() {
		want = 7
	}
	if len(uids) != want {
		t.Errorf("uids: %v, want %d", uids, want)
	}
}

// descriptors returns what a process has open.
func descriptors(t *testing.T, proc string) (open []string) {
	t.Helper()
	links, err := filepath.Glob(proc + "/fd/*")
	if err != nil || len(links) < 4 {
		t.Fatalf("descriptors of %s: %v, %v", proc, links, err)
	}
	for _, link := range links {
		to, _ := os.Readlink(link)
		open = append(open, to)
	}
	return open
}

// TestUIDsOnDisk: where the kernel cannot show files with other ids, a workspace belongs to the uid
// of its sandboxes.
func TestUIDsOnDisk(t *testing.T) {
	needUIDs(t)
	disk := unmappable(t)
	name := sandboxtest.ID() // mountinfo shows it
	dir := filepath.Join(disk, name)
	secret := filepath.Join(disk, "secret")
	backend := open(t, t.TempDir(), sandboxtest.ID())
	owner := backend.WorkspaceOwner()
	err := errors.Join(os.Mkdir(dir, 0o700), os.Lchown(dir, owner.UID, owner.GID), os.WriteFile(secret, nil, 0o600),
		os.Symlink(secret, filepath.Join(dir, "link")))
	if err != nil {
		t.Fatal(err)
	}
	h := harness(t, backend)
	upload := func(name string) {
		t.Helper()
		ws, err := workspace.Open(dir, owner)
		if err == nil {
			defer ws.Close()
			_, err = ws.Write(name, strings.NewReader("x"), workspace.WriteOptions{})
		}
		if owned, _ := ws.Owned(); err != nil || !owned {
			t.Fatal(err, owned)
		}
	}
	upload("old/file")
	a := sandboxtest.Start(t, h, sandbox.Spec{Workspace: dir})
	a.Workspace = "/" + name // for uidOf
	uid := uidOf(t, a)
	upload("new/file")
	const write = `
for name in ("old", "new"): open(f"/data/{name}/file", "a").write("y")
`
	a.Probe(t, write)
	p := prepare(t, backend)
	if err := p.Attach(t.Context(), dir); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("attached beside a sandbox with another uid: %v", err)
	}
	b := sandboxtest.Start(t, h, sandbox.Spec{Workspace: dir})
	b.Probe(t, write)
	for _, agent := range agentsOf(t, "/"+name) {
		if got := strings.Fields(status(agent, "Uid"))[0]; got != strconv.Itoa(uid) {
			t.Errorf("a sandbox of the workspace has the uid %s, want %d", got, uid)
		}
	}
	for _, name := range []string{"", "old", "old/file", "new", "new/file", "link"} {
		if got, gid := ownerOf(t, filepath.Join(dir, name)); got != uid || gid != uid {
			t.Errorf("%s belongs to %d:%d, want %d", name, got, gid, uid)
		}
	}
	if got, _ := ownerOf(t, secret); got != 0 {
		t.Errorf("a link gave a file away to %d", got)
	}
	for _, name := range []string{"", "old", "old/file", "new", "new/file"} {
		readable(t, filepath.Join(dir, name))
	}
	if err := errors.Join(a.Close(t.Context()), b.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	other := prepare(t, backend)
	if err := other.Attach(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	late := &sandboxtest.Sandbox{Sandbox: other, Conn: wire.NewConn(other.Conn(), wire.ServerSide, nil), Workspace: dir}
	t.Cleanup(func() { _ = late.Conn.Close() })
	late.Probe(t, write)
}

// unmappable returns a directory whose files the kernel cannot show with other ids.
func unmappable(t *testing.T) string {
	t.Helper()
	disk := t.TempDir()
	if gives() {
		return disk
	}
	if err := unix.Mount("none", disk, "ramfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	return disk
}

// readable checks that the user who can reach a file can read it.
func readable(t *testing.T, path string) {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[bool]os.FileMode{true: 0o755, false: 0o644}[fi.IsDir()]; fi.Mode().Perm()&want != want {
		t.Errorf("%s has mode %v", path, fi.Mode())
	}
}

// TestTwoServers: a second server uses the files of a live session without taking them away, or
// refuses where servers cannot agree on a uid.
func TestTwoServers(t *testing.T) {
	needUIDs(t)
	dir := filepath.Join(unmappable(t), sandboxtest.ID())
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Lchown(dir, jail.OwnerUID, jail.OwnerUID)); err != nil {
		t.Fatal(err)
	}
	first, second := open(t, t.TempDir(), sandboxtest.ID()), open(t, t.TempDir(), sandboxtest.ID())
	a := sandboxtest.Start(t, harness(t, first), sandbox.Spec{Workspace: dir})
	a.Probe(t, `
import fcntl
open("/data/log", "w").write("a")
fd = os.open("/data", os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_SH)
try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError: pass
else: breach("keeps other servers out")
`)
	uid, _ := ownerOf(t, dir)
	const write = `
open("/data/log", "a").write("b")
open("/data/" + os.urandom(8).hex(), "w").close()
`
	pooled := prepare(t, second)
	if err := pooled.Attach(t.Context(), dir); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("attached beside a sandbox with another uid: %v", err)
	}
	if gives() { // the test's user has no directory below /run
		_, err := second.Start(t.Context(), sandbox.Spec{ID: sandboxtest.ID(), Workspace: dir})
		if err == nil || !strings.Contains(err.Error(), "another server uses the session's files") {
			t.Errorf("a second server: %v", err)
		}
	} else {
		sandboxtest.Start(t, harness(t, second), sandbox.Spec{Workspace: dir}).Probe(t, write)
	}
	a.Probe(t, write)
	if got, _ := ownerOf(t, dir); got != uid {
		t.Errorf("the files belong to %d, want %d", got, uid)
	}
}

// needUIDs skips a test where all sandboxes have the same uid.
func needUIDs(t *testing.T) {
	t.Helper()
	if needRoot(t, "ordinary users have one uid"); sandboxtest.CurrentUserMode() == sandboxtest.UserAlone {
		t.Skip("tested as root")
	}
}

// attack tries to reach processes. It prints what it could do.
const attack = `
import ctypes, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.syscall.restype = ctypes.c_long
def attempt(what, f, *args):
    try: f(*args)
    except OSError: return
    print(what, flush=True)
def call(f, *args):
    if f(*args) < 0: raise OSError(ctypes.get_errno(), "")
def setns(path):
    fd = os.open(path, os.O_RDONLY)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.setns(fd, 0) == 0 else 1)
    if os.waitpid(pid, 0)[1]: raise OSError
def read_memory(pid):
    local = ctypes.create_string_buffer(8)
    vec = (ctypes.c_size_t * 2)(ctypes.addressof(local), 8)
    with open(f"/proc/{pid}/maps") as f: begin = int(f.read().split("-")[0], 16)
    call(libc.process_vm_readv, pid, vec, 1, (ctypes.c_size_t * 2)(begin, 8), 1, 0)
def ptrace(pid):
    call(libc.ptrace, 16, pid, 0, 0)
    os.waitpid(pid, 0)
    libc.ptrace(17, pid, 0, 0)
def steal(pid): call(libc.syscall, 438, os.pidfd_open(pid), 3, 0)
for pid in map(int, sys.argv[1:]):
    for name in ("fd", "root/", "cwd/", "map_files", "task/%d/fd" % pid):
        attempt(f"list {name} of {pid}", os.listdir, f"/proc/{pid}/{name}")
    for name in ("mem", "maps", "environ", "auxv", "pagemap", "syscall", "stack"):
        attempt(f"read {name} of {pid}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        attempt(f"enter {name} of {pid}", setns, f"/proc/{pid}/ns/{name}")
    attempt(f"signal {pid}", os.kill, pid, 0)
    attempt(f"stop {pid}", os.kill, pid, signal.SIGCONT)
    attempt(f"trace {pid}", ptrace, pid)
    attempt(f"read memory of {pid}", read_memory, pid)
    attempt(f"take a descriptor of {pid}", steal, pid)
    attempt(f"limit {pid}", call, libc.prlimit, pid, 7, (ctypes.c_ulong * 2)(3, 3), None)
    attempt(f"schedule {pid}", os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt(f"adjust oom score of {pid}", lambda: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"))
attempt("signal a session", os.kill, -1, signal.SIGCONT)
`

// TestStrangers: a process with the uid of a sandbox, or with that of its slirp4netns, reaches
// nothing of another sandbox, of the shared zygote, or of the server.
func TestStrangers(t *testing.T) {
	needUIDs(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		sandboxtest.Skip(t, err.Error())
	}
	h := zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
	hostile := sandboxtest.Start(t, h, sandbox.Spec{Network: true})
	victim := sandboxtest.Start(t, h, sandbox.Spec{Network: true})
	hostile.Probe(t, "")
	run := victim.Begin(t, sandboxtest.Python("print('up', flush=True)\nimport time\ntime.sleep(1000)"))
	run.Until(t, "up\n")
	shared := theSharedZygote(t)
	targets := []string{strconv.Itoa(shared), strconv.Itoa(os.Getpid())}
	for _, pid := range processes(t, victim.Workspace) { // with bubblewrap and slirp4netns
		targets = append(targets, strconv.Itoa(pid))
	}
	if len(targets) < 7 {
		t.Fatalf("only %d targets", len(targets))
	}
	uid := uidOf(t, hostile)
	agent := agentsOf(t, hostile.Workspace)[0]
	parent := strconv.Itoa(parentOf(t, agent))
	as := func(uid int) []string {
		return []string{"setpriv", "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(uid), "--clear-groups"}
	}
	inside := func(id string) []string { // with every capability in the namespace, as slirp4netns starts
		return []string{"nsenter", "--user=/proc/" + parent + "/ns/user", "-S", id, "-G", id}
	}
	attackers := map[string][]string{
		"sandbox uid": as(uid), "network uid": as(uid + 1), "another uid": as(uid + 2),
		"the namespace's root": inside("0"), "the namespace's user": inside(strconv.Itoa(jail.OwnerUID)),
	}
	try := func(become []string, targets ...string) string {
		t.Helper()
		argv := append(append(become, "/usr/bin/python3", "-c", attack), targets...)
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // as slirp4netns
		if err := cmd.Run(); err != nil {
			t.Errorf("%v: %v", become, err)
		}
		return out.String()
	}
	for name, become := range attackers {
		if got := try(become, targets...); got != "signal a session\n" && got != "" {
			t.Errorf("%s can:\n%s", name, got)
		}
	}
	// The same attack by the owner uid shows that it could succeed.
	mine := strings.TrimPrefix(agent, "/proc/")
	for _, want := range []string{"list root/ of " + mine, "enter user of " + mine, "trace " + mine} {
		if got := try(as(jail.OwnerUID), mine); !strings.Contains(got, want+"\n") {
			t.Errorf("the owner uid cannot %s: the attack proves nothing. It can:\n%s", want, got)
		}
	}
	run.Send(t, wire.TypeKill)
	_ = run.Wait(t)
	victim.Probe(t, "")
}

// parentOf returns the parent of a process.
func parentOf(t *testing.T, proc string) int {
	t.Helper()
	parent, err := strconv.Atoi(status(proc, "PPid"))
	if err != nil {
		t.Fatal(err)
	}
	return parent
}

// TestLimitsPerUser: what the kernel counts per user, it counts per sandbox.
func TestLimitsPerUser(t *testing.T) {
	needUIDs(t)
	h := harness(t, open(t, t.TempDir(), sandboxtest.ID()))
	hostile, victim := sandboxtest.Start(t, h, sandbox.Spec{}), sandboxtest.Start(t, h, sandbox.Spec{})
	run := hostile.Begin(t, sandboxtest.Python(`
import array, errno, fcntl, os, socket, sys, time
pipes = []
for n in range(2000):
    pipes.append(os.pipe())
    if fcntl.fcntl(pipes[-1][0], 1032) < 65536: break  # F_GETPIPE_SZ
else: print("has no limit for pipes")
pairs, fds = [], array.array("i", [0] * 250)
try:
    while True:
        pairs.append(socket.socketpair())
        for _ in range(4): pairs[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
except OSError as e:
    if e.errno != errno.ETOOMANYREFS: print(e)
print("full", flush=True)
time.sleep(1000)
`))
	run.Until(t, "full\n")
	victim.Probe(t, `
import array, fcntl
r, w = os.pipe()
if fcntl.fcntl(r, 1032) != 65536: breach("a pipe has", fcntl.fcntl(r, 1032), "bytes")
a, b = socket.socketpair()
a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [r]))])
`)
	run.Send(t, wire.TypeKill)
	_ = run.Wait(t)
}
