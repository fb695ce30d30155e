package executor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/workspace"
)

const (
	maxListed = 200 // files in a run's result

	// backgroundStartWait bounds Run's wait for a background run to begin or to be refused. It is
	// shorter than any client's timeout and longer than the start of a sandbox.
	backgroundStartWait = time.Second

	followedOutput = 1 << 20 // bytes of output kept of a followed run while it is in memory

	// clockSlack is how much older a file may seem than the moment it was written: file systems
	// round down to the kernel's tick.
	clockSlack = 20 * time.Millisecond
)

// errStopped is the cancellation cause of runs when the server shuts down.
var errStopped = errors.New("the server is shutting down")

// Run executes code. It returns when no process of the run is left, or, for a background run, with
// a Result that is Running. A program or sandbox that fails is a Result; a refusal or a sandbox
// that cannot start is an *Error. A done ctx cancels a run that is not in the background.
func (e *Executor) Run(ctx context.Context, caller session.Caller, req Request) (Result, error) {
	rn, err := e.check(ctx, caller, &req)
	if err != nil {
		return Result{}, err
	}
	// The run keeps the caller's values but not its cancellation, which await passes on.
	runCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r := e.newRun(caller, rn, req, cancel)
	if err := e.runs.add(r, e.cfg.Sessions.MaxRunsPerSession()); err != nil {
		r.cancel()
		return Result{}, e.wrap(err)
	}
	defer r.listen(listener{req.Output, req.Queued})()
	defer share.ScopeOf(ctx).Defer(r.memory.use())
	e.noteStarted(r)
	go e.carryOut(runCtx, r, rn, req)
	res, err := e.await(ctx, r, req)
	if err != nil {
		return Result{}, err
	}
	return e.answer(ctx, caller, res, r.memory.size()), nil
}

func (e *Executor) newRun(caller session.Caller, rn runner.Runner, req Request, cancel context.CancelCauseFunc) *run {
	now := time.Now()
	id := e.ids.next(now)
	r := &run{
		id: id, caller: caller, req: req, runner: rn.Name, started: now,
		log:    e.log.With("session_id", req.Session, "run_id", id),
		cancel: func() { cancel(nil) }, stop: func() { cancel(errStopped) },
		begun: make(chan struct{}), done: make(chan struct{}),
		listeners: map[*listener]struct{}{}, background: req.Background,
	}
	r.markBegun = sync.OnceFunc(func() { close(r.begun) })
	r.memory.pool, r.memory.caller = e.memory, caller.ID
	// Free these now: the rest of the run may stay in memory after its end.
	r.req.Code, r.req.Env, r.req.Services, r.req.Hosts, r.req.Packages = "", nil, nil, nil, nil
	r.req.Observer, r.req.Begun, r.req.Queued, r.req.Output = nil, nil, nil, nil
	if req.Background || req.Handover > 0 {
		full := e.cfg.MaxOutputBytes
		if req.Followed {
			full = max(full, followedOutput)
		}
		r.tape.allowance = newAllowance(full, r.memory.hold(r.shrinkTape))
	}
	return r
}

// await returns when the run has ended or continues in the background.
func (e *Executor) await(ctx context.Context, r *run, req Request) (Result, error) {
	if req.Begun != nil {
		req.Begun(r.id)
	}
	if req.Background {
		timer := time.NewTimer(backgroundStartWait)
		defer timer.Stop()
		select {
		case <-r.done:
			return r.res, r.err
		case <-r.begun:
		case <-timer.C:
		}
		e.storeRunning(r)
		return r.state(0), nil
	}
	defer context.AfterFunc(ctx, func() {
		if !r.inBackground() {
			r.cancel()
		}
	})()
	var handover <-chan time.Time // nil: never
	if req.Handover > 0 && e.cfg.Store != nil {
		timer := time.NewTimer(req.Handover)
		defer timer.Stop()
		handover = timer.C
	}
	select {
	case <-r.done:
		return r.res, r.err
	case <-handover:
	}
	if ctx.Err() == nil && e.runs.detach(r, e.cfg.Sessions.MaxRunsPerSession()) {
		r.log.InfoContext(ctx, "run continues in the background")
		e.storeRunning(r)
		return r.state(0), nil
	}
	<-r.done
	return r.res, r.err
}

// carryOut executes a run, stores its result and notifies everyone who waits for it.
func (e *Executor) carryOut(ctx context.Context, r *run, rn runner.Runner, req Request) {
	defer r.cancel()
	done := r.memory.use()
	r.res, r.err = e.executeRecovering(ctx, r, rn, req)
	if req.Once {
		// As with any closed session, only the files remain.
		err := e.closeSession(context.WithoutCancel(ctx), r.caller, req.Session)
		if err != nil && r.err == nil && !r.res.NotStarted {
			r.log.WarnContext(ctx, "cannot close the session of a single run", "error", err)
		}
	}
	e.storeResult(r, r.end())
	e.runs.remove(r)
	e.noteEnded(r)
	done()
	close(r.done)
}

// executeRecovering is execute with a recover: a panic fails one run, not the server.
func (e *Executor) executeRecovering(ctx context.Context, r *run, rn runner.Runner, req Request) (res Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.ErrorContext(ctx, "a run panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = errors.New("the run panicked")
		}
	}()
	return e.execute(ctx, r, rn, req)
}

// execute opens the session, runs the code in it, and collects its output and files.
func (e *Executor) execute(ctx context.Context, r *run, rn runner.Runner, req Request) (Result, error) {
	res := r.summary()
	req.Observer.Started(r.id, rn)
	s, err := e.cfg.Sessions.Open(r.caller, req.Session)
	if err != nil {
		return Result{}, e.failed(ctx, r, res, err)
	}
	defer s.Release()
	changed := false
	defer func() { e.noteUsed(r.caller, s.ID(), changed) }()
	req.Observer.Opened(s.Key())
	if req.Artifacts && !req.Persistent { // persistent runs queue instead
		release, err := s.Reserve()
		if err != nil {
			return Result{}, e.failed(ctx, r, res, err)
		}
		defer release()
	}

	output := newCapture(r, e.cfg.MaxOutputBytes, e.newSpool(r, s))
	defer output.spool.discard() // unless it is finished
	release := sync.OnceValue(func() released { return e.release(r, req, output) })
	defer release() // even after a panic
	packages := e.packagesOf(s, rn)
	var failed unsaved
	ended, err := s.Run(ctx, rn, session.RunRequest{
		ID: r.id, Code: req.Code, Env: req.Env, Network: req.Network, Timeout: req.Timeout,
		Persistent: req.Persistent, Restart: req.Restart,
		Files: maxListed, Changes: req.Artifacts, KeepWaiting: r.inBackground, Background: r.inBackground,
		Queued: func(b *session.Behind) {
			if b == nil {
				res.Started = time.Now()
				r.setQueue(nil)
				return
			}
			p := place{Behind: *b}
			if other := e.runs.find(r.caller, b.RunID); other != nil {
				p.tool = other.req.Tool
			}
			r.setQueue(&p)
		},
		Grant:   e.grant(r, rn, req, output.hide),
		Prepare: packages.prepare(r, req),
		Hosts:   req.Hosts,
		Started: r.begin,
		Output:  output.write,
		Display: output.displays.add,
		Ended:   func() { failed = e.saveImages(ctx, r, s, output.displays.list) },
	})
	end := release()
	output.flush()
	if err != nil {
		return Result{}, e.failed(ctx, r, res, err)
	}
	res.Spooled = output.spool.finish(ctx, r)

	if r.queue() == nil { // otherwise it was cancelled before its turn
		res.Duration = time.Since(res.Started)
	}
	res.setEnd(ended)
	res.Network, res.Blocked = req.Network, end.blocked
	if res.Cause == sandbox.CauseCancelled && errors.Is(context.Cause(ctx), errStopped) {
		res.Cause, res.Stopped, res.StateLost = sandbox.CauseLost, true, req.Persistent
	}
	r.memory.fix(func() { e.runs.forget(r) }, output.stdout.hold, output.stderr.hold)
	output.fill(&res)
	e.signOutput(r.caller, &res)
	res.diskFull = !res.Success() && s.DiskIsFull()
	if ended.CallerBound {
		res.callerBytes = e.Storage(r.caller).MaxBytes
	}
	packages.note(ctx, r, &res, ended.Fresh)
	res.Hint = strings.TrimSpace(e.hint(res, rn, req, end.packages) + " " + e.imagesHint(failed))
	req.Observer.Ended(res)
	e.cfg.Metrics.ran(r.caller, rn.Name, outcome(res), res.Duration, res.stdoutTotal+res.stderrTotal)

	files, total, truncated := e.filesOf(ctx, r, s, ended.Scan)
	changed = ended.Scan == nil ||
		len(files) > 0 && (req.Artifacts || !files[0].ModTime.Before(res.Started.Add(-clockSlack)))
	if req.Artifacts && !req.FailedArtifacts && res.ExitCode != 0 {
		return res, nil
	}
	res.Files, res.FilesTotal, res.FilesTruncated = e.links(r.caller, res.Session, files), total, truncated
	req.Observer.Listed(res)
	return res, nil
}

// filesOf returns the files for a run's result, and how many there are, at least. If the sandbox
// was lost, scan is nil, and the run's changes are unknown.
func (e *Executor) filesOf(
	ctx context.Context, r *run, s *session.Session, scan *workspace.Scan,
) (files []workspace.File, total int, truncated bool) {
	if scan == nil && r.req.Artifacts {
		return nil, 0, true
	}
	if scan == nil {
		var err error
		if scan, err = s.Workspace().Scan(ctx, workspace.ScanOptions{Files: maxListed}); err != nil {
			// The code has run: keep its output.
			r.log.ErrorContext(ctx, "cannot list the files of a session", "error", err)
			return nil, 0, true
		}
	}
	files, truncated = scan.Files()
	return files, scan.Total(), truncated
}

// failed counts a run that could not start, logs why, and returns the error for the caller. It does
// not log a foreground run that a full server refuses: the tools do.
func (e *Executor) failed(ctx context.Context, r *run, res Result, err error) error {
	wrapped := e.wrap(err)
	outcome := "error"
	if e.cfg.Metrics.refused(r.caller, wrapped) {
		outcome = "refused"
	}
	e.cfg.Metrics.ran(r.caller, r.runner, outcome, time.Since(res.Started), 0)
	if r.inBackground() || !errors.Is(err, session.ErrMaxSessions) {
		r.log.WarnContext(ctx, "execution failed", "error", err)
	}
	return wrapped
}

func outcome(res Result) string {
	switch {
	case res.Success():
		return "success"
	case res.Cause != "":
		return string(res.Cause)
	}
	return "failure"
}
