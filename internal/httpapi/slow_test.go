package httpapi_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/httpapi"
)

// pipes is a listener for in-process connections.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A client that announces a body and does not send it is disconnected on every path. A known caller
// may take longer.
func TestBodiesThatNeverCome(t *testing.T) {
	read := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, "cut", http.StatusRequestTimeout)
		}
	})
	for name, tc := range map[string]struct {
		request string
		waits   bool
	}{
		"no token":       {request: "POST /mcp"},
		"a wrong token":  {request: "POST /api/execution-token HTTP/1.1\r\nAuthorization: Bearer nope"},
		"login":          {request: "POST /oauth/token"},
		"registration":   {request: "POST /oauth/register HTTP/1.1\r\nTransfer-Encoding: chunked"},
		"nowhere":        {request: "POST /nowhere"},
		"a foreign host": {request: "POST /mcp HTTP/1.1\r\nX-Host: evil.example"},
		"health":         {request: "POST /healthz"},
		"a known caller": {request: "POST /mcp HTTP/1.1\r\nAuthorization: Bearer " + token, waits: true},
		"the proxy":      {request: "POST /proxy/s/x", waits: true}, // which has its own limits
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := config(withPeople)
				cfg.MCP, cfg.API, cfg.Login, cfg.Users, cfg.Proxy = read, read, read, people{}, read
				server := httpapi.NewServer(httpapi.New(cfg), nil)
				l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
				var done sync.WaitGroup
				done.Go(func() { _ = server.Serve(l) })
				here, there := net.Pipe()
				l.conns <- there
				start := time.Now()
				request := tc.request
				if !strings.Contains(request, " HTTP/1.1") {
					request += " HTTP/1.1"
				}
				host := "localhost"
				if strings.Contains(request, "X-Host") {
					host = "evil.example"
				}
				request += "\r\nHost: " + host + "\r\n"
				if !strings.Contains(request, "chunked") {
					request += "Content-Length: 10\r\n"
				}
				done.Go(func() { _, _ = io.WriteString(here, request+"\r\n") })
				ended := make(chan time.Duration, 1)
				done.Go(func() {
					_, _ = io.Copy(io.Discard, here)
					ended <- time.Since(start)
				})
				select {
				case took := <-ended:
					if tc.waits {
						t.Errorf("cut after %s", took)
					}
				case <-time.After(10 * time.Minute):
					if !tc.waits {
						t.Error("it still holds the connection")
					}
				}
				here.Close()
				server.Close()
				done.Wait()
			})
		})
	}
}

// The bound is for the body: a call may take longer after it.
func TestAnswersMayTakeLong(t *testing.T) {
	for _, path := range []string{"/mcp", "/api/execution-token", "/oauth/token"} {
		synctest.Test(t, func(t *testing.T) {
			slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				select {
				case <-r.Context().Done():
					http.Error(w, "cut", http.StatusInternalServerError)
				case <-time.After(time.Hour):
				}
			})
			cfg := config(nil)
			cfg.MCP, cfg.API, cfg.Login, cfg.Users = slow, slow, slow, people{}
			server := httpapi.NewServer(httpapi.New(cfg), nil)
			l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
			var done sync.WaitGroup
			done.Go(func() { _ = server.Serve(l) })
			here, there := net.Pipe()
			l.conns <- there
			done.Go(func() {
				_, _ = io.WriteString(here, "POST "+path+" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+token+"\r\nContent-Length: 2\r\n\r\n{}")
			})
			res, err := http.ReadResponse(bufio.NewReader(here), nil)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Errorf("%s: %v, %v", path, res, err)
			}
			here.Close()
			server.Close()
			done.Wait()
		})
	}
}

// The handler refuses a target that is not a path.
func TestOptionsStar(t *testing.T) {
	server := httpapi.NewServer(httpapi.New(config(nil)), nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	for _, target := range []string{"*", "http://evil.example/mcp"} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "OPTIONS "+target+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		answer, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 4") {
			t.Errorf("%s: %q, %v", target, answer, err)
		}
	}
}
