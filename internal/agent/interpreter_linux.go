package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/wire"
)

// readyTimeout is how long an interpreter may take to start. Imports are the user's own cells' business.
const readyTimeout = 20 * time.Second

// hangUpGrace is how long a run-init that has hung up may take to end.
const hangUpGrace = time.Second

// interpreter is a program that lives on between cells, in namespaces of its own. Its run-init speaks the
// wire protocol with the agent, one run stream per cell, so a cell is relayed frame by frame.
type interpreter struct {
	init *initProcess
	conn *wire.Conn
	turn sync.Mutex // one cell at a time

	lost chan struct{} // closed when nothing of it is left; then exit is valid
	exit wire.Exit
}

// runCell runs the code as the next cell of a named interpreter, which it starts if there is none.
func (a *agent) runCell(s *wire.Stream, r *wire.Run) (wire.Exit, error) {
	in, fresh, err := a.interpreter(s, r)
	if err != nil {
		return wire.Exit{Lost: true}, err
	}
	in.turn.Lock()
	defer in.turn.Unlock()
	exit := in.cell(s, r)
	exit.Fresh, exit.Forked = fresh, in.init.forked
	if exit.Lost {
		a.forget(r.Interpreter, in)
	}
	return exit, nil
}

// interpreter returns the one of that name. Two runs that need the same new one wait for one start.
func (a *agent) interpreter(s *wire.Stream, r *wire.Run) (in *interpreter, fresh bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if in = a.interpreters[r.Interpreter]; in != nil {
		select {
		case <-in.lost: // it died between cells
		default:
			return in, false, nil
		}
	}
	in, err = a.startInterpreter(s, r)
	if err != nil {
		return nil, false, err
	}
	if a.interpreters == nil {
		a.interpreters = map[string]*interpreter{}
	}
	a.interpreters[r.Interpreter] = in
	return in, true, nil
}

func (a *agent) forget(name string, in *interpreter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.interpreters[name] == in {
		delete(a.interpreters, name)
	}
}

// hasInterpreters reports whether any lives on.
func (a *agent) hasInterpreters() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.interpreters) > 0
}

func (a *agent) startInterpreter(s *wire.Stream, r *wire.Run) (*interpreter, error) {
	spec := a.spec(r)
	spec.File, spec.Code, spec.Channel = "", nil, true
	p, err := a.startInit(spec)
	if err != nil {
		return nil, err
	}
	in := &interpreter{init: p, lost: make(chan struct{})}
	// What it prints while it starts, and only then, goes to the pipes that a fresh run has.
	var said startOutput
	var pumps sync.WaitGroup
	pumps.Go(func() { said.read(p.stdout) })
	pumps.Go(func() { said.read(p.stderr) })
	go func() {
		status, err := p.wait()
		in.exit = status.Exit
		if err != nil {
			in.exit = wire.Exit{Code: 126, Error: err.Error()}
		}
		in.exit.Lost = true
		p.closePipes() // not the connection: its end comes behind the last words of the last cell
		pumps.Wait()
		close(in.lost)
	}()
	_ = p.channel.SetReadDeadline(time.Now().Add(readyTimeout))
	if _, err := wire.ReadHello(p.channel); err != nil {
		_ = p.proc.Kill()
		<-in.lost
		p.close()
		switch {
		case in.exit.Error != "":
			err = errors.New(in.exit.Error)
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = fmt.Errorf("the interpreter was not ready within %v", readyTimeout)
		default:
			err = fmt.Errorf("the interpreter ended while it started (exit code %d): %s", in.exit.Code, said.String())
		}
		return nil, err
	}
	_ = p.channel.SetReadDeadline(time.Time{})
	in.conn = wire.NewConn(p.channel, wire.ServerSide, nil)
	return in, nil
}

// cell relays one cell. When the interpreter goes, its exit is the cell's.
func (in *interpreter) cell(s *wire.Stream, r *wire.Run) wire.Exit {
	inner, err := in.conn.Open(wire.Frame{Type: wire.TypeRun, Run: &wire.Run{Code: r.Code, CellEnv: r.CellEnv}})
	if err != nil {
		return in.wait()
	}
	defer inner.Close()
	go in.obey(s, inner)
	for {
		f, err := inner.Recv(context.Background())
		if err != nil {
			return in.wait()
		}
		if f.Type == wire.TypeExit {
			return *f.Exit
		}
		if s.Send(context.Background(), f) != nil { // the server is gone, and so will we be
			return in.wait()
		}
	}
}

// wait returns how the interpreter ended. It has hung up, so it is about to end, or else must be made to.
func (in *interpreter) wait() wire.Exit {
	select {
	case <-in.lost:
	case <-time.After(hangUpGrace):
		_ = in.init.proc.Kill()
		<-in.lost
	}
	_ = in.conn.Close()
	return in.exit
}

// obey passes the server's wishes on, until the cell's stream ends.
func (in *interpreter) obey(s, inner *wire.Stream) {
	for {
		f, err := s.Recv(context.Background())
		switch {
		case err != nil:
			return
		case f.Type == wire.TypeKill:
			_ = in.init.proc.Kill()
		case f.Type == wire.TypeInterrupt:
			_ = inner.Send(context.Background(), f)
		}
	}
}

// startOutput keeps the first of what an interpreter prints outside its cells.
type startOutput struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *startOutput) read(f *os.File) {
	buf := make([]byte, 4096)
	for {
		n, err := f.Read(buf)
		o.mu.Lock()
		if o.b.Len() < 2048 {
			o.b.Write(buf[:n])
		}
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (o *startOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(o.b.String())
}
