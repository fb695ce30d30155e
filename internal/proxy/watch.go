package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errTimeout    = errors.New("the service did not answer in time")
	errSlowClient = errors.New("the client did not send its request in time")
)

// watchdog cancels a call in which no bytes have moved for a while.
type watchdog struct {
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	timeout time.Duration
	timer   *time.Timer
	reading bool // waiting for the client's next bytes
}

func newWatchdog(timeout time.Duration, cancel context.CancelCauseFunc) *watchdog {
	w := &watchdog{cancel: cancel, timeout: timeout}
	w.timer = time.AfterFunc(timeout, w.expire)
	return w
}

func (w *watchdog) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reading {
		w.cancel(errSlowClient)
		return
	}
	w.cancel(errTimeout)
}

// moved restarts the timer. reading reports whether the call now waits for the client.
func (w *watchdog) moved(reading bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading = reading
	w.timer.Reset(w.timeout)
}

// answered sets the timeout for the answer's body.
func (w *watchdog) answered(timeout time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timeout = timeout
	w.timer.Reset(timeout)
}

func (w *watchdog) stop() { w.timer.Stop() }

// watchedBody is the client's body on its way to the service.
type watchedBody struct {
	io.ReadCloser
	c      *call
	ended  atomic.Bool // read to its end
	failed atomic.Bool // reading from the client failed
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

// watchedAnswer is the service's body as it arrives.
type watchedAnswer struct {
	io.Reader
	watch *watchdog
}

func (b *watchedAnswer) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.watch.moved(false)
	return n, err
}

// answerBody is the scrubbed body. It calls end when the trailers are known.
type answerBody struct {
	io.Reader
	io.Closer
	end func()
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		b.end()
	}
	return n, err
}

// statusWriter records the status and size of the answer, and drops the answer to a client that
// left.
type statusWriter struct {
	http.ResponseWriter
	c *call
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *statusWriter) WriteHeader(status int) {
	if w.c.status == 0 {
		w.c.status = status
	}
	if status != statusClientGone {
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.c.status == statusClientGone {
		return len(p), nil
	}
	n, err := w.ResponseWriter.Write(p)
	w.c.received += int64(n)
	return n, err
}
