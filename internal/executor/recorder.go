package executor

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/store"
)

const (
	recordQueue   = 1024
	recordBytes   = 16 << 20         // of results in the queue
	recordTimeout = 10 * time.Second // for one write; another process may hold the database
	recordLinger  = 5 * time.Millisecond
	recordBatch   = 64
	trimAfter     = 32 // results that a caller may have beyond keptResults
)

// recorder stores runs and results in the background, so that a slow disk does not slow a run. It
// waits a moment first, so that the answer to the run comes before it, and writes in batches. It
// drops what does not fit into its queue.
type recorder struct {
	store *store.Store
	log   *slog.Logger
	done  chan struct{}

	mu      sync.Mutex
	closed  bool
	queue   chan record
	bytes   int // of the results in queue
	waiting map[string]*store.Result

	untrimmed map[string]int // results written per caller since the last trim; only loop uses it
}

// record is one run to store. Either part may be nil.
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
	r := &recorder{store: s, log: log, done: make(chan struct{}), queue: make(chan record, recordQueue),
		waiting: map[string]*store.Result{}, untrimmed: map[string]int{}}
	go r.loop()
	return r
}

// add queues a record.
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
			if rec.result != nil {
				r.waiting[rec.id()] = rec.result
			}
			return
		default:
		}
	}
	r.log.Warn("too many runs wait to be recorded; dropping the record", "run_id", rec.id())
}

// find returns a caller's result that is in the queue.
func (r *recorder) find(caller, id string) (store.Result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if res := r.waiting[id]; res != nil && res.Caller == caller {
		return *res, true
	}
	return store.Result{}, false
}

// close returns when everything in the queue is stored, or ctx is done.
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

func (r *recorder) loop() {
	defer close(r.done)
	for first := range r.queue {
		batch := r.collect(first)
		if err := r.write(batch); err != nil {
			for _, rec := range batch {
				r.log.Warn("cannot record a run", "run_id", rec.id(), "err", err)
			}
		}
		r.mu.Lock()
		for _, rec := range batch {
			r.bytes -= rec.size()
			delete(r.waiting, rec.id())
		}
		r.mu.Unlock()
	}
}

// collect returns first and the records that arrive within recordLinger.
func (r *recorder) collect(first record) []record {
	batch := []record{first}
	linger := time.NewTimer(recordLinger)
	defer linger.Stop()
	for len(batch) < recordBatch {
		select {
		case rec, open := <-r.queue:
			if !open {
				return batch
			}
			batch = append(batch, rec)
		case <-linger.C:
			return batch
		}
	}
	return batch
}

func (r *recorder) write(batch []record) error {
	var runs []store.Run
	var results []store.Result
	for _, rec := range batch {
		if rec.run != nil {
			runs = append(runs, *rec.run)
		}
		if rec.result != nil {
			results = append(results, *rec.result)
			r.untrimmed[rec.result.Caller]++
		}
	}
	var trim []string
	for _, caller := range slices.Sorted(maps.Keys(r.untrimmed)) {
		if r.untrimmed[caller] >= trimAfter {
			trim = append(trim, caller)
			delete(r.untrimmed, caller)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	return r.store.Record(ctx, runs, results, keptResults, trim)
}
