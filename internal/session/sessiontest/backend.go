// Package sessiontest has a backend for tests. Its sandboxes isolate nothing: a scripted agent in
// the same process speaks the real wire protocol.
package sessiontest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// SIGKILL is the exit of a program that was killed.
var SIGKILL = wire.Exit{Code: 137, Signal: 9}

// Process is a run as the scripted program sees it.
type Process struct {
	context.Context // done when the run is killed or its sandbox ends

	*wire.Run
	Spec    sandbox.Spec
	Sandbox *Sandbox

	stream *wire.Stream
}

// Stdout prints to stdout and reports whether that succeeded.
func (p *Process) Stdout(data []byte) bool { return p.print(wire.TypeStdout, data) }

// Stderr prints to stderr and reports whether that succeeded.
func (p *Process) Stderr(data []byte) bool { return p.print(wire.TypeStderr, data) }

// Display shows something and reports whether that succeeded.
func (p *Process) Display(mime string, data []byte) bool {
	return p.stream.Send(p, wire.Frame{Type: wire.TypeDisplay, MIME: mime, Data: data}) == nil
}

// DisplaySaved shows something that the code claims to have saved as a file.
func (p *Process) DisplaySaved(mime, file string, data []byte) bool {
	return p.stream.Send(p, wire.Frame{Type: wire.TypeDisplay, MIME: mime, File: file, Data: data}) == nil
}

func (p *Process) print(t wire.Type, data []byte) bool {
	return p.stream.Send(p, wire.Frame{Type: t, Data: data}) == nil
}

// Backend starts sandboxes in which every run calls Program.
type Backend struct {
	// Program is executed by every run. If it is nil, a run prints its code and exits with 0.
	Program func(*Process) wire.Exit
	// OnStart, if set, is called by Start, which returns its error.
	OnStart func(ctx context.Context, spec sandbox.Spec) error
	// IgnoreKill makes the agent ignore kill frames.
	IgnoreKill bool
	// OnClose, if set, is called while a sandbox ends, which waits for it.
	OnClose func(spec sandbox.Spec)
	// Exit is returned by Wait.
	Exit sandbox.Exit

	started atomic.Int64
	mu      sync.Mutex
	live    map[*Sandbox]struct{}
}

var (
	_ sandbox.Backend = (*Backend)(nil)
	_ sandbox.Meter   = (*Sandbox)(nil)
	_ sandbox.Weigher = (*Sandbox)(nil)
)

// Started returns how many sandboxes have been started.
func (b *Backend) Started() int { return int(b.started.Load()) }

// Live returns the sandboxes that have not been closed.
func (b *Backend) Live() []*Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	var live []*Sandbox
	for sb := range b.live {
		live = append(live, sb)
	}
	return live
}

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if b.OnStart != nil {
		if err := b.OnStart(ctx, spec); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	server, agent := net.Pipe()
	sb := &Sandbox{backend: b, spec: spec, server: server, agent: agent, gone: make(chan struct{})}
	sb.ctx, sb.cancel = context.WithCancel(context.Background())
	hello := make(chan error, 1)
	go func() { hello <- wire.WriteHello(agent, "sessiontest") }()
	_, err := wire.ReadHello(server)
	if err = errors.Join(err, <-hello); err != nil {
		return nil, err
	}
	sb.conn = wire.NewConn(agent, wire.AgentSide, sb.run)
	b.started.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live == nil {
		b.live = map[*Sandbox]struct{}{}
	}
	b.live[sb] = struct{}{}
	return sb, nil
}

// Sandbox is a sandbox of the Backend. Its fields may change while code runs.
type Sandbox struct {
	OOMKills, PIDsRefused atomic.Uint64
	PIDs, Forks           atomic.Int64 // all processes, and those that fork
	HeldBytes             atomic.Int64 // size of deleted files that are open
	Measured              atomic.Int64 // how often the server has asked for HeldBytes
	Hidden                atomic.Int64 // how many of the next answers say that there may be more
	CPU                   atomic.Int64 // nanoseconds

	weight atomic.Value // float64

	backend       *Backend
	spec          sandbox.Spec
	server, agent net.Conn
	conn          *wire.Conn
	ctx           context.Context
	cancel        context.CancelFunc
	once          sync.Once
	gone          chan struct{}

	mu     sync.Mutex
	closed bool
	runs   sync.WaitGroup
}

// Spec returns the Spec of the sandbox.
func (s *Sandbox) Spec() sandbox.Spec { return s.spec }

// Die ends the sandbox from inside, as a crash of the agent would.
func (s *Sandbox) Die() {
	_ = s.agent.Close() // first: it sends nothing more
	s.cancel()
}

// Dial opens a stream to the server, as the agent does for a process inside.
func (s *Sandbox) Dial() (*wire.Stream, error) {
	return s.conn.Open(wire.Frame{Type: wire.TypeDial})
}

// ID implements sandbox.Sandbox.
func (s *Sandbox) ID() string { return s.spec.ID }

// Conn implements sandbox.Sandbox.
func (s *Sandbox) Conn() io.ReadWriteCloser { return s.server }

// Usage implements sandbox.Meter.
func (s *Sandbox) Usage() (sandbox.Usage, error) {
	return sandbox.Usage{OOMKills: s.OOMKills.Load(), PIDs: int(s.PIDs.Load()), PIDsRefused: s.PIDsRefused.Load()}, nil
}

// Held implements sandbox.Meter. The server has to ask the agent.
func (s *Sandbox) Held() (sandbox.Held, error) { return sandbox.Held{}, errors.ErrUnsupported }

// CPUTime implements sandbox.Weigher.
func (s *Sandbox) CPUTime() (time.Duration, error) { return time.Duration(s.CPU.Load()), nil }

// Weigh implements sandbox.Weigher.
func (s *Sandbox) Weigh(share float64) error {
	s.weight.Store(share)
	return nil
}

// Forking implements sandbox.Weigher.
func (s *Sandbox) Forking() (int, error) { return int(s.Forks.Load()), nil }

// Weight returns the share of the last call of Weigh.
func (s *Sandbox) Weight() float64 {
	w, _ := s.weight.Load().(float64)
	return w
}

// Wait implements sandbox.Sandbox.
func (s *Sandbox) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.gone:
		return s.backend.Exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close implements sandbox.Sandbox.
func (s *Sandbox) Close(ctx context.Context) error {
	s.once.Do(func() {
		_ = s.server.Close() // first: it sends nothing more
		s.cancel()
		_ = s.conn.Close()
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		go s.end()
	})
	select {
	case <-s.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sandbox) end() {
	if s.backend.OnClose != nil {
		s.backend.OnClose(s.spec)
	}
	s.runs.Wait()
	s.backend.mu.Lock()
	delete(s.backend.live, s)
	s.backend.mu.Unlock()
	close(s.gone)
}

func (s *Sandbox) run(stream *wire.Stream, f wire.Frame) {
	defer stream.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.runs.Add(1)
	s.mu.Unlock()
	defer s.runs.Done()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	go func() { // ends with the stream
		for {
			f, err := stream.Recv(ctx)
			if err != nil {
				return
			}
			if f.Type == wire.TypeKill && !s.backend.IgnoreKill {
				cancel()
			}
		}
	}()
	if f.Run.Held {
		s.Measured.Add(1)
		held := &wire.Exit{HeldBytes: s.HeldBytes.Load(), HeldMore: s.Hidden.Add(-1) >= 0}
		_ = stream.Send(ctx, wire.Frame{Type: wire.TypeExit, Exit: held})
		return
	}
	p := &Process{Context: ctx, Run: f.Run, Spec: s.spec, Sandbox: s, stream: stream}
	exit := s.backend.program(p)
	_ = stream.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
}

func (b *Backend) program(p *Process) wire.Exit {
	if b.Program != nil {
		return b.Program(p)
	}
	p.Stdout(p.Code)
	return wire.Exit{}
}
