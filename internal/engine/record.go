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
	recordBytes   = 16 << 20         // of results that wait to be written
	recordTimeout = 10 * time.Second // for one row; another process may hold the database
)

// recorder writes the records and results of runs in the background: a slow disk must not slow a run. What does not fit
// into its queue is dropped.
type recorder struct {
	store *store.Store
	log   *slog.Logger
	done  chan struct{}

	mu     sync.Mutex
	closed bool
	queue  chan record
	bytes  int // of the results in queue
}

// record is one thing to write.
type record struct {
	run    *store.Run
	result *store.Result
}

func (r record) id() string {
	if r.run != nil {
		return r.run.ID
	}
	return r.result.ID
}

func (r record) size() int {
	if r.result != nil {
		return len(r.result.Data)
	}
	return 0
}

func newRecorder(s *store.Store, log *slog.Logger) *recorder {
	r := &recorder{store: s, log: log, done: make(chan struct{}), queue: make(chan record, recordQueue)}
	go r.loop()
	return r
}

func (r *recorder) loop() {
	defer close(r.done)
	for rec := range r.queue {
		if err := r.write(rec); err != nil {
			r.log.Warn("cannot record a run", "run_id", rec.id(), "err", err)
		}
		r.mu.Lock()
		r.bytes -= rec.size()
		r.mu.Unlock()
	}
}

// write writes now.
func (r *recorder) write(rec record) error {
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	if rec.run != nil {
		return r.store.AddRun(ctx, *rec.run)
	}
	return r.store.EndResult(ctx, *rec.result, keptResults)
}

func (r *recorder) add(rec record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if r.bytes+rec.size() <= recordBytes {
		select {
		case r.queue <- rec:
			r.bytes += rec.size()
			return
		default:
		}
	}
	r.log.Warn("too many runs wait to be recorded; this one is not", "run_id", rec.id())
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
