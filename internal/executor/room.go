package executor

import (
	"context"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
)

const (
	// answerCopies is how many times an answer is in memory while it is made and sent: as bytes, as
	// base64 and JSON, as the message, as the event, and in buffers.
	answerCopies = 8
	// freeAnswer is how large an answer may be that needs no asking for memory.
	freeAnswer = 64 << 10
	// answerDisplays bounds what answers take of displays: images are made smaller, text is left out.
	answerDisplays = 1200 << 10
	// roomWait is how long a call waits for memory, runWait a result that can do with less.
	roomWait = 10 * time.Second
	runWait  = 500 * time.Millisecond
)

// room takes memory for an answer until it is sent, and reports whether there is any. When it is taken for another caller,
// the answer is given up.
func (e *Executor) room(ctx context.Context, caller session.Caller, n int64, wait time.Duration) bool {
	if e.memory == nil || n <= answerCopies*freeAnswer {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	lease, err := e.memory.Acquire(ctx, caller.ID, min(n, e.cfg.ResultMemory/2))
	if err != nil {
		return false
	}
	scope := share.ScopeOf(ctx)
	if scope != nil {
		lease.Yield(scope.Abort)
	}
	scope.Defer(lease.Release)
	return true
}

// answer returns res as it can be sent: where memory is short, without displays and with less output. held is what the run
// holds already.
func (e *Executor) answer(ctx context.Context, caller session.Caller, res Result, held int64) Result {
	displays := 0
	for _, d := range res.Displays {
		data, plain := d.Content()
		displays += len(data) + len(plain)
	}
	n := int64(len(res.Stdout) + len(res.Stderr) + len(res.Recent.Data) + min(displays, answerDisplays))
	if e.room(ctx, caller, answerCopies*n-held, runWait) {
		return res
	}
	for _, d := range res.Displays {
		if d.File == "" {
			res.DisplaysDropped++
		}
	}
	res.Displays = nil
	res.Stdout, res.StdoutTruncated = shorten(res.Stdout, res.stdoutTotal)
	res.Stderr, res.StderrTruncated = shorten(res.Stderr, res.stderrTotal)
	res.Recent = res.Recent.last(freeOutput)
	return res
}

// shorten leaves out more of the middle of a stream of total bytes, of which p is kept.
func shorten(p []byte, total int64) ([]byte, bool) {
	c := newCollector(freeOutput, &memory{})
	c.write(p)
	c.total = total
	return c.bytes()
}

// last returns the last n bytes of an output, and counts the others as missed.
func (o Output) last(n int) Output {
	if len(o.Data) <= n {
		return o
	}
	data := cutStart(o.Data[len(o.Data)-n:])
	drop := len(o.Data) - len(data)
	out := Output{Data: append([]byte(nil), data...), Missed: o.Missed + int64(drop), Cursor: o.Cursor}
	for _, r := range o.Stderr {
		if r[1] > drop {
			out.Stderr = append(out.Stderr, [2]int{max(r[0]-drop, 0), r[1] - drop})
		}
	}
	return out
}
