package window

import (
	"io"
	"sync"
	"time"
)

// Logs writes log lines without waiting for their reader: a client may never read its server's
// stderr. Lines that do not fit are dropped. They are in the server's log file.
type Logs struct {
	out   io.Writer
	lines chan []byte
	done  chan struct{}

	mu     sync.Mutex
	closed bool
}

const (
	maxLogLines = 256
	flushTime   = time.Second
)

// NewLogs returns Logs that write to out. Close ends them.
func NewLogs(out io.Writer) *Logs {
	l := &Logs{out: out, lines: make(chan []byte, maxLogLines), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for line := range l.lines {
			_, _ = l.out.Write(line)
		}
	}()
	return l
}

// Write takes a line. It never fails.
func (l *Logs) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		select {
		case l.lines <- append([]byte(nil), line...):
		default:
		}
	}
	return len(line), nil
}

// Close waits until the lines are written, up to flushTime.
func (l *Logs) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.lines)
	}
	l.mu.Unlock() // a Write must not wait
	select {
	case <-l.done:
	case <-time.After(flushTime):
	}
}
