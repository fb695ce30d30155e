package wrapper

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// Group limits the processes of one wrapper and can end all of them.
type Group interface {
	// Start calls fork so that the process it starts is in the group from its first instruction.
	Start(attr *syscall.SysProcAttr, fork func() error) error
	Usage() (sandbox.Usage, error)
	// Close kills what is in the group and removes it.
	Close()
}

// Config of a Backend.
type Config struct {
	// NewGroup makes a group; a nil Group, as a nil NewGroup, leaves the limits that a process carries itself.
	NewGroup func(id string, l sandbox.Limits) (Group, error)
	// ProjectDir and ProjectMount are told to wrappers as PROJECT_DIR and PROJECT_MOUNT; empty: there is no project.
	ProjectDir, ProjectMount string
	// ReadyTimeout is how long session-run may take to say that it is ready, and to answer a ping. Zero: 20 s.
	ReadyTimeout time.Duration
	// PingAfter is how long session-run may have been idle before it is asked whether it is still there. Zero: a minute.
	PingAfter time.Duration
	Logger    *slog.Logger // nil is silent
}

// Backend starts wrappers.
type Backend struct {
	cfg    Config
	log    *slog.Logger
	thread *thread
}

var (
	_ sandbox.Backend = (*Backend)(nil)
	_ sandbox.Sandbox = (*wrapped)(nil)
	_ sandbox.Meter   = (*wrapped)(nil)
)

// New returns a Backend. Close releases it.
func New(cfg Config) *Backend {
	b := &Backend{cfg: cfg, log: cfg.Logger, thread: newThread()}
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

// Close releases what New took. Every sandbox must be closed before; a wrapper that is left dies now.
func (b *Backend) Close() { b.thread.close() }

// Start implements sandbox.Backend. No process is started before the first run.
func (b *Backend) Start(_ context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	op := "start the environment " + spec.Runner
	if fi, err := os.Stat(spec.Wrapper); spec.Wrapper == "" || err != nil || !fi.IsDir() {
		return nil, &sandbox.Error{Op: op, Err: errors.New("its directory is gone"), Fix: "build it anew and restart the server"}
	}
	if spec.Network {
		return nil, &sandbox.Error{Op: op, Err: errors.New("this environment decides itself about the network"), Fix: "run without network: true"}
	}
	near, far := net.Pipe()
	w := &wrapped{b: b, spec: spec, far: far, live: map[*process]struct{}{}, ended: make(chan struct{})}
	w.mu.Lock() // until conn is set
	w.conn = wire.NewConn(near, wire.AgentSide, w.serve)
	w.mu.Unlock()
	go func() {
		<-w.conn.Done()
		w.end()
	}()
	return w, nil
}

// wrapped is the processes of one session in one wrapper.
type wrapped struct {
	b    *Backend
	spec sandbox.Spec
	conn *wire.Conn // the agent's side
	far  net.Conn   // the server's

	turn  sync.Mutex // one cell at a time; guards state
	state *interpreter

	mu     sync.Mutex
	closed bool
	n      int
	live   map[*process]struct{}
	used   sandbox.Usage  // by processes that have ended
	work   sync.WaitGroup // runs, and processes

	once  sync.Once
	ended chan struct{}
}

func (w *wrapped) ID() string               { return w.spec.ID }
func (w *wrapped) Conn() io.ReadWriteCloser { return w.far }

func (w *wrapped) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-w.ended:
		return sandbox.Exit{Cause: sandbox.CauseKilled}, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (w *wrapped) Close(ctx context.Context) error {
	go w.end()
	_, err := w.Wait(ctx)
	return err
}

// end kills everything and returns when nothing is left.
func (w *wrapped) end() {
	w.once.Do(func() {
		w.mu.Lock()
		w.closed = true
		w.mu.Unlock()
		if w.turn.TryLock() { // no cell is running: it may leave in peace
			if w.state != nil {
				w.state.shutdown()
				w.state = nil
			}
			w.turn.Unlock()
		}
		w.mu.Lock()
		for p := range w.live {
			p.kill()
		}
		w.mu.Unlock()
		_ = w.conn.Close()
		_ = w.far.Close()
		w.work.Wait() // no cell runs any more
		if w.state != nil {
			w.state.drop()
		}
		close(w.ended)
	})
	<-w.ended
}

// Usage implements sandbox.Meter.
func (w *wrapped) Usage() (sandbox.Usage, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := w.used
	for p := range w.live {
		if u, err := p.usage(); err == nil {
			sum.OOMKills += u.OOMKills
			sum.PIDsRefused += u.PIDsRefused
		}
	}
	return sum, nil
}

// Held implements sandbox.Meter. A wrapper does not see the workspace.
func (w *wrapped) Held() (sandbox.Held, error) { return sandbox.Held{}, nil }

// begin counts a run, unless the end has begun.
func (w *wrapped) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.work.Add(1)
	}
	return !w.closed
}

// start starts a program of the wrapper.
func (w *wrapped) start(path string) (*process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, wire.ErrClosed
	}
	w.n++
	p, err := w.b.start(w.spec.ID+"-"+strconv.Itoa(w.n), w.spec.Limits, path)
	if err != nil {
		return nil, err
	}
	w.live[p] = struct{}{}
	w.work.Go(func() {
		used := p.wait()
		w.mu.Lock()
		delete(w.live, p)
		w.used.OOMKills += used.OOMKills
		w.used.PIDsRefused += used.PIDsRefused
		w.mu.Unlock()
		close(p.done)
	})
	return p, nil
}

// serve is one run.
func (w *wrapped) serve(s *wire.Stream, f wire.Frame) {
	defer s.Close()
	if !w.begin() {
		return
	}
	defer w.work.Done()
	exit := wire.Exit{Code: 126, Error: "this environment takes no variables from outside: set them in the code"}
	// A variable would reach a program outside any jail: LD_PRELOAD is one.
	if len(f.Run.Env) == 0 && len(f.Run.CellEnv) == 0 {
		if f.Run.Interpreter == "" {
			exit = w.run(s, f.Run)
		} else {
			exit = w.cell(s, f.Run)
		}
	}
	_ = s.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
}

// run is a fresh run: the program gets the code on its stdin.
func (w *wrapped) run(s *wire.Stream, r *wire.Run) wire.Exit {
	p, err := w.start(r.Argv[0])
	if err != nil {
		return wire.Exit{Code: 126, Error: err.Error()}
	}
	go obey(s, p)
	var pumps sync.WaitGroup
	pumps.Go(func() { pump(s, wire.TypeStdout, p.stdout) })
	pumps.Go(func() { pump(s, wire.TypeStderr, p.stderr) })
	_, _ = p.stdin.Write(r.Code) // ends with the process at the latest
	_ = p.stdin.Close()
	<-p.done
	pumps.Wait()
	p.close()
	return p.exit()
}

// obey ends the process when the server asks. A wrapper cannot be interrupted: nobody knows what its jail makes of a signal.
func obey(s *wire.Stream, p *process) {
	for {
		f, err := s.Recv(context.Background())
		if err != nil {
			return
		}
		if f.Type == wire.TypeKill || f.Type == wire.TypeInterrupt {
			p.kill()
		}
	}
}

func pump(s *wire.Stream, t wire.Type, r io.Reader) {
	buf := make([]byte, wire.MaxData)
	for {
		n, err := r.Read(buf)
		if n > 0 && s.Send(context.Background(), wire.Frame{Type: t, Data: buf[:n]}) != nil || err != nil {
			return
		}
	}
}
