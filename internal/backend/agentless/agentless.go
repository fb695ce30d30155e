// Package agentless runs code in environments without an agent, such as plain images and wrappers,
// which take code on their standard input. It speaks the agent's side of the wire protocol for
// them, over a pipe within the server, so sessions cannot tell the difference.
//
// The package knows no engine and no process: an [Environment] starts and ends the programs.
package agentless

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// Environment executes runs. Its methods are safe for concurrent use.
type Environment interface {
	// Run executes one run and returns how it ended. When ctx is done, the sandbox ends and Run
	// must return soon. A *Refused error says that no code was executed. After any other error,
	// code may have been executed, and the sandbox is lost.
	Run(ctx context.Context, r *Run) (wire.Exit, error)
	// Usage returns the totals of all runs.
	Usage() sandbox.Usage
	// Close ends what stays alive between runs. It is called once, after the last Run has returned.
	Close()
}

// Refused is the error of a run that executed no code.
type Refused struct{ Err error }

func (r *Refused) Error() string { return r.Err.Error() }
func (r *Refused) Unwrap() error { return r.Err }

// Run is one run of code.
type Run struct {
	*wire.Run
	Number         int       // 1 for the sandbox's first run
	Stdout, Stderr io.Writer // fail when the server no longer listens

	sandbox *Sandbox
	stop    context.Context
}

// OnStop calls kill when the server wants the run to end, or the sandbox ends, unless release is
// called before. An interrupt also kills, since the program's reaction to another signal is
// unknown.
func (r *Run) OnStop(kill func()) (release func() bool) { return context.AfterFunc(r.stop, kill) }

// Background calls f in a goroutine, which may outlive the run. The sandbox does not end before f
// returns.
func (r *Run) Background(f func()) { r.sandbox.work.Go(f) }

// Sandbox is a session's place in an environment without an agent.
type Sandbox struct {
	id   string
	env  Environment
	conn *wire.Conn // the agent's side
	far  net.Conn   // the server's side

	ctx    context.Context // done when the sandbox ends
	cancel context.CancelFunc

	mu   sync.Mutex
	n    int
	exit sandbox.Exit
	work sync.WaitGroup // runs, and what they left in the background

	once  sync.Once
	ended chan struct{}
}

var (
	_ sandbox.Sandbox = (*Sandbox)(nil)
	_ sandbox.Meter   = (*Sandbox)(nil)
)

// Start returns a sandbox in env. Its runs end when ctx is done. It starts no program: a run does.
func Start(ctx context.Context, id string, env Environment) *Sandbox {
	near, far := net.Pipe()
	s := &Sandbox{id: id, env: env, far: far, ended: make(chan struct{}), exit: sandbox.Exit{Cause: sandbox.CauseKilled}}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.conn = wire.NewConn(near, wire.AgentSide, s.serve)
	go func() {
		<-s.conn.Done()
		s.end()
	}()
	return s
}

// ID implements sandbox.Sandbox.
func (s *Sandbox) ID() string { return s.id }

// Conn implements sandbox.Sandbox.
func (s *Sandbox) Conn() io.ReadWriteCloser { return s.far }

// Wait implements sandbox.Sandbox.
func (s *Sandbox) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.ended:
		return s.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close implements sandbox.Sandbox.
func (s *Sandbox) Close(ctx context.Context) error {
	go s.end()
	_, err := s.Wait(ctx)
	return err
}

// Usage implements sandbox.Meter.
func (s *Sandbox) Usage() (sandbox.Usage, error) { return s.env.Usage(), nil }

// Held implements sandbox.Meter. The server cannot see the files that these programs hold open.
func (s *Sandbox) Held() (sandbox.Held, error) { return sandbox.Held{}, nil }

// serve executes one run.
func (s *Sandbox) serve(stream *wire.Stream, f wire.Frame) {
	defer stream.Close()
	s.mu.Lock()
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return
	}
	s.n++
	number := s.n
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()

	stop, cancel := context.WithCancel(s.ctx)
	go awaitStop(stream, cancel)
	exit, err := s.env.Run(s.ctx, &Run{
		Run: f.Run, Number: number, Stdout: output{stream, wire.TypeStdout}, Stderr: output{stream, wire.TypeStderr},
		sandbox: s, stop: stop,
	})
	if refused := (*Refused)(nil); errors.As(err, &refused) {
		exit, err = wire.Exit{Code: 126, Error: refused.Error()}, nil
	}
	if err != nil {
		s.lose(err)
		return
	}
	_ = stream.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
}

// lose ends the sandbox because of a failed run, unless it is ending already.
func (s *Sandbox) lose(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.exit = sandbox.Exit{Cause: sandbox.CauseLost, Detail: err.Error()}
		go s.end()
	}
}

// awaitStop calls stop when the server asks for the run's end or the stream is closed.
func awaitStop(stream *wire.Stream, stop context.CancelFunc) {
	defer stop()
	for {
		f, err := stream.Recv(context.Background())
		if err != nil {
			return
		}
		if f.Type == wire.TypeKill || f.Type == wire.TypeInterrupt {
			return
		}
	}
}

// end ends every run and returns when nothing is left.
func (s *Sandbox) end() {
	s.once.Do(func() {
		s.mu.Lock() // no run begins after this
		s.cancel()
		s.mu.Unlock()
		_ = s.conn.Close()
		_ = s.far.Close()
		s.work.Wait()
		s.env.Close()
		close(s.ended)
	})
	<-s.ended
}

// output writes to one of a run's streams.
type output struct {
	stream *wire.Stream
	typ    wire.Type
}

func (o output) Write(p []byte) (int, error) {
	if err := o.stream.Send(context.Background(), wire.Frame{Type: o.typ, Data: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}
