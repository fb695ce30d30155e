package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

const (
	// killGrace is how long the agent has to answer a kill before it loses its sandbox.
	killGrace = 2 * time.Second
	// cancelGrace is shorter: a cancelled run is dead within a second.
	cancelGrace = 500 * time.Millisecond
	// interruptGrace is how long an interpreter that lives on has to heed an interrupt, which keeps its
	// state, before it is killed.
	interruptGrace = 2 * time.Second
	// diskGrace is the same for one that fills the disk, or forks, and goes on to.
	diskGrace = 300 * time.Millisecond
	// turnWait is how long a run waits for those before it in the same interpreter, unless it is to keep waiting.
	turnWait = 60 * time.Second
	// goneWait is how long the result of a run whose sandbox died waits for the reason.
	goneWait = 3 * time.Second

	sigkill = 9
	sigxfsz = 25 // a file would become larger than the run's limit allows
)

// RunRequest is one execution of one piece of code.
type RunRequest struct {
	ID      string // names the run to those that wait for it; see Behind
	Code    string
	Env     map[string]string // added to the runner's own, and wins over it
	Network bool
	Timeout time.Duration // zero: none
	// Persistent runs the code in the session's interpreter for that runner and network, which lives on
	// with its variables. Such runs wait for each other.
	Persistent bool
	// Queued, if set, is called when the run has to wait for others, whenever one of them has left, and with nil when the wait is over.
	// A run that does not wait does not call it. The wait does not count towards Timeout.
	Queued func(*Behind)
	// KeepWaiting is asked after a minute of waiting, and every minute after that, whether to go on. nil says no: the run is then ErrBusy.
	KeepWaiting func() bool
	// Background, if set, reports whether nobody waits for the run: it is given up before others when another caller needs room.
	Background func() bool
	// Files is how many files of the workspace the result tells of: the newest, or, with Changes, those that are new since it was
	// the run's turn or have changed. For that to be the run's work alone, the session must be reserved, or the run persistent.
	Files   int
	Changes bool
	// Grant, if set, is called with the id of the sandbox that will run the code, before that is sent, and returns variables that the
	// code has in addition; an interpreter that lives on has them for this run alone. An error of it is Run's.
	Grant func(ctx context.Context, sandboxID string) (map[string]string, error)
	// Started, if set, is called once, when the code has been sent to its sandbox.
	Started func()
	// Display gets what the code shows beside its output, such as a plot, in parts. It may be nil;
	// otherwise it is as Output.
	Display func(Display)
	// Ended, if set, is called when the code has ended, before the interpreter's next run has its turn: files that it writes to the
	// workspace are not taken for changes of that run.
	Ended func()
	// Output gets the program's output as it is produced, in order, from one goroutine at a time.
	// It must not block and must not keep p. It is not called after Run has returned. It may be nil.
	Output func(stream Stream, p []byte)

	stops uint64 // see Session.stops
}

// Stream is one of a program's outputs.
type Stream int

// The streams. The zero Stream is none.
const (
	Stdout Stream = iota + 1
	Stderr
)

// Display is a part of something that code shows. The parts of one display follow each other.
type Display struct {
	MIME   string
	Data   []byte
	More   bool // the display goes on
	Beyond bool // it is more than a run may show: Data is left out, and what came before it is to be dropped
}

// RunResult says how a run ended.
type RunResult struct {
	// ExitCode is the program's own, 128+Signal when a signal ended it, and -1 when the server ended it
	// (timeout, cancelled, preempted, output_limit, disk_quota or pids_limit while it ran) or nobody knows (sandbox_lost).
	ExitCode int
	Signal   int // 0 when it exited by itself
	Cause    sandbox.Cause
	// Started is false when it is certain that no line of the code was executed.
	Started     bool
	UserTime    time.Duration
	SysTime     time.Duration
	MaxRSSBytes int64
	// Of a persistent run:
	Fresh     bool // the interpreter was started for it
	StateLost bool // the interpreter is gone, and its variables with it
	Forgotten bool // an earlier interpreter of the session was gone before it
	Evicted   bool // that one was ended to make room for other sessions
	Switched  bool // the run before it used the interpreter with, or without, network, which is still alive

	// OOMKilled says that a process was killed at the memory limit while the code ran, and that Cause is another: the code went on
	// without it. Runs beside it in the sandbox may have caused that.
	OOMKilled bool

	CallerBound bool // what is left of the caller's bytes, not the session's limit, was the most that a file could hold
	CallerFull  bool // with the cause disk_quota: the caller's bytes or files are used up, not the session's alone
	DiskShort   bool // with the cause disk_quota: the disk ran short, and the caller's runs were those that filled it

	// Scan has the files that were asked for, as of the end of the run. It is nil when none were, when the sandbox was lost, and when
	// the workspace could not be looked through.
	Scan *workspace.Scan

	Preemption *Preemption // with the cause preempted
	Operator   bool        // with the cause cancelled: the operator ended it
}

// Run executes code in the session's sandbox for that runner and network, which is started if need be.
// The program's failure, and that of the sandbox while the code ran, is a result; code is never executed
// twice. A done ctx, and the end of the session, end the run with the cause cancelled.
// Errors are ErrBusy, a *MaxSessionsError, an *OverloadError, ErrClosed, workspace.ErrQuota, a *DiskError, or the backend's when no sandbox could be started.
func (s *Session) Run(ctx context.Context, r runner.Runner, req RunRequest) (RunResult, error) {
	req.stops = s.stopCount()
	if !req.Persistent {
		return s.runAndEnd(ctx, r, req)
	}
	if len(r.Persistent) == 0 {
		return RunResult{}, ErrNotPersistent
	}
	done, err := s.takeTurn(ctx, interpreterKey{r.Name, req.Network}, req)
	if err != nil {
		if ctx.Err() != nil {
			return RunResult{ExitCode: -1, Cause: sandbox.CauseCancelled}, nil
		}
		return RunResult{}, err
	}
	defer done()
	res, err := s.runAndEnd(ctx, r, req)
	if err == nil {
		s.noteState(interpreterKey{r.Name, req.Network}, &res)
		res.Switched = s.noteSwitch(r, req.Network)
	}
	return res, err
}

func (s *Session) runAndEnd(ctx context.Context, r runner.Runner, req RunRequest) (RunResult, error) {
	res, err := s.run(ctx, r, req)
	if err == nil && req.Ended != nil {
		req.Ended()
	}
	return res, err
}

func (s *Session) run(ctx context.Context, r runner.Runner, req RunRequest) (RunResult, error) {
	var before *workspace.Scan
	if req.Changes {
		var err error
		if before, err = s.snapshot(ctx); err != nil {
			if ctx.Err() != nil {
				return RunResult{ExitCode: -1, Cause: sandbox.CauseCancelled}, nil
			}
			return RunResult{}, err
		}
	} else {
		s.measure(ctx)
	}
	if err := s.checkDisk(ctx, req.Persistent); err != nil {
		return RunResult{}, err
	}
	if s.limitsUsage() {
		if err := s.checkCaller(); err != nil {
			return RunResult{}, err
		}
	}
	if err := s.checkShortage(); err != nil {
		return RunResult{}, err
	}
	for retried := false; ; retried = true {
		b, err := s.m.acquire(ctx, s, r, req.Network, req.stops)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, errEnded) {
				return RunResult{ExitCode: -1, Cause: sandbox.CauseCancelled, Operator: s.stopCount() != req.stops}, nil
			}
			return RunResult{}, err
		}
		if !retried && b.conn.Err() != nil {
			// It died while idle, before this run was sent: nothing has been executed.
			s.m.retire(b)
			s.m.release(b)
			continue
		}
		defer s.m.release(b)
		defer s.noteActive(req.Background)()
		if req.Persistent {
			s.m.mu.Lock()
			if b.interpreters == nil {
				b.interpreters = map[interpreterKey]bool{}
			}
			b.interpreters[interpreterKey{r.Name, req.Network}] = true
			s.m.mu.Unlock()
		}
		defer s.claim() // once more: another server may have used the session beside this run
		return s.supervise(ctx, b, r, req, before)
	}
}

// supervised is a run that is going. The first reason to stop it is the one that the result tells.
type supervised struct {
	b         *box
	interrupt bool // ask first, kill later

	mu       sync.Mutex
	stream   *wire.Stream
	cause    sandbox.Cause
	ended    bool
	escalate *time.Timer
}

// stop ends the program for the given reason. It does not block. An agent that does not report the end in
// time loses its sandbox.
func (r *supervised) stop(cause sandbox.Cause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.cause != "" {
		return
	}
	r.cause = cause
	if r.interrupt {
		grace := interruptGrace
		if cause == sandbox.CauseDiskQuota || cause == sandbox.CausePIDsLimit {
			grace = diskGrace
		}
		r.escalate = time.AfterFunc(grace, r.kill)
		r.sendLocked(wire.TypeInterrupt)
		return
	}
	r.killLocked()
}

func (r *supervised) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.interrupt = false
		r.killLocked()
	}
}

func (r *supervised) killLocked() {
	grace := killGrace
	switch {
	case r.b.isCrowded():
		grace = 0 // an agent among hundreds that fork would be late
	case r.cause == sandbox.CauseCancelled:
		grace = cancelGrace
	}
	r.escalate = time.AfterFunc(grace, r.b.close)
	go r.b.hasten()
	r.sendLocked(wire.TypeKill)
}

func (r *supervised) sendLocked(t wire.Type) {
	if r.stream != nil {
		// The write may block on an agent that does not read; the escalation unblocks it.
		go func(s *wire.Stream) { _ = s.Send(context.Background(), wire.Frame{Type: t}) }(r.stream)
	}
}

func (r *supervised) opened(s *wire.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream = s
	switch {
	case r.cause == "":
	case r.interrupt:
		r.sendLocked(wire.TypeInterrupt)
	default:
		r.sendLocked(wire.TypeKill)
	}
}

// end closes the books: no reason to stop counts from here on.
func (r *supervised) end() sandbox.Cause {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.escalate != nil {
		r.escalate.Stop()
	}
	return r.cause
}

func (s *Session) supervise(ctx context.Context, b *box, r runner.Runner, req RunRequest, before *workspace.Scan) (RunResult, error) {
	var granted map[string]string
	if req.Grant != nil {
		var err error
		if granted, err = req.Grant(ctx, b.id); err != nil {
			if ctx.Err() != nil {
				return RunResult{ExitCode: -1, Cause: sandbox.CauseCancelled}, nil
			}
			return RunResult{}, err
		}
	}
	run := &supervised{b: b, interrupt: req.Persistent}
	counted := usageOf(b.sb)
	defer s.m.weigh(b, run)()
	defer context.AfterFunc(ctx, func() { run.stop(sandbox.CauseCancelled) })()
	if req.Timeout > 0 {
		defer time.AfterFunc(req.Timeout, func() { run.stop(sandbox.CauseTimeout) }).Stop()
	}
	limit, full := s.diskLimit()
	watch := s.watchDisk(b, limit, full, func() { run.stop(sandbox.CauseDiskQuota) })

	limits := wire.RunLimits{TmpBytes: s.m.cfg.Limits.TmpBytes, FileBytes: s.m.cfg.Limits.FileBytes}
	if full && !req.Persistent { // an interpreter keeps its limit for life, also when there is room again
		limits.FileBytes = s.fullFileLimit(req.Code)
	}
	callerBound := false
	if s.limitsUsage() && s.m.cfg.CallerBytes > 0 && !req.Persistent {
		rest := max(-s.m.excess(s.caller).Bytes, s.fullFileLimit(req.Code)) + fileSlack
		if limits.FileBytes == 0 || rest < limits.FileBytes {
			limits.FileBytes, callerBound = rest, true
		}
	}
	exit, started, err := s.execute(b, run, r, req, granted, limits)
	watch.stop()
	cause := run.end()
	if err != nil {
		return RunResult{}, err
	}
	if exit == nil {
		lost := RunResult{ExitCode: -1, Cause: s.lossCause(b, cause), Started: started, StateLost: req.Persistent}
		if lost.Cause == sandbox.CausePreempted {
			lost.Preemption = b.preempted
		}
		lost.DiskShort = lost.Cause == sandbox.CauseDiskQuota && watch.starved.Load()
		lost.Operator = lost.Cause == sandbox.CauseCancelled && s.stopCount() != req.stops
		s.settle(context.Background(), true)
		return lost, nil
	}
	res := RunResult{
		ExitCode:    exit.Code,
		Signal:      exit.Signal,
		Cause:       cause,
		Started:     exit.Error == "",
		UserTime:    time.Duration(exit.UserUS) * time.Microsecond,
		SysTime:     time.Duration(exit.SysUS) * time.Microsecond,
		MaxRSSBytes: exit.MaxRSSB,
		Fresh:       exit.Fresh,
		StateLost:   exit.Lost,
		DiskShort:   cause == sandbox.CauseDiskQuota && watch.starved.Load(),
		CallerBound: callerBound,
	}
	used := usageOf(b.sb)
	if cause != "" {
		res.ExitCode = -1
	} else if exit.Code != 0 || exit.Signal != 0 { // otherwise no limit made it fail
		res.Cause = causeOf(exit, counted, used)
	}
	res.OOMKilled = res.Cause != sandbox.CauseOutOfMemory && oomKilled(exit, counted, used)
	if limit == (workspace.Usage{}) && req.Files <= 0 && !s.limitsUsage() {
		return res, nil
	}
	found, err := s.scan(workspace.ScanOptions{Limit: limit, Files: req.Files, Since: before, Index: req.Changes})
	if err != nil {
		s.m.log.Warn("cannot look through a workspace", "session_id", s.id, "err", err)
		return res, nil
	}
	s.setUsage(found.Usage())
	if res.Cause == "" && (exceeds(found.Usage(), limit) || watch.exceedsCaller(found.Usage())) {
		res.Cause = sandbox.CauseDiskQuota
	}
	if res.Cause == sandbox.CauseDiskQuota && s.limitsUsage() {
		over := s.m.excess(s.caller)
		res.CallerFull = over.Bytes >= -fileSlack || over.Files >= 0
	}
	if req.Persistent && !res.StateLost && res.Cause == sandbox.CauseDiskQuota && watch.isHoarding() {
		res.StateLost = true
		s.m.retire(b)
		b.close()
	}
	if req.Files > 0 {
		res.Scan = found
	}
	return res, nil
}

// execute sends the run and passes its output on until its exit, which is nil when the sandbox was lost.
func (s *Session) execute(b *box, run *supervised, r runner.Runner, req RunRequest, granted map[string]string, limits wire.RunLimits) (exit *wire.Exit, started bool, err error) {
	env := make(map[string]string, len(r.Env)+len(req.Env)+len(granted))
	if !req.Persistent {
		maps.Copy(env, r.Env)
	}
	maps.Copy(env, req.Env)
	maps.Copy(env, granted)
	frame := &wire.Run{Argv: r.Argv, File: r.File, Code: []byte(req.Code), Env: env, Limits: limits, Displays: r.Displays}
	if req.Persistent {
		frame.Argv, frame.Driver, frame.Interpreter, frame.Displays = r.Persistent, r.DriverSource, r.Name, false
		frame.Env, frame.CellEnv = r.Env, env
	}
	frame.Zygote = b.tell(r.ZygoteFor(req.Code, req.Persistent))
	if r.Prestart != nil && !req.Persistent {
		frame.Prestart = &wire.Prestart{Env: r.Env, Reads: r.Prestart.Reads}
	}
	stream, err := b.conn.Open(wire.Frame{Type: wire.TypeRun, Run: frame})
	if err != nil {
		if b.conn.Err() == nil && !errors.Is(err, io.EOF) {
			return nil, false, fmt.Errorf("send the run to its sandbox: %w", err)
		}
		return nil, false, nil // the frame did not go out whole, and a part of one is not executed
	}
	run.opened(stream)
	s.Keep()
	if req.Started != nil {
		req.Started()
	}
	output := req.Output
	if output == nil {
		output = func(Stream, []byte) {}
	}
	var total int64
	var shown displays
	for {
		f, err := stream.Recv(context.Background()) // ends with the sandbox at the latest
		if err != nil {
			return nil, true, nil
		}
		switch f.Type {
		case wire.TypeStdout, wire.TypeStderr:
			p := f.Data
			if limit := s.m.cfg.OutputLimit; limit > 0 {
				if total+int64(len(p)) > limit {
					p = p[:max(limit-total, 0)]
					run.stop(sandbox.CauseOutputLimit)
				}
			}
			total += int64(len(f.Data))
			if len(p) > 0 {
				output(streamOf(f.Type), p)
			}
		case wire.TypeDisplay:
			shown.add(f, req.Display)
		case wire.TypeExit:
			if msg := f.Exit.Error; msg != "" {
				output(Stderr, []byte(msg+"\n"))
			}
			return f.Exit, true, nil
		}
	}
}

func streamOf(t wire.Type) Stream {
	if t == wire.TypeStdout {
		return Stdout
	}
	return Stderr
}

// lossCause is why a run ended whose sandbox is gone.
func (s *Session) lossCause(b *box, cause sandbox.Cause) sandbox.Cause {
	if cause != "" {
		return cause
	}
	s.m.mu.Lock()
	ended, preempted := s.ended != nil || b.stopped, b.preempted != nil
	s.m.mu.Unlock()
	if preempted {
		return sandbox.CausePreempted
	}
	if ended || s.m.ctx.Err() != nil {
		return sandbox.CauseCancelled
	}
	select {
	case <-b.gone:
		if b.exit.Cause == sandbox.CauseOutOfMemory {
			return b.exit.Cause
		}
	case <-time.After(goneWait):
	}
	return sandbox.CauseLost
}

// causeOf tells a program that ran into a limit of its sandbox from one that failed by itself.
// Overlapping runs share the sandbox's counters, so the counters alone prove nothing. They come from outside, or, where
// the backend has no way to read them there, with the exit.
func causeOf(exit *wire.Exit, before, after sandbox.Usage) sandbox.Cause {
	killed := exit.Signal == sigkill
	oom := oomKilled(exit, before, after)
	refused := after.PIDsRefused > before.PIDsRefused || exit.PIDsRefused > 0
	switch {
	case exit.Signal == sigxfsz || exit.Code == 128+sigxfsz: // also of a file that no walk sees, since it is deleted but open
		return sandbox.CauseDiskQuota
	case oom && (killed || exit.Code == 128+sigkill): // a shell passes 137 on
		return sandbox.CauseOutOfMemory
	case refused && exit.Code != 0:
		return sandbox.CausePIDsLimit
	case killed:
		return sandbox.CauseKilled
	}
	return ""
}

func oomKilled(exit *wire.Exit, before, after sandbox.Usage) bool {
	return after.OOMKills > before.OOMKills || exit.OOMKills > 0
}

func usageOf(sb sandbox.Sandbox) sandbox.Usage {
	if m, ok := sb.(sandbox.Meter); ok {
		if u, err := m.Usage(); err == nil {
			return u
		}
	}
	return sandbox.Usage{}
}
