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
	recordRetry   = 2 * time.Second // while the database does not answer
	recordBatch   = 64
	trimAfter     = 32 // results that a caller may have beyond keptResults
)

// recorder stores runs and results in the background, so that a slow disk does not slow a run. It
// waits a moment, so that the run is answered first, and writes in batches. While the database does
// not answer, records wait. It drops records that do not fit into its queue.
type recorder struct {
	store   *store.Store
	log     *slog.Logger
	wake    chan struct{} // has a value if queue has a new record
	closing chan struct{} // closed by close
	done    chan struct{} // closed by loop

	mu     sync.Mutex
	closed bool
	queue  []record // not stored yet
	bytes  int      // of the results in queue

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
	r := &recorder{store: s, log: log, wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
		untrimmed: map[string]int{}}
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
	if len(r.queue) >= recordQueue || r.bytes+rec.size() > recordBytes {
		r.log.Warn("too many runs wait to be recorded; dropping the record", "run_id", rec.id())
		return
	}
	r.queue = append(r.queue, rec)
	r.bytes += rec.size()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// find returns a caller's result that is in the queue.
func (r *recorder) find(caller, id string) (store.Result, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range r.queue {
		if res := rec.result; res != nil && res.ID == id && res.Caller == caller {
			return *res, true
		}
	}
	return store.Result{}, false
}

// close returns when everything in the queue is stored, the database has not answered once more, or
// ctx is done.
func (r *recorder) close(ctx context.Context) error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.closing)
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
	down := false
	for {
		wake, retry := r.wake, (<-chan time.Time)(nil)
		err := r.flush()
		if err != nil {
			wake, retry = nil, time.After(recordRetry)
		}
		switch {
		case err != nil && !down:
			r.log.Error("the database does not answer; results of runs wait in memory until it does", "error", err)
		case err == nil && down:
			r.log.Info("the database answers again; the results that waited are stored")
		}
		down = err != nil
		select {
		case <-wake:
			time.Sleep(recordLinger)
		case <-retry:
		case <-r.closing:
			if err := r.flush(); err != nil {
				r.log.Error("the database does not answer; results of runs are lost", "runs", len(r.queue), "error", err)
			}
			return
		}
	}
}

// flush stores the queue in batches, and returns an error if the database does not answer. Records
// stay in the queue until they are stored.
func (r *recorder) flush() error {
	for {
		r.mu.Lock()
		batch := slices.Clone(r.queue[:min(len(r.queue), recordBatch)])
		r.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		err := r.write(batch)
		if r.store.IsDown(err) {
			return err
		}
		r.mu.Lock()
		r.queue = slices.Delete(r.queue, 0, len(batch))
		for _, rec := range batch {
			r.bytes -= rec.size()
			if err != nil {
				r.log.Warn("cannot record a run", "run_id", rec.id(), "error", err)
			}
		}
		r.mu.Unlock()
	}
}

func (r *recorder) write(batch []record) error {
	var runs []store.Run
	var results []store.Result
	untrimmed := maps.Clone(r.untrimmed)
	for _, rec := range batch {
		if rec.run != nil {
			runs = append(runs, *rec.run)
		}
		if rec.result != nil {
			results = append(results, *rec.result)
			untrimmed[rec.result.Caller]++
		}
	}
	var trim []string
	for _, caller := range slices.Sorted(maps.Keys(untrimmed)) {
		if untrimmed[caller] >= trimAfter {
			trim = append(trim, caller)
			delete(untrimmed, caller)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	err := r.store.Record(ctx, runs, results, keptResults, trim)
	if err == nil {
		r.untrimmed = untrimmed
	}
	return err
}
