package runinit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// program is the run's program.
type program struct {
	pid    int
	wait   func() (wire.Exit, error)
	driver *os.File // nil unless it is an interpreter
	dir    *os.Root // private to the run
	dying  bool     // it was killed and is the last process of the run; wait has not reaped it
}

// launch starts the program. Without a program, the exit or the error says why.
func (init *process) launch(spec *Spec) (*program, wire.Exit, error) {
	return init.launchConfined(spec, func() error { return nil })
}

// launchInLandlock is launch where runs share a pid namespace. The program starts from a thread
// that enters the Landlock domain and then ends: code could signal a thread that stayed in it, and
// with it run-init.
func (init *process) launchInLandlock(spec *Spec) (p *program, exit wire.Exit, err error) {
	// Orphans of the program become children of run-init.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, wire.Exit{}, fmt.Errorf("become a subreaper: %w", err)
	}
	if err := confine.ResetLibrarySignals(); err != nil {
		return nil, wire.Exit{}, err
	}
	if err := confine.SetLimits(confine.FixedLimits...); err != nil {
		return nil, wire.Exit{}, err
	}
	proc.OnNewThread(func() {
		p, exit, err = init.launchConfined(spec, func() error { return confine.EnterLandlock(spec.Landlock, spec.Dir) })
	})
	return p, exit, err
}

// launchConfined starts the program from the calling thread, on which it calls enter first.
func (init *process) launchConfined(spec *Spec, enter func() error) (*program, wire.Exit, error) {
	argv, files, err := spec.argv()
	if err != nil {
		return nil, wire.Exit{}, err
	}
	for _, f := range files {
		if err := f.write(); err != nil {
			return nil, wire.Exit{}, err
		}
	}
	if err := confine.SetLimits(spec.limits()...); err != nil {
		return nil, wire.Exit{}, err
	}
	p := &program{}
	if p.dir, err = os.OpenRoot(spec.Dir); err != nil {
		return nil, wire.Exit{}, err
	}
	if err := enter(); err != nil {
		return nil, wire.Exit{}, err
	}
	fds := []uintptr{0, 1, 2}
	if spec.Channel {
		p.driver, fds = init.driver, append(fds, init.theirs.Fd())
	}
	var exit wire.Exit
	if p.pid, exit = init.exec(argv, spec.variables(), fds); p.pid == 0 {
		return nil, exit, nil
	}
	p.wait = func() (wire.Exit, error) { return awaitChild(p.pid) }
	return p, wire.Exit{}, nil
}

// exec starts a process. If it returns no pid, the exit says why.
func (init *process) exec(argv []string, vars map[string]string, fds []uintptr) (int, wire.Exit) {
	path, err := FindProgram(argv[0], vars, sandbox.WorkspaceDir)
	if err != nil {
		return 0, wire.Exit{Code: 127, Error: err.Error()}
	}
	// When memory runs out, the kernel kills the program first, never run-init or the agent.
	own := make([]byte, 16)
	n, _ := init.oom.ReadAt(own, 0)
	_, _ = init.oom.WriteAt([]byte("1000"), 0)
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Dir:   sandbox.WorkspaceDir,
		Env:   Environ(vars),
		Files: fds,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	_, _ = init.oom.WriteAt(bytes.TrimSpace(own[:n]), 0)
	if err != nil {
		return 0, wire.Exit{Code: 126, Error: fmt.Sprintf("start %s: %v", path, err)}
	}
	return pid, wire.Exit{}
}

// adopt takes over a program that a zygote forked into run-init's namespaces. It is the zygote's
// child, so the agent reports its exit; the kernel reaps its orphans.
func (init *process) adopt(spec *Spec) (*program, wire.Exit, error) {
	if err := confine.IgnoreChildren(); err != nil {
		return nil, wire.Exit{}, err
	}
	return init.takeOver(spec)
}

func (init *process) takeOver(spec *Spec) (*program, wire.Exit, error) {
	dir, err := os.OpenRoot(spec.Dir)
	if err != nil {
		return nil, wire.Exit{}, err
	}
	p := &program{pid: spec.Adopted, dir: dir}
	if spec.Channel {
		p.driver = init.driver
	}
	p.wait = func() (wire.Exit, error) {
		var exit wire.Exit
		if err := init.specs.Decode(&exit); err != nil {
			return wire.Exit{}, fmt.Errorf("read the program's exit status: %w", err)
		}
		return exit, nil
	}
	return p, wire.Exit{}, nil
}

// adoptSibling takes over a program where runs share a pid namespace. A zygote cloned itself,
// forked the program and became this run-init, so the program is a child. It waits at the gate.
func (init *process) adoptSibling(spec *Spec) (*program, wire.Exit, error) {
	p, exit, err := init.takeOver(spec)
	if err != nil {
		return nil, exit, err
	}
	if spec.Channel {
		_ = init.driver.Close()
		init.driver = os.NewFile(driverFD, "driver")
		p.driver = init.driver
	}
	inherited := MemoryOf(p.pid)
	p.wait = func() (wire.Exit, error) {
		exit, err := awaitChild(p.pid)
		exit.MaxRSSB = max(0, exit.MaxRSSB-inherited)
		return exit, err
	}
	gate := os.NewFile(gateFD, "gate")
	_, _ = gate.Write([]byte{1}) // if the program has ended, its status says why
	_ = gate.Close()
	return p, exit, nil
}

// What the agent sends to the run-init of a program that is no interpreter, a byte each.
const (
	Interrupt = 'i' // interrupt the program
	Shown     = 's' // the last display was sent
)

// obey does what the agent asks for.
func (p *program) obey(agent io.Reader, shown *displayPipe) {
	defer shown.hangUp()
	word := make([]byte, 1)
	for {
		if n, err := agent.Read(word); n == 0 || err != nil {
			return
		}
		switch word[0] {
		case Interrupt:
			_ = syscall.Kill(-p.pid, syscall.SIGINT)
		case Shown:
			shown.acknowledge()
		}
	}
}

// waitThreads is how many threads run-init needs while it waits for a child: one waits, one listens
// to the agent, and the Go runtime wants another whenever the first one waits again.
const waitThreads = 3

// awaitChild reaps every child until the program itself has ended. The program has just started, so
// it cannot have filled the pid limit yet.
func awaitChild(pid int) (wire.Exit, error) {
	proc.ReserveThreads(waitThreads)
	ws, ru, err := awaitStatus(pid, 0)
	if err != nil {
		return wire.Exit{}, err
	}
	exit := ExitOf(ws)
	exit.MaxRSSB = ru.Maxrss << 10
	return exit, nil
}

// awaitStatus reaps every child until the program itself has ended or, with WUNTRACED, stopped.
func awaitStatus(pid, options int) (ws syscall.WaitStatus, ru syscall.Rusage, err error) {
	for {
		p, err := syscall.Wait4(-1, &ws, options, &ru)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || p == pid:
			return ws, ru, err
		}
	}
}

// ExitOf converts a wait status.
func ExitOf(ws syscall.WaitStatus) wire.Exit {
	if ws.Signaled() {
		return wire.Exit{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return wire.Exit{Code: ws.ExitStatus()}
}
