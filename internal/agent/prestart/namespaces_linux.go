package prestart

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// Namespaces starts each run in its own pid, mount and IPC namespaces. It needs capabilities in the
// sandbox's user namespace. A run ends when its run-init does.
type Namespaces struct {
	base
	empty *os.File // a mount namespace in which runs hide their mounts; nil if they do not
	life  time.Duration
}

var _ Launcher = (*Namespaces)(nil)

// NewNamespaces returns a launcher. empty may be nil; see [confine.EmptyNamespace].
func NewNamespaces(settings Settings, empty *os.File) *Namespaces {
	n := &Namespaces{base: newBase(settings), empty: empty, life: bareLife}
	n.exiting = make(chan struct{}, 1)
	n.zygotes.host = n
	return n
}

// AdoptZygote adds a zygote that comes from outside the sandbox and speaks on conn. soon says that
// it has imported its libraries, so that a run may wait for it to arrive. With onRequest it arrives
// after the first byte on conn.
func (n *Namespaces) AdoptZygote(w *wire.Zygote, conn *os.File, soon, onRequest bool) {
	z := &zygote{env: startEnvOf(w), conn: conn, soon: soon, reportsExits: true}
	z.onRequest.Store(onRequest)
	n.zygotes.add(w.Name, z)
}

// PrestartFirst prestarts the process of the first run, before the sandbox has its workspace, with
// its program if first is not nil. The process waits as long as the sandbox does.
func (n *Namespaces) PrestartFirst(tmpBytes int64, zygote string, first *wire.Run) {
	n.life = 365 * 24 * time.Hour
	go n.slot.fill(func() (waiting, error) {
		p, err := n.prestart(tmpBytes, zygote, requestPrestart)
		if err == nil {
			p.(*isolated).first = true
		}
		return p, err
	}, bootFor(first))
}

// Spec implements Launcher.
func (n *Namespaces) Spec(r *wire.Run) *runinit.Spec { return n.spec(r, "/tmp") }

// Take implements Launcher.
func (n *Namespaces) Take(spec *runinit.Spec) Process { return n.slot.take(spec) }

// LimitsHit implements Launcher. The backend sees the limits itself.
func (n *Namespaces) LimitsHit() LimitsHit { return LimitsHit{} }

// Owns implements Launcher. Run-inits and their programs are not distinguished.
func (n *Namespaces) Owns(int) bool { return false }

// Start implements Launcher: it starts a bare run-init, which is process 1 of new namespaces.
func (n *Namespaces) Start(spec *runinit.Spec) (Process, error) {
	p, err := n.start(spec.TmpBytes)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (n *Namespaces) start(tmpBytes int64) (*isolated, error) {
	run, err := n.newRun(func(run *Run, files []*os.File) (err error) {
		argv := []string{"run-init", strconv.FormatInt(tmpBytes, 10)}
		if n.empty != nil {
			if run.procDir, err = confine.NewProcDir(); err != nil {
				return err
			}
			argv, files = append(argv, run.procDir), append(files, n.empty)
		}
		run.proc, err = os.StartProcess("/proc/self/exe", argv, &os.ProcAttr{
			Dir: "/", Env: []string{runinit.OneProcessor}, Files: files,
			Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC},
		})
		if err == nil {
			run.reap = run.proc.Wait
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start run: %w", err)
	}
	return &isolated{Run: run, zygotes: &n.zygotes, tmpBytes: tmpBytes, bareLife: n.life}, nil
}

// Prestart implements Launcher.
func (n *Namespaces) Prestart(r *wire.Run, quiet bool) {
	if r.Zygote != nil {
		if !n.settings.NoZygote {
			n.zygotes.ensure(r.Zygote)
		}
		if quiet {
			n.zygotes.grow(r.Zygote.Name, r.Code)
		}
	}
	if r.Interpreter == "" {
		n.fill(r, bootFor(r))
	}
}

// PrestartAhead implements Launcher. A program that is booted after the run takes most of a start's
// time, so there is nothing to gain. A zygote that grows after the run must not have a fork.
func (n *Namespaces) PrestartAhead(r *wire.Run) {
	if r.Prestart == nil && (r.Zygote == nil || n.zygotes.isComplete(r.Zygote.Name, r.Code)) {
		n.fill(r, nil)
	}
}

func (n *Namespaces) fill(r *wire.Run, boot func(waiting) bool) {
	zygote := ""
	if r.Zygote != nil {
		zygote = r.Zygote.Name
	}
	n.slot.fill(func() (waiting, error) { return n.prestart(r.Limits.TmpBytes, zygote, requestFor(r)) }, boot)
}

// prestart starts a run-init and makes the zygote, if any, fork a program into it.
func (n *Namespaces) prestart(tmpBytes int64, zygote, request string) (waiting, error) {
	p, err := n.start(tmpBytes)
	if err != nil {
		return nil, err
	}
	if z := n.zygotes.best(zygote); z != nil {
		p.fork = newWaitingFork(z, p.Channel, request)
	}
	return p, nil
}

// startZygote implements zygoteHost. The zygote shares the agent's namespaces, except for its
// mounts.
func (n *Namespaces) startZygote(z *zygote, command zygoteCommand) (err error) {
	z.reportsExits = true
	z.proc, err = command.start("zygote", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS})
	return err
}

// zygoteReady implements zygoteHost.
func (n *Namespaces) zygoteReady(*zygote) {}

// endZygote implements zygoteHost.
func (n *Namespaces) endZygote(z *zygote) {
	if z.proc != nil {
		_ = z.proc.Kill()
		proc.AwaitExit(z.proc.Pid)
		_, _ = z.proc.Wait()
	}
}

// ExecZygote turns the process that startZygote started into the zygote. While they are imported,
// libraries need a private /tmp.
func ExecZygote(argv []string) error {
	if err := confine.SeparateMounts(); err != nil {
		return err
	}
	if err := confine.MountZygoteTmp(); err != nil {
		return err
	}
	return execZygote(argv)
}

// isolated is a run-init in its own namespaces. It has made its mounts, has dropped its privileges
// and has seen nothing of any run.
type isolated struct {
	*Run
	zygotes  *zygotes
	tmpBytes int64
	bareLife time.Duration
	fork     *waitingFork // nil if no fork was requested
	booted   *bootedProgram
	first    bool // the sandbox has had no run
}

var _ waiting = (*isolated)(nil)

func (p *isolated) isBooted() bool { return p.booted != nil }

func (p *isolated) life() time.Duration {
	switch {
	case p.booted != nil && !p.first:
		return bootedLife
	case p.fork != nil && p.fork.zygote.lone: // a fork keeps the zygote's memory
		return zygoteLife
	}
	return p.bareLife
}

func (p *isolated) suits(spec *runinit.Spec) bool {
	return p.tmpBytes == spec.TmpBytes && (p.booted == nil || p.booted.suits(spec)) && !proc.HasExited(p.proc.Pid)
}

// Discard implements Process.
func (p *isolated) Discard() {
	p.fork.drop()
	p.Run.Discard()
}

// HandOver implements Process. The program is the fork that waits, the booted program, a new fork
// of the zygote, or one that run-init starts.
func (p *isolated) HandOver(spec *runinit.Spec) (*Run, error) {
	if p.booted != nil {
		p.dropOutput()
	}
	place := p.fork.stop()
	if place == nil && (spec.Channel || spec.Displays || spec.Zygote != nil) { // it comes first on the channel
		var err error
		if place, err = runinit.ReceivePlace(p.Channel); err != nil {
			_ = p.spec.Close() // if run-init lives, it ends
			return p.Run, nil  // its status says why
		}
	}
	if place != nil {
		p.tree, place.Tree = place.Tree, nil
		defer place.Close()
	}
	program, ok := p.fork.handOver(spec, p.zygotes.suiting(spec))
	if !ok && place != nil {
		program, ok = p.zygotes.fork(spec, place)
	}
	if !ok {
		p.send(func() any { return spec })
		return p.Run, nil
	}
	p.Forked = true
	p.send(func() any { return spec.Adopt(program.inner) }, func() any { return <-program.exit })
	return p.Run, nil
}
