package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// Where runs share a pid namespace, a zygote is a process of the agent's beside them, with a directory of its own in place of
// /tmp while it imports. A run's request has the descriptors of a run-init, 0 to 5, then the pipe with the program's forkSpec, the rules of its
// Landlock domain, and for an interpreter that lives on the two ends of its channel. The zygote clones itself, as a child of the agent;
// that process forks the program, answers, and becomes run-init by an exec. From there on all is as without a zygote,
// and what becomes of the zygote is nothing to the run. The program waits at a gate until run-init cannot be read
// any more, and enters its domain. Its private directory is made when there is a run, not before: Landlock does not keep other runs from
// changing a directory's mode.
//
// Processes of one user may signal each other where Landlock does not forbid it. A zygote that is killed costs a run its head start; so
// does one that is stopped, when it has not answered in time. What it may have forked then has no spec. Where runs cannot signal each
// other, the next run's init and program are forked when a run has ended, and wait.

// Descriptors of a run-init that comes from a zygote.
const (
	gateFD   = 6
	driverFD = 7 // for cells
)

// kept is a child of the agent's that no run has.
type kept struct {
	dir     string // a zygote's
	program int    // its child that waits for a run; 0 if it is a zygote
}

// fork is what a zygote has made of itself: a run-init and a program that wait for a run.
type fork struct {
	zygote  *zygote
	program int
	spec    *os.File // for the program
	rules   *os.File // of its domain, which lack the private directory
}

func (f *fork) close() {
	_ = f.spec.Close()
	_ = f.rules.Close()
}

// answerTimeout is how long a zygote may take to fork.
const answerTimeout = time.Second

// keepApart makes a directory for a zygote and puts it in place of what it would use of /tmp, where runs could have
// put something for it to find. It returns what else it is told.
func (z *zygote) keepApart(vars map[string]string) (any, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	z.dir = privateDir()
	for name, value := range vars {
		if rest, ok := strings.CutPrefix(value, "/tmp"); ok && (rest == "" || rest[0] == '/') && name != displayVariable {
			vars[name] = z.dir + rest
		}
	}
	return map[string]string{"filter": sharedFilter().hex(), "program": program}, nil
}

func (s *shared) startZygote(z *zygote, argv []string, attr *os.ProcAttr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := makePrivate(z.dir); err != nil {
		return err
	}
	var err error
	if z.proc, err = os.StartProcess("/proc/self/exe", append([]string{"shared-zygote"}, argv...), attr); err != nil {
		_ = os.Remove(z.dir)
		return err
	}
	s.kept[z.proc.Pid] = kept{dir: z.dir}
	return nil
}

// BecomeSharedZygote sets what a zygote and all that comes from it inherit, and becomes it.
func BecomeSharedZygote(argv []string) error {
	for sig := syscall.Signal(32); sig <= 34; sig++ { // see ignoreFaults
		if err := setAction(sig, 0); err != nil {
			return err
		}
	}
	return syscall.Exec(argv[0], argv, os.Environ())
}

func (s *shared) endZygote(z *zygote) {
	_ = z.proc.Kill()
	proc.AwaitExit(z.proc.Pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, z.proc.Pid)
	_, _ = z.proc.Wait()
	_ = os.RemoveAll(z.dir)
}

// removeDir is called when the zygote has imported all, and needs no file any more.
func (s *shared) removeDir(z *zygote) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = os.RemoveAll(z.dir)
}

func (z *zygote) isReady() bool {
	select {
	case <-z.ready:
		return true
	default:
		return false
	}
}

// fork has the zygote start run-init and the program. theirs are run-init's descriptors; if it fails, nobody else may have them.
func (s *shared) fork(p *initProcess, z *zygote, theirs []*os.File, spec initSpec) (err error) {
	made := &fork{zygote: z}
	defer func() {
		if err != nil {
			made.close()
		}
	}()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	made.spec = w
	s.mu.Lock()
	defer s.mu.Unlock()
	rules, err := domain(s.landlock)
	if err != nil {
		return err
	}
	made.rules = os.NewFile(uintptr(rules), "rules")
	files := append(slices.Clone(theirs), r, made.rules)
	if spec.Channel {
		driver, program, err := driverSocket()
		if err != nil {
			return err
		}
		defer driver.Close()
		defer program.Close()
		files = append(files, driver, program)
	}
	request := requestRun
	if spec.ahead {
		request = requestAhead
	}
	f, err := z.fork(request, files...)
	if err != nil {
		return err
	}
	if p.proc, err = os.FindProcess(f.pid); err != nil {
		return err
	}
	made.program = f.inner
	p.forked, p.fork = true, made
	s.kept[f.pid] = kept{program: f.inner}
	p.reap = func() (*os.ProcessState, error) { return s.drop(p) }
	return nil
}

// drop waits for a run-init that had no run. Its program ends by itself.
func (s *shared) drop(p *initProcess) (*os.ProcessState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, p.proc.Pid)
	return p.proc.Wait()
}

// give gives a run to what was forked, with a private directory.
func (s *shared) give(p *initProcess, dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := makePrivate(dir); err != nil {
		return err
	}
	if err := allowPrivate(s.landlock, int(p.fork.rules.Fd()), dir); err != nil {
		_ = os.Remove(dir)
		return err
	}
	_ = p.fork.rules.Close()
	delete(s.kept, p.proc.Pid)
	s.begin(p, dir)
	return nil
}

// forkingZygote is the one from which a run would come with its run-init; nil if there is none.
func (a *agent) forkingZygote(spec initSpec) *zygote {
	if a.shared == nil {
		return nil
	}
	z := a.zygotes.suiting(spec)
	if z == nil || !z.isReady() {
		return nil
	}
	return z
}

// startForked hands the spec to a run-init and a program that come from the zygote.
func (a *agent) startForked(spec initSpec, z *zygote) (p *initProcess, err error) {
	if !spec.Channel {
		if p = a.spare.take(&spec); p != nil && (p.fork.zygote != z || memoryOf(p.fork.program, "VmRSS:") == 0) { // or it has ended
			go p.discard()
			p = nil
		}
	}
	if p == nil {
		if p, err = a.newInit(spec, z); err != nil {
			return nil, err
		}
	}
	if err := a.shared.give(p, spec.Dir); err != nil {
		go p.discard()
		return nil, err
	}
	z.used()
	go func() { _ = spec.tellFork(p.fork.spec) }()
	go func() { // ends when run-init has read it, or has ended
		_ = json.NewEncoder(p.spec).Encode(initSpec{
			Adopted: p.fork.program, Channel: spec.Channel, Displays: spec.Displays, Dir: spec.Dir, Shared: spec.Shared,
		})
		_ = p.spec.Close()
	}()
	return p, nil
}

// used puts off the zygote's end.
func (z *zygote) used() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if !z.gone {
		z.idle.Reset(zygoteLife)
	}
}

// goOn ends the stop of what is kept. s.mu is held.
func (s *shared) goOn() {
	for pid, k := range s.kept {
		_ = unix.Kill(pid, unix.SIGCONT)
		if k.program != 0 {
			_ = unix.Kill(k.program, unix.SIGCONT)
		}
	}
}

// emptyRuns removes what is in RunsDir and is not of what is kept. s.mu is held.
func (s *shared) emptyRuns() {
	if len(s.kept) == 0 {
		empty(RunsDir)
		return
	}
	var ours []string
	for _, k := range s.kept {
		if k.dir != "" {
			ours = append(ours, filepath.Base(k.dir))
		}
	}
	entries, _ := os.ReadDir(RunsDir)
	for _, e := range entries {
		if !slices.Contains(ours, e.Name()) {
			path := filepath.Join(RunsDir, e.Name())
			empty(path)
			_ = os.Remove(path)
		}
	}
}

// adoptShared is launch for a program that was forked by what run-init was before.
func (init *runInitProcess) adoptShared(spec *initSpec) (p *program, exit wire.Exit, err error) {
	p, exit, err = init.adopt(spec)
	if err != nil {
		return nil, exit, err
	}
	if spec.Channel {
		_ = init.driver.Close()
		init.driver = os.NewFile(driverFD, "driver")
		p.driver = init.driver
	}
	p.inherited = memoryOf(p.pid, "VmRSS:")
	gate := os.NewFile(gateFD, "gate")
	_, _ = gate.Write([]byte{1}) // if it has ended, its status says why
	_ = gate.Close()
	return p, exit, nil
}

// waitForFork is waitFor for a program that began with memory of a zygote's.
func waitForFork(pid int, inherited int64) (wire.Exit, error) {
	exit, err := waitFor(pid)
	exit.MaxRSSB = max(0, exit.MaxRSSB-inherited)
	return exit, err
}
