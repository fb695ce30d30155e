package prestart

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// Landlock starts runs in the agent's own pid namespace, where the sandbox grants no capability.
// Runs that overlap see each other's processes and share /tmp, /dev/shm and System V objects, which
// the agent empties when no run is left. See docs/agent.md for how a run ends.
type Landlock struct {
	base
	version int // of Landlock; 0 if runs are not kept apart

	// mu is held while a child is made and registered, so that sweep does not take it for a stray,
	// while strays are killed, and while files are read or removed: each slow call holds a thread,
	// and the pid limit may not allow another.
	mu    sync.Mutex
	inits map[int]bool // the run-inits of runs
	kept  map[int]kept // other children: zygotes, and run-inits that wait for a run
	runs  int          // runs that have not been cleaned up
}

// kept is a child of the agent that belongs to no run.
type kept struct {
	dir     string // of a zygote
	program int    // the child that waits with a run-init; 0 for a zygote
}

var _ Launcher = (*Landlock)(nil)

// NewLandlock returns a launcher for a version of Landlock; see [confine.LandlockVersion].
func NewLandlock(settings Settings, version int) *Landlock {
	l := &Landlock{base: newBase(settings), version: version, inits: map[int]bool{}, kept: map[int]kept{}}
	l.zygotes.host = l
	return l
}

// Spec implements Launcher.
func (l *Landlock) Spec(r *wire.Run) *runinit.Spec {
	spec := l.spec(r, NewPrivateDir())
	spec.Landlock = l.version
	return spec
}

// NewPrivateDir returns a name for the private directory of a run.
func NewPrivateDir() string { return confine.RunsDir + "/" + strings.ToLower(rand.Text()) }

// makePrivate makes the private directory.
func makePrivate(dir string) error {
	reopenRuns()
	return os.Mkdir(dir, 0o700)
}

// reopenRuns restores the mode of RunsDir. Landlock cannot keep a run from changing it.
func reopenRuns() { _ = os.Chmod(confine.RunsDir, 0o700) }

// Take implements Launcher. An interpreter, or a run without a zygote, leaves the process to the
// next run.
func (l *Landlock) Take(spec *runinit.Spec) Process {
	if spec.Channel || l.readyZygote(spec) == nil {
		return nil
	}
	return l.slot.take(spec)
}

// Start implements Launcher: it has a zygote make the process, or starts a bare run-init.
func (l *Landlock) Start(spec *runinit.Spec) (Process, error) {
	if z := l.readyZygote(spec); z != nil {
		if p, err := l.fork(z, spec, requestRun); err == nil {
			return p, nil
		}
	}
	run, err := l.newRun(func(run *Run, files []*os.File) error { return l.startInit(run, files, spec.Dir) })
	if err != nil {
		return nil, fmt.Errorf("start run: %w", err)
	}
	return besideOthers{run}, nil
}

// startInit starts a run-init with its private directory.
func (l *Landlock) startInit(run *Run, files []*os.File, dir string) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := makePrivate(dir); err != nil { // under the lock: the end of another run may be emptying RunsDir
		return err
	}
	run.proc, err = os.StartProcess("/proc/self/exe", []string{"run-init", runinit.SharedPIDs},
		&os.ProcAttr{Dir: "/", Env: []string{runinit.OneProcessor}, Files: files})
	if err != nil {
		_ = os.Remove(dir)
		return err
	}
	l.registerLocked(run, dir)
	return nil
}

// registerLocked registers a run-init that has a run. From now on, reap cleans up after the run.
func (l *Landlock) registerLocked(run *Run, dir string) {
	l.inits[run.proc.Pid] = true
	l.runs++
	run.reap = func() (*os.ProcessState, error) { return l.reap(run.proc, dir) }
}

// besideOthers is a new run-init that already has its run.
type besideOthers struct{ *Run }

func (p besideOthers) HandOver(spec *runinit.Spec) (*Run, error) {
	p.send(func() any { return spec })
	return p.Run, nil
}

// Prestart implements Launcher. Where runs could signal each other, no process waits during a run.
func (l *Landlock) Prestart(r *wire.Run, _ bool) {
	if r.Zygote == nil {
		return
	}
	if !l.settings.NoZygote && l.version > 0 {
		l.zygotes.ensure(r.Zygote)
	}
	if r.Interpreter != "" || l.version < confine.LandlockSignals {
		return
	}
	spec := l.Spec(r)
	if z := l.readyZygote(spec); z != nil {
		l.slot.fill(func() (waiting, error) { return l.fork(z, spec, requestFor(r)) }, nil)
	}
}

// PrestartAhead implements Launcher. It does nothing: the running code would see the process.
func (l *Landlock) PrestartAhead(*wire.Run) {}

// readyZygote returns the zygote that can make the run's process now, or nil.
func (l *Landlock) readyZygote(spec *runinit.Spec) *zygote {
	if z := l.zygotes.suiting(spec); z != nil && z.isReady() {
		return z
	}
	return nil
}

// cloned is a run-init and its program, both made by a zygote: it clones itself as a child of the
// agent, the clone forks the program and becomes run-init by an exec. The program waits at a gate
// until run-init is unreadable. From there on the run does not depend on the zygote.
type cloned struct {
	*Run
	launcher    *Landlock
	zygote      *zygote
	tmpBytes    int64
	program     int
	programSpec *os.File
	rules       *os.File // of its Landlock domain, without the private directory
}

var _ waiting = (*cloned)(nil)

// fork has the zygote make a run-init and its program.
func (l *Landlock) fork(z *zygote, spec *runinit.Spec, request string) (waiting, error) {
	p := &cloned{launcher: l, zygote: z, tmpBytes: spec.TmpBytes}
	run, err := l.newRun(func(run *Run, files []*os.File) error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		p.programSpec = w
		run.onClose = append(run.onClose, w)
		l.mu.Lock()
		defer l.mu.Unlock()
		rules, err := confine.NewDomain(l.version)
		if err != nil {
			return err
		}
		p.rules = os.NewFile(uintptr(rules), "rules")
		run.onClose = append(run.onClose, p.rules)
		files = append(slices.Clone(files), r, p.rules)
		if spec.Channel {
			driver, program, err := runinit.DriverSocket()
			if err != nil {
				return err
			}
			defer driver.Close()
			defer program.Close()
			files = append(files, driver, program)
		}
		f, err := z.fork(request, files...)
		if err != nil {
			return err
		}
		if run.proc, err = os.FindProcess(f.pid); err != nil {
			return err
		}
		p.program = f.inner
		run.Forked, run.inherits = true, true
		l.kept[f.pid] = kept{program: f.inner}
		run.reap = func() (*os.ProcessState, error) { return l.reapUnused(run.proc) }
		return nil
	})
	if err != nil {
		return nil, err
	}
	p.Run = run
	return p, nil
}

// reapUnused reaps a run-init that got no run. Its program ends by itself.
func (l *Landlock) reapUnused(p *os.Process) (*os.ProcessState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.kept, p.Pid)
	return p.Wait()
}

func (p *cloned) isBooted() bool      { return false }
func (p *cloned) life() time.Duration { return zygoteLife }

func (p *cloned) suits(spec *runinit.Spec) bool {
	return p.tmpBytes == spec.TmpBytes && !proc.HasExited(p.proc.Pid) &&
		p.zygote == p.launcher.readyZygote(spec) && runinit.MemoryOf(p.program) > 0
}

// HandOver implements Process.
func (p *cloned) HandOver(spec *runinit.Spec) (*Run, error) {
	if err := p.register(spec.Dir); err != nil {
		go p.Discard()
		return nil, err
	}
	p.zygote.touch()
	go func() { _ = spec.WriteForFork(p.programSpec) }()
	p.send(func() any { return spec.Adopt(p.program) })
	return p.Run, nil
}

// register makes the private directory of the run and allows it to the program. It must not exist
// earlier: Landlock does not keep other runs from changing a directory's mode.
func (p *cloned) register(dir string) error {
	l := p.launcher
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := makePrivate(dir); err != nil {
		return err
	}
	if err := confine.AllowPrivate(l.version, int(p.rules.Fd()), dir); err != nil {
		_ = os.Remove(dir)
		return err
	}
	_ = p.rules.Close()
	delete(l.kept, p.proc.Pid)
	l.registerLocked(p.Run, dir)
	return nil
}

// Owns implements Launcher.
func (l *Landlock) Owns(pid int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, kept := l.kept[pid]
	return kept || l.inits[pid] || l.waitsLocked(pid)
}

// waitsLocked reports whether pid is a program that waits for its run.
func (l *Landlock) waitsLocked(pid int) bool {
	for _, k := range l.kept {
		if k.program == pid {
			return true
		}
	}
	return false
}

// startZygote implements zygoteHost. The zygote uses a private directory instead of /tmp, where
// runs could leave files for it to find.
func (l *Landlock) startZygote(z *zygote, command zygoteCommand) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	z.dir, z.answerTimeout = NewPrivateDir(), time.Second
	for name, value := range command.vars {
		if rest, ok := strings.CutPrefix(value, "/tmp"); ok && (rest == "" || rest[0] == '/') && name != runinit.DisplayVariable {
			command.vars[name] = z.dir + rest
		}
	}
	command.config["shared_pids"] = map[string]string{"filter": confine.PeerFilter().Hex(), "program": program}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := makePrivate(z.dir); err != nil {
		return err
	}
	if z.proc, err = command.start("zygote-beside-runs", nil); err != nil {
		_ = os.Remove(z.dir)
		return err
	}
	l.kept[z.proc.Pid] = kept{dir: z.dir}
	return nil
}

// ExecZygoteBesideRuns turns the process that startZygote started into the zygote.
func ExecZygoteBesideRuns(argv []string) error {
	if err := confine.ResetLibrarySignals(); err != nil {
		return err
	}
	return execZygote(argv)
}

// zygoteReady implements zygoteHost. The zygote no longer needs its files.
func (l *Landlock) zygoteReady(z *zygote) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = os.RemoveAll(z.dir)
}

// endZygote implements zygoteHost.
func (l *Landlock) endZygote(z *zygote) {
	_ = z.proc.Kill()
	proc.AwaitExit(z.proc.Pid)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.kept, z.proc.Pid)
	_, _ = z.proc.Wait()
	_ = os.RemoveAll(z.dir)
}

// reap waits for a run-init and removes the rest of its run: processes, then files.
func (l *Landlock) reap(p *os.Process, dir string) (*os.ProcessState, error) {
	// Its pid is not reused before it is reaped.
	proc.AwaitExitBlocking(p.Pid)
	l.mu.Lock()
	delete(l.inits, p.Pid)
	state, err := p.Wait()
	l.mu.Unlock()

	if !l.sweep(time.Now().Add(sweepTimeout)) {
		// Processes that cannot be killed end with process 1.
		fmt.Fprintln(os.Stderr, "sandbox-agent: processes of an ended run cannot be killed; ending the sandbox")
		os.Exit(1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	reopenRuns()
	empty(dir)
	_ = os.Remove(dir)
	if l.runs--; l.runs == 0 {
		for _, dir := range []string{"/tmp", "/dev/shm"} {
			empty(dir)
		}
		l.emptyRunsLocked()
		removeIPC()
	}
	return state, err
}

// continueKeptLocked continues the children that sweep has stopped.
func (l *Landlock) continueKeptLocked() {
	for pid, k := range l.kept {
		_ = unix.Kill(pid, unix.SIGCONT)
		if k.program != 0 {
			_ = unix.Kill(k.program, unix.SIGCONT)
		}
	}
}

// emptyRunsLocked empties RunsDir, except for the directories of zygotes.
func (l *Landlock) emptyRunsLocked() {
	if len(l.kept) == 0 {
		empty(confine.RunsDir)
		return
	}
	var ours []string
	for _, k := range l.kept {
		if k.dir != "" {
			ours = append(ours, filepath.Base(k.dir))
		}
	}
	entries, _ := os.ReadDir(confine.RunsDir)
	for _, e := range entries {
		if !slices.Contains(ours, e.Name()) {
			path := filepath.Join(confine.RunsDir, e.Name())
			empty(path)
			_ = os.Remove(path)
		}
	}
}

// LimitsHit implements Launcher. It reads the sandbox's own cgroup, version 2 or 1, if it is
// visible.
func (l *Landlock) LimitsHit() LimitsHit {
	l.mu.Lock()
	defer l.mu.Unlock()
	const top = "/sys/fs/cgroup/"
	first := func(key string, paths ...string) uint64 {
		for _, path := range paths {
			if n, ok := proc.ReadCounter(top+path, key); ok {
				return n
			}
		}
		return 0
	}
	return LimitsHit{
		OOMKills:    first("oom_kill", "memory.events", "memory/memory.oom_control"),
		PIDsRefused: first("max", "pids.events", "pids/pids.events"),
	}
}
