package tools

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"mcp-code-sandbox/internal/executor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sent collects notifications and checks that their text is valid and their progress increases.
type sent struct {
	t   *testing.T
	err error

	mu       sync.Mutex
	messages []string
	last     int64
	missed   int64
}

// all returns the messages sent so far.
func (s *sent) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages)
}

func (s *sent) send(message string, total, missed int64, _ []span) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed += missed
	if total <= s.last || message == "" && missed == 0 || !utf8.ValidString(message) {
		s.t.Errorf("progress %d after %d: %q", total, s.last, message)
	}
	s.last = total
	s.messages = append(s.messages, message)
	return s.err
}

func TestProgressCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sent{t: t}
		p := newProgress(s.send, nil)
		for range 100 {
			p.add(executor.Stdout, []byte("a"))
			p.add(executor.Stderr, []byte("b"))
		}
		synctest.Wait()
		if got := s.all(); len(got) != 0 {
			t.Errorf("sent at once: %q", got)
		}
		<-time.After(2 * progressInterval)
		synctest.Wait()
		if got := s.all(); len(got) != 1 || got[0] != strings.Repeat("ab", 100) {
			t.Errorf("after the interval: %q", got)
		}
		p.add(executor.Stdout, bytes.Repeat([]byte("x"), progressChunk))
		synctest.Wait()
		if len(s.all()) != 2 {
			t.Error("a whole chunk had to wait")
		}
		p.add(executor.Stdout, []byte("end"))
		p.stop()
		if got := s.messages[len(s.messages)-1]; got != "end" || s.last != 200+progressChunk+3 {
			t.Errorf("at the end: %q, progress %d", got, s.last)
		}
	})
}

// TestProgressText: characters that arrive in pieces stay whole, on each stream separately. Invalid
// bytes are replaced.
func TestProgressText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sent{t: t}
		p := newProgress(s.send, nil)
		for _, piece := range []string{"\xe2", "\x82", "\xac", "\xff", "z\xf0\x9f"} {
			p.add(executor.Stdout, []byte(piece))
			p.add(executor.Stderr, []byte("|"))
			<-time.After(progressInterval)
			synctest.Wait()
		}
		p.stop()
		if got, want := strings.Join(s.messages, ""), "||€|\uFFFD|z|\uFFFD"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestProgressSlowClient: a client that does not read neither delays the run nor costs memory.
func TestProgressSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sent{t: t}
		read := make(chan struct{})
		p := newProgress(func(m string, n, missed int64, _ []span) error {
			<-read
			return s.send(m, n, missed, nil)
		}, nil)
		chunk := bytes.Repeat([]byte("x"), progressChunk)
		for range 1000 {
			p.add(executor.Stdout, chunk)
		}
		p.mu.Lock()
		n := p.pending.Len()
		p.mu.Unlock()
		if n > progressBacklog+progressChunk {
			t.Errorf("%d bytes are kept", n)
		}
		close(read)
		p.stop()
		if all := strings.Join(s.messages, ""); s.missed == 0 || int64(len(all))+s.missed != 1000*progressChunk || s.last != 1000*progressChunk {
			t.Errorf("%d bytes sent, %d missed, progress %d", len(all), s.missed, s.last)
		}
	})
}

// TestProgressClientGone: the run continues when the client is gone.
func TestProgressClientGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sent{t: t, err: errors.New("gone")}
		p := newProgress(s.send, nil)
		p.add(executor.Stdout, []byte("a"))
		<-time.After(progressInterval)
		p.add(executor.Stdout, []byte("b"))
		<-time.After(progressInterval)
		synctest.Wait()
		p.stop()
		if len(s.messages) != 1 {
			t.Errorf("sent %q to nobody", s.messages)
		}
	})
	// Without a token, progress does nothing.
	var none *progress
	if output, queued := none.hooks(); output != nil || queued != nil {
		t.Error("output of a nil progress")
	}
	none.stop()
}

// TestProgressQueued: changes in the queue are sent at once, before output, and increase the
// progress.
func TestProgressQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sent{t: t}
		p := newProgress(s.send, func(q *executor.Queue, total int64) error {
			message, _ := queueNotice(q, false)
			return s.send(message, total, 0, nil)
		})
		first := &executor.Queue{RunID: "run_1", Tool: "run", Running: 12*time.Second + 345*time.Millisecond, Ahead: 3}
		p.addNotice(first)
		synctest.Wait()
		if got := s.all(); !slices.Equal(got, []string{"[queued behind run_1 (run, running for 12 s) and 2 more]\n"}) {
			t.Errorf("at once: %q", got)
		}
		p.addNotice(&executor.Queue{RunID: "run_2", Ahead: 1})
		p.addNotice(nil)
		p.add(executor.Stdout, []byte("out"))
		synctest.Wait()
		if got := s.all()[1:]; !slices.Equal(got, []string{"[queued behind run_2 (running for 0 s)]\n", "[started]\n", "out"}) {
			t.Errorf("then: %q", got)
		}
		p.stop()

		// A slow client gets the last notices.
		read := make(chan struct{})
		told := 0
		p = newProgress(nil, func(*executor.Queue, int64) error { <-read; told++; return nil })
		for range 1000 {
			p.addNotice(first)
		}
		close(read)
		p.stop()
		if told > 2*maxNotices || told < maxNotices {
			t.Errorf("%d notices were kept", told)
		}
	})
	message, meta := queueNotice(&executor.Queue{RunID: "run_1", Tool: "run", Running: time.Minute, Ahead: 1}, true)
	if behind, _ := meta[queuedKey].(*queueJSON); message != "" || meta[statusKey] != "queued" || behind == nil || *behind != (queueJSON{"run_1", "run", 60, 1}) {
		t.Errorf("a client that shows runs to people is told %q, %v", message, meta)
	}
	if message, meta := queueNotice(nil, true); message != "" || len(meta) != 1 || meta[statusKey] != "running" {
		t.Errorf("and then %q, %v", message, meta)
	}
}
