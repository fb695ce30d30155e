package sandboxtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/userns"
	"mcp-code-sandbox/internal/wire"
)

// Harness is a backend under test.
type Harness struct {
	Backend sandbox.Backend
	// Owner is the host uid and gid of what a sandbox writes; it must not be 0.
	Owner int
	// Gives says that the backend gives a workspace to the sandbox. Then its owner is that of what
	// the sandbox writes, and all its sandboxes have the same one.
	Gives bool
	// Image is the image to start, for backends that have images.
	Image string
	// Has says what the sandboxes have on this machine: All, without what they lack.
	Has Capabilities
	// Zygote, if set, is one for Python, and all probes come from it.
	Zygote *wire.Zygote
	// SharedZygote says that the backend forks the zygote into the sandbox.
	SharedZygote bool
}

// Capabilities are properties of sandboxes that depend on the backend or the machine. If one is
// missing, the suite tests what must hold without it.
type Capabilities struct {
	// Limits: memory and processes are limited for the sandbox as a whole, and its Meter, or else
	// the exits of its runs, tell when a limit was reached. Without it, each process has limits of
	// its own.
	Limits bool
	// TCPMemory: the memory limit includes the buffers of TCP sockets. On cgroup version 1 an
	// engine's does not.
	TCPMemory bool
	// FileLimit: the number of files in a tmpfs is limited, not only by the memory they take.
	FileLimit bool
	// Namespaces: each run has its own. Without it (agent.MainLandlock) overlapping runs see each
	// other's processes and share /tmp, /dev/shm and System V objects until the last run has ended.
	// A run's HOME and TMPDIR are still its own.
	Namespaces bool
	// Terminals: each run has its own /dev/pts. Without it, the engine has mounted one for all.
	Terminals bool
	// CgroupNamespace: a run does not see the name of its cgroup.
	CgroupNamespace bool
	// Landlock: sandboxes may use this kernel's Landlock.
	Landlock bool
	// HostKernel: sandboxes use the host's kernel. With a kernel of its own, code that exhausts it
	// harms only its own sandbox, and the memory limit may end the whole sandbox. That kernel has
	// no 32-bit system calls.
	HostKernel bool
	// ProtectedInit: the kernel protects process 1 of a pid namespace from signals and hides its
	// descriptors. Without it, code can kill the init of its own run, and with it only its own run.
	ProtectedInit bool
}

// All returns every capability.
func All() Capabilities {
	return Capabilities{
		Limits: true, TCPMemory: true, FileLimit: true, Namespaces: true, Terminals: true, CgroupNamespace: true,
		Landlock: true, HostKernel: true, ProtectedInit: true,
	}
}

// Container returns the capabilities of a container, in which runs share namespaces and terminals.
func Container() Capabilities {
	c := All()
	c.Namespaces, c.Terminals, c.TCPMemory = false, false, !CgroupV1()
	return c
}

// Run tests a backend. It calls open once.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	s := &suite{Harness: open(t)}
	if s.Owner == 0 && userns.UID() == 0 {
		t.Fatal("sandboxes would run as host uid 0")
	}
	t.Run("Files", s.testFiles)
	if s.Has.HostKernel { // a kernel of its own says nothing about the machine
		t.Run("Covers", s.testCovers)
	}
	t.Run("Privileges", s.testPrivileges)
	t.Run("SystemCalls", s.testSystemCalls)
	t.Run("Locks", s.testLocks)
	t.Run("Processes", s.testProcesses)
	t.Run("Terminals", s.testTerminals)
	if !s.Has.Namespaces {
		t.Run("Apart", s.testApart)
		t.Run("Daemons", func(t *testing.T) { Survival(t, s.Harness) })
	}
	t.Run("NoNetwork", s.testNoNetwork)
	t.Run("Forward", s.testForward)
	t.Run("Names", s.testNames)
	t.Run("Output", s.testOutput)
	t.Run("Exit", s.testExit)
	t.Run("NothingSurvives", s.testNothingSurvives)
	t.Run("Limits", s.testLimits)
	t.Run("Lifecycle", s.testLifecycle)
	t.Run("Cells", s.testCells)
	t.Run("Order", s.testOrder)
	t.Run("Displays", s.testDisplays)
	if s.Zygote != nil {
		t.Run("Zygote", s.testZygote)
	}
}

// RequireAll names the environment variable that makes a test fail if it cannot run.
const RequireAll = "REQUIRE_ALL"

// Skip skips a test that this machine cannot run, or fails it if RequireAll is set.
func Skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv(RequireAll) == "1" {
		t.Fatalf("cannot run here, and %s=1: %s", RequireAll, reason)
	}
	t.Skip("SKIPPED: " + reason)
}

// CgroupV1 reports whether this machine limits memory with cgroup version 1.
func CgroupV1() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err != nil
}

// patience bounds how long a test waits for something that must happen.
const patience = 90 * time.Second

type suite struct{ Harness }

// Sandbox is a started sandbox and the server's end of its connection.
type Sandbox struct {
	sandbox.Sandbox
	Conn      *wire.Conn
	Workspace string
	zygote    *wire.Zygote
}

// ID returns a new id for a sandbox.
func ID() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return "t-" + hex.EncodeToString(b[:])
}

// Workspace makes an empty directory that belongs to owner.
func Workspace(t *testing.T, owner int) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		if err := os.Lchown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Start starts a sandbox that ends with the test. It fills in missing parts of spec.
func Start(t *testing.T, h Harness, spec sandbox.Spec) *Sandbox {
	t.Helper()
	return StartWith(t, h, spec, nil)
}

// StartWith is Start with a function that accepts the streams that the agent opens.
func StartWith(t *testing.T, h Harness, spec sandbox.Spec, accept func(*wire.Stream, wire.Frame)) *Sandbox {
	t.Helper()
	if spec.ID == "" {
		spec.ID = ID()
	}
	if spec.Workspace == "" {
		spec.Workspace = Workspace(t, h.Owner)
	}
	spec.Image = h.Image
	if z := h.Zygote; h.SharedZygote {
		spec.Zygotes = []sandbox.Zygote{sandbox.Zygote(*z)}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sb, err := h.Backend.Start(ctx, spec)
	if err != nil {
		t.Fatalf("start a sandbox: %v", err)
	}
	b := &Sandbox{Sandbox: sb, Conn: wire.NewConn(sb.Conn(), wire.ServerSide, accept), Workspace: spec.Workspace}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := sb.Close(ctx); err != nil {
			t.Errorf("close the sandbox: %v", err)
		}
		if exit, err := sb.Wait(ctx); err == nil && t.Failed() {
			t.Logf("the sandbox ended: %+v", exit)
		}
		_ = b.Conn.Close()
	})
	if b.zygote = h.Zygote; b.zygote != nil {
		b.awaitZygote(t)
	}
	return b
}

// awaitZygote runs programs until one comes from the zygote.
func (b *Sandbox) awaitZygote(t *testing.T) {
	t.Helper()
	for range 1000 {
		res := b.Run(t, Python("print('up')"))
		if string(res.Stdout) != "up\n" {
			t.Fatalf("%+v %s%s", res.Exit, res.Stdout, res.Stderr)
		}
		if res.Exit.Forked {
			return
		}
	}
	t.Fatal("the zygote does not come up")
}

func (s *suite) start(t *testing.T, spec sandbox.Spec) *Sandbox {
	t.Helper()
	return Start(t, s.Harness, spec)
}

// Result is the outcome of a run.
type Result struct {
	Stdout, Stderr []byte
	Displays       []string // "<MIME type> <data>"
	Files          []string // where the code says that it saved the displays
	Order          []string // the displays, and stdout and stderr in pieces, in the order of arrival
	Exit           wire.Exit

	last wire.Type
}

// add appends a piece of output to Order. Pieces of one stream that follow each other are merged.
func (r *Result) add(t wire.Type, text string) {
	if t == r.last && t != wire.TypeDisplay {
		r.Order[len(r.Order)-1] += text
		return
	}
	r.Order, r.last = append(r.Order, text), t
}

// Begin starts a run.
func (b *Sandbox) Begin(t *testing.T, r wire.Run) *Running {
	t.Helper()
	if r.Zygote == nil && len(r.Argv) > 0 && r.Argv[0] == python {
		r.Zygote = b.zygote
	}
	stream, err := b.Conn.Open(wire.Frame{Type: wire.TypeRun, Run: &r})
	if err != nil {
		t.Fatalf("open a run: %v", err)
	}
	return &Running{stream: stream}
}

// BeginUntil starts a run and waits until the program has printed text.
func (b *Sandbox) BeginUntil(t *testing.T, text string, r wire.Run) *Running {
	t.Helper()
	running := b.Begin(t, r)
	running.Until(t, text)
	return running
}

// Running is a run in progress. One goroutine may use it.
type Running struct {
	stream *wire.Stream
	result Result
	shown  []byte // the beginning of a display
}

// next receives a frame and reports whether it was the last.
func (r *Running) next(t *testing.T, ctx context.Context) bool {
	t.Helper()
	f, err := r.stream.Recv(ctx)
	if err != nil {
		t.Fatalf("the run's stream: %v\nstdout: %.2000s\nstderr: %.2000s", err, r.result.Stdout, r.result.Stderr)
	}
	switch f.Type {
	case wire.TypeStdout:
		r.result.Stdout = append(r.result.Stdout, f.Data...)
		r.result.add(f.Type, string(f.Data))
	case wire.TypeStderr:
		r.result.Stderr = append(r.result.Stderr, f.Data...)
		r.result.add(f.Type, string(f.Data))
	case wire.TypeDisplay:
		r.shown = append(r.shown, f.Data...)
		if !f.More {
			shown := f.MIME + " " + string(r.shown)
			r.result.Displays, r.result.Files = append(r.result.Displays, shown), append(r.result.Files, f.File)
			r.result.add(f.Type, shown)
			r.shown = nil
		}
	case wire.TypeExit:
		r.result.Exit = *f.Exit
		return true
	}
	return false
}

// Until reads until the program has printed text.
func (r *Running) Until(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !bytes.Contains(r.result.Stdout, []byte(text)) {
		if r.next(t, ctx) {
			t.Fatalf("ended with %+v before %q\nstdout: %.2000s\nstderr: %.2000s", r.result.Exit, text, r.result.Stdout, r.result.Stderr)
		}
	}
}

// Stdout returns what has been read so far.
func (r *Running) Stdout() []byte { return r.result.Stdout }

// Wait reads until the run's end.
func (r *Running) Wait(t *testing.T) Result {
	t.Helper()
	return r.WaitFor(t, patience)
}

// WaitFor is Wait with a limit of d.
func (r *Running) WaitFor(t *testing.T, d time.Duration) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for !r.next(t, ctx) {
	}
	return r.result
}

// exit is Wait for a run whose sandbox may end with it.
func (r *Running) exit(ctx context.Context) (wire.Exit, error) {
	for {
		switch f, err := r.stream.Recv(ctx); {
		case err != nil:
			return wire.Exit{}, err
		case f.Type == wire.TypeExit:
			return *f.Exit, nil
		}
	}
}

// Send sends the run a kill or an interrupt.
func (r *Running) Send(t *testing.T, typ wire.Type) {
	t.Helper()
	if err := r.stream.Send(t.Context(), wire.Frame{Type: typ}); err != nil {
		t.Fatalf("send %s: %v", typ, err)
	}
}

// Kill kills the run and waits for its end.
func (r *Running) Kill(t *testing.T) Result {
	t.Helper()
	r.Send(t, wire.TypeKill)
	return r.Wait(t)
}

// Run runs a program to its end.
func (b *Sandbox) Run(t *testing.T, r wire.Run) Result {
	t.Helper()
	res := b.Begin(t, r).Wait(t)
	if b.zygote != nil && r.Interpreter != "" && r.Argv[0] == python && !res.Exit.Forked {
		t.Errorf("the interpreter did not come from the zygote: %+v", res.Exit)
	}
	return res
}

// Shell is a run of a shell script.
func Shell(script string) wire.Run { return wire.Run{Argv: []string{"/bin/sh", "-c", script}} }

const python = "/usr/bin/python3"

// Python is a run of a Python program, after the prelude.
func Python(code string) wire.Run {
	return wire.Run{Argv: []string{python, "-I", "{file}"}, File: "probe.py", Code: []byte(prelude() + code)}
}

// Probe runs an attack, which prints a line for each breach. It must end with finish.
func (b *Sandbox) Probe(t *testing.T, code string) {
	t.Helper()
	b.ProbeRun(t, Python(code+"\nfinish()\n"))
}

// ProbeRun is Probe for a whole run.
func (b *Sandbox) ProbeRun(t *testing.T, r wire.Run) {
	t.Helper()
	res := b.Run(t, r)
	if b.zygote != nil && !res.Exit.Forked {
		t.Error("the probe did not come from the zygote")
	}
	if got := string(res.Stdout); got != "finished\n" || res.Exit.Code != 0 || res.Exit.Error != "" {
		t.Errorf("exit %d signal %d %s\n%s%s", res.Exit.Code, res.Exit.Signal, res.Exit.Error, got, res.Stderr)
	}
}

// Alive fails the test unless the sandbox still runs programs.
func (b *Sandbox) Alive(t *testing.T) {
	t.Helper()
	if res := b.Run(t, Shell("echo alive")); string(res.Stdout) != "alive\n" || res.Exit.Code != 0 {
		t.Fatalf("the sandbox no longer works: %+v %s%s", res.Exit, res.Stdout, res.Stderr)
	}
}

// serve accepts connections until the test ends, sends each a line and counts them.
func serve(t *testing.T, l io.Closer, accept func() (io.WriteCloser, error)) (count func() int) {
	t.Helper()
	conns := make(chan struct{}, 1024)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := accept()
			if err != nil {
				return
			}
			conns <- struct{}{}
			_, _ = io.WriteString(c, "host\n")
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return func() int { return len(conns) }
}

// facts defines, in Python, what a probe may expect. IMAGE: the root is an image, not the host's.
func (s *suite) facts() string {
	var b strings.Builder
	for name, value := range map[string]bool{
		"IMAGE": s.Image != "", "NAMESPACES": s.Has.Namespaces, "FILE_LIMIT": s.Has.FileLimit,
		"CGROUP_NAMESPACE": s.Has.CgroupNamespace, "HOST_KERNEL": s.Has.HostKernel, "PROTECTED_INIT": s.Has.ProtectedInit,
	} {
		fmt.Fprintf(&b, "%s = bool(%d)\n", name, map[bool]int{true: 1}[value])
	}
	return b.String()
}

// landlock reports whether the sandboxes have Landlock in that version. Version 2 keeps the memory,
// descriptors and files of runs in one pid namespace apart; version 6 signals, too.
func (h Harness) landlock(version uintptr) bool {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return h.Has.Landlock && e == 0 && v >= version
}

func contextEnded(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
