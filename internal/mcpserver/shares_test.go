package mcpserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

func as(user string) string { return "Authorization: Bearer " + user }

// TestSessionsAreShared: a user who initializes again and again loses only their own sessions.
// Other users get sessions even when all of that user's are in use.
func TestSessionsAreShared(t *testing.T) {
	f := newFixture(t, Config{MaxSessions: 4, Operator: "local"})
	status := func(session, user string) int {
		t.Helper()
		status, _ := f.post(t, ping, session, as(user))
		return status
	}
	ann := f.initialize(t, "2025-11-25", as("ann"))
	local := f.initialize(t, "2025-11-25", as("local"))
	var eve []string
	var streams []io.Reader
	for range 20 {
		eve = append(eve, f.initialize(t, "2025-11-25", as("eve")))
	}
	if a, b := status(ann, "ann"), status(local, "local"); a != 200 || b != 200 {
		t.Errorf("after another user's 20 sessions: ann's has status %d, the operator's %d", a, b)
	}
	for _, session := range eve[18:] {
		stream := f.do(t, "GET", f.url, "", session, as("eve"))
		line(t, bufio.NewReader(stream.Body), func(s string) bool { return strings.HasPrefix(s, ":") })
		streams = append(streams, stream.Body)
	}
	f.do(t, "GET", f.url, "", ann, as("ann"))
	f.do(t, "GET", f.url, "", local, as("local"))
	bob := f.initialize(t, "2025-11-25", as("bob"))
	if _, err := io.Copy(io.Discard, streams[0]); err != nil {
		t.Errorf("eve's first stream: %v", err)
	}
	if a, b, c, d := status(ann, "ann"), status(local, "local"), status(bob, "bob"), status(eve[19], "eve"); a != 200 || b != 200 || c != 200 || d != 200 {
		t.Errorf("statuses of ann %d, local %d, bob %d, eve %d; want only eve's first session gone", a, b, c, d)
	}
	if status, _ := f.post(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`, as("local")); status != 200 {
		t.Errorf("the operator's second initialize: status %d", status)
	}
}

// TestStreamsAreShared: a user with all event streams loses some to other users. The operator loses
// none.
func TestStreamsAreShared(t *testing.T) {
	f := newFixture(t, Config{MaxSessions: 4, Operator: "local"})
	open := func(user string, status int) *http.Response {
		t.Helper()
		resp := f.do(t, "GET", f.url, "", as(user))
		if resp.StatusCode != status || status == 503 && resp.Header.Get("Retry-After") == "" {
			t.Fatalf("%s: status %d, want %d; %v", user, resp.StatusCode, status, resp.Header)
		}
		return resp
	}
	var eve []*http.Response
	for range 4 {
		eve = append(eve, open("eve", 200))
	}
	open("eve", 503)
	open("ann", 200)
	open("ann", 200)
	for i, stream := range eve[:2] {
		if _, err := io.Copy(io.Discard, stream.Body); err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	open("ann", 503) // equal shares
	open("eve", 503)
	open("local", 200)

	f = newFixture(t, Config{MaxSessions: 2, Operator: "local"})
	open("local", 200)
	open("local", 200)
	open("eve", 503)
}

// TestStalledBodies: users who announce large bodies but do not send them do not block others.
func TestStalledBodies(t *testing.T) {
	const limit = 2 << 20
	large := `{"jsonrpc":"2.0","id":1,"method":"ping"` + strings.Repeat(" ", limit-100) + `}`
	for name, tt := range map[string]struct {
		stalled []string
		sender  string
		within  time.Duration
		evicted int // how many of stalled are refused early
	}{
		"one user, two bodies":        {[]string{"eve", "eve"}, "ann", 0, 1},
		"two users, a body each":      {[]string{"eve", "dan"}, "ann", paceWindow, 1},
		"the operator's are in use":   {[]string{"local", "local"}, "ann", paceWindow, 1},
		"the user itself sends again": {[]string{"eve", "eve"}, "eve", paceWindow, 1},
		"nobody else wants any":       {[]string{"eve", "eve"}, "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newServer(t, Config{MaxBodyBytes: limit, Operator: "local"})
				server := &http.Server{Handler: authenticated(f.Handler())}
				l := &pipeListener{make(chan net.Conn)}
				var done sync.WaitGroup
				done.Go(func() { _ = server.Serve(l) })
				send := func(user, body string) (net.Conn, chan int) {
					here, there := net.Pipe()
					l.conns <- there
					answered := make(chan int, 1)
					done.Go(func() {
						fmt.Fprintf(here, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", user, len(large), body)
					})
					done.Go(func() {
						resp, err := http.ReadResponse(bufio.NewReader(here), nil)
						if err != nil {
							answered <- 0
							return
						}
						if resp.StatusCode == 503 && resp.Header.Get("Retry-After") == "" {
							t.Errorf("refused without Retry-After: %v", resp.Header)
						}
						answered <- resp.StatusCode
						io.Copy(io.Discard, here)
					})
					return here, answered
				}
				var conns []net.Conn
				var stalled []chan int
				for _, user := range tt.stalled {
					conn, answered := send(user, large[:10])
					conns, stalled = append(conns, conn), append(stalled, answered)
					synctest.Wait()
				}
				if tt.sender != "" {
					start := time.Now()
					conn, answered := send(tt.sender, large)
					conns = append(conns, conn)
					if status, took := <-answered, time.Since(start); status != 200 || took > tt.within {
						t.Errorf("status %d after %v, want 200 after %v", status, took, tt.within)
					}
				} else {
					<-time.After(bodyTimeout - time.Second)
				}
				synctest.Wait()
				refused := 0
				for _, answered := range stalled {
					if len(answered) > 0 {
						if status := <-answered; status != 503 {
							t.Errorf("a stalled body was refused with status %d", status)
						}
						refused++
					}
				}
				if refused != tt.evicted {
					t.Errorf("%d stalled bodies were refused, want %d", refused, tt.evicted)
				}
				for _, conn := range conns {
					conn.Close()
				}
				_ = f.Close(t.Context())
				server.Close()
				done.Wait()
				<-time.After(time.Second) // net/http lingers before it closes a connection
				synctest.Wait()
				if s := f.large.Stats(); s.Used != 0 || s.Callers != 0 {
					t.Errorf("room was not given back: %+v", s)
				}
			})
		})
	}
}
