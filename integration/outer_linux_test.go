package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// user is an ordinary user of one kind, with a home that all kinds share.
type user struct {
	mode sandboxtest.UserMode
	home string
	path string // PATH
	own  string // an empty directory
}

// newUser makes a user. One who has no nsenter cannot make an outer namespace.
func newUser(t *testing.T, home string, mode sandboxtest.UserMode) *user {
	t.Helper()
	if onDocker() {
		t.Skip("only the jail uses an outer namespace")
	}
	if os.Geteuid() != 0 {
		skip(t, "only root can become a user of each kind")
	}
	u := &user{mode: mode, home: home, path: "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", own: filepath.Join(home, "own-"+string(mode))}
	if err := os.Mkdir(u.own, 0o755); err != nil {
		t.Fatal(err)
	}
	if mode == sandboxtest.UserOutside {
		u.path = filepath.Join(home, "bin")
		if err := os.Mkdir(u.path, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"bwrap", "slirp4netns", "setpriv", "bash", "python3", "cat"} {
			path, err := exec.LookPath("/usr/bin/" + name)
			if err != nil {
				skip(t, "%v", err)
			}
			if err := os.Symlink(path, filepath.Join(u.path, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return u
}

// become changes a command so that the user runs it, in the same process.
func (u *user) become(cmd *exec.Cmd) {
	argv := append([]string{"env", "HOME=" + u.home, "PATH=" + u.path}, cmd.Args...)
	argv = sandboxtest.UserCommand(u.mode, ordinaryUser, u.own, argv...)
	cmd.Path, cmd.Args, cmd.Dir = "/usr/bin/unshare", argv, u.home
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
}

// serve starts the user's server.
func (u *user) serve(t *testing.T) *server {
	t.Helper()
	return serveWith(t, u.become, "SANDBOX_ROOT="+filepath.Join(u.home, "data"))
}

var userModes = []sandboxtest.UserMode{sandboxtest.UserOutside, sandboxtest.UserAlone, sandboxtest.UserRange}

// TestOuterNamespace follows the servers of an ordinary user on one data directory: without an
// outer namespace, with one, and with one that has subordinate ids.
func TestOuterNamespace(t *testing.T) {
	home, _ := ordinaryRoot(t)
	written := ""
	for _, mode := range userModes {
		t.Run(string(mode), func(t *testing.T) {
			s := newUser(t, home, mode).serve(t)
			inside := mode != sandboxtest.UserOutside
			checkServer(t, s.cmd.Process.Pid, mode)
			if refused := strings.Contains(s.log.String(), "nsenter is not installed"); refused == inside {
				t.Errorf("the log says that there is no nsenter: %v", refused)
			}

			written += string(mode) + "\n"
			if r := s.run(t, "story", "python", "open('log', 'a').write('"+string(mode)+"\\n'); print(open('log').read(), end='')"); r.Output != written {
				t.Errorf("the session has %q, want %q: %+v", r.Output, written, r)
			}
			if r := s.run(t, "attack", "python", outerAttack); r.Output != "" {
				t.Errorf("a run reaches the outer namespace: %+v", r)
			}
			if inside {
				eventually(t, 20*time.Second, "a fork of the shared zygote in a sandbox", func() bool {
					return slices.ContainsFunc(descendants(t, s.cmd.Process.Pid), isSharedFork)
				})
			}
			checkOwner(t, s.workspaceOf(t, "story"), mode)

			marker := newMarker()
			answer := s.begin(t, "life", marker, sleeper(marker))
			family := descendants(t, s.cmd.Process.Pid)
			wantFamily(t, family, "bwrap", "sleep")
			s.stop(t)
			<-answer
			if err := <-s.done; err != nil {
				t.Errorf("after SIGTERM, the server ended with %v", err)
			} else {
				s.done <- err
			}
			if left := alive(family); len(left) > 0 {
				t.Errorf("SIGTERM leaves %+v", left)
			}
		})
	}
}

// TestOuterNamespaceArtifacts: files that get another owner because a sandbox starts are not
// artifacts of its run: uploads, and what an earlier server, also one that was killed, has left.
func TestOuterNamespaceArtifacts(t *testing.T) {
	home, _ := ordinaryRoot(t)
	const content = "1,2\n"
	check := func(s *server, session, code, stdout, artifact string) {
		t.Helper()
		r := s.cell(t, session, "python", code)
		var got []string
		for _, a := range r.Artifacts {
			got = append(got, a.Filename)
		}
		if r.Stdout != stdout || strings.Join(got, " ") != artifact {
			t.Errorf("%s: artifacts %q, want %q: %+v", session, got, artifact, r)
		}
	}
	var starts []func(*testing.T) *server
	for _, mode := range userModes {
		starts = append(starts, newUser(t, home, mode).serve)
	}
	starts = append(starts, func(t *testing.T) *server { // root's
		return serve(t, "SANDBOX_ROOT="+filepath.Join(home, "data"))
	})
	for i, start := range starts {
		for j := range 2 {
			s := start(t)
			fresh := fmt.Sprintf("s%d-%d", i, j)
			s.upload(t, fresh, "sales.csv", content)
			check(s, fresh, "print(open('/data/sales.csv').read(), end='')", content, "")
			s.upload(t, "story", fresh, content)
			check(s, "story", "import os; print(len(os.listdir('/data')) > 0)", "True\n", "")
			check(s, "story", "open('/data/"+fresh+"', 'a').write('3,4\\n') and None", "", fresh)
			s.kill(t)
		}
	}
}

// TestOuterNamespacePrivate: if only the user can read what code needs, sandboxes have the user's
// id, and sessions get their files back from subordinate ids, but not while a sandbox uses them.
func TestOuterNamespacePrivate(t *testing.T) {
	home, _ := ordinaryRoot(t)
	u := newUser(t, home, sandboxtest.UserRange)
	s := u.serve(t)
	if r := s.run(t, "story", "shell", "echo hello > log"); !r.Success {
		t.Fatalf("%+v", r)
	}
	files := s.workspaceOf(t, "story")
	checkOwner(t, files, sandboxtest.UserRange)
	project := filepath.Join(home, "project")
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(project, "notes"), []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{project, filepath.Join(project, "notes")} {
		if err := os.Chown(path, ordinaryUser, ordinaryUser); err != nil {
			t.Fatal(err)
		}
	}
	private := serveWith(t, u.become, "SANDBOX_ROOT="+s.Root, "PROJECT_DIR="+project)
	checkServer(t, private.cmd.Process.Pid, sandboxtest.UserRange)
	const why = "another server uses the session's files"
	if r := private.run(t, "story", "shell", "cat log"); r.Success || !strings.Contains(r.Output, why) {
		t.Errorf("beside a live sandbox with a uid of its own: %+v", r)
	}
	private.upload(t, "story", "late", "uploaded\n")
	if r := s.run(t, "story", "shell", "cat late; echo more >> late; echo again >> log"); r.Output != "uploaded\n" {
		t.Errorf("the first server has lost its files: %+v", r)
	}
	checkOwner(t, files, sandboxtest.UserRange)
	s.stop(t)
	if r := private.run(t, "story", "shell", "cat log late /project/notes; echo more >> log"); r.Output != "hello\nagain\nuploaded\nmore\nmine\n" {
		t.Errorf("%+v", r)
	}
	checkOwner(t, files, sandboxtest.UserAlone)

	s = u.serve(t)
	if r := s.run(t, "story", "shell", "cat log"); r.Success || !strings.Contains(r.Output, why) {
		t.Errorf("beside a live sandbox with the user's id: %+v", r)
	}
	if r := private.run(t, "story", "shell", "echo more >> log"); !r.Success {
		t.Errorf("the server with the user's id has lost its files: %+v", r)
	}
	checkOwner(t, files, sandboxtest.UserAlone)

	u.endSandboxes(t, s.Root, files)
	if r := s.run(t, "story", "shell", "cat log"); !r.Success {
		t.Errorf("after sessions stop: %+v", r)
	}
	second := u.serve(t)
	if r := second.run(t, "story", "shell", "cat log"); r.Success || !strings.Contains(r.Output, why+", and the two have no directory below /run") {
		t.Errorf("beside a server with other uids, without a place for locks: %+v", r)
	}
	u.endSandboxes(t, s.Root, files)
	if r := second.run(t, "story", "shell", "cat log"); !r.Success {
		t.Errorf("after sessions stop: %+v", r)
	}
}

// endSandboxes calls sessions stop for the session with a workspace.
func (u *user) endSandboxes(t *testing.T, root, files string) {
	t.Helper()
	cmd := exec.Command(binary, "sessions", "stop", filepath.Base(filepath.Dir(files)))
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+root)
	u.become(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("sessions stop: %v\n%s", err, out)
	}
}

// TestOuterNamespaceTwoServers: a second server of a user with subordinate ids leaves a session's
// files to the first one, and the user can read, copy and delete them.
func TestOuterNamespaceTwoServers(t *testing.T) {
	home, attr := ordinaryRoot(t)
	u := newUser(t, home, sandboxtest.UserRange)
	run := fmt.Sprintf("/run/user/%d", ordinaryUser) // as a login makes it
	if err := os.MkdirAll(run, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	if err := os.Chown(run, ordinaryUser, ordinaryUser); err != nil {
		t.Fatal(err)
	}
	s := u.serve(t)
	s.upload(t, "z1", "early", "uploaded\n")
	wantCell := func(code, want string) {
		t.Helper()
		if r := s.cell(t, "z1", "python", code); r.Stdout != want || r.ExitCode != 0 {
			t.Errorf("%s: %+v", code, r)
		}
	}
	wantCell("n = 1\nfor name in 'ab': open('/data/' + name, 'w').write('serve\\n') and None", "")
	for range 2 {
		cmd := exec.Command(binary, "run", "-l", "shell", "-s", "z1", "-")
		cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+s.Root, "SANDBOX_HTTP_PORT=0")
		cmd.Stdin = strings.NewReader("echo cli >> /data/a; (umask 077; echo cli >> /data/c); cat /data/early")
		u.become(cmd)
		if out, err := cmd.Output(); err != nil || string(out) != "uploaded\n" {
			t.Errorf("the second server: %v\n%s", err, out)
		}
		wantCell("for name in 'abc': open('/data/' + name, 'a').write('more\\n') and None\nn += 1", "")
	}
	wantCell("print(n, open('/data/a').read().split())", "3 ['serve', 'cli', 'more', 'cli', 'more']\n")

	files := s.workspaceOf(t, "z1")
	s.stop(t)
	plain := func(name string, args ...string) (string, error) { // without the outer namespace
		cmd := exec.Command(name, args...)
		cmd.SysProcAttr, cmd.Dir = attr, home
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := plain("cat", filepath.Join(files, "early"), filepath.Join(files, "b")); err != nil || out != "uploaded\nserve\nmore\nmore\n" {
		t.Errorf("the user reads the session's files: %v\n%s", err, out)
	}
	if out, err := plain("rm", "-rf", files); err == nil {
		t.Errorf("the user's rm needs no namespace, against docs/operations.md: %s", out)
	}
	for _, command := range [][]string{{"cp", "-a", s.Root, filepath.Join(home, "copy")}, {"rm", "-rf", s.Root}} {
		cmd := exec.Command("unshare", append([]string{"--map-auto", "--map-root-user"}, command...)...)
		u.become(cmd)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v, as docs/operations.md says: %v\n%s", command, err, out)
		}
	}
	copied, err := os.ReadFile(strings.Replace(filepath.Join(files, "c"), s.Root, filepath.Join(home, "copy"), 1))
	if _, gone := os.Stat(s.Root); err != nil || string(copied) != "cli\nmore\ncli\nmore\n" || !os.IsNotExist(gone) {
		t.Errorf("the copy has %q, %v; the original: %v", copied, err, gone)
	}
}

// outerAttack prints what a run can see or reach of the namespaces around it.
const outerAttack = `
import ctypes, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
own = os.stat("/proc/self/ns/user").st_ino
for name in os.listdir("/proc/self/ns"):
    fd = os.open("/proc/self/ns/" + name, os.O_RDONLY)
    for request in (0xb701, 0xb702):  # NS_GET_USERNS, NS_GET_PARENT
        try: got = fcntl.ioctl(fd, request)
        except OSError: continue
        if os.fstat(got).st_ino != own: print("opens the namespace around", name)
        if libc.setns(got, 0) == 0: print("enters", name)
    if libc.setns(fd, 0) == 0: print("enters its own", name)
uid = ctypes.c_uint()
if libc.ioctl(os.open("/proc/self/ns/user", os.O_RDONLY), 0xb704, ctypes.byref(uid)) == 0 and uid.value not in (1000, 65534):
    print("sees the owner of its namespace", uid.value)
status = dict(line.split(":\t") for line in open("/proc/self/status"))
for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if int(status[key], 16): print(key, status[key])
if status["NoNewPrivs"].strip() != "1" or status["Seccomp"].strip() != "2": print("no_new_privs or seccomp is missing")
inside, outside, count = open("/proc/self/uid_map").read().split()
if (inside, count) != ("1000", "1"): print("uid_map", inside, outside, count)
if open("/proc/self/setgroups").read() != "deny\n": print("may set groups")
for kind, number in (("user", 0x10000000), ("mount", 0x20000)):
    if libc.unshare(number) == 0: print("makes a namespace:", kind)
if libc.syscall(250, 0, -3, 1) >= 0: print("gets a keyring")
for pid in filter(str.isdigit, os.listdir("/proc")):
    if b"mcp-code-sandbox" in open(f"/proc/{pid}/cmdline", "rb").read(): print("sees the server")
for file in ("/proc/1/root/.", "/proc/1/ns/user", "/proc/1/mem", "/proc/1/environ"):
    try: os.open(file, os.O_RDONLY); print("opens", file)
    except OSError: pass
`

// checkServer checks that the process that was started is the server, in the right place.
func checkServer(t *testing.T, pid int, mode sandboxtest.UserMode) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	if exe, err := os.Readlink(dir + "exe"); err != nil || exe != binary {
		t.Errorf("the process runs %q, %v", exe, err)
	}
	own, _ := os.Readlink("/proc/self/ns/user")
	its, err := os.Readlink(dir + "ns/user")
	if err != nil || (its != own) != (mode != sandboxtest.UserOutside) {
		t.Errorf("its user namespace is %s, ours is %s, %v", its, own, err)
	}
	want := map[sandboxtest.UserMode]string{
		sandboxtest.UserAlone: fmt.Sprint([]string{"0", strconv.Itoa(ordinaryUser), "1"}),
		sandboxtest.UserRange: fmt.Sprint([]string{"0", strconv.Itoa(ordinaryUser), "1", "1", strconv.Itoa(sandboxtest.FirstSubordinate), "65535"}),
	}[mode]
	for _, name := range []string{"uid_map", "gid_map"} {
		text, err := os.ReadFile(dir + name)
		if got := fmt.Sprint(strings.Fields(string(text))); err != nil || want != "" && got != want {
			t.Errorf("%s is %s, want %s, %v", name, got, want, err)
		}
	}
	environ, err := os.ReadFile(dir + "environ")
	if err != nil || !bytes.Contains(environ, []byte("MCP_API_TOKEN=")) {
		t.Errorf("its environment: %v", err)
	}
}

// isSharedFork reports whether the process is a zygote that was forked into a sandbox.
func isSharedFork(p process) bool {
	dir := fmt.Sprintf("/proc/%d/", p.pid)
	cmdline, _ := os.ReadFile(dir + "cmdline")
	own, _ := os.Readlink("/proc/self/ns/pid")
	its, err := os.Readlink(dir + "ns/pid")
	return err == nil && its != own && bytes.HasSuffix(cmdline, []byte("\x00shared-zygote\x00"))
}

// checkOwner checks whom the files of a session belong to, outside of every user namespace.
func checkOwner(t *testing.T, dir string, mode sandboxtest.UserMode) {
	t.Helper()
	fi, err := os.Stat(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	uid := int(fi.Sys().(*syscall.Stat_t).Uid)
	first, count := ordinaryUser, 1
	if mode == sandboxtest.UserRange {
		first, count = sandboxtest.FirstSubordinate, 65536
	}
	if uid < first || uid >= first+count {
		t.Errorf("the files belong to %d, want %d ids from %d on", uid, count, first)
	}
}

// TestOuterNamespaceKilled: a killed server leaves no process and no mount behind, and the next one
// cleans up the rest.
func TestOuterNamespaceKilled(t *testing.T) {
	for _, mode := range userModes {
		t.Run(string(mode), func(t *testing.T) {
			home, _ := ordinaryRoot(t)
			u := newUser(t, home, mode)
			start := func() *server { return u.serve(t) }
			killDuringRun(t, start(), start)
		})
	}
}

// TestOuterNamespaceCommand: streams, arguments, directory and exit code are those of the program.
func TestOuterNamespaceCommand(t *testing.T) {
	home, _ := ordinaryRoot(t)
	if err := os.WriteFile(filepath.Join(home, "code.sh"), []byte("cat log 2>/dev/null; echo out | tee -a log; echo err >&2; exit 7"), 0o644); err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, mode := range userModes {
		cmd := exec.Command(binary, "run", "code.sh")
		cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+filepath.Join(home, "data"), "SANDBOX_HTTP_PORT=0")
		newUser(t, home, mode).become(cmd)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		want += "out\n"
		if cmd.ProcessState.ExitCode() != 7 || stdout.String() != want || !strings.HasPrefix(stderr.String(), "err\nmcp-code-sandbox: wrote log in ") {
			t.Errorf("%s: %v, stdout %q, want %q, stderr %q", mode, err, stdout.String(), want, stderr.String())
		}
	}
}

// TestNoUserNamespaces: where nobody may make one, the server starts and refuses to run code.
func TestNoUserNamespaces(t *testing.T) {
	if onDocker() {
		t.Skip("only the jail needs user namespaces")
	}
	if os.Geteuid() != 0 {
		skip(t, "only root can forbid user namespaces")
	}
	home, _ := ordinaryRoot(t)
	everybody := []syscall.SysProcIDMap{{Size: 65536}}
	s := serveWith(t, func(cmd *exec.Cmd) {
		const forbid = `echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --reuid "$0" --regid "$0" --clear-groups "$@"`
		cmd.Path, cmd.Args, cmd.Dir = "/bin/sh", append([]string{"sh", "-c", forbid, strconv.Itoa(ordinaryUser)}, cmd.Args...), home
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: everybody, GidMappings: everybody, GidMappingsEnableSetgroups: true,
		}
	}, "SANDBOX_ROOT="+filepath.Join(home, "data"), "HOME="+home, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
	if r := s.run(t, "s", "shell", "echo it ran"); r.Success || !strings.Contains(r.Output, "allow unprivileged user namespaces") {
		t.Errorf("%+v", r)
	}
}

// TestInheritedDescriptors: what the server's parent left open reaches no process that it starts.
func TestInheritedDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fi, err := r.Stat()
	if err != nil {
		t.Fatal(err)
	}
	s := serveWith(t, func(cmd *exec.Cmd) { cmd.ExtraFiles = slices.Repeat([]*os.File{r}, 50) }, "SANDBOX_ROOT="+t.TempDir())
	_ = r.Close()
	if got := s.run(t, "files", "python", "print('ran')"); got.Output != "ran\n" {
		t.Fatalf("%+v", got)
	}
	want := fmt.Sprintf("pipe:[%d]", fi.Sys().(*syscall.Stat_t).Ino)
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	server := strconv.Itoa(s.cmd.Process.Pid)
	for _, link := range links {
		target, _ := os.Readlink(link)
		if pid := strings.Split(link, "/")[2]; target == want && pid != server && pid != strconv.Itoa(os.Getpid()) {
			cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			t.Errorf("%s has the pipe: %q", link, cmdline)
		}
	}
}
