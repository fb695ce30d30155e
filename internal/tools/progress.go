package tools

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
)

const (
	progressInterval = 75 * time.Millisecond // between two notifications
	progressChunk    = 8 << 10               // bytes that are sent before the interval is over
	progressBacklog  = 256 << 10             // bytes kept for a slow client; the rest is skipped
	maxNotices       = 16                    // notices kept for a slow client
)

// progress streams a run's output and its place in the queue as progress notifications. The run
// never waits for the client: a goroutine sends from a bounded buffer. A nil *progress does
// nothing.
type progress struct {
	send   func(message string, total, missed int64, stderr []span) error
	notify func(q *executor.Queue, total int64) error

	mu      sync.Mutex
	notices []notice // sent before output: a queued run prints nothing
	pending strings.Builder
	spans   spans                      // of pending
	total   int64                      // bytes of output and notices so far; grows with every notification
	skipped int64                      // bytes since the last notification
	partial map[executor.Stream][]byte // the first bytes of an incomplete character

	wake chan struct{} // has a value when there is something to send at once
	quit chan struct{}
	done chan struct{}
}

// notice is a change of a run's place in the queue.
type notice struct {
	queue *executor.Queue // nil if the run is no longer queued
	total int64
}

// startProgress returns nil if the call has no valid progress token.
func startProgress(ctx context.Context, c *call) *progress {
	req, details := c.req, c.wantsDetails()
	token := req.Params.GetProgressToken()
	switch token.(type) {
	case string, float64, int64, int:
	default:
		return nil
	}
	return newProgress(func(message string, total, missed int64, stderr []span) error {
		params := &mcp.ProgressNotificationParams{ProgressToken: token, Message: message, Progress: float64(total)}
		switch {
		case details:
			params.Meta = mcp.Meta{}
			if len(stderr) > 0 {
				params.Meta[stderrKey] = stderr
			}
			if missed > 0 {
				params.Meta[missedKey] = missed
			}
		case missed > 0:
			params.Message += fmt.Sprintf("\n[%d bytes of output skipped: the client reads too slowly]\n", missed)
		}
		return req.Session.NotifyProgress(ctx, params)
	}, func(q *executor.Queue, total int64) error {
		params := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(total)}
		params.Message, params.Meta = queueNotice(q, details)
		return req.Session.NotifyProgress(ctx, params)
	})
}

func newProgress(
	send func(message string, total, missed int64, stderr []span) error,
	notify func(q *executor.Queue, total int64) error,
) *progress {
	p := &progress{
		send:    send,
		notify:  notify,
		partial: make(map[executor.Stream][]byte),
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	go p.loop()
	return p
}

// hooks returns the functions for executor.Request.Output and Queued, nil for a nil progress.
func (p *progress) hooks() (output func(executor.Stream, []byte), queued func(*executor.Queue)) {
	if p == nil {
		return nil, nil
	}
	return p.add, p.addNotice
}

func (p *progress) addNotice(q *executor.Queue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.notices) == maxNotices {
		p.notices = slices.Delete(p.notices, 0, 1)
	}
	p.total++
	p.notices = append(p.notices, notice{q, p.total})
	p.wakeUp()
}

// wakeUp makes the goroutine send at once.
func (p *progress) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *progress) add(stream executor.Stream, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending.Len() > progressBacklog {
		p.skipped += int64(len(p.partial[stream]) + len(b))
		p.total += int64(len(p.partial[stream]) + len(b))
		delete(p.partial, stream)
		return
	}
	text := append(p.partial[stream], b...)
	whole := len(text) - incompleteTail(text)
	p.partial[stream] = append([]byte(nil), text[whole:]...)
	p.take(stream, text[:whole])
	if p.pending.Len() >= progressChunk {
		p.wakeUp()
	}
}

// take adds output to pending.
func (p *progress) take(stream executor.Stream, b []byte) {
	text := validUTF8(b)
	p.pending.WriteString(text)
	p.spans.add(stream, text)
	p.total += int64(len(b))
}

// incompleteTail returns how many bytes at the end of b may be the start of a character.
func incompleteTail(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

func (p *progress) loop() {
	defer close(p.done)
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-p.quit:
			p.flush(true)
			return
		case <-p.wake:
		case <-ticker.C:
		}
		if !p.flush(false) {
			<-p.quit // the client is gone
			return
		}
	}
}

// flush sends everything pending and reports whether the client could be reached.
func (p *progress) flush(last bool) bool {
	p.mu.Lock()
	if last {
		for _, stream := range []executor.Stream{executor.Stdout, executor.Stderr} {
			p.take(stream, p.partial[stream])
		}
	}
	message, total, missed, stderr, notices := p.pending.String(), p.total, p.skipped, p.spans.stderr, p.notices
	p.pending.Reset()
	p.spans, p.skipped, p.notices = spans{}, 0, nil
	p.mu.Unlock()
	for _, n := range notices {
		if p.notify(n.queue, n.total) != nil {
			return false
		}
	}
	return message == "" && missed == 0 || p.send(message, total, missed, stderr) == nil
}

// stop sends the remaining output and waits for the goroutine to end.
func (p *progress) stop() {
	if p == nil {
		return
	}
	close(p.quit)
	<-p.done
}
