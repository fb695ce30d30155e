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
	lines chan logLine
	done  chan struct{}

	mu     sync.Mutex
	closed bool
}

// logLine is a line, or a question whether the lines before it are written.
type logLine struct {
	text    []byte
	written chan struct{} // closed when it is; nil for a line
}

const (
	maxLogLines = 256
	flushTime   = time.Second
)

// NewLogs returns Logs that write to out. Close ends them.
func NewLogs(out io.Writer) *Logs {
	l := &Logs{out: out, lines: make(chan logLine, maxLogLines), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for line := range l.lines {
			if line.written != nil {
				close(line.written)
				continue
			}
			_, _ = l.out.Write(line.text)
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
		case l.lines <- logLine{text: append([]byte(nil), line...)}:
		default:
		}
	}
	return len(line), nil
}

// Flush waits until the lines are written, up to flushTime. It does not wait for a reader that is
// far behind.
func (l *Logs) Flush() {
	written := make(chan struct{})
	l.mu.Lock()
	if !l.closed {
		select {
		case l.lines <- logLine{written: written}:
		default:
			close(written)
		}
	} else {
		close(written)
	}
	l.mu.Unlock()
	select {
	case <-written:
	case <-time.After(flushTime):
	}
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
