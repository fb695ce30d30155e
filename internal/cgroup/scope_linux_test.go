package cgroup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// Roles of the test binary when a test starts it again.
const (
	envRole     = "CGROUPTEST_ROLE"
	roleMachine = "machine" // run the test, in namespaces where it may start a systemd
	roleServer  = "server"  // be a server
)

func TestMain(m *testing.M) {
	if os.Getenv(envRole) == roleServer {
		serve(os.Args[1], os.Args[2])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// seen is what a server reports.
type seen struct {
	Own       string // its group
	Scope     string
	Available bool
	Text      string
	Limits    []string // of a group
}

// serve looks for cgroups as a server does, makes groups, and leaves them behind when its input
// ends.
func serve(instance, bus string) {
	h := Find(instance, bus)
	own, _ := ownGroup("")
	_ = os.MkdirAll(filepath.Join(mount, own, "left", "behind"), 0o755)
	scope, _ := h.Scope()
	answer := seen{Own: own, Scope: scope, Available: h.Available(), Text: h.String()}
	g, err := h.Create("1", sandbox.Limits{MemoryBytes: 64 << 20, PIDs: 32, CPUs: 0.5})
	if err != nil {
		answer.Text += ": " + err.Error()
	}
	if g != nil {
		for _, file := range []string{"memory.max", "pids.max", "cpu.max"} {
			limit, _ := readWords(g.file("memory", file))
			answer.Limits = append(answer.Limits, strings.Join(limit, " "))
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(answer)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// user is an ordinary user of the machine.
const user = 65432

// TestScope runs a server of an ordinary user beside a real systemd of that user, in a group that
// holds other processes and is not delegated. The server gets a scope of its own, which ends with
// it.
func TestScope(t *testing.T) {
	if os.Getenv(envRole) != roleMachine {
		enterMachine(t)
		return
	}
	m := newMachine(t)
	for name, c := range map[string]struct {
		command []string
		kill    bool
	}{
		"ended":               {},
		"killed":              {kill: true},
		"in a user namespace": {command: []string{"unshare", "--user", "--map-root-user"}},
	} {
		t.Run(name, func(t *testing.T) {
			instance := sandboxtest.ID()
			scope := groupName + instance + ".scope"
			dir := filepath.Join(m.home, "app.slice", scope)
			got, end := m.startServer(t, instance, c.command)
			if want := strings.TrimPrefix(filepath.Join(dir, groupName+"server"), mount); got.Own != want || got.Scope != scope {
				t.Errorf("the server is in %s, and reports %q; want %s", got.Own, got.Scope, want)
			}
			if got.Available != m.hasControllers || got.Available && !strings.Contains(got.Text, "delegated by systemd") ||
				!got.Available && !strings.Contains(got.Text, "has no memory controller") {
				t.Errorf("cgroups: %s", got.Text)
			}
			if want := []string{"67108864", "32", "50000 100000"}; got.Available && !slices.Equal(got.Limits, want) {
				t.Errorf("the limits of a group are %q, want %q", got.Limits, want)
			}
			show := m.command("systemctl", "--user", "show", "--property=Delegate,Slice", scope)
			if out, err := show.CombinedOutput(); string(out) != "Slice=app.slice\nDelegate=yes\n" || err != nil {
				t.Errorf("systemd says of the scope: %s%v", out, err)
			}
			end(c.kill)
			awaitRemoval(t, dir)
		})
	}
}

// enterMachine runs the test again in namespaces of its own.
func enterMachine(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "only root can make a machine with a systemd of a user")
	}
	for _, program := range []string{"systemd", "dbus-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			sandboxtest.Skip(t, program+" is not installed")
		}
	}
	hierarchy := mount
	if _, err := os.Stat(mount + "/cgroup.controllers"); err != nil {
		hierarchy = mount + "/unified" // beside version 1, and without its controllers
	}
	_ = enableControllers(hierarchy) // those that version 1 does not have
	group := filepath.Join(hierarchy, groupName+sandboxtest.ID())
	if err := os.Mkdir(group, 0o755); err != nil {
		sandboxtest.Skip(t, "cgroup version 2 is not writable: "+err.Error())
	}
	t.Cleanup(func() { removeTree(group) })
	dir, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The group becomes the machine's root. No process may stay there, or it could not enable
	// controllers.
	const enter = `mkdir "$0/other" && echo $$ >"$0/other/cgroup.procs" &&
exec unshare --mount --propagation=private --pid --fork --kill-child --mount-proc "$@"`
	cmd := exec.CommandContext(t.Context(), "unshare", "--cgroup", "sh", "-c", enter, group,
		self, "-test.v", "-test.timeout=100s", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), envRole+"="+roleMachine)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("on a machine of its own: %v", err)
	}
}

// removeTree kills everything in a group and removes it and the groups in it.
func removeTree(group string) {
	killGroup(group)
	var dirs []string
	_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		removeGroup(dir)
	}
}

// machine has a user with a systemd.
type machine struct {
	home           string // group of the user's systemd
	session        *os.File
	bus            string
	hasControllers bool
}

func newMachine(t *testing.T) machine {
	t.Helper()
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Unmount(mount, unix.MNT_DETACH), unix.Mount("cgroup2", mount, "cgroup2", 0, ""), unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
	accounts, err := os.ReadFile("/etc/passwd") // dbus-daemon looks there
	must(err, os.WriteFile("/run/passwd", fmt.Appendf(accounts, "ann:x:%d:%[1]d::/:/bin/sh\n", user), 0o644))
	must(unix.Mount("/run/passwd", "/etc/passwd", "", unix.MS_BIND, ""))
	runtime := fmt.Sprint("/run/user/", user)
	must(os.MkdirAll("/run/systemd/system", 0o755), os.MkdirAll(runtime, 0o755), os.Chown(runtime, user, user))

	m := machine{home: fmt.Sprintf("%s/user@%d.service", mount, user), bus: runtime + "/bus"}
	m.hasControllers = enableControllers(mount) == nil
	session := m.home + "/session"
	for _, dir := range []string{m.home, session} {
		must(os.Mkdir(dir, 0o755), os.Chown(dir, user, user))
		for _, file := range []string{"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			must(os.Chown(filepath.Join(dir, file), user, user))
		}
	}
	m.session, err = os.Open(session)
	must(err)
	t.Cleanup(func() { m.session.Close() })
	m.startSystemd(t)
	must(m.command("sleep", "infinity").Start()) // another process of the session, until the machine ends
	return m
}

// startSystemd starts the user's systemd and returns when it is ready.
func (m *machine) startSystemd(t *testing.T) {
	t.Helper()
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "/run/notify", Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer notify.Close()
	if err := os.Chmod("/run/notify", 0o666); err != nil {
		t.Fatal(err)
	}
	home, err := os.Open(m.home)
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	cmd := m.command("systemd", "--user", "--unit=dbus.socket", "--log-target=console")
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET=/run/notify")
	cmd.SysProcAttr.CgroupFD = int(home.Fd())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = notify.SetReadDeadline(time.Now().Add(30 * time.Second))
	for message := make([]byte, 4096); ; {
		n, err := notify.Read(message)
		if err != nil {
			t.Fatalf("systemd does not start: %v", err)
		}
		if slices.Contains(strings.Split(string(message[:n]), "\n"), "READY=1") {
			return
		}
	}
}

// command is a command of the user, in the session's group.
func (m *machine) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = "/"
	runtime := filepath.Dir(m.bus)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtime, "HOME="+runtime)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: user, Gid: user}, UseCgroupFD: true, CgroupFD: int(m.session.Fd()),
	}
	return cmd
}

// startServer starts a server behind a command, or directly. end ends it.
func (m *machine) startServer(t *testing.T, instance string, command []string) (got seen, end func(kill bool)) {
	t.Helper()
	self, err := os.Open("/proc/self/exe") // whose path the user cannot reach
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	args := append(slices.Clone(command), "/proc/self/fd/3", instance, m.bus)
	cmd := m.command(args[0], args[1:]...)
	cmd.ExtraFiles = []*os.File{self}
	cmd.Env = append(cmd.Env, envRole+"="+roleServer)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(output).Decode(&got); err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", got)
	return got, func(kill bool) {
		if kill {
			_ = cmd.Process.Kill()
		}
		_ = input.Close()
		_ = cmd.Wait()
	}
}

// awaitRemoval returns when a directory does not exist.
func awaitRemoval(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	t.Errorf("%s is left", dir)
}

// TestNoScope: a bus that does not answer as one is an error, at once.
func TestNoScope(t *testing.T) {
	bus := filepath.Join(t.TempDir(), "a,b=%c") // to be escaped in an address
	if err := enterScope(bus, "x.scope"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a bus: %v", err)
	}
	l, err := net.Listen("unix", bus)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for _, answer := range []string{"", "REJECTED EXTERNAL\r\nREJECTED EXTERNAL\r\n", "220 mail.example.com\r\n"} {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(answer))
			_ = c.Close()
		}
	}()
	for range 3 {
		if err := enterScope(bus, "x.scope"); err == nil || !strings.Contains(err.Error(), "ask systemd") {
			t.Errorf("got %v", err)
		}
	}
}
