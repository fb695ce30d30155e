package wrapper

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/backend/agentless"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// Config configures a Backend.
type Config struct {
	// NewGroup makes a group for the processes of one run. If it is nil or returns nil, each
	// process has its own limits instead.
	NewGroup func(id string, l sandbox.Limits) (Group, error)
	// ProjectDir and ProjectMount are passed to wrappers as PROJECT_DIR and PROJECT_MOUNT, if not
	// empty.
	ProjectDir, ProjectMount string
	// ReadyTimeout bounds how long session-run may take to be ready, or to answer a ping. Zero
	// means 20 s.
	ReadyTimeout time.Duration
	// PingAfter is how long session-run may be idle before it is pinged. Zero means a minute.
	PingAfter time.Duration
	Logger    *slog.Logger // nil is silent
}

// Group limits a set of processes and can end all of them.
type Group interface {
	// Start calls fork so that the process it starts is in the group from its first instruction.
	Start(attr *syscall.SysProcAttr, fork func() error) error
	Usage() (sandbox.Usage, error)
	// Close kills the processes in the group and removes it.
	Close()
}

// Backend starts wrappers.
type Backend struct {
	cfg    Config
	log    *slog.Logger
	thread *proc.Thread // starts every wrapper: a process dies with the thread that started it
}

var _ sandbox.Backend = (*Backend)(nil)

// New returns a Backend. Close releases it.
func New(cfg Config) *Backend {
	b := &Backend{cfg: cfg, log: cfg.Logger, thread: proc.NewThread()}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if b.cfg.ReadyTimeout <= 0 {
		b.cfg.ReadyTimeout = 20 * time.Second
	}
	if b.cfg.PingAfter <= 0 {
		b.cfg.PingAfter = time.Minute
	}
	return b
}

// Close releases what New took. Every sandbox must be closed before; wrappers that are still
// running die.
func (b *Backend) Close() { b.thread.Close() }

// Start implements sandbox.Backend. It starts no process: a run does.
func (b *Backend) Start(_ context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	op := "start the environment " + spec.Runner
	if fi, err := os.Stat(spec.Wrapper); spec.Wrapper == "" || err != nil || !fi.IsDir() {
		return nil, &sandbox.Error{
			Op: op, Err: errors.New("its directory no longer exists"), Fix: "build it again and restart the server",
		}
	}
	if spec.Network {
		return nil, &sandbox.Error{
			Op: op, Err: errors.New("this environment manages the network itself"), Fix: "run without network: true",
		}
	}
	env := &environment{b: b, spec: spec, live: map[*process]struct{}{}}
	return agentless.Start(context.Background(), spec.ID, env), nil
}

// environment is the processes of one session in one wrapper.
type environment struct {
	b    *Backend
	spec sandbox.Spec

	turn        sync.Mutex // held by the cell that is running; guards interpreter
	interpreter *interpreter

	mu        sync.Mutex
	live      map[*process]struct{}
	used      sandbox.Usage // by processes that have ended
	processes sync.WaitGroup
}

// Run implements agentless.Environment.
func (e *environment) Run(_ context.Context, r *agentless.Run) (wire.Exit, error) {
	switch {
	case len(r.Env) > 0 || len(r.CellEnv) > 0:
		// They would reach a program outside any jail: LD_PRELOAD is one.
		return wire.Exit{}, &agentless.Refused{
			Err: errors.New("this environment accepts no variables from outside: set them in the code"),
		}
	case r.Interpreter != "":
		return e.cell(r)
	}
	return e.run(r)
}

// run is a fresh run: the program gets the code on its stdin.
func (e *environment) run(r *agentless.Run) (wire.Exit, error) {
	p, err := e.start(r)
	if err != nil {
		return wire.Exit{}, &agentless.Refused{Err: err}
	}
	defer r.OnStop(p.kill)()
	var pumps sync.WaitGroup
	pumps.Go(func() { _, _ = io.Copy(r.Stdout, p.stdout) })
	pumps.Go(func() { _, _ = io.Copy(r.Stderr, p.stderr) })
	_, _ = p.stdin.Write(r.Code) // returns when the process ends, at the latest
	_ = p.stdin.Close()
	<-p.done
	pumps.Wait()
	p.close()
	return p.exit(), nil
}

// start starts the run's program.
func (e *environment) start(r *agentless.Run) (*process, error) {
	p, err := e.b.start(e.spec, r.Number, r.Argv[0])
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[p] = struct{}{}
	e.processes.Go(func() {
		used := p.wait()
		e.mu.Lock()
		delete(e.live, p)
		addUsage(&e.used, used)
		e.mu.Unlock()
		close(p.done)
	})
	return p, nil
}

// Usage implements agentless.Environment.
func (e *environment) Usage() sandbox.Usage {
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := e.used
	for p := range e.live {
		addUsage(&sum, p.usage())
	}
	return sum
}

func addUsage(sum *sandbox.Usage, u sandbox.Usage) {
	sum.OOMKills += u.OOMKills
	sum.PIDsRefused += u.PIDsRefused
}

// Close implements agentless.Environment.
func (e *environment) Close() {
	if e.interpreter != nil {
		e.interpreter.shutdown()
	}
	e.processes.Wait()
}
