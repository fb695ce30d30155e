package mcpserver

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// scripted is a server that does what a test says.
type scripted struct {
	got     chan string // messages of the client
	send    chan string // messages to the client
	ended   chan struct{}
	half    chan struct{} // the client sends no more
	stopped bool
}

func newScripted() *scripted {
	return &scripted{got: make(chan string, 100), send: make(chan string), ended: make(chan struct{}), half: make(chan struct{})}
}

func (s *scripted) Send(line []byte) error {
	select {
	case <-s.ended:
		return io.ErrClosedPipe
	default:
		s.got <- strings.TrimSuffix(string(line), "\n")
		return nil
	}
}

func (s *scripted) Receive() ([]byte, error) {
	select {
	case line := <-s.send:
		return []byte(line + "\n"), nil
	case <-s.ended:
		return nil, io.EOF
	}
}

func (s *scripted) CloseSend() error { close(s.half); return nil }
func (s *scripted) Stopped() bool    { return s.stopped }

func (s *scripted) Close() error {
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
	return nil
}

// relayTest is a Relay between a client and scripted servers.
type relayTest struct {
	t       *testing.T
	in      *io.PipeWriter
	out     chan string
	servers chan *scripted // for the next joins; none: Join fails
	joined  int
	done    chan error
}

func newRelayTest(t *testing.T, servers ...*scripted) *relayTest {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	r := &relayTest{t: t, in: inW, out: make(chan string, 100), servers: make(chan *scripted, 10), done: make(chan error, 1)}
	for _, s := range servers {
		r.servers <- s
	}
	relay := Relay{MaxLineBytes: 1 << 20, Join: func(context.Context) (Upstream, error) {
		select {
		case s := <-r.servers:
			r.joined++
			return s, nil
		default:
			return nil, errors.New("no room")
		}
	}}
	go func() {
		for sc := bufio.NewScanner(outR); sc.Scan(); {
			r.out <- sc.Text()
		}
		close(r.out)
	}()
	go func() {
		r.done <- relay.Run(t.Context(), inR, outW)
		inR.Close()
		outW.Close()
	}()
	return r
}

// client sends a message of the client, and expects it, or other messages, at a server.
func (r *relayTest) client(s *scripted, line string, want ...string) {
	r.t.Helper()
	if _, err := io.WriteString(r.in, line+"\n"); err != nil {
		r.t.Fatal(err)
	}
	if want == nil {
		want = []string{line}
	}
	r.expect(s, want...)
}

// expect expects messages at a server, and no others.
func (r *relayTest) expect(s *scripted, want ...string) {
	r.t.Helper()
	synctest.Wait()
	for _, w := range want {
		if got := receive(s.got); got != w {
			r.t.Errorf("the server got  %s\nwant %s", got, w)
		}
	}
	if len(s.got) > 0 {
		r.t.Errorf("the server also got %s", <-s.got)
	}
}

// server sends a message of a server, and expects it at the client, or nothing.
func (r *relayTest) server(s *scripted, line string, wanted bool) {
	r.t.Helper()
	s.send <- line
	if wanted {
		r.answer(line)
	} else {
		r.answer()
	}
}

// answer expects messages at the client, and no others. Each must start as given.
func (r *relayTest) answer(want ...string) {
	r.t.Helper()
	synctest.Wait()
	for _, w := range want {
		if got := receive(r.out); !strings.HasPrefix(got, w) {
			r.t.Errorf("the client got %q, want %q", got, w)
		}
	}
	if len(r.out) > 0 {
		r.t.Errorf("the client also got %s", <-r.out)
	}
}

func receive(lines chan string) string {
	select {
	case line := <-lines:
		return line
	default:
		return "nothing"
	}
}

func (r *relayTest) end(s *scripted) {
	r.t.Helper()
	r.in.Close()
	synctest.Wait()
	s.Close()
	if err := <-r.done; err != nil {
		r.t.Error(err)
	}
	for line := range r.out {
		r.t.Errorf("at the end the client got %s", line)
	}
}

const (
	initRequest = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"x":1}}`
	initAnswer  = `{"jsonrpc":"2.0","id":0,"result":{}}`
	initNote    = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	listen      = `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{}}`
	acked       = `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}`
	ended       = `,"error":{"code":-32000,"message":"the server ended while it worked on this request`
)

func (r *relayTest) handshake(s *scripted) {
	r.t.Helper()
	r.client(s, initRequest)
	r.server(s, initAnswer, true)
	r.client(s, initNote)
}

// TestRelayReplays: another server gets what the client has set up, and the client gets answers
// once: an error for what was open.
func TestRelayReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newScripted(), newScripted()
		r := newRelayTest(t, first, second)
		r.handshake(first)
		for _, m := range []struct {
			line   string
			answer string // nil: none
		}{
			{`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info"}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`},
			{`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}`, `{"jsonrpc":"2.0","id":2,"result":{}}`},
			{`{"jsonrpc":"2.0","id":3,"method":"logging/setLevel","params":{"level":"bad"}}`, `{"jsonrpc":"2.0","id":3,"error":{"code":-32602}}`},
			{`{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"a"}}`, `{"jsonrpc":"2.0","id":4,"result":{}}`},
			{`{"jsonrpc":"2.0","id":5,"method":"resources/subscribe","params":{"uri":"b"}}`, `{"jsonrpc":"2.0","id":5,"result":{}}`},
			{`{"jsonrpc":"2.0","id":6,"method":"resources/unsubscribe","params":{"uri":"b"}}`, `{"jsonrpc":"2.0","id":6,"result":{}}`},
			{listen, acked},
			{`{"jsonrpc":"2.0","id":"run","method":"tools/call","params":{}}`, ""},
			{`{"jsonrpc":"2.0","id":"dropped","method":"tools/call","params":{}}`, ""},
			{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"dropped"}}`, ""},
			{`{"jsonrpc":"2.0","id":"reused","method":"tools/call","params":{}}`, ""},
			{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"reused"}}`, ""},
			{`{"jsonrpc":"2.0","id":"reused","method":"tools/call","params":{}}`, ""},
		} {
			r.client(first, m.line)
			if m.answer != "" {
				r.server(first, m.answer, true)
			}
		}
		r.server(first, `{"jsonrpc":"2.0","id":77,"method":"roots/list"}`, true)
		time.Sleep(minLife)
		first.Close()
		r.answer(`{"jsonrpc":"2.0","id":"reused"`+ended, `{"jsonrpc":"2.0","id":"run"`+ended)
		r.expect(second, `{"id":"mcp-code-sandbox/replay/1","jsonrpc":"2.0","method":"initialize","params":{"x":1}}`, initNote,
			`{"id":"mcp-code-sandbox/replay/2","jsonrpc":"2.0","method":"logging/setLevel","params":{"level":"debug"}}`,
			`{"id":"mcp-code-sandbox/replay/3","jsonrpc":"2.0","method":"resources/subscribe","params":{"uri":"a"}}`, listen)
		for _, line := range []string{
			`{"jsonrpc":"2.0","id":"mcp-code-sandbox/replay/1","result":{}}`, `{"jsonrpc":"2.0","id":"mcp-code-sandbox/replay/2","result":{}}`,
			`{"jsonrpc":"2.0","id":"mcp-code-sandbox/replay/3","error":{"code":1}}`, acked,
		} {
			r.server(second, line, false)
		}
		r.server(second, `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`, true)
		r.server(second, acked, true) // of a stream of its own
		if _, err := io.WriteString(r.in, `{"jsonrpc":"2.0","id":77,"result":{}}`+"\n"); err != nil {
			t.Fatal(err)
		}
		r.expect(second) // only the first server has asked
		r.server(second, `{"jsonrpc":"2.0","id":77,"method":"roots/list"}`, true)
		r.client(second, `{"jsonrpc":"2.0","id":77,"result":{}}`)
		r.client(second, `{"jsonrpc":"2.0","id":"run","method":"tools/call","params":{}}`)
		r.server(second, `{"jsonrpc":"2.0","id":"run","result":{"content":[]}}`, true)
		r.end(second)
	})
}

// TestRelayWaits: after the end of a server that was stopped or did not last, the client's next
// message joins another one.
func TestRelayWaits(t *testing.T) {
	for name, life := range map[string]time.Duration{"short life": minLife - 1, "stopped": minLife} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := newScripted(), newScripted()
				first.stopped = name == "stopped"
				r := newRelayTest(t, first, second)
				r.handshake(first)
				time.Sleep(life)
				first.Close()
				time.Sleep(time.Hour)
				if r.joined != 1 {
					t.Errorf("joined %d servers without need", r.joined)
				}
				ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
				r.client(second, ping, `{"id":"mcp-code-sandbox/replay/1","jsonrpc":"2.0","method":"initialize","params":{"x":1}}`, initNote, ping)
				r.server(second, `{"jsonrpc":"2.0","id":1,"result":{}}`, true)
				r.end(second)
			})
		})
	}
}

// TestRelayInitialize: an unanswered initialize goes to the next server under its own id. If none
// is joined, it is answered, and the client may try again.
func TestRelayInitialize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, third := newScripted(), newScripted(), newScripted()
		r := newRelayTest(t, first, second)
		r.client(first, initRequest)
		time.Sleep(minLife)
		first.Close()
		r.expect(second, initRequest)
		second.Close() // at once
		r.answer(`{"jsonrpc":"2.0","id":0` + ended)
		r.servers <- third
		r.client(third, initRequest)
		r.server(third, initAnswer, true)
		r.end(third)
	})
}

// TestRelayNoServer: without a server, requests are answered, and the next one tries again.
func TestRelayNoServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newScripted(), newScripted()
		r := newRelayTest(t, first)
		r.handshake(first)
		r.client(first, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		time.Sleep(minLife)
		first.Close()
		r.answer(`{"jsonrpc":"2.0","id":1` + ended)
		if _, err := io.WriteString(r.in, `{"jsonrpc":"2.0","id":2,"method":"ping"}`+"\n"+initNote+"\n"); err != nil {
			t.Fatal(err)
		}
		r.answer(`{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"the server has ended, and no other can be started: no room"`)
		r.servers <- second
		ping := `{"jsonrpc":"2.0","id":3,"method":"ping"}`
		r.client(second, ping, `{"id":"mcp-code-sandbox/replay/1","jsonrpc":"2.0","method":"initialize","params":{"x":1}}`, initNote, ping)
		r.server(second, `{"jsonrpc":"2.0","id":3,"result":{}}`, true)
		r.end(second)
	})
	t.Run("at first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRelayTest(t)
			if err := <-r.done; err == nil || err.Error() != "no room" {
				t.Errorf("Run: %v", err)
			}
		})
	})
}

// TestRelayEndOfInput: the server answers what is open after the client's last message. If it ends
// instead, the client still gets an answer, and no other server is joined.
func TestRelayEndOfInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newScripted(), newScripted()
		r := newRelayTest(t, first, second)
		r.handshake(first)
		r.client(first, listen)
		r.client(first, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		r.client(first, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		time.Sleep(minLife)
		r.in.Close()
		<-first.half
		r.server(first, `{"jsonrpc":"2.0","id":2,"result":{}}`, true)
		first.Close()
		r.answer(`{"jsonrpc":"2.0","id":1` + ended)
		if err := <-r.done; err != nil || r.joined != 1 {
			t.Errorf("Run: %v, %d servers", err, r.joined)
		}
	})
}

// TestRelayTooLong: a message over the limit is answered, and does not reach the server.
func TestRelayTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted()
		r := newRelayTest(t, s)
		r.handshake(s)
		if _, err := io.WriteString(r.in, strings.Repeat("x", 2<<20)+"\n"); err != nil {
			t.Fatal(err)
		}
		r.answer(`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the message is larger than 1048576 bytes"`)
		r.expect(s)
		r.end(s)
	})
}
