package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"mcp-code-sandbox/internal/store"
)

const (
	recordQueue   = 1024
	recordTimeout = 10 * time.Second // for one row; another process may hold the database
)

// recorder writes the records of runs in the background: a slow disk must not slow a run. What does not fit
// into its queue is dropped.
type recorder struct {
	store *store.Store
	log   *slog.Logger
	done  chan struct{}

	mu     sync.Mutex
	closed bool
	queue  chan store.Run
}

func newRecorder(s *store.Store, log *slog.Logger) *recorder {
	r := &recorder{store: s, log: log, done: make(chan struct{}), queue: make(chan store.Run, recordQueue)}
	go r.loop()
	return r
}

func (r *recorder) loop() {
	defer close(r.done)
	for run := range r.queue {
		ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
		if err := r.store.AddRun(ctx, run); err != nil {
			r.log.Warn("cannot record a run", "run_id", run.ID, "err", err)
		}
		cancel()
	}
}

func (r *recorder) add(run store.Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	select {
	case r.queue <- run:
	default:
		r.log.Warn("too many runs wait to be recorded; this one is not", "run_id", run.ID)
	}
}

// close returns when everything in the queue is written, or ctx is done.
func (r *recorder) close(ctx context.Context) error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.queue)
	}
	r.mu.Unlock()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
