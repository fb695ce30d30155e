package mcpserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipeListener accepts connections within this process, so that tests run in synctest's time.
type pipeListener struct{ conns chan net.Conn }

func (l *pipeListener) Accept() (net.Conn, error) {
	conn, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close is called once, by the HTTP server.
func (l *pipeListener) Close() error {
	close(l.conns)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// dial sends one request and returns the connection to read the answer from.
func (l *pipeListener) dial(t *testing.T, proto, method, path, body string, headers ...string) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	l.conns <- server
	text := fmt.Sprintf("%s %s %s\r\nHost: localhost\r\nAuthorization: Bearer local\r\nContent-Length: %d\r\n", method, path, proto, len(body))
	for _, h := range headers {
		text += h + "\r\n"
	}
	if _, err := io.WriteString(client, text+"\r\n"+body); err != nil {
		t.Fatal(err)
	}
	return client
}

// inBubble serves f to a test in synctest's time.
func inBubble(t *testing.T, test func(t *testing.T, f *fixture, l *pipeListener)) {
	synctest.Test(t, func(t *testing.T) {
		f := newServer(t, Config{})
		l := &pipeListener{make(chan net.Conn)}
		server := &http.Server{Handler: authenticated(f.Handler())}
		served := make(chan error)
		go func() { served <- server.Serve(l) }()
		test(t, f, l)
		if err := f.Close(t.Context()); err != nil {
			t.Error(err)
		}
		server.Close()
		<-served
	})
}

// TestSilence: a streaming client gets its first byte within 3 s and then at least one every 4 s,
// even if the server has nothing to send. The Python SDK gives up after 5 silent seconds.
func TestSilence(t *testing.T) {
	const (
		wait   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait"}}`
		meta   = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
		modern = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait",` + meta + `}}`
		listen = `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourcesListChanged":true},` + meta + `}}`
		accept = "Accept: application/json, text/event-stream"
		newest = "Mcp-Protocol-Version: 2026-07-28"
	)
	for _, tt := range []struct {
		name, proto, method, path, body string
		session                         bool
		headers                         []string
	}{
		{"call in a session", "HTTP/1.1", "POST", "/mcp", wait, true, []string{accept}},
		{"call without a session", "HTTP/1.1", "POST", "/mcp", wait, false, []string{accept}},
		{"call over HTTP/1.0", "HTTP/1.0", "POST", "/mcp", wait, false, []string{accept}},
		{"call that accepts compression", "HTTP/1.1", "POST", "/mcp", wait, false, []string{accept, "Accept-Encoding: gzip, br"}},
		{"call of 2026-07-28", "HTTP/1.1", "POST", "/mcp", modern, false, []string{accept, newest, "Mcp-Method: tools/call", "Mcp-Name: wait"}},
		{"listen", "HTTP/1.1", "POST", "/mcp", listen, false, []string{accept, newest, "Mcp-Method: subscriptions/listen"}},
		{"stream of a session", "HTTP/1.1", "GET", "/mcp", "", true, []string{accept}},
		{"stream without a session", "HTTP/1.1", "GET", "/mcp", "", false, []string{"Accept: text/event-stream"}},
		{"events", "HTTP/1.1", "GET", "/mcp/events", "", false, []string{"Accept: text/event-stream"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fixture, l *pipeListener) {
				headers := tt.headers
				if tt.session {
					headers = append(headers, l.initialize(t))
				}
				start := time.Now()
				conn := l.dial(t, tt.proto, tt.method, tt.path, tt.body, headers...)
				first, longest := time.Duration(-1), time.Duration(0)
				conn.SetReadDeadline(start.Add(time.Minute))
				buf := make([]byte, 4096)
				var got strings.Builder
				for last := start; ; last = time.Now() {
					n, err := conn.Read(buf)
					if err != nil {
						break // the deadline
					}
					got.Write(buf[:n])
					if first < 0 {
						first = time.Since(start)
						continue
					}
					longest = max(longest, time.Since(last))
				}
				if first < 0 || first > 3*time.Second || longest > 4*time.Second || time.Since(start) < time.Minute {
					t.Errorf("the first byte came after %v, the longest silence was %v, the end came after %v:\n%s", first, longest, time.Since(start), got.String())
				}
				if text := got.String(); !strings.Contains(text, "Content-Type: text/event-stream\r\n") || strings.Contains(text, "Content-Encoding") {
					t.Errorf("headers: %s", text)
				}
				conn.Close()
				if strings.Contains(tt.body, `"wait"`) {
					<-f.started
					<-f.ended // heartbeats do not keep the call alive after the client is gone
				}
			})
		})
	}
}

// TestNoHeartbeatInJSON: a client that did not ask for a stream gets one JSON object with a length,
// and nothing before it.
func TestNoHeartbeatInJSON(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture, l *pipeListener) {
		conn := l.dial(t, "HTTP/1.1", "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait"}}`, "Accept: application/json")
		<-f.started
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%d bytes came before the answer", n)
		}
		conn.SetReadDeadline(time.Time{})
		go f.Close(t.Context()) // ends the call
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.ContentLength != int64(len(body)) || body[0] != '{' {
			t.Errorf("length %d, %v: %s", resp.ContentLength, err, body)
		}
		conn.Close()
	})
}

// initialize creates a session and returns its header.
func (l *pipeListener) initialize(t *testing.T) string {
	t.Helper()
	conn := l.dial(t, "HTTP/1.1", "POST", "/mcp", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	defer conn.Close()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.Header.Get(sessionHeader) == "" {
		t.Fatalf("initialize: %v, %v", resp, err)
	}
	resp.Body.Close()
	return sessionHeader + ": " + resp.Header.Get(sessionHeader)
}
