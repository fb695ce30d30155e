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
	// killGrace is how long the agent may take to answer a kill before the server ends the sandbox.
	killGrace = 2 * time.Second
	// cancelGrace replaces killGrace for a cancelled run, which must be dead within a second.
	cancelGrace = 500 * time.Millisecond
	// crowdedGrace replaces killGrace for an agent among hundreds of processes that fork. It is
	// enough to pass on what the code has printed, unless the machine is busy.
	crowdedGrace = 300 * time.Millisecond
	// interruptGrace is how long an interpreter may take to obey an interrupt, which keeps its
	// state, before the server kills it.
	interruptGrace = 2 * time.Second
	// diskGrace replaces interruptGrace for code that fills the disk or reaches the process limit.
	diskGrace = 300 * time.Millisecond
	// goneWait bounds the wait for the reason of a sandbox's death.
	goneWait = 3 * time.Second

	// maxDisplayBytes and maxDisplays bound the displays of a run. The server drops the rest.
	maxDisplayBytes = 16 << 20
	maxDisplays     = 64

	sigkill = 9
	sigxfsz = 25 // a write would exceed the run's limit of a file's size
)

// supervised is a run in progress. Only the first reason to stop it counts.
type supervised struct {
	sb        *sessionSandbox
	interrupt bool // send an interrupt before a kill

	mu       sync.Mutex
	stream   *wire.Stream
	cause    sandbox.Cause
	ended    bool
	escalate *time.Timer
}

// stop ends the program for the given reason. It does not block. If the agent does not report the
// end in time, the sandbox is closed.
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
	case r.sb.weight.IsCrowded():
		grace = crowdedGrace
	case r.cause == sandbox.CauseCancelled:
		grace = cancelGrace
	}
	r.escalate = time.AfterFunc(grace, r.sb.close)
	go r.sb.weight.Restore()
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

// end returns the reason for which the run was stopped, if any. Later reasons do not count.
func (r *supervised) end() sandbox.Cause {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.escalate != nil {
		r.escalate.Stop()
	}
	return r.cause
}

// supervise executes the run on its sandbox, stops it at its limits, and returns its result.
func (s *Session) supervise(
	ctx context.Context, sb *sessionSandbox, r runner.Runner, req RunRequest, before *workspace.Scan,
) (RunResult, error) {
	var granted map[string]string
	if req.Grant != nil {
		var err error
		if granted, err = req.Grant(ctx, sb.id); err != nil {
			return notStarted(ctx, err)
		}
	}
	run := &supervised{sb: sb, interrupt: req.Persistent}
	counted := sb.usage()
	defer sb.weight.Begin(counted, func() { run.stop(sandbox.CausePIDsLimit) })()
	defer context.AfterFunc(ctx, func() { run.stop(sandbox.CauseCancelled) })()
	if req.Timeout > 0 {
		defer time.AfterFunc(req.Timeout, func() { run.stop(sandbox.CauseTimeout) }).Stop()
	}
	watch := s.watchDisk(func() { run.stop(sandbox.CauseDiskQuota) })
	limits, callerBound := s.runLimits(req, watch.full)
	exit, started, err := s.execute(run, r, req, granted, limits)
	watch.stop()
	cause := run.end()
	if err != nil {
		return RunResult{}, err
	}
	if exit == nil {
		res := RunResult{ExitCode: -1, Cause: s.lossCause(sb, cause), Started: started, StateLost: req.Persistent}
		if res.Cause == sandbox.CausePreempted {
			res.Preemption = sb.preempted
		}
		res.DiskShort = res.Cause == sandbox.CauseDiskQuota && watch.starved.Load()
		res.Operator = res.Cause == sandbox.CauseCancelled && s.stopCount() != req.stops
		s.settle(context.Background(), true)
		return res, nil
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
	used := sb.usage()
	if cause != "" {
		res.ExitCode = -1
	} else if exit.Code != 0 || exit.Signal != 0 { // otherwise no limit made it fail
		res.Cause = causeOf(exit, counted, used)
	}
	res.OOMKilled = res.Cause != sandbox.CauseOutOfMemory && oomKilled(exit, counted, used)
	s.scanAfter(&res, sb, req, before, watch)
	return res, nil
}

// scanAfter lists the files that the request asks for, and checks whether the run has exceeded the
// limits of its workspace.
func (s *Session) scanAfter(
	res *RunResult, sb *sessionSandbox, req RunRequest, before *workspace.Scan, watch *diskWatch,
) {
	if req.Files <= 0 && !s.isMeasured() {
		return
	}
	found, err := s.scan(workspace.ScanOptions{
		Limit: watch.limit, Files: req.Files, Since: before, Index: req.Changes,
	})
	if err != nil {
		s.m.log.Warn("cannot scan a workspace", "session_id", s.id, "error", err)
		return
	}
	use := found.Usage()
	s.setUsage(use)
	if res.Cause == "" && (use.Exceeds(watch.limit) || watch.exceedsCaller(use)) {
		res.Cause = sandbox.CauseDiskQuota
	}
	if res.Cause == sandbox.CauseDiskQuota {
		res.Unmeasured = use.Unmeasured
	}
	if res.Cause == sandbox.CauseDiskQuota && s.limitsUsage() {
		over := s.m.excess(s.caller)
		res.CallerFull = over.Bytes >= -fileSlack || over.Files >= 0
	}
	if req.Persistent && !res.StateLost && res.Cause == sandbox.CauseDiskQuota && watch.isHoarding() {
		res.StateLost = true
		s.m.retire(sb)
		sb.close()
	}
	if req.Files > 0 {
		res.Scan = found
	}
}

// execute sends the run and passes its output on until it ends. exit is nil if the sandbox was
// lost.
func (s *Session) execute(
	run *supervised, r runner.Runner, req RunRequest, granted map[string]string, limits wire.RunLimits,
) (exit *wire.Exit, started bool, err error) {
	conn := run.sb.conn
	stream, err := conn.Open(wire.Frame{Type: wire.TypeRun, Run: run.sb.frame(r, req, granted, limits)})
	if err != nil {
		if conn.Err() == nil && !errors.Is(err, io.EOF) {
			return nil, false, fmt.Errorf("send the run to its sandbox: %w", err)
		}
		return nil, false, nil // the agent does not execute an incomplete frame
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
			if limit := s.m.cfg.OutputLimit; limit > 0 && total+int64(len(p)) > limit {
				p = p[:max(limit-total, 0)]
				run.stop(sandbox.CauseOutputLimit)
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

// lasting are granted variables that a live interpreter gets when it starts, not for each cell: its
// code may change them for later cells, as virtual environments do.
var lasting = []string{"PATH", "NODE_PATH"}

// frame returns the message that sends the run to its agent.
func (sb *sessionSandbox) frame(
	r runner.Runner, req RunRequest, granted map[string]string, limits wire.RunLimits,
) *wire.Run {
	env := make(map[string]string, len(r.Env)+len(req.Env)+len(granted))
	if !req.Persistent {
		maps.Copy(env, r.Env)
	}
	maps.Copy(env, req.Env)
	maps.Copy(env, granted)
	frame := &wire.Run{Code: []byte(req.Code), File: r.File, Limits: limits, Ahead: sb.s.m.hasIdleProcessor(), Hosts: req.Hosts}
	if req.Cold == nil {
		frame.Zygote = sb.zygote(r.ZygoteFor(req.Code, req.Persistent))
	} else {
		maps.Copy(env, req.Cold)
	}
	if req.Persistent {
		start := make(map[string]string, len(r.Env)+len(req.Cold)+len(lasting))
		maps.Copy(start, r.Env)
		maps.Copy(start, req.Cold)
		for _, name := range lasting {
			if value, ok := granted[name]; ok {
				start[name] = value
				delete(env, name)
			}
		}
		frame.Argv, frame.Driver, frame.Interpreter, frame.Restart = r.Persistent, r.DriverSource, r.Name, req.Restart
		frame.Env, frame.CellEnv = start, env
		return frame
	}
	frame.Argv, frame.Env, frame.Displays = r.Argv, env, r.Displays
	if r.Prestart != nil {
		frame.Prestart = &wire.Prestart{Env: r.Env, Reads: r.Prestart.Reads, Helper: r.Prestart.Helper}
	}
	return frame
}

// zygote returns z for the agent: complete the first time, later only its name.
func (sb *sessionSandbox) zygote(z *sandbox.Zygote) *wire.Zygote {
	if z == nil {
		return nil
	}
	sb.s.m.mu.Lock()
	defer sb.s.m.mu.Unlock()
	if sb.zygotes[z.Name] {
		return &wire.Zygote{Name: z.Name}
	}
	sb.zygotes[z.Name] = true
	w := wire.Zygote(*z)
	return &w
}

// displays counts the displays of a run.
type displays struct {
	bytes  int // including dropped ones
	count  int // complete ones
	beyond bool
	clears int
}

func (d *displays) add(f wire.Frame, show func(Display)) {
	if f.MIME == wire.ClearMIME && !f.More && d.clears < wire.MaxClears {
		*d = displays{clears: d.clears + 1}
		if show != nil {
			show(Display{Clear: true})
		}
		return
	}
	d.bytes = min(d.bytes, maxDisplayBytes) + len(f.Data)
	d.beyond = d.beyond || d.bytes > maxDisplayBytes || d.count >= maxDisplays
	part := Display{MIME: f.MIME, File: f.File, Data: f.Data, More: f.More, Beyond: d.beyond}
	if d.beyond {
		part.Data = nil
	}
	if !f.More {
		d.count++
	}
	if show != nil {
		show(part)
	}
}

// lossCause returns why a run ended with its sandbox.
func (s *Session) lossCause(sb *sessionSandbox, cause sandbox.Cause) sandbox.Cause {
	if cause != "" {
		return cause
	}
	s.m.mu.Lock()
	ended, preempted := s.ended != nil || sb.stopped, sb.preempted != nil
	s.m.mu.Unlock()
	if preempted {
		return sandbox.CausePreempted
	}
	if ended || s.m.ctx.Err() != nil {
		return sandbox.CauseCancelled
	}
	select {
	case <-sb.gone:
		if sb.exit.Cause == sandbox.CauseOutOfMemory {
			return sb.exit.Cause
		}
	case <-time.After(goneWait):
	}
	return sandbox.CauseLost
}

// causeOf returns the sandbox limit that made a program fail, if any. Overlapping runs share the
// counters, so the counters alone prove nothing. If the backend cannot read them, the agent sends
// them with the exit.
func causeOf(exit *wire.Exit, before, after sandbox.Usage) sandbox.Cause {
	killed := exit.Signal == sigkill
	refused := after.PIDsRefused > before.PIDsRefused || exit.PIDsRefused > 0
	switch {
	case exit.Signal == sigxfsz || exit.Code == 128+sigxfsz: // also for a deleted file, which no walk finds
		return sandbox.CauseDiskQuota
	case oomKilled(exit, before, after) && (killed || exit.Code == 128+sigkill): // a shell returns 137
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
