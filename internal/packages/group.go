package packages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"mcp-code-sandbox/internal/untrusted"
)

const maxStack = 8 << 10 // bytes of a stack in the log

// group does the same work once for everybody who wants it at the same time. The work ends early
// when nobody waits for it any more.
type group[T any] struct {
	log *slog.Logger // nil: silent

	mu    sync.Mutex
	calls map[string]*call[T]
}

type call[T any] struct {
	cancel  context.CancelFunc
	done    chan struct{}
	waiters int
	value   T // after done
	err     error
}

// do returns what the work gives. A caller that only waited for it tries again after errBusy: the
// share of the one that started it was exhausted, not its own.
func (g *group[T]) do(ctx context.Context, key string, timeout time.Duration, work func(context.Context) (T, error)) (T, error) {
	for {
		value, own, err := g.join(ctx, key, timeout, work)
		if own || !errors.Is(err, errBusy) {
			return value, err
		}
	}
}

// join starts the work or waits for that of another caller. own reports whether it has started it.
func (g *group[T]) join(ctx context.Context, key string, timeout time.Duration, work func(context.Context) (T, error)) (value T, own bool, err error) {
	g.mu.Lock()
	c := g.calls[key]
	own = c == nil
	if own {
		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		c = &call[T]{cancel: cancel, done: make(chan struct{})}
		if g.calls == nil {
			g.calls = map[string]*call[T]{}
		}
		g.calls[key] = c
		go func() {
			defer cancel()
			c.value, c.err = g.protect(shared, work)
			g.mu.Lock()
			g.forget(key, c)
			g.mu.Unlock()
			close(c.done)
		}()
	}
	c.waiters++
	g.mu.Unlock()
	select {
	case <-c.done:
		return c.value, own, c.err
	case <-ctx.Done():
		g.mu.Lock()
		c.waiters--
		last := c.waiters == 0
		if last {
			g.forget(key, c) // under the same lock: nobody may join work that ends
		}
		g.mu.Unlock()
		if last {
			c.cancel()
			<-c.done
		}
		return value, own, context.Cause(ctx)
	}
}

// protect turns a panic of the work into an error: on a goroutine of its own, it would end the
// server. The work may parse what a hostile index sent.
func (g *group[T]) protect(ctx context.Context, work func(context.Context) (T, error)) (value T, err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		err = fmt.Errorf("panic: %v", p) // who shows it redacts it
		if g.log != nil {
			g.log.Error("packages: Panic", "stack", untrusted.Clip(string(debug.Stack()), maxStack))
		}
	}()
	return work(ctx)
}

// forget makes the next caller start again. The caller holds g.mu.
func (g *group[T]) forget(key string, c *call[T]) {
	if g.calls[key] == c {
		delete(g.calls, key)
	}
}

// errBusy says that too many bytes are on their way at once.
var errBusy = errors.New("too many bytes at once")

// quota bounds the bytes that are held at once. Beyond the limit, a sandbox can still hold its
// share: one that holds more is refused, and the others are not.
type quota struct {
	limit int64
	least int64 // the smallest share

	mu   sync.Mutex
	used int64              // less than twice the limit, but for what is being read
	held map[*sandbox]int64 // nil: evicted files that are being read
}

// add counts n bytes for a sandbox, and reports whether it may hold them.
func (q *quota) add(s *sandbox, n int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held == nil {
		q.held = map[*sandbox]int64{}
	}
	q.used += n
	if q.held[s] += n; q.held[s] == 0 {
		delete(q.held, s)
	}
	return q.used <= q.limit || q.held[s] == 0 || q.held[s] <= q.share(s)
}

// share returns what a sandbox that holds bytes may hold beyond the limit: callers have equal parts
// of it, and so have the sandboxes of each. The caller holds q.mu.
func (q *quota) share(s *sandbox) int64 {
	callers := map[string]int64{}
	for other := range q.held {
		callers[other.owner()]++
	}
	return max(q.limit/int64(len(callers))/callers[s.owner()], q.least)
}

func (q *quota) reader(r io.Reader, who *sandbox) *quotaReader {
	return &quotaReader{r: r, q: q, who: who}
}

// quotaReader counts what it reads, until release.
type quotaReader struct {
	r    io.Reader
	q    *quota
	who  *sandbox
	held int64
}

func (r *quotaReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.held += int64(n)
	if !r.q.add(r.who, int64(n)) {
		return n, errBusy
	}
	return n, err
}

func (r *quotaReader) release() {
	r.q.add(r.who, -r.held)
	r.held = 0
}
