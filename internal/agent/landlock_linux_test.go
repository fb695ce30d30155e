package agent_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

// TestLandlock runs the conformance suite on an agent without capabilities, as in a container: no
// user namespace, an unprivileged uid, a read-only root, all privileges dropped before process 1
// starts.
func TestLandlock(t *testing.T) {
	sandboxtest.Run(t, func(t *testing.T) sandboxtest.Harness {
		return newContainers(t).harness()
	})
}

// TestWithoutLandlock: nothing survives its run, even on a kernel that cannot keep runs apart.
func TestWithoutLandlock(t *testing.T) {
	c := newContainers(t)
	c.noLandlock = true
	h := c.harness()
	h.Has.Landlock = false
	sandboxtest.Survival(t, h)
}

// TestLandlockRefuses: the agent does not start where it could not isolate runs.
func TestLandlockRefuses(t *testing.T) {
	c := newContainers(t)
	for _, test := range []struct {
		name string
		with options
		want string
	}{
		{"capability", options{keep: "+chown"}, "grants capabilities"},
		{"no private directory", options{noRuns: true}, "mount a tmpfs at " + confine.RunsDir},
		{"not process 1", options{notFirst: true}, "not process 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := *c
			c.options = test.with
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			sb, err := c.Start(ctx, sandbox.Spec{ID: sandboxtest.ID(), Workspace: sandboxtest.Workspace(t, containerUID)})
			if err == nil {
				_ = sb.Close(ctx)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestWithoutNames: where the agent cannot be the name server, runs and the door work, and lookups
// fail at once.
func TestWithoutNames(t *testing.T) {
	c := newContainers(t)
	c.noLowPorts = true
	b := sandboxtest.StartWith(t, c.harness(), sandbox.Spec{Forward: true}, func(s *wire.Stream, _ wire.Frame) {
		_, _ = io.WriteString(s, "door")
		_ = s.Close()
	})
	run := sandboxtest.Python(`
if (got := socket.create_connection(("127.0.0.1", 8099), timeout=20).recv(4)) != b"door": breach(got)
if "Temporary failure" not in str(got := fails("resolves", socket.getaddrinfo, "db.example.com", 443)): breach(got)
finish()
`)
	run.Hosts = []string{"db.example.com:443"}
	b.ProbeRun(t, run)
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if said := b.Sandbox.(*container).stderr.String(); !strings.Contains(said, "cannot look up names: listen udp4 127.0.0.1:53") {
		t.Errorf("the agent said %q", said)
	}
}

// containerUID is a uid without an account.
const containerUID = 61321

// containers is a backend made of bubblewrap and setpriv. To the agent it looks like a container
// engine.
type containers struct {
	agent, passwd string
	options
}

// options are conditions that an engine should not create.
type options struct {
	keep       string // a capability not to drop
	noRuns     bool
	notFirst   bool
	noLandlock bool
	noLowPorts bool
}

func (c *containers) harness() sandboxtest.Harness {
	has := sandboxtest.Container()
	has.Limits = false
	return sandboxtest.Harness{Backend: c, Owner: containerUID, Has: has}
}

func newContainers(t *testing.T) *containers {
	t.Helper()
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "needs root: to become a user without a user namespace, as in a container")
	}
	for _, tool := range []string{"bwrap", "setpriv", "unshare", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			sandboxtest.Skip(t, err.Error())
		}
	}
	dir := t.TempDir()
	passwd := filepath.Join(dir, "passwd")
	if err := os.WriteFile(passwd, []byte("root:x:0:0::/:/bin/false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sandbox-agent")
	cmd := exec.Command("go", "build", "-o", path, "mcp-code-sandbox/cmd/sandbox-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	return &containers{agent: path, passwd: passwd}
}

// script makes what bubblewrap cannot, in new mount and network namespaces: sized file systems
// below /mnt, and low ports for everybody. Its arguments are their options and bubblewrap's command
// line.
const script = `set -e
opts=$1; shift
mount -t tmpfs none /mnt
for d in tmp shm runs; do mkdir /mnt/$d; mount -t tmpfs -o "$opts" none /mnt/$d; done
ip link set lo up
[ "$LOW_PORTS" = false ] || echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
mkdir /mnt/pts; mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 none /mnt/pts
exec bwrap "$@"`

func (c *containers) args() []string {
	args := []string{
		"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox",
		"--die-with-parent", "--new-session", "--clearenv",
		"--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP", "--cap-add", "CAP_CHOWN",
	}
	if !c.notFirst {
		args = append(args, "--as-pid-1")
	}
	if c.noLandlock {
		args = append(args, "--seccomp", "3")
	}
	return append(args, "--ro-bind", "/usr", "/usr", "--tmpfs", "/dev", "--bind", "/mnt/shm", "/dev/shm", "--dev-bind", "/mnt/pts", "/dev/pts",
		"--bind", "/mnt/tmp", "/tmp")
}

// root returns the arguments for the rest of the sandbox's root.
func (c *containers) root(spec sandbox.Spec) []string {
	var args []string
	for _, path := range []string{"/mnt", "/opt", "/opt/runners", "/etc", "/etc/ssl"} {
		args = append(args, "--perms", "0755", "--dir", path)
	}
	for _, path := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if target, err := os.Readlink(path); err == nil {
			args = append(args, "--symlink", target, path)
		} else if fi, err := os.Stat(path); err == nil && fi.IsDir() {
			args = append(args, "--ro-bind", path, path)
		}
	}
	for _, path := range []string{"/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs"} {
		args = append(args, "--ro-bind-try", path, path)
	}
	args = append(args, "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys")
	for _, name := range confine.HiddenProc() {
		path := "/proc/" + name
		if fi, err := os.Stat(path); err == nil && fi.IsDir() {
			args = append(args, "--perms", "0555", "--tmpfs", path, "--remount-ro", path)
		} else if err == nil {
			args = append(args, "--ro-bind", "/dev/null", path)
		}
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		args = append(args, "--dev-bind", "/dev/"+name, "/dev/"+name)
	}
	args = append(args, "--symlink", "/proc/self/fd", "/dev/fd", "--symlink", "pts/ptmx", "/dev/ptmx", "--ro-bind", c.agent, "/.sandbox-agent", "--ro-bind", c.passwd, "/etc/passwd")
	for _, m := range spec.Mounts {
		args = append(args, "--ro-bind", m.Source, m.Target)
	}
	for _, target := range []string{"/data", "/mnt/data", "/workspace"} {
		args = append(args, "--bind", spec.Workspace, target)
	}
	return append(args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/")
}

// withoutLandlock returns a seccomp program, as bubblewrap reads it, that hides Landlock.
func withoutLandlock() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	err = binary.Write(w, binary.NativeEndian, []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_LANDLOCK_CREATE_RULESET, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	})
	return r, err
}

// Start implements sandbox.Backend.
func (c *containers) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	processes := 0
	if spec.Limits.PIDs > 0 {
		processes = spec.Limits.PIDs + agent.PIDReserve
	}
	config, err := json.Marshal(agent.Config{Forward: spec.Forward, Names: spec.Forward, DataBytes: uint64(spec.Limits.MemoryBytes), Processes: uint64(processes)})
	if err != nil {
		return nil, err
	}
	mount := fmt.Sprintf("mode=1777,uid=%d,gid=%[1]d,nosuid,nodev,nr_inodes=65536", containerUID) // as docker's
	if spec.Limits.TmpBytes > 0 {
		mount += ",size=" + strconv.FormatInt(spec.Limits.TmpBytes, 10)
	}
	caps := "-all"
	if c.keep != "" {
		caps += "," + c.keep
	}
	args := append([]string{"--net", "--mount", "--propagation", "private", "sh", "-c", script, "sh", mount}, c.args()...)
	if !c.noRuns {
		args = append(args, "--bind", "/mnt/runs", confine.RunsDir)
	}
	args = append(args, c.root(spec)...)
	args = append(args, "setpriv", "--reuid", strconv.Itoa(containerUID), "--regid", strconv.Itoa(containerUID), "--clear-groups",
		"--inh-caps", caps, "--bounding-set", caps, "--no-new-privs", "/.sandbox-agent", "landlock", string(config))

	var files []*os.File
	if c.noLandlock {
		filter, err := withoutLandlock()
		if err != nil {
			return nil, err
		}
		defer filter.Close()
		files = append(files, filter)
	}
	s := &container{id: spec.ID, cmd: exec.Command("unshare", args...), ended: make(chan struct{})}
	s.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LOW_PORTS=" + strconv.FormatBool(!c.noLowPorts)}
	s.cmd.Stderr, s.cmd.ExtraFiles = &s.stderr, files
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer inR.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		_ = inW.Close()
		return nil, err
	}
	defer outW.Close()
	s.in, s.out = inW, outR
	s.cmd.Stdin, s.cmd.Stdout = inR, outW
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, inW.Close(), outR.Close())
	}
	go s.wait()
	stop := context.AfterFunc(ctx, s.end)
	defer stop()
	if _, err := wire.ReadHello(s.conn()); err != nil {
		s.end()
		<-s.ended
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %s", err, s.stderr.String())
	}
	return s, nil
}

type container struct {
	id      string
	cmd     *exec.Cmd
	in, out *os.File
	stderr  output
	ended   chan struct{}

	mu    sync.Mutex
	asked bool
}

type pipes struct {
	io.Reader
	io.Writer
	close func() error
}

func (p pipes) Close() error { return p.close() }

func (s *container) conn() io.ReadWriteCloser {
	return pipes{s.out, s.in, func() error { return errors.Join(s.in.Close(), s.out.Close()) }}
}

func (s *container) ID() string               { return s.id }
func (s *container) Conn() io.ReadWriteCloser { return s.conn() }

// end hangs up. The agent, and everything with it, must end by itself.
func (s *container) end() {
	s.mu.Lock()
	s.asked = true
	s.mu.Unlock()
	_ = s.in.Close()
	_ = s.out.Close()
}

func (s *container) wait() {
	_ = s.cmd.Wait()
	_ = s.in.Close()
	_ = s.out.Close()
	close(s.ended)
}

func (s *container) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.ended:
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	exit := sandbox.Exit{Cause: sandbox.CauseLost, Detail: s.stderr.String()}
	if s.asked {
		exit.Cause = sandbox.CauseKilled
	}
	return exit, nil
}

func (s *container) Close(ctx context.Context) error {
	s.end()
	_, err := s.Wait(ctx)
	return err
}

// output is a buffer that can be read while it is written.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
