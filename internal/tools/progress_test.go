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

	"mcp-code-sandbox/internal/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sent collects notifications and checks that each is valid text and further than the one before.
type sent struct {
	t   *testing.T
	err error

	mu       sync.Mutex
	messages []string
	last     int64
	missed   int64
}

// all is what has been sent so far.
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
		p := newProgress(s.send)
		for range 100 {
			p.add(engine.Stdout, []byte("a"))
			p.add(engine.Stderr, []byte("b"))
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
		p.add(engine.Stdout, bytes.Repeat([]byte("x"), progressChunk))
		synctest.Wait()
		if len(s.all()) != 2 {
			t.Error("a whole chunk had to wait")
		}
		p.add(engine.Stdout, []byte("end"))
		p.stop()
		if got := s.messages[len(s.messages)-1]; got != "end" || s.last != 200+progressChunk+3 {
			t.Errorf("at the end: %q, progress %d", got, s.last)
		}
	})
}

// TestProgressText: characters that arrive in pieces stay whole, on each stream by itself; what is no character is replaced.
func TestProgressText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sent{t: t}
		p := newProgress(s.send)
		for _, piece := range []string{"\xe2", "\x82", "\xac", "\xff", "z\xf0\x9f"} {
			p.add(engine.Stdout, []byte(piece))
			p.add(engine.Stderr, []byte("|"))
			<-time.After(progressInterval)
			synctest.Wait()
		}
		p.stop()
		if got, want := strings.Join(s.messages, ""), "||€|\uFFFD|z|\uFFFD"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestProgressSlowClient: a client that does not read costs the run neither time nor memory.
func TestProgressSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sent{t: t}
		read := make(chan struct{})
		p := newProgress(func(m string, n, missed int64, _ []span) error {
			<-read
			return s.send(m, n, missed, nil)
		})
		chunk := bytes.Repeat([]byte("x"), progressChunk)
		for range 1000 {
			p.add(engine.Stdout, chunk)
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

// TestProgressClientGone: the run goes on undisturbed.
func TestProgressClientGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sent{t: t, err: errors.New("gone")}
		p := newProgress(s.send)
		p.add(engine.Stdout, []byte("a"))
		<-time.After(progressInterval)
		p.add(engine.Stdout, []byte("b"))
		<-time.After(progressInterval)
		synctest.Wait()
		p.stop()
		if len(s.messages) != 1 {
			t.Errorf("sent %q to nobody", s.messages)
		}
	})
	// Without a token there is nothing to do at all.
	var none *progress
	if none.output() != nil {
		t.Error("output of a nil progress")
	}
	none.stop()
}
