package session

import (
	"context"
	"errors"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/workspace"
)

// RunRequest is one execution of one piece of code. Its functions may be nil.
type RunRequest struct {
	ID      string // identifies the run to runs that wait for it; see Behind
	Code    string
	Env     map[string]string // added to the runner's variables, which it overrides
	Network bool
	Timeout time.Duration // zero means no limit
	// Persistent runs the code in the session's interpreter for the runner and network setting,
	// which keeps its variables. Such runs wait for each other.
	Persistent bool
	// Restart ends that interpreter first, and its runs.
	Restart bool
	// Queued is called when the run has to wait for others, whenever one of them has left, and with
	// nil when the wait is over. The wait does not count towards Timeout.
	Queued func(*Behind)
	// KeepWaiting is called every minute of the wait. Unless it returns true, the run is ErrBusy.
	KeepWaiting func() bool
	// Background reports whether nobody waits for the run. Such a run is preempted before others.
	Background func() bool
	// Files is how many files the result lists: the newest, or with Changes those that the run made
	// or changed. To list its own changes only, reserve the session or make the run persistent.
	Files   int
	Changes bool
	// Grant is called before the code is sent, with the id of its sandbox, and returns variables
	// for this run only, even in an interpreter. Its error is returned by Run.
	Grant func(ctx context.Context, sandboxID string) (map[string]string, error)
	// Prepare is called when it is the run's turn, before anything else. It may change the request.
	// A result ends the run: its code is not sent.
	Prepare func(ctx context.Context, req *RunRequest) (*RunResult, error)
	// HasInterpreter tells Prepare that the run will use an interpreter that lives already.
	HasInterpreter bool
	// Cold, if not nil, are variables with which the interpreter must start: no zygote forks it. A
	// live interpreter keeps them.
	Cold map[string]string
	// Hosts are rules for the names that code can connect to during the run; see wire.Run.
	Hosts []string
	// Started is called once the code has been sent to its sandbox.
	Started func()
	// Display gets, in parts, what the code shows in addition to its output, such as a plot. See
	// Output.
	Display func(Display)
	// Ended is called when the code has ended, before the next run of the interpreter. Files that
	// it writes to the workspace do not count as changes of that run.
	Ended func()
	// Output gets the program's output as it is produced, in order, from one goroutine at a time.
	// It must not block and must not keep p. It is not called after Run has returned.
	Output func(stream Stream, p []byte)

	stops uint64 // Session.stops when the run was requested
}

// Stream is one of a program's outputs.
type Stream int

// The streams. The zero Stream is invalid.
const (
	Stdout Stream = iota + 1
	Stderr
)

// Display is a part of something that code shows. The parts of one display follow each other.
type Display struct {
	MIME   string
	File   string // where the code says that it saved this in the workspace
	Clear  bool   // nothing is shown; what was printed and shown before is withdrawn
	Data   []byte
	More   bool // another part follows
	Beyond bool // over the limit of a run: Data is empty, and drop its earlier parts
}

// RunResult says how a run ended.
type RunResult struct {
	// ExitCode is the program's exit code, or 128+Signal if a signal ended it. It is -1 if the
	// server ended the program or the sandbox was lost.
	ExitCode int
	Signal   int // zero if the program exited by itself
	Cause    sandbox.Cause
	// Started is false only if no line of the code was executed.
	Started     bool
	UserTime    time.Duration
	SysTime     time.Duration
	MaxRSSBytes int64
	// OOMKilled reports that the kernel killed a process of the sandbox at the memory limit, but
	// the run did not end for that reason. An overlapping run may have used the memory.
	OOMKilled bool

	// Set for a persistent run only:
	Fresh     bool // the interpreter was started for it
	StateLost bool // the interpreter is gone, and its variables with it
	Forgotten bool // an earlier interpreter of the session was already gone
	Evicted   bool // the server ended that interpreter to make room for other sessions
	Switched  bool // the run before it used the other interpreter, with or without network

	// Set with the cause disk_quota only, except for CallerBound:
	CallerBound bool   // the file size limit was what remained of the caller's quota
	CallerFull  bool   // the caller's limit is reached, not only the session's
	DiskShort   bool   // the disk was nearly full, and this caller's usage had grown the most
	Unmeasured  string // why the files cannot be measured, and what to do; empty if they can

	Scan       *workspace.Scan // the requested files after the run; nil if they could not be read
	Preemption *Preemption     // set with the cause preempted
	Operator   bool            // with the cause cancelled: the operator ended it
}

// notStarted returns the outcome of a run that failed with err before its code was sent.
func notStarted(ctx context.Context, err error) (RunResult, error) {
	if ctx.Err() != nil || errors.Is(err, errEnded) {
		return RunResult{ExitCode: -1, Cause: sandbox.CauseCancelled}, nil
	}
	return RunResult{}, err
}

// Run executes code once, in the session's sandbox for that runner and network. A failure of the
// program or sandbox, or the end of ctx or the session, is a result. Errors are ErrBusy, ErrClosed,
// ErrNotPersistent, ErrMaxSessions, *OverloadError, ErrQuota, *DiskError and the backend's.
func (s *Session) Run(ctx context.Context, r runner.Runner, req RunRequest) (RunResult, error) {
	req.stops = s.stopCount()
	key := interpreterKey{r.Name, req.Network}
	if req.Persistent {
		if len(r.Persistent) == 0 {
			return RunResult{}, ErrNotPersistent
		}
		var end context.CancelCauseFunc
		ctx, end = context.WithCancelCause(ctx)
		defer end(nil)
		done, err := s.takeTurn(ctx, end, key, req)
		if err != nil {
			return notStarted(ctx, err)
		}
		defer done()
	}
	if req.Prepare != nil {
		req.HasInterpreter = req.Persistent && !req.Restart && s.hasInterpreter(r, key)
		ended, err := req.Prepare(ctx, &req)
		if err != nil {
			return notStarted(ctx, err)
		}
		if ended != nil {
			return *ended, nil
		}
	}
	res, err := s.run(ctx, r, req)
	if err != nil {
		return res, err
	}
	if req.Ended != nil {
		req.Ended()
	}
	if req.Persistent {
		s.recordInterpreter(key, &res)
		if req.Restart { // the caller knows
			res.Forgotten, res.Evicted = false, false
		}
		if res.Cause == sandbox.CauseCancelled && context.Cause(ctx) == errRestarted {
			res.StateLost = true
		}
		res.Switched = s.recordNetwork(r, req.Network)
	}
	return res, nil
}

func (s *Session) run(ctx context.Context, r runner.Runner, req RunRequest) (RunResult, error) {
	var before *workspace.Scan
	if req.Changes {
		var err error
		if before, err = s.snapshot(ctx); err != nil {
			return notStarted(ctx, err)
		}
	} else {
		s.measure(ctx)
	}
	if err := s.checkDisk(ctx, req.Persistent); err != nil {
		return RunResult{}, err
	}
	for retried := false; ; retried = true {
		sb, err := s.m.acquire(ctx, s, r, req.Network, req.stops)
		if err != nil {
			res, err := notStarted(ctx, err)
			res.Operator = err == nil && s.stopCount() != req.stops
			return res, err
		}
		if !retried && sb.conn.Err() != nil {
			// The sandbox died while idle, so no code of this run has been executed.
			s.m.retire(sb)
			s.m.release(sb)
			continue
		}
		defer s.m.release(sb)
		if before != nil && s.ws.HasNewOwner(before) { // the sandbox, whose code has yet to start
			if before, err = s.snapshot(ctx); err != nil {
				return notStarted(ctx, err)
			}
		}
		defer s.addActive(req.Background)()
		if req.Persistent {
			sb.addInterpreter(interpreterKey{r.Name, req.Network})
		}
		defer s.claim() // again: another server may have used the session during the run
		return s.supervise(ctx, sb, r, req, before)
	}
}
