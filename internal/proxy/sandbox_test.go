package proxy

import (
	"context"
	"fmt"
	"io"
	"mcp-code-sandbox/internal/httpconn"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Hostile bytes instead of HTTP. The service sees only the valid requests, one by one, with new
// framing.
func TestSandboxSmuggling(t *testing.T) {
	up := serveWire(t, plainAnswer)
	f := setup(t, up.url, nil)
	tokens, err := f.p.IssueForRun(t.Context(), "ann", "run", "sb", time.Minute, []GrantRequest{{Service: "datadog", Paths: []string{"/ok/**"}}})
	if err != nil {
		t.Fatal(err)
	}
	auth := "Host: h\r\nAuthorization: Bearer " + tokens[0].Token + "\r\n"
	hidden := "GET /proxy/datadog/admin HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n"
	for _, tc := range []struct {
		name, text string
		statuses   []string // of the answers
		paths      []string // that the service saw
	}{
		{"pipelined", "GET /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "\r\nGET /proxy/datadog/ok/2 HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n", []string{"200", "200"}, []string{"/ok/1", "/ok/2"}},
		{"pipelined after a refusal", "GET /proxy/datadog/admin HTTP/1.1\r\n" + auth + "\r\nGET /proxy/datadog/ok/2 HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n", []string{"403", "200"}, []string{"/ok/2"}},
		{"both lengths", "POST /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden, []string{"200", "403"}, []string{"/ok/1"}},
		{"two lengths", "POST /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd" + hidden, []string{"400"}, nil},
		{"a signed length", "POST /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "Content-Length: +4\r\n\r\nabcd" + hidden, []string{"400"}, nil},
		{"another transfer coding", "POST /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden, []string{"501"}, nil},
		{"two transfer codings", "POST /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden, []string{"501"}, nil},
		{"a space before the colon", "POST /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden, []string{"400"}, nil},
		{"a folded field", "GET /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "X-A: b\r\n Content-Length: 5\r\nConnection: close\r\n\r\n", []string{"200"}, []string{"/ok/1"}},
		{"a body of its own length", "POST /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + fmt.Sprintf("Content-Length: %d\r\nConnection: close\r\n\r\n", len(hidden)) + hidden, []string{"200"}, []string{"/ok/1"}},
		{"a bad chunk", "POST /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + hidden, []string{"400"}, nil},
		{"line breaks in the target", "GET /proxy/datadog/ok/1\rX: y HTTP/1.1\r\n" + auth + "\r\n", []string{"400"}, nil},
		{"absolute form", "GET " + up.url + "/ok/1 HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n", []string{"400"}, nil},
		{"CONNECT", "CONNECT " + strings.TrimPrefix(up.url, "http://") + " HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n", []string{"400"}, nil},
		{"asterisk", "OPTIONS * HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n", []string{"400"}, nil},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []string{"400"}, nil},
		{"upgrade to HTTP/2", "GET /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "Upgrade: h2c\r\nHTTP2-Settings: x\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n" + "GET /proxy/datadog/ok/2 HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n", []string{"400", "200"}, []string{"/ok/2"}},
		{"no host", "GET /proxy/datadog/ok/1 HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n", []string{"400"}, nil},
		{"another page", "GET /mcp HTTP/1.1\r\n" + auth + "Connection: close\r\n\r\n", []string{"404"}, nil},
		{"a head without end", "GET /proxy/datadog/ok/1 HTTP/1.1\r\n" + auth + "X-A: " + strings.Repeat("a", 2*(32<<10)), []string{"431"}, nil},
		{"not HTTP", "\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n", []string{"400"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := len(up.requests())
			answer := exchange(t, f.sandbox(t, f.p, "sb"), tc.text)
			var statuses, paths []string
			for _, part := range strings.Split("\r\n"+answer, "HTTP/1.1 ")[1:] {
				statuses = append(statuses, part[:3])
			}
			for _, r := range up.requests()[before:] {
				paths = append(paths, strings.Fields(r)[1])
				if strings.Count(r, realToken) != 1 || strings.Contains(r, tokens[0].Token) && !strings.Contains(tc.name, "length") {
					t.Errorf("the service saw %q", r)
				}
			}
			if !slices.Equal(statuses, tc.statuses) || !slices.Equal(paths, tc.paths) {
				t.Errorf("answered %q, the service saw %q; want %q, %q\n%s", statuses, paths, tc.statuses, tc.paths, answer)
			}
		})
	}
}

// A client that sends its request byte by byte, or nothing, is disconnected.
func TestSandboxSlowLoris(t *testing.T) {
	f := setup(t, "http://127.0.0.1:1", nil)
	for name, send := range map[string]func(net.Conn){
		"a byte a second": func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, "G"); err != nil {
					return
				}
				time.Sleep(time.Second) // in synctest's time
			}
		},
		"nothing": func(net.Conn) {},
		"nothing more": func(c net.Conn) {
			_, _ = io.WriteString(c, "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\n\r\n")
		},
		"a body that never comes": func(c net.Conn) {
			_, _ = io.WriteString(c, "POST /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				var sandbox sync.WaitGroup
				sandbox.Go(func() { send(here) })
				sandbox.Go(func() { _, _ = io.Copy(io.Discard, here) })
				start := time.Now()
				serveSandbox(f.p, context.Background(), "sb", there)
				if took := time.Since(start); took > httpconn.HeaderTimeout+httpconn.IdleTimeout {
					t.Errorf("it took %s", took)
				}
				here.Close()
				sandbox.Wait()
			})
		})
	}
}

// The end of the sandbox, or of its connection, ends everything.
func TestSandboxEnds(t *testing.T) {
	url, left := stream(t)
	f := setup(t, url, nil)
	tokens, err := f.p.IssueForRun(t.Context(), "ann", "run", "sb", time.Minute, []GrantRequest{{Service: "datadog"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(net.Conn, context.CancelFunc){
		"connection": func(c net.Conn, _ context.CancelFunc) { c.Close() },
		"sandbox":    func(_ net.Conn, cancel context.CancelFunc) { cancel() },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		here, there := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			serveSandbox(f.p, ctx, "sb", there)
		}()
		_, _ = io.WriteString(here, "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "+tokens[0].Token+"\r\n\r\n")
		if _, err := io.ReadAtLeast(here, make([]byte, 4096), 12); err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, here)
		end(here, cancel)
		for _, ch := range []chan struct{}{done, left} {
			select {
			case <-ch:
			case <-time.After(patience):
				t.Errorf("after the end of the %s something goes on", name)
			}
		}
		cancel()
		here.Close()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	here, there := net.Pipe()
	defer here.Close()
	serveSandbox(f.p, ended, "sb", there) // returns
}
