package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/httpapi"
)

// serveLimited serves h on loopback with at most max connections.
func serveLimited(t *testing.T, h http.Handler, max int) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httpapi.NewServer(h, nil)
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(httpapi.Limit(l, max)) })
	t.Cleanup(func() {
		server.Close()
		done.Wait()
	})
	return l.Addr().String()
}

// send opens a connection and sends a request on it, or nothing if it is empty.
func send(t *testing.T, address, request string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	return c
}

func get(path string, headers ...string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
}

// response reads the head of a response, and no more of its body than comes with it.
func response(t *testing.T, c net.Conn) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func (s *fileServer) writeLarge(t *testing.T, name string) (link string) {
	t.Helper()
	s.write(t, name, "")
	if err := os.Truncate(filepath.Join(s.dir, name), 64<<20); err != nil { // more than sockets buffer
		t.Fatal(err)
	}
	return target(s.signer.FileURL("chat-1", name))
}

// limited returns the file server of a process with a limit on connections.
func limited(t *testing.T, max int) *fileServer {
	s := newFileServer(t)
	s.Handler = httpapi.New(config(func(c *httpapi.Config) {
		c.Files, c.Signer, c.MaxConnections = s.executor, s.signer, max
	}))
	return s
}

// TestClientsThatDoNotRead: clients that do not read get as many downloads as one link may have.
// Other clients and links are not affected.
func TestClientsThatDoNotRead(t *testing.T) {
	const connections = 400 // so that 100 may download
	s := limited(t, connections)
	link, other := s.writeLarge(t, "large.bin"), s.writeLarge(t, "other.bin")
	address := serveLimited(t, s, connections)
	served, refused := 0, 0
	for range 60 {
		resp := response(t, send(t, address, get(link)))
		switch {
		case resp.StatusCode == 200:
			served++
		case resp.StatusCode == 429 && resp.Header.Get("Retry-After") != "" && resp.Close:
			refused++
		default:
			t.Fatalf("status %d %v", resp.StatusCode, resp.Header)
		}
	}
	if served != 32 || refused != 28 {
		t.Errorf("%d were served, %d refused", served, refused)
	}
	for path, headers := range map[string][]string{other: nil, "/healthz": nil, "/mcp": {"Authorization: Bearer " + token}} {
		if resp := response(t, send(t, address, get(path, headers...))); resp.StatusCode != 200 {
			t.Errorf("%s: status %d", path, resp.StatusCode)
		}
	}
}

// TestDownloadsInTotal: when a quarter of the connections download, one caller's links make room
// for another's, and more than an equal share is refused.
func TestDownloadsInTotal(t *testing.T) {
	s := limited(t, 16)
	address := serveLimited(t, s, 16)
	var conns []net.Conn
	for i := range 4 {
		c := send(t, address, get(s.writeLarge(t, fmt.Sprint(i))))
		if resp := response(t, c); resp.StatusCode != 200 {
			t.Fatalf("status %d", resp.StatusCode)
		}
		conns = append(conns, c)
	}
	resp := response(t, send(t, address, get(s.writeLarge(t, "fifth"))))
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("status %d %v", resp.StatusCode, resp.Header)
	}
	// Another caller's link: its session does not exist, but the server finds out only after it has
	// made room.
	if resp := response(t, send(t, address, get(target(s.signer.FileURL("chat-2", "x"))))); resp.StatusCode != 404 {
		t.Errorf("another caller: status %d", resp.StatusCode)
	}
	if n, err := io.Copy(io.Discard, conns[0]); n >= 64<<20 {
		t.Errorf("the oldest download of the largest holder went on: %d bytes, %v", n, err)
	}
}

// TestConnectionsOfStrangers: a caller can connect, whatever strangers do with all connections.
func TestConnectionsOfStrangers(t *testing.T) {
	const connections = 20
	for name, request := range map[string]string{
		"silent":        "",
		"half a header": "GET /healthz HTTP/1.1\r\nHost: localho",
		"answered":      get("/healthz"),
		"no body":       "POST /oauth/token HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n",
		"wrong token":   "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\nContent-Length: 10\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(nil)
			cfg.Login = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
			address := serveLimited(t, httpapi.New(cfg), connections)
			var conns []net.Conn
			for range 3 * connections {
				conns = append(conns, send(t, address, request))
			}
			if resp := response(t, send(t, address, get("/mcp", "Authorization: Bearer "+token))); resp.StatusCode != 200 {
				t.Errorf("status %d", resp.StatusCode)
			}
			for i, c := range conns[:2*connections] { // each made room for a later one
				if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
					t.Fatalf("connection %d is still open", i)
				}
			}
		})
	}
}

// TestConnectionsInUse: a connection beyond the limit gets an answer, the operator's are never
// closed, and one user's make room for others.
func TestConnectionsInUse(t *testing.T) {
	entered := make(chan struct{})
	cfg := config(withPeople)
	cfg.MCP = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-r.Context().Done()
	})
	use := func(address, token string) net.Conn {
		c := send(t, address, get("/mcp", "Authorization: Bearer "+token))
		<-entered
		return c
	}
	address := serveLimited(t, httpapi.New(cfg), 2)
	use(address, token)
	use(address, token)
	for range 3 {
		resp := response(t, send(t, address, get("/healthz")))
		if text, err := io.ReadAll(resp.Body); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || err != nil || !strings.Contains(string(text), "try again") {
			t.Errorf("status %d %v %q %v", resp.StatusCode, resp.Header, text, err)
		}
	}

	address = serveLimited(t, httpapi.New(cfg), 2)
	first := use(address, "alice-token")
	use(address, "alice-token")
	if resp := response(t, send(t, address, get("/healthz"))); resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
	if _, err := io.Copy(io.Discard, first); os.IsTimeout(err) {
		t.Error("the user's first connection is still open")
	}
}

// onPipe serves h in the bubble and calls client with the other end of a connection.
func onPipe(h http.Handler, client func(net.Conn)) {
	server := httpapi.NewServer(h, nil)
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(httpapi.Limit(l, 10)) })
	here, there := net.Pipe()
	l.conns <- there
	client(here)
	here.Close()
	server.Close()
	done.Wait()
	<-time.After(time.Second) // net/http lingers before it closes a connection
	synctest.Wait()
}

// TestWriteDeadline: a client that stops reading is disconnected, whatever the response. A slow one
// is not.
func TestWriteDeadline(t *testing.T) {
	const size = 1 << 20
	for name, serve := range map[string]func(w http.ResponseWriter, r *http.Request){
		"one write": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) },
		"slow source": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(size))
			for range 4 {
				<-time.After(time.Hour)
				if _, err := w.Write(make([]byte, size/4)); err != nil {
					return
				}
			}
		},
		"": nil, // a file
	} {
		for _, reads := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " reads ", reads), func(t *testing.T) {
				s := limited(t, 16)
				s.write(t, "file", strings.Repeat("x", size))
				h, path := s.Handler, target(s.signer.FileURL("chat-1", "file"))
				if serve != nil {
					h, path = httpapi.New(config(func(c *httpapi.Config) { c.MCP = http.HandlerFunc(serve) })), "/mcp"
				}
				synctest.Test(t, func(t *testing.T) {
					onPipe(h, func(c net.Conn) {
						_, _ = io.WriteString(c, get(path, "Authorization: Bearer "+token))
						resp, err := http.ReadResponse(bufio.NewReaderSize(c, 4<<10), nil)
						if err != nil {
							t.Error(err)
							return
						}
						var n int64
						for pause := 25 * time.Second; err == nil; {
							var m int64
							m, err = io.CopyN(io.Discard, resp.Body, 64<<10)
							n += m
							if !reads {
								pause = 31 * time.Second
							}
							<-time.After(pause)
						}
						if (n == size) != reads {
							t.Errorf("read %d bytes, %v", n, err)
						}
					})
				})
			})
		}
	}
}

// TestIdleConnections: an idle connection stays open longer if it had a valid token.
func TestIdleConnections(t *testing.T) {
	for _, tt := range []struct {
		request string
		stays   time.Duration
	}{
		{get("/healthz"), 10 * time.Second},
		{get("/mcp", "Authorization: Bearer wrong"), 10 * time.Second},
		{get("/mcp", "Authorization: Bearer "+token), 2 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			onPipe(httpapi.New(config(nil)), func(c net.Conn) {
				_, _ = io.WriteString(c, tt.request)
				start := time.Now()
				if _, err := io.Copy(io.Discard, c); err != nil {
					t.Error(err)
				}
				if stayed := time.Since(start); stayed != tt.stays {
					t.Errorf("%s stayed for %v, want %v", tt.request, stayed, tt.stays)
				}
			})
		})
	}
}
