package mcpserver

import (
	"bufio"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestSessionCap: a new session replaces the least recently used idle one. If all are in use, it is
// refused.
func TestSessionCap(t *testing.T) {
	f := newFixture(t, Config{MaxSessions: 2})
	first := f.initialize(t, "2025-11-25")
	second := f.initialize(t, "2025-11-25")
	status := func(session string) int {
		status, _ := f.post(t, ping, session)
		return status
	}
	if got := status(first); got != 200 {
		t.Fatalf("first session: status %d", got)
	}
	third := f.initialize(t, "2025-11-25")
	if a, b, c := status(first), status(second), status(third); a != 200 || b != 404 || c != 200 {
		t.Errorf("statuses %d, %d, %d; want the second session gone", a, b, c)
	}
	if n := f.sessions.len(); n != 2 {
		t.Errorf("%d sessions are kept", n)
	}

	// Both in use: one by a stream, one by a call.
	stream := f.do(t, "GET", f.url, "", first)
	line(t, bufio.NewReader(stream.Body), func(s string) bool { return strings.HasPrefix(s, ":") })
	f.do(t, "POST", f.url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"progress"}}`, third, "Accept: text/event-stream").Body.Close()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		f.post(t, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"wait"}}`, third)
	}()
	soon(t, f.started)
	code, answer := f.post(t, `{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	if code != 503 || !strings.Contains(answer, `"id":9,"error":{"code":-32000`) {
		t.Errorf("status %d: %s", code, answer)
	}
	if resp := f.do(t, "DELETE", f.url, "", third); resp.StatusCode != 204 {
		t.Errorf("DELETE: status %d", resp.StatusCode)
	}
	soon(t, answered)
	f.initialize(t, "2025-11-25")
}

// TestEventStreamCap: streams without a session are limited.
func TestEventStreamCap(t *testing.T) {
	f := newFixture(t, Config{MaxSessions: 1})
	open := f.do(t, "GET", f.url, "")
	if got := f.do(t, "GET", f.url, ""); open.StatusCode != 200 || got.StatusCode != 503 {
		t.Errorf("statuses %d, %d; want 200, 503", open.StatusCode, got.StatusCode)
	}
}

// TestFailedInitialize: a failed initialize leaves no session.
func TestFailedInitialize(t *testing.T) {
	f := newFixture(t, Config{MaxSessions: 1})
	for range 3 {
		f.post(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":5}}`)
	}
	if n := f.sessions.len(); n != 0 || f.sessions.pool.Stats().Used != 0 {
		t.Errorf("%d sessions, stats %+v", n, f.sessions.pool.Stats())
	}
	f.initialize(t, "2025-11-25")
}

func TestSessionIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := mcp.NewServer(&mcp.Implementation{Name: "t"}, nil)
		transport := &mcp.StreamableServerTransport{SessionID: "s1"}
		ss, err := server.Connect(t.Context(), transport, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := newSessions(10, "", time.Minute)
		lease, err := s.pool.TryAcquire("ann", 1)
		if err != nil {
			t.Fatal(err)
		}
		s.add(ss, "ann", lease)
		e := s.get("s1")

		advance := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		advance(50 * time.Second)
		_, release := s.use("s1", "ann")
		advance(time.Hour) // in use
		if s.len() != 1 {
			t.Fatal("a session in use was ended")
		}
		release()
		advance(50 * time.Second)
		_, other := s.use("s1", "bob") // does not count
		other()
		advance(9 * time.Second)
		if s.len() != 1 || e.ctx.Err() != nil {
			t.Fatal("a session was ended before its time")
		}
		advance(time.Second)
		if s.len() != 0 || e.ctx.Err() == nil {
			t.Error("an idle session was not ended")
		}
		if err := ss.Wait(); err != nil {
			t.Errorf("Wait: %v", err)
		}
	})
}

func (s *sessions) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}
