package agent

import (
	"context"
	"sync"
	"time"

	"mcp-code-sandbox/internal/agent/prestart"
	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/wire"
)

// run serves one run stream. It sends the exit when nothing of the run is left, then prepares for
// the next.
func (a *agent) run(s *wire.Stream, f wire.Frame) {
	defer s.Close()
	if f.Run.Held {
		sendExit(s, a.heldFiles())
		return
	}
	exit, release := a.execute(s, f.Run)
	sendExit(s, exit)
	release()
	a.launcher.Prestart(f.Run, !a.hasInterpreters())
}

func sendExit(s *wire.Stream, exit wire.Exit) {
	_ = s.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
}

// execute runs a program or a cell to its end. The caller sends the exit, then calls release.
func (a *agent) execute(s *wire.Stream, r *wire.Run) (exit wire.Exit, release func()) {
	defer a.threads.reserve()()
	defer a.forward.Begin(r.Hosts)()
	before := a.launcher.LimitsHit()
	end := a.launcher.BeginRun(r.Interpreter != "")
	var err error
	if r.Interpreter == "" {
		exit, release, err = a.runProgram(s, r)
	} else {
		exit, err = a.runCell(s, r)
		release = func() {}
	}
	end()
	if err != nil {
		exit = wire.Exit{Code: 126, Error: err.Error()}
	}
	after := a.launcher.LimitsHit()
	exit.OOMKills, exit.PIDsRefused = after.OOMKills-before.OOMKills, after.PIDsRefused-before.PIDsRefused
	return exit, release
}

// runProgram runs code in a new process. See execute for release.
func (a *agent) runProgram(s *wire.Stream, r *wire.Run) (exit wire.Exit, release func(), err error) {
	run, err := a.start(a.launcher.Spec(r))
	if err != nil {
		return wire.Exit{}, func() {}, err
	}
	if r.Ahead {
		go a.launcher.PrestartAhead(r)
	}
	go runinit.ForwardSignals(s, run.Kill, run.Interrupt)

	out := runinit.NewOutput(s, run.Stdout, run.Stderr)
	var pumps sync.WaitGroup
	if r.Displays {
		pumps.Go(func() { run.Show(out.Show) })
	}
	pumps.Go(out.Pump)

	status, err := run.Wait()
	now := time.Now()
	_ = run.Stdout.SetReadDeadline(now)
	_ = run.Stderr.SetReadDeadline(now)
	_ = run.Channel.SetReadDeadline(now)
	pumps.Wait()
	if run.Exiting {
		return status.Exit, run.Close, err
	}
	run.Close()
	return status.Exit, func() {}, err
}

// start hands a run to the prestarted process, or to a new one.
func (a *agent) start(spec *runinit.Spec) (*prestart.Run, error) {
	if p := a.launcher.Take(spec); p != nil {
		if run, err := p.HandOver(spec); err == nil {
			return run, nil
		}
	}
	p, err := a.launcher.Start(spec)
	if err != nil {
		return nil, err
	}
	return p.HandOver(spec)
}
