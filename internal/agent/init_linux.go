package agent

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// Descriptors of run-init, beside the run's own 0, 1 and 2.
const (
	specFD    = 3
	statusFD  = 4
	channelFD = 5
)

// baseEnv is the environment of every run; the runner's and the caller's variables come on top.
var baseEnv = map[string]string{
	"PATH":   "/usr/local/bin:/usr/bin:/bin",
	"HOME":   "/tmp",
	"TMPDIR": "/tmp",
	"LANG":   "C.UTF-8",
	"USER":   "sandbox",
}

// RunInit is process 1 of a run's namespaces. It makes the run's private mounts and gives up everything, waits for
// its spec, starts the program as its only child, reports how that ended, and exits; the kernel then kills what is
// left. where is the size of the run's /tmp.
//
// Where runs share a pid namespace, it is sharedInit: what run-init makes private is less, see launchShared, and
// the agent ends what is left.
func RunInit(where string, options ...string) error {
	for _, fd := range []int{specFD, statusFD, channelFD} {
		unix.CloseOnExec(fd)
	}
	hidden := slices.Contains(options, hiddenMounts)
	if hidden {
		unix.CloseOnExec(emptyFD)
	}
	status, err := runInit(where, hidden)
	if err != nil {
		status = initStatus{Exit: wire.Exit{Code: 126, Error: err.Error()}}
	}
	f := os.NewFile(statusFD, "status")
	return errors.Join(json.NewEncoder(f).Encode(status), f.Close())
}

func runInit(where string, hidden bool) (initStatus, error) {
	// Capabilities, no_new_privs and seccomp belong to a thread; the program is forked from this one.
	runtime.LockOSThread()
	spareThreads(initSpare)
	oom, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return initStatus{}, err
	}
	var here place
	if where != sharedInit {
		if here, err = openPlace(); err != nil {
			return initStatus{}, err
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return initStatus{}, fmt.Errorf("become unreadable: %w", err)
	}
	// It dies of none of them. Those that matter have a channel each: one that is full drops what comes, and others come often.
	signal.Notify(make(chan os.Signal, 1))
	interrupts, children := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT)
	signal.Notify(children, syscall.SIGCHLD)
	init := runInitProcess{oom: oom, interrupts: interrupts, children: children}
	if init.driver, init.theirs, err = driverSocket(); err != nil {
		return initStatus{}, err
	}
	if where != sharedInit {
		if err := confine(where, func() error { return here.enterRoot(hidden) }); err != nil {
			return initStatus{}, err
		}
		if err := here.give(init.theirs); err != nil {
			return initStatus{}, err
		}
		if err := setLimits([]rlimit{openFiles}); err != nil {
			return initStatus{}, err
		}
	}

	init.told = json.NewDecoder(os.NewFile(specFD, "spec"))
	for {
		var spec initSpec
		if err := init.told.Decode(&spec); err != nil {
			return initStatus{}, fmt.Errorf("read run: %w", err)
		}
		if where != sharedInit { // now: the workspace may have come after run-init
			if err := os.Chdir(sandbox.WorkspaceDir); err != nil {
				return initStatus{}, err
			}
		}
		if !spec.Boot {
			return init.run(&spec)
		}
		init.boot(&spec)
	}
}

// confine is what the isolation of a run with namespaces of its own is made of, whatever the run. It calls enter
// when the mounts are made.
func confine(tmpBytes string, enter func() error) error {
	size, err := strconv.ParseInt(tmpBytes, 10, 64)
	if err != nil {
		return fmt.Errorf("size of /tmp: %w", err)
	}
	if err := privateMounts(size); err != nil {
		return err
	}
	if err := enter(); err != nil {
		return err
	}
	if err := setLimits(earlyLimits); err != nil {
		return err
	}
	return giveUpPrivileges()
}

// runInitProcess is a run-init that is ready.
type runInitProcess struct {
	oom            *os.File
	interrupts     <-chan os.Signal
	children       <-chan os.Signal // some have ended
	told           *json.Decoder    // the spec, and the exit of a program that a zygote has started
	driver, theirs *os.File         // the ends of the channel for cells: run-init's and the program's
	waiting        *waiting         // a program that has been started for the run
}

// program is the started program.
type program struct {
	pid    int
	driver *os.File // nil without spec.Channel
	dir    *os.Root // private to the run

	inherited int64 // bytes of memory that it shares with a zygote
}

func (init *runInitProcess) run(spec *initSpec) (initStatus, error) {
	launch := init.launch
	switch {
	case spec.Adopted != 0 && spec.Shared != nil:
		launch = init.adoptShared
	case spec.Adopted != 0:
		launch = init.adopt
	case spec.Shared != nil:
		launch = init.launchShared
	case init.waiting != nil:
		launch = init.launchWaiting
	}
	p, exit, err := launch(spec)
	if p == nil {
		return initStatus{Exit: exit}, err
	}
	// Output ends when the last user process has closed it, not when run-init ends.
	_ = unix.Close(1)
	_ = unix.Close(2)
	_ = init.theirs.Close()
	go func() {
		for range init.interrupts {
			_ = syscall.Kill(-p.pid, syscall.SIGINT)
		}
	}()
	wait := func() (wire.Exit, error) { return waitFor(p.pid) }
	switch {
	case spec.Adopted != 0 && spec.Shared != nil:
		wait = func() (wire.Exit, error) { return waitForFork(p.pid, p.inherited) }
	case spec.Adopted != 0:
		go reap(init.children)
		wait = init.waitToBeTold
	}
	if p.driver == nil {
		_ = init.driver.Close()
		exit, err = wait()
	} else {
		cells := serveCells(p)
		exit, err = wait()
		exit = cells.end(exit)
	}
	status := initStatus{Exit: exit}
	if spec.Displays && err == nil {
		status.Displays = collectDisplays(p.dir)
	}
	if status.Alone = spec.Shared == nil && alone() && littleToFree(); status.Alone {
		account(&status.Exit)
	}
	return status, err
}

// alone reports whether nothing is left of a run whose program has ended: what that has left behind are children of process 1, and theirs.
// (To signal everybody would ask as well, but the kernel would look at every process of the machine.)
func alone() bool {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG|syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.ECHILD):
			return true
		case err == nil && pid == 0 || err != nil && !errors.Is(err, syscall.EINTR):
			return false
		}
	}
}

// littleToFree reports whether next to nothing is in the run's own file systems: their memory counts against the next run until the kernel has
// freed it.
func littleToFree() bool {
	for _, path := range []string{"/tmp", "/dev/shm"} {
		var st unix.Statfs_t
		if unix.Statfs(path, &st) != nil || (st.Blocks-st.Bfree)*uint64(st.Bsize) > 4<<20 || st.Files-st.Ffree > 1000 {
			return false
		}
	}
	return true
}

// account adds what run-init and its children have used: what the agent would read when it has ended.
func account(exit *wire.Exit) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var ru unix.Rusage
		if unix.Getrusage(who, &ru) == nil {
			exit.UserUS += ru.Utime.Nano() / 1000
			exit.SysUS += ru.Stime.Nano() / 1000
			exit.MaxRSSB = max(exit.MaxRSSB, ru.Maxrss<<10)
		}
	}
}

// adopt is launch for a program that a zygote has started.
func (init *runInitProcess) adopt(spec *initSpec) (*program, wire.Exit, error) {
	dir, err := os.OpenRoot(spec.Dir)
	if err != nil {
		return nil, wire.Exit{}, err
	}
	p := &program{pid: spec.Adopted, dir: dir}
	if spec.Channel {
		p.driver = init.driver
	}
	return p, wire.Exit{}, nil
}

// waitToBeTold returns the exit of a program that is not run-init's child.
func (init *runInitProcess) waitToBeTold() (wire.Exit, error) {
	var exit wire.Exit
	if err := init.told.Decode(&exit); err != nil {
		return wire.Exit{}, fmt.Errorf("learn how the program ended: %w", err)
	}
	return exit, nil
}

// reap waits for the orphans of a program that is not run-init's child itself.
func reap(orphans <-chan os.Signal) {
	for range orphans {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && !errors.Is(err, syscall.EINTR) {
				break
			}
		}
	}
}

// launch starts the program. Without a program, the exit
// or the error says why. It leaves its thread as the program's.
func (init *runInitProcess) launch(spec *initSpec) (*program, wire.Exit, error) {
	argv, files, err := spec.argv()
	if err != nil {
		return nil, wire.Exit{}, err
	}
	for _, f := range files {
		if err := f.write(); err != nil {
			return nil, wire.Exit{}, err
		}
	}
	if err := setLimits(spec.limits()); err != nil {
		return nil, wire.Exit{}, err
	}
	p := &program{}
	if p.dir, err = os.OpenRoot(spec.Dir); err != nil {
		return nil, wire.Exit{}, err
	}
	if spec.Shared != nil {
		if err := spec.confineShared(); err != nil {
			return nil, wire.Exit{}, err
		}
	}
	if spec.Displays {
		if err := p.dir.Mkdir(displayDir, 0o700); err != nil {
			return nil, wire.Exit{}, err
		}
	}
	fds := []uintptr{0, 1, 2}
	if spec.Channel {
		p.driver, fds = init.driver, append(fds, init.theirs.Fd())
	}
	var exit wire.Exit
	if p.pid, exit = init.start(argv, spec.environ(), fds); p.pid == 0 {
		return nil, exit, nil
	}
	return p, wire.Exit{}, nil
}

// start starts the program. Without a process, the exit says why.
func (init *runInitProcess) start(argv, env []string, fds []uintptr) (int, wire.Exit) {
	path, err := findProgram(argv[0], env)
	if err != nil {
		return 0, wire.Exit{Code: 127, Error: err.Error()}
	}
	// When memory runs out the program goes first, never run-init or the agent.
	own := make([]byte, 16)
	n, _ := init.oom.ReadAt(own, 0)
	_, _ = init.oom.WriteAt([]byte("1000"), 0)
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env:   env,
		Files: fds,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	_, _ = init.oom.WriteAt(bytes.TrimSpace(own[:n]), 0)
	if err != nil {
		return 0, wire.Exit{Code: 126, Error: fmt.Sprintf("start %s: %v", path, err)}
	}
	return pid, wire.Exit{}
}

// waitFor reaps every child until the program itself has ended.
func waitFor(pid int) (wire.Exit, error) {
	for {
		var ws syscall.WaitStatus
		var ru syscall.Rusage
		p, err := syscall.Wait4(-1, &ws, 0, &ru)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return wire.Exit{}, err
		case p == pid:
			exit := exitOf(ws)
			exit.MaxRSSB = ru.Maxrss << 10
			return exit, nil
		}
	}
}

// programFile is a file that the program finds in the run's private directory.
type programFile struct {
	path string
	text []byte
}

func (f programFile) write() error {
	if err := os.WriteFile(f.path, f.text, 0o600); err != nil {
		return fmt.Errorf("write code: %w", err)
	}
	return nil
}

// argv returns the program's arguments, and the files with the code and the driver whose paths are among them.
func (spec *initSpec) argv() (argv []string, files []programFile, err error) {
	if len(spec.Argv) == 0 {
		return nil, nil, errors.New("no program to run")
	}
	argv = append([]string(nil), spec.Argv...)
	for _, f := range []struct {
		placeholder, name string
		text              []byte
	}{{"{file}", spec.File, spec.Code}, {"{driver}", driverFile, spec.Driver}} {
		i := slices.Index(argv, f.placeholder)
		if i < 0 {
			continue
		}
		argv[i] = spec.privatePath(f.name)
		files = append(files, programFile{argv[i], f.text})
	}
	return argv, files, nil
}

const driverFile = ".driver"

// privatePath is where a file of the run's goes.
func (spec *initSpec) privatePath(name string) string {
	var b [4]byte
	_, _ = rand.Read(b[:])
	ext := filepath.Ext(strings.TrimPrefix(name, "."))
	return spec.Dir + "/" + strings.TrimSuffix(filepath.Base(name), ext) + "-" + hex.EncodeToString(b[:]) + ext
}

// variables are the program's environment.
func (spec *initSpec) variables() map[string]string {
	env := maps.Clone(baseEnv)
	env["HOME"], env["TMPDIR"] = spec.Dir, spec.Dir
	maps.Copy(env, spec.Env)
	if spec.Displays {
		env[displayVariable] = spec.Dir + "/" + displayDir
	}
	return env
}

func (spec *initSpec) environ() []string {
	var env []string
	for k, v := range spec.variables() {
		env = append(env, k+"="+v)
	}
	return env
}

// findProgram resolves a bare program name on the run's own PATH.
func findProgram(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, kv := range env {
		dirs, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(dirs) {
			path := filepath.Join(dir, name)
			if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s: not found in the sandbox", name)
}

// privateMounts gives the run a /proc of its own pid namespace, terminals of its own, and empty, sized /tmp and /dev/shm.
func privateMounts(tmpBytes int64) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	// What the agent has made private is so here; a workspace that is still to come comes through.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separate mounts: %w", err)
	}
	size := ""
	if tmpBytes > 0 {
		size = ",size=" + strconv.FormatInt(tmpBytes, 10)
	}
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "mode=1777,nr_inodes=65536"+size); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	mountTerminals()
	if err := unix.Mount("proc", "/proc", "proc", flags|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, name := range HiddenProc() {
		if err := hide("/proc/" + name); err != nil {
			return err
		}
	}
	// Reading settings is harmless; changing those of the sandbox's namespaces is not the code's business.
	if err := unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind /proc/sys: %w", err)
	}
	if err := unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|flags|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("make /proc/sys read-only: %w", err)
	}
	return nil
}

func hide(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil
	case fi.IsDir():
		err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=0,mode=0555")
	default:
		err = unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("hide %s: %w", path, err)
	}
	return nil
}

// rlimit is a limit on what a process of the run may use.
type rlimit struct {
	name     string
	resource int
	max      uint64
}

// fixedLimits hold for the processes of every run.
var fixedLimits = append(slices.Clone(earlyLimits), openFiles)

var earlyLimits = []rlimit{
	{"RLIMIT_CORE", unix.RLIMIT_CORE, 1}, // at 0 a crash would still start the host's crash handler, as host root
	{"RLIMIT_SIGPENDING", unix.RLIMIT_SIGPENDING, 1024},
	{"RLIMIT_MEMLOCK", unix.RLIMIT_MEMLOCK, 64 << 10},
	{"RLIMIT_MSGQUEUE", unix.RLIMIT_MSGQUEUE, 0},
}

// openFiles also bounds how many descriptors may be on their way through sockets. The kernel counts those of all sandboxes together, since
// they have one uid, and compares with the sender's limit: what one run can send must not keep another's run-init from sending its own, so
// that has this limit only later.
var openFiles = rlimit{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, 4096}

// limits are those of this run.
func (spec *initSpec) limits() []rlimit {
	limits := []rlimit{
		{"RLIMIT_FSIZE", unix.RLIMIT_FSIZE, spec.FileBytes},
		{"RLIMIT_DATA", unix.RLIMIT_DATA, spec.DataBytes},
		{"RLIMIT_NPROC", unix.RLIMIT_NPROC, spec.Processes},
	}
	return slices.DeleteFunc(limits, func(l rlimit) bool { return l.max == 0 })
}

// setLimits sets rlimits that the program inherits.
func setLimits(limits []rlimit) error {
	for _, l := range settable(limits) {
		var old syscall.Rlimit
		if err := syscall.Getrlimit(l.resource, &old); err != nil {
			return fmt.Errorf("read %s: %w", l.name, err)
		}
		v := min(l.max, old.Max)
		if err := syscall.Setrlimit(l.resource, &syscall.Rlimit{Cur: v, Max: v}); err != nil {
			return fmt.Errorf("set %s: %w", l.name, err)
		}
	}
	return nil
}

// settable leaves out those limits of whole kernels that this kernel does not let anybody set, not even to what they are. Linux
// lets everybody; gVisor has bounds of its own instead (see SECURITY.md).
func settable(limits []rlimit) []rlimit {
	return slices.DeleteFunc(slices.Clone(limits), func(l rlimit) bool {
		if l.resource != unix.RLIMIT_SIGPENDING && l.resource != unix.RLIMIT_MSGQUEUE {
			return false
		}
		var now syscall.Rlimit
		return syscall.Getrlimit(l.resource, &now) == nil && errors.Is(syscall.Setrlimit(l.resource, &now), unix.EPERM)
	})
}

// giveUpPrivileges drops every capability of the process, for the calling thread for good, and installs the
// filter on that thread.
func giveUpPrivileges() error {
	for c := 0; c <= 63; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			if errors.Is(err, unix.EINVAL) {
				break // past the kernel's last capability
			}
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	// On every thread: those of the runtime share a pid namespace with the program.
	if err := setCapabilities([2]unix.CapUserData{}); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return runFilter().install()
}
