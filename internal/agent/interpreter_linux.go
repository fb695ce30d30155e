package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/agent/prestart"
	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/wire"
)

// readyTimeout is how long an interpreter may take to start.
const readyTimeout = 20 * time.Second

// hangUpGrace is how long run-init may take to end after it has hung up.
const hangUpGrace = time.Second

// interpreter is a program that stays alive between cells. Its run-init speaks the wire protocol
// with the agent, with one run stream per cell, so the agent relays a cell frame by frame.
type interpreter struct {
	run  *prestart.Run
	conn *wire.Conn
	turn sync.Mutex // one cell at a time

	lost chan struct{} // closed when no process of it is left; guards exit
	exit wire.Exit
}

// runCell runs the code as the next cell of a named interpreter. It starts the interpreter if
// necessary.
func (a *agent) runCell(s *wire.Stream, r *wire.Run) (wire.Exit, error) {
	in, fresh, err := a.interpreter(s, r)
	if err != nil {
		return wire.Exit{Lost: true}, err
	}
	in.turn.Lock()
	defer in.turn.Unlock()
	exit := in.cell(s, r)
	exit.Fresh, exit.Forked = fresh, in.run.Forked
	if exit.Lost {
		a.forget(r.Interpreter, in)
	}
	return exit, nil
}

// interpreter returns the interpreter that a run names. Two runs that need the same new one share
// its start.
func (a *agent) interpreter(s *wire.Stream, r *wire.Run) (in *interpreter, fresh bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if in = a.interpreters[r.Interpreter]; in != nil {
		if r.Restart {
			in.run.Kill()
			<-in.lost
			_ = in.conn.Close()
		}
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

// hasInterpreters reports whether an interpreter is alive.
func (a *agent) hasInterpreters() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.interpreters) > 0
}

func (a *agent) startInterpreter(s *wire.Stream, r *wire.Run) (*interpreter, error) {
	spec := a.launcher.Spec(r)
	spec.File, spec.Code, spec.Channel = "", nil, true
	run, err := a.start(spec)
	if err != nil {
		return nil, err
	}
	in := &interpreter{run: run, lost: make(chan struct{})}
	release := a.threads.reserve()
	// Only its output before the first cell goes to these pipes.
	var output startOutput
	var pumps sync.WaitGroup
	pumps.Go(func() { _, _ = io.Copy(&output, run.Stdout) })
	pumps.Go(func() { _, _ = io.Copy(&output, run.Stderr) })
	go func() {
		status, err := run.Wait()
		in.exit = status.Exit
		if err != nil {
			in.exit = wire.Exit{Code: 126, Error: err.Error()}
		}
		in.exit.Lost = true
		run.CloseAllButChannel() // the last frames of the last cell come before its end
		pumps.Wait()
		release()
		close(in.lost)
	}()
	_ = run.Channel.SetReadDeadline(time.Now().Add(readyTimeout))
	if _, err := wire.ReadHello(run.Channel); err != nil {
		run.Kill()
		<-in.lost
		run.Close()
		switch {
		case in.exit.Error != "":
			err = errors.New(in.exit.Error)
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = fmt.Errorf("the interpreter was not ready within %v", readyTimeout)
		default:
			err = fmt.Errorf("the interpreter ended while it started (exit code %d): %s", in.exit.Code, output.String())
		}
		return nil, err
	}
	_ = run.Channel.SetReadDeadline(time.Time{})
	in.conn = wire.NewConn(run.Channel, wire.ServerSide, nil)
	return in, nil
}

// cell relays one cell. If the interpreter ends, its exit is the cell's.
func (in *interpreter) cell(s *wire.Stream, r *wire.Run) wire.Exit {
	inner, err := in.conn.Open(wire.Frame{Type: wire.TypeRun, Run: &wire.Run{Code: r.Code, CellEnv: r.CellEnv}})
	if err != nil {
		return in.wait()
	}
	defer inner.Close()
	go runinit.ForwardSignals(s, in.run.Kill, func() {
		_ = inner.Send(context.Background(), wire.Frame{Type: wire.TypeInterrupt})
	})
	for {
		f, err := inner.Recv(context.Background())
		if err != nil {
			return in.wait()
		}
		if f.Type == wire.TypeExit {
			return *f.Exit
		}
		if s.Send(context.Background(), f) != nil { // the server has hung up, so the agent is about to end
			return in.wait()
		}
	}
}

// wait returns how the interpreter ended. It has hung up: if it does not end soon, wait kills it.
func (in *interpreter) wait() wire.Exit {
	select {
	case <-in.lost:
	case <-time.After(hangUpGrace):
		in.run.Kill()
		<-in.lost
	}
	_ = in.conn.Close()
	return in.exit
}

// startOutput keeps the start of an interpreter's output outside cells.
type startOutput struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *startOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.Write(p[:min(len(p), max(0, 6<<10-o.b.Len()))])
	return len(p), nil
}

func (o *startOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.TrimSpace(o.b.String())
}
