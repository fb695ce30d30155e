package executor

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
)

const (
	// readWait is how long a call waits for its turn to look through files.
	readWait = 10 * time.Second
	// readRetry is when a client whose turn did not come should try again.
	readRetry = 5 * time.Second
)

// newReads makes the pool of turns to look through or read files. Beside as many of them as
// processors, runs of others would wait.
func newReads() *share.Pool {
	return share.New(share.Config{Capacity: int64(max(2, runtime.GOMAXPROCS(0)/2)), Exempt: session.Local.ID})
}

// beginRead waits for the caller's turn, in turns with other callers, until done is called. The error
// is the refusal busy, or ctx's.
func (e *Executor) beginRead(ctx context.Context, caller session.Caller) (done func(), err error) {
	wait, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	turn, err := e.reads.Acquire(wait, caller.ID, 1)
	switch {
	case err == nil:
		return turn.Release, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, &Error{Code: CodeBusy, Err: err, RetryAfter: readRetry,
		Message: fmt.Sprintf("The server is busy reading files for others. Try again in %s.", seconds(readRetry))}
}
