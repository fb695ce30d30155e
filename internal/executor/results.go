package executor

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/store"
)

const (
	keptResults  = 500     // of one caller
	keptDisplays = 1 << 20 // bytes of what one run showed; images are files, too

	// ResultRetention is how long a run's result can be had by its id.
	ResultRetention = 24 * time.Hour

	// pollInterval is between two looks for the end of a run of another process.
	pollInterval = 500 * time.Millisecond
)

// storedRun is how a result is kept: bounded, without code, environment and signatures.
type storedRun struct {
	Result Result
	Error  *storedError `json:",omitempty"` // the run was refused after it had been left to go on
	Start  int64        `json:",omitempty"` // the tape's
	Tape   []byte       `json:",omitempty"`
	Marks  []mark       `json:",omitempty"`
}

type storedError struct {
	Code    Code // empty: the server's own failure
	Message string
}

// pack is what is stored of a run: of one that is going, what is known already.
func (e *Executor) pack(r *run, sr storedRun) (*store.Result, error) {
	sr.Result.Files = append([]FileLink(nil), sr.Result.Files...)
	for i := range sr.Result.Files {
		sr.Result.Files[i].URL = "" // signed anew when it is asked for
	}
	var displays []Display
	total := 0
	sr.Result.DisplaysDropped = sr.Result.Dropped()
	for _, d := range sr.Result.Displays {
		data, plain := d.Content()
		if size := len(data) + len(plain); size > 0 && total+size <= keptDisplays {
			total += size
			displays = append(displays, Display{MIME: d.MIME, File: d.File, Data: data, Plain: plain})
		} else if d.File != "" {
			displays = append(displays, Display{MIME: d.MIME, File: d.File})
		}
	}
	sr.Result.Displays = displays
	data, err := json.Marshal(sr)
	if err != nil {
		return nil, err
	}
	return &store.Result{ID: r.id, Caller: r.caller.ID, Session: r.req.Session, Instance: e.cfg.Instance, Started: r.started, Data: data}, nil
}

// noteRunning stores that a background run is going, so that its loss with the server can be told.
func (e *Executor) noteRunning(r *run) {
	state := r.state(0)
	state.Running, state.Queued, state.Recent = false, nil, Output{}
	row, err := e.pack(r, storedRun{Result: state})
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
		defer cancel()
		err = e.cfg.Store.BeginResult(ctx, *row)
	}
	if err != nil {
		e.log.Error("cannot note a background run; a crash of the server would leave no trace of it", "run_id", r.id, "err", err)
	}
}

// keepResult stores how a run ended: of a background run at once, of others some time soon.
func (e *Executor) keepResult(log *slog.Logger, r *run, background bool) {
	if e.record == nil || r.err != nil && !background {
		return
	}
	var rec record
	if r.err == nil {
		rec.run = &store.Run{
			ID: r.id, Caller: r.caller.ID, Session: r.req.Session, Runner: r.runner,
			Started: r.res.Started, Duration: r.res.Duration, ExitCode: r.res.ExitCode, Cause: string(r.res.Cause),
		}
	}
	sr := storedRun{Result: r.res}
	if r.err != nil {
		sr.Result = r.state(0)
		sr.Result.Running, sr.Result.Queued, sr.Result.Recent = false, nil, Output{}
		sr.Error = &storedError{}
		var refusal *Error
		if errors.As(r.err, &refusal) {
			*sr.Error = storedError{refusal.Code, refusal.Message}
		}
	}
	if background {
		r.mu.Lock()
		kept := r.tape.last(2 * e.cfg.MaxOutputBytes)
		sr.Start, sr.Tape, sr.Marks = kept.start, kept.data, kept.marks
		r.mu.Unlock()
	}
	row, err := e.pack(r, sr)
	if err == nil {
		row.Ended = time.Now()
		if background {
			ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
			err = e.cfg.Store.EndResult(ctx, *row, keptResults)
			cancel()
		} else {
			rec.result = row
		}
	}
	if err != nil {
		log.Error("cannot keep the result of a run", "err", err)
	}
	if rec != (record{}) {
		e.record.add(rec)
	}
}

func runNotFound() error {
	return refuse(CodeRunNotFound, "No run has this id, or its result is no longer kept. Results are kept for %d hours.", int(ResultRetention.Hours()))
}

// WaitRun waits until a run of the caller's has ended, for as long as req says, and returns its Result, which is Running when it has
// not. It works on runs of the past, and of other processes on the same store. Errors are those of Run, and run_not_found.
func (e *Executor) WaitRun(ctx context.Context, caller session.Caller, id string, req WaitRequest) (Result, error) {
	timer := time.NewTimer(req.Timeout)
	defer timer.Stop()
	if r := e.runs.find(caller, id); r != nil {
		defer share.ScopeOf(ctx).Defer(r.memory.use())
		defer r.listen(listener{req.Output, req.Queued})()
		select {
		case <-r.done:
			return e.answerOf(ctx, r, req.Cursor)
		case <-r.outputAfter(req.Cursor, req.Follow):
		case <-timer.C:
		case <-ctx.Done():
			return Result{}, context.Cause(ctx)
		}
		return e.answer(ctx, caller, r.state(req.Cursor), r.memory.size()), nil
	}
	// What is stored is read whole, whatever of it is wanted.
	if !e.room(ctx, caller, answerCopies/2*int64(keptDisplays+4*e.cfg.MaxOutputBytes), roomWait) {
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

// CancelRun ends a run of the caller's and returns its Result, which is Running in the rare case that it takes long to end. One that
// has ended already is left as it is. Errors are those of Run, run_not_found, and run_elsewhere for a run of another process.
func (e *Executor) CancelRun(ctx context.Context, caller session.Caller, id string) (Result, error) {
	r := e.runs.find(caller, id)
	if r == nil {
		res, err := e.storedResult(ctx, caller, id, 0)
		if err == nil && res.Running {
			return Result{}, refuse(CodeRunElsewhere, "This run is going in another server process on the same data directory. Cancel it through that one, or close its session.")
		}
		return res, err
	}
	defer share.ScopeOf(ctx).Defer(r.memory.use())
	e.log.InfoContext(ctx, "cancelling a run", "run_id", id)
	r.cancel()
	timer := time.NewTimer(cancelWait)
	defer timer.Stop()
	select {
	case <-r.done:
		return e.answerOf(ctx, r, 0)
	case <-timer.C:
		return e.answer(ctx, caller, r.state(0), r.memory.size()), nil
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
}

// answerOf is the result of a run that has ended, as it can be sent.
func (e *Executor) answerOf(ctx context.Context, r *run, cursor int64) (Result, error) {
	res, err := r.result(cursor)
	if err != nil {
		return res, err
	}
	return e.answer(ctx, r.caller, res, r.memory.size()), nil
}

// memoryShort refuses an answer for which there is no memory; url is where the file can be downloaded.
func memoryShort(url string) *Error {
	instead := ""
	if url != "" {
		instead = ", or use download_url instead"
	}
	return &Error{Code: CodeBusy, Message: "The server's memory for answers is in use. Try again in 10 seconds" + instead + ".", DownloadURL: url, RetryAfter: 10 * time.Second}
}

// result is how the run ended, once it has.
func (r *run) result(cursor int64) (Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.res
	res.Recent = r.tape.since(cursor, true)
	return res, r.err
}

// result is what is stored of a run, or is about to be.
func (e *Executor) result(ctx context.Context, caller session.Caller, id string) (store.Result, error) {
	if e.record != nil {
		if row, ok := e.record.find(caller.ID, id); ok {
			return row, nil
		}
	}
	return e.cfg.Store.GetResult(ctx, caller.ID, id)
}

// storedResult is what the store knows of a run that this process does not have.
func (e *Executor) storedResult(ctx context.Context, caller session.Caller, id string, cursor int64) (Result, error) {
	if e.cfg.Store == nil {
		return Result{}, runNotFound()
	}
	row, err := e.result(ctx, caller, id)
	running := false
	if err == nil && row.Running() {
		running = row.Instance != e.cfg.Instance && e.cfg.Alive != nil && e.cfg.Alive(row.Instance)
		if !running { // it may have stored the end after the first look
			row, err = e.result(ctx, caller, id)
		}
	}
	if errors.Is(err, store.ErrNotFound) {
		return Result{}, runNotFound()
	}
	if err != nil {
		return Result{}, err
	}
	var sr storedRun
	if err := json.Unmarshal(row.Data, &sr); err != nil {
		return Result{}, err
	}
	switch {
	case row.Running():
		res := sr.Result
		if running {
			res.Running, res.TimeLeft = true, res.Timeout // the time of its start is not stored
			return res, nil
		}
		// Also when it was ours: it is not going, and its end could not be stored.
		res.ExitCode, res.Cause, res.StateLost = -1, sandbox.CauseLost, res.Persistent
		res.Hint = "The server ended while the code was running, and its output is lost. Some of it may have been executed: check the files before you run it again."
		return res, nil
	case sr.Error != nil && sr.Error.Code != "":
		return Result{}, &Error{Code: sr.Error.Code, Message: sr.Error.Message}
	case sr.Error != nil:
		return Result{}, errors.New("the run failed for a reason of the server's, which its log has")
	}
	res := sr.Result
	linkID := e.linkID(caller, row.Session)
	for i, f := range res.Files {
		res.Files[i].URL = e.cfg.Signer.FileURL(linkID, f.Name)
	}
	t := tape{start: sr.Start, data: sr.Tape, marks: sr.Marks}
	res.Recent = t.since(cursor, true)
	return res, nil
}
