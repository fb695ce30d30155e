package executor

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/store"
)

const (
	keptResults  = 500     // per caller
	keptDisplays = 1 << 20 // bytes of one run's displays; larger images are kept as files only

	// ResultRetention is how long a run's result is available by its id.
	ResultRetention = 24 * time.Hour

	// pollInterval is the time between two checks whether another process's run has ended.
	pollInterval = 500 * time.Millisecond

	// cancelWait bounds how long CancelRun waits. An interpreter needs time to handle an interrupt.
	cancelWait = 4 * time.Second
)

// WaitRequest says how to wait for a run.
type WaitRequest struct {
	Timeout time.Duration
	Cursor  int64                         // of the previous Result; zero for the beginning
	Output  func(stream Stream, p []byte) // see Request.Output; gets output from now on
	Queued  func(*Queue)                  // see Request.Queued; called at once for a queued run
	// Follow makes WaitRun return as soon as there is output after Cursor. It has no effect on runs
	// of other processes.
	Follow bool
}

// WaitRun waits until a run of the caller ends or the request's timeout has passed, and returns its
// Result, which may be Running. It also finds past runs and runs of other processes that share the
// store. Its errors are those of Run, and run_not_found.
func (e *Executor) WaitRun(ctx context.Context, caller session.Caller, id string, req WaitRequest) (Result, error) {
	timer := time.NewTimer(req.Timeout)
	defer timer.Stop()
	if r := e.runs.find(caller, id); r != nil {
		defer share.ScopeOf(ctx).Defer(r.memory.use())
		defer r.listen(listener{req.Output, req.Queued})()
		var printed <-chan struct{} // nil: never
		if req.Follow {
			printed = r.outputAfter(req.Cursor)
		}
		return e.answerWhen(ctx, r, req.Cursor, printed, timer.C)
	}
	// A stored result is read whole, even if only a part of it is needed.
	if !e.room(ctx, caller, answerCopies/2*int64(keptDisplays+4*e.cfg.MaxOutputBytes), memoryWait) {
		return Result{}, memoryShort("")
	}
	for {
		res, err := e.storedResult(ctx, caller, id, req.Cursor)
		if err != nil || !res.Running {
			return res, err
		}
		select {
		case <-timer.C:
			return res, nil
		case <-ctx.Done():
			return Result{}, context.Cause(ctx)
		case <-time.After(pollInterval):
		}
	}
}

// CancelRun ends a run of the caller and returns its Result, which is Running if the run has not
// ended within cancelWait. It does not change a run that has ended. Its errors are those of Run,
// run_not_found, and run_elsewhere for a run of another process.
func (e *Executor) CancelRun(ctx context.Context, caller session.Caller, id string) (Result, error) {
	r := e.runs.find(caller, id)
	if r == nil {
		res, err := e.storedResult(ctx, caller, id, 0)
		if err == nil && res.Running {
			return Result{}, refuse(CodeRunElsewhere,
				"Another server process on the same data directory has this run. Cancel it through that one, or close its session.")
		}
		return res, err
	}
	defer share.ScopeOf(ctx).Defer(r.memory.use())
	r.log.InfoContext(ctx, "cancelling a run")
	r.cancel()
	timer := time.NewTimer(cancelWait)
	defer timer.Stop()
	return e.answerWhen(ctx, r, 0, nil, timer.C)
}

// answerWhen waits for the end of a run, output or a timeout, and returns the run's Result.
func (e *Executor) answerWhen(
	ctx context.Context, r *run, cursor int64, printed <-chan struct{}, timeout <-chan time.Time,
) (Result, error) {
	select {
	case <-r.done:
		res, err := r.result(cursor)
		if err != nil {
			return Result{}, err
		}
		return e.answer(ctx, r.caller, res, r.memory.size()), nil
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	case <-printed:
	case <-timeout:
	}
	return e.answer(ctx, r.caller, r.state(cursor), r.memory.size()), nil
}

// storedRun is the stored form of a result: bounded, without code, environment and signatures.
type storedRun struct {
	Result Result
	Error  *storedError `json:",omitempty"` // of a background run that was refused
	Start  int64        `json:",omitempty"` // of the tape
	Tape   []byte       `json:",omitempty"`
	Marks  []mark       `json:",omitempty"`
}

type storedError struct {
	Code    Code // empty: the server's own failure
	Message string
}

// storeRunning stores that a background run is active, so that a crash of the server leaves a
// trace.
func (e *Executor) storeRunning(r *run) {
	row, err := e.pack(r, storedRun{Result: r.summary()})
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
		defer cancel()
		err = e.cfg.Store.BeginResult(ctx, *row)
	}
	if err != nil {
		r.log.Error("cannot store that a background run is active; a crash of the server would leave no trace of it", "error", err)
	}
}

// storeResult stores the result of a run: at once for a background run, otherwise a little later. A
// result waits in memory while the database does not answer.
func (e *Executor) storeResult(r *run, background bool) {
	if e.recorder == nil || r.req.Internal || r.err != nil && !background {
		return
	}
	var rec record
	sr := storedRun{Result: r.res}
	if r.err == nil {
		rec.run = &store.Run{
			ID: r.id, Caller: r.caller.ID, Session: r.req.Session, Runner: r.runner,
			Started: e.cfg.Store.At(r.res.Started), Duration: r.res.Duration, ExitCode: r.res.ExitCode, Cause: string(r.res.Cause),
		}
	} else {
		sr.Result, sr.Error = r.summary(), &storedError{}
		if refusal, ok := errors.AsType[*Error](r.err); ok {
			*sr.Error = storedError{refusal.Code, refusal.Message}
		}
	}
	if background {
		r.mu.Lock()
		kept := r.tape.last(2 * e.cfg.MaxOutputBytes)
		r.mu.Unlock()
		sr.Start, sr.Tape, sr.Marks = kept.start, kept.data, kept.marks
	}
	row, err := e.pack(r, sr)
	if err == nil {
		row.Ended = e.cfg.Store.Now()
		if background {
			ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
			err = e.cfg.Store.EndResult(ctx, *row, keptResults)
			cancel()
		}
		if !background || e.cfg.Store.IsDown(err) {
			rec.result, err = row, nil
		}
	}
	if err != nil {
		r.log.Error("cannot store the result of a run", "error", err)
	}
	if rec != (record{}) {
		e.recorder.add(rec)
	}
}

// pack returns the row for a run. It leaves out what is too large to store.
func (e *Executor) pack(r *run, sr storedRun) (*store.Result, error) {
	sr.Result.Files = slices.Clone(sr.Result.Files)
	for i := range sr.Result.Files {
		sr.Result.Files[i].URL = "" // storedResult signs it again
	}
	sr.Result.DisplaysDropped = sr.Result.Dropped()
	sr.Result.Displays = slices.Clone(sr.Result.Displays)
	total := 0
	for i, d := range sr.Result.Displays {
		data, plain := d.Content()
		if total += len(data) + len(plain); total > keptDisplays {
			total -= len(data) + len(plain)
			data, plain = nil, nil
		}
		sr.Result.Displays[i] = Display{MIME: d.MIME, File: d.File, Data: data, Plain: plain}
	}
	sr.Result.removeDisplays(func(i int) bool {
		d := sr.Result.Displays[i]
		return d.File == "" && len(d.Data)+len(d.Plain) == 0
	})
	data, err := json.Marshal(sr)
	if err != nil {
		return nil, err
	}
	return &store.Result{ID: r.id, Caller: r.caller.ID, Session: r.req.Session, Instance: e.cfg.Instance,
		Started: e.cfg.Store.At(r.started), Data: data}, nil
}

// storedResult returns what the store knows about a run that this process does not have.
func (e *Executor) storedResult(ctx context.Context, caller session.Caller, id string, cursor int64) (Result, error) {
	if e.cfg.Store == nil {
		return Result{}, runNotFound()
	}
	row, err := e.findRow(ctx, caller, id)
	running := false
	if err == nil && row.Running() {
		running = row.Instance != e.cfg.Instance && e.cfg.Alive != nil && e.cfg.Alive(row.Instance)
		if !running { // the instance may have stored the end since
			row, err = e.findRow(ctx, caller, id)
		}
	}
	if errors.Is(err, store.ErrNotFound) {
		return Result{}, runNotFound()
	}
	if e.cfg.Store.IsDown(err) {
		return Result{}, &Error{Code: CodeBackendUnavailable, RetryAfter: 10 * time.Second, Err: err,
			Message: "The server's database does not answer, so the result of this run cannot be read now. " +
				"The run is not affected. Try again in 10 seconds."}
	}
	if err != nil {
		return Result{}, err
	}
	var sr storedRun
	if err := json.Unmarshal(row.Data, &sr); err != nil {
		return Result{}, err
	}
	res := sr.Result
	switch {
	case running:
		res.Running, res.TimeLeft = true, res.Timeout // the time of its start is not stored
		return res, nil
	case row.Running():
		res.ExitCode, res.Cause, res.StateLost = -1, sandbox.CauseLost, res.Persistent
		res.Hint = "The end of this run is not known: the server ended, or could not store it. " +
			"Some of it may have been executed: check the files before you run it again."
		return res, nil
	case sr.Error != nil && sr.Error.Code != "":
		return Result{}, &Error{Code: sr.Error.Code, Message: sr.Error.Message}
	case sr.Error != nil:
		return Result{}, errors.New("the run failed because of a server error; see the server's log")
	}
	for i, f := range res.Files {
		res.Files[i].URL = e.url(caller, row.Session, f.Name)
	}
	e.signOutput(caller, &res)
	t := tape{start: sr.Start, data: sr.Tape, marks: sr.Marks}
	res.Recent = t.since(cursor, true)
	return res, nil
}

// findRow returns a stored result, or one that the recorder is about to store.
func (e *Executor) findRow(ctx context.Context, caller session.Caller, id string) (store.Result, error) {
	if row, ok := e.recorder.find(caller.ID, id); ok {
		return row, nil
	}
	return e.cfg.Store.GetResult(ctx, caller.ID, id)
}
