package proxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errTimeout    = errors.New("the service did not answer in time")
	errSlowClient = errors.New("the client did not send its request in time")
)

// watchdog cancels a call in which nothing moves.
type watchdog struct {
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	patience time.Duration
	timer    *time.Timer
	reading  bool // waiting for the client's next bytes
}

func newWatchdog(patience time.Duration, cancel context.CancelCauseFunc) *watchdog {
	w := &watchdog{cancel: cancel, patience: patience}
	w.timer = time.AfterFunc(patience, w.bark)
	return w
}

func (w *watchdog) bark() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reading {
		w.cancel(errSlowClient)
		return
	}
	w.cancel(errTimeout)
}

// moved says that something has moved, and whether the client is now to send.
func (w *watchdog) moved(reading bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading = reading
	w.timer.Reset(w.patience)
}

// answered begins the answer: from now on another patience holds, and the client need not send any more.
func (w *watchdog) answered(patience time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.patience = patience
	w.timer.Reset(patience)
}

func (w *watchdog) stop() { w.timer.Stop() }

// watchedBody is the client's body as the service gets it.
type watchedBody struct {
	io.ReadCloser
	c      *call
	ended  atomic.Bool // it was read to its end
	failed atomic.Bool // the client's side broke off
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.c.watch.moved(true)
	n, err := b.ReadCloser.Read(p)
	b.c.watch.moved(false)
	b.c.sent.Add(int64(n))
	switch err {
	case nil:
	case io.EOF:
		b.ended.Store(true)
	default:
		b.failed.Store(true)
	}
	return n, err
}

// watchedAnswer is the service's body as it comes.
type watchedAnswer struct {
	io.Reader
	watch *watchdog
}

func (b *watchedAnswer) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.watch.moved(false)
	return n, err
}
