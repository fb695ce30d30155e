package agent

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// sharedSpec is what run-init needs to know where runs share the agent's pid namespace.
type sharedSpec struct {
	Landlock int `json:"landlock"` // the version to use, 0 for none
}

// MainShared runs the agent in a sandbox that grants no capability and no namespace, such as a container. It is
// process 1 there, its connection is standard input and output, and it lives until the server closes it.
//
// Each run's init is a child subreaper, so whatever the code does with forks and sessions, a process stays below the
// init of its run; when the init ends, in whatever way, what is left of the run becomes the agent's own child, and the
// agent kills each child that is not the init of a living run (see sweep).
//
// The backend chooses this, never the agent: what it cannot keep private is more than [Main] leaves. Runs that overlap
// see each other's processes and share /tmp, /dev/shm and System V objects, which are emptied when no run is left.
// Where a kernel without Landlock grants namespaces to everybody, runs have their own: see nest.
func MainShared(configJSON, version string) error {
	cfg, err := parseConfig(configJSON)
	if err != nil {
		return err
	}
	if err := checkSurroundings(); err != nil {
		return err
	}
	landlock, isolation := landlockVersion()
	if landlock == 0 && canNest() {
		return nest(configJSON)
	}
	spareThreads(agentSpare)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become unreadable: %w", err)
	}
	signal.Notify(make(chan os.Signal, 1))
	if err := ignoreFaults(); err != nil {
		return err
	}
	conn, err := stdioConn()
	if err != nil {
		return err
	}
	s := &shared{landlock: landlock, inits: map[int]bool{}, kept: map[int]kept{}}
	a := &agent{cfg: cfg, shared: s, zygotes: zygotes{shared: s}, starting: make(chan struct{}, maxStarting)}
	return a.serve(conn, wire.Hello{Agent: version, Isolation: isolation})
}

// stdioConn is the connection of an agent that a container engine has started. Runs inherit nothing of it.
func stdioConn() (io.ReadWriteCloser, error) {
	if err := keepDescriptors(); err != nil {
		return nil, err
	}
	for _, fd := range []int{0, 1} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("connection: %w", err)
		}
	}
	return stdio{os.NewFile(0, "server"), os.NewFile(1, "server")}, nil
}

// stdio is a connection of two pipes.
type stdio struct{ in, out *os.File }

func (c stdio) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c stdio) Write(p []byte) (int, error) { return c.out.Write(p) }
func (c stdio) Close() error                { return errors.Join(c.in.Close(), c.out.Close()) }

// checkSurroundings refuses to work where the promises of MainShared would not hold.
func checkSurroundings() error {
	if os.Getpid() != 1 {
		return errors.New("not process 1 of the sandbox: start it without an init of the engine's")
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		name, set, _ := strings.Cut(line, ":")
		if strings.HasPrefix(name, "Cap") && strings.Trim(set, "0\t \n") != "" {
			return fmt.Errorf("the sandbox grants capabilities (%s): drop all of them", strings.TrimSpace(line))
		}
	}
	probe := privateDir()
	if err := os.Mkdir(probe, 0o700); err != nil {
		return fmt.Errorf("mount a tmpfs at %s that the sandbox's user can write to: %w", RunsDir, err)
	}
	return os.Remove(probe)
}

// ignoreFaults makes the agent deaf to the signals that the Go runtime takes for faults of its own when they are queued
// with a code that says so, and to those of C libraries, which it does not catch. A real fault still ends it.
func ignoreFaults() error {
	faults := []syscall.Signal{
		unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS, 32, 33, 34,
	}
	for _, sig := range faults {
		if err := setAction(sig, 1); err != nil { // SIG_IGN
			return err
		}
	}
	return nil
}

func setAction(sig syscall.Signal, handler uintptr) error {
	action := [4]uintptr{handler} // handler, flags, restorer, mask
	if _, _, e := unix.Syscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); e != 0 {
		return fmt.Errorf("signal %d: %w", sig, e)
	}
	return nil
}

// privateDir is a name for the private directory of a new run.
func privateDir() string {
	return RunsDir + "/" + strings.ToLower(rand.Text())
}

// makePrivate makes it. A run may have closed RunsDir, which Landlock cannot forbid.
func makePrivate(dir string) error {
	openRuns()
	return os.Mkdir(dir, 0o700)
}

func openRuns() { _ = os.Chmod(RunsDir, 0o700) }

// sharedInit is run-init's argument where runs share a pid namespace.
const sharedInit = "shared"

// shared is what the agent knows of the runs that share its pid namespace.
type shared struct {
	landlock int

	// mu is held while a child is made and named, so that nobody takes it for a stray, while strays are killed, and while
	// files are read or removed: each goroutine in a slow call holds a thread, and there may be none left to make.
	mu    sync.Mutex
	inits map[int]bool // the agent's children that are the inits of living runs
	kept  map[int]kept // those that no run has: zygotes, and inits that wait for one
	live  int          // runs that have not been cleaned up after
}

// start starts run-init with a private directory. p.reap then waits for the end of everything of the run.
func (s *shared) start(p *initProcess, attr *os.ProcAttr, dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := makePrivate(dir); err != nil { // not before: the end of another run may be emptying the place
		return err
	}
	var err error
	if p.proc, err = os.StartProcess("/proc/self/exe", []string{"run-init", sharedInit}, attr); err != nil {
		_ = os.Remove(dir)
		return err
	}
	s.begin(p, dir)
	return nil
}

// begin notes that a run-init has a run. s.mu is held.
func (s *shared) begin(p *initProcess, dir string) {
	s.inits[p.proc.Pid] = true
	s.live++
	p.reap = func() (*os.ProcessState, error) { return s.reap(p.proc, dir) }
}

// reap waits for a run-init and ends what is left of its run: processes, then files.
func (s *shared) reap(p *os.Process, dir string) (*os.ProcessState, error) {
	// Its number is not given to another process before it has been waited for.
	proc.AwaitExitBlocking(p.Pid)
	s.mu.Lock()
	delete(s.inits, p.Pid)
	state, err := p.Wait()
	s.mu.Unlock()

	if !s.sweep(time.Now().Add(sweepTimeout)) {
		// Whatever it is that cannot be killed, it ends with process 1.
		fmt.Fprintln(os.Stderr, "sandbox-agent: processes of an ended run cannot be killed; ending the sandbox")
		os.Exit(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	openRuns()
	empty(dir)
	_ = os.Remove(dir)
	if s.live--; s.live == 0 {
		for _, dir := range []string{"/tmp", "/dev/shm"} {
			empty(dir)
		}
		s.emptyRuns()
		removeIPC()
	}
	return state, err
}

// launchShared is launch where the run has no namespaces of its own. The program is started from a thread that enters
// the run's Landlock domain and then ends: a thread that stayed in it could be signalled by the code, and with
// it run-init.
func (init *runInitProcess) launchShared(spec *initSpec) (p *program, exit wire.Exit, err error) {
	// What the code leaves without a parent stays below run-init.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, wire.Exit{}, fmt.Errorf("become a subreaper: %w", err)
	}
	for sig := syscall.Signal(32); sig <= 34; sig++ { // see ignoreFaults; the program must not inherit it
		if err := setAction(sig, 0); err != nil {
			return nil, wire.Exit{}, err
		}
	}
	if err := os.Chdir(sandbox.WorkspaceDir); err != nil {
		return nil, wire.Exit{}, err
	}
	if err := setLimits(fixedLimits); err != nil {
		return nil, wire.Exit{}, err
	}
	proc.OnNewThread(func() { p, exit, err = init.launch(spec) })
	return p, exit, err
}

// confineShared takes from the calling thread what the program must not have. There are no capabilities to drop.
func (spec *initSpec) confineShared() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if spec.Shared.Landlock > 0 {
		if err := enterDomain(spec.Shared.Landlock, spec.Dir); err != nil {
			return err
		}
	}
	if err := sharedFilter().install(); err != nil {
		return err
	}
	return runFilter().install()
}

// sharedFilter denies, beside what runFilter denies, the calls by which one process changes the limits,
// priorities, scheduling and processors of another of the same user: there are some, and the agent is one.
func sharedFilter() filter {
	var f filter
	f.load(offNR)
	f.when(unix.SYS_PRLIMIT64, func(b *filter) { // reading is harmless
		b.load(arg(0))
		b.skipIf(0, 5)
		b.load(arg(2))
		b.skipUnless(0, 2)
		b.load(arg(2) + 4)
		b.skipIf(0, 1)
		b.ret(errno(unix.EPERM))
	})
	for _, call := range []struct{ nr, user uint32 }{{unix.SYS_SETPRIORITY, unix.PRIO_USER}, {unix.SYS_IOPRIO_SET, ioprioWhoUser}} {
		f.when(call.nr, func(b *filter) {
			b.load(arg(0))
			b.skipIf(call.user, 2)
			b.load(arg(1))
			b.skipIf(0, 1)
			b.ret(errno(unix.EPERM))
		})
	}
	for _, call := range []uint32{unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER} {
		f.when(call, func(b *filter) {
			b.load(arg(0))
			b.skipIf(0, 1)
			b.ret(errno(unix.EPERM))
		})
	}
	f.ret(unix.SECCOMP_RET_ALLOW)
	return f
}

const ioprioWhoUser = 3
