package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/door"
	"mcp-code-sandbox/internal/egress/egresstest"
)

// site is an Egress in a world of its own, behind a door.
type site struct {
	*Egress
	t     *testing.T
	world *egresstest.World
	door  *door.Door
	conns sync.WaitGroup
	file  string // the audit trail
}

// enter returns the site in the world's process, and nil in the process that starts it.
func enter(t *testing.T, cfg Config) *site {
	t.Helper()
	w := egresstest.Enter(t)
	if w == nil {
		return nil
	}
	return newSite(t, w, cfg)
}

func newSite(t *testing.T, w *egresstest.World, cfg Config) *site {
	t.Helper()
	if cfg.Closed == nil {
		cfg.Closed = closednet.New(t.Context(), closednet.Config{})
	}
	cfg.Resolver = w.Resolver()
	s := &site{t: t, world: w, file: filepath.Join(t.TempDir(), "audit.jsonl")}
	trail, err := audit.Open(s.file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { trail.Close() })
	cfg.Audit = trail
	s.Egress = newEgress(t, cfg)
	s.door = door.New(door.Config{Egress: s.Egress})
	t.Cleanup(s.conns.Wait) // a connection that does not end fails the test by its timeout
	return s
}

// dial opens a connection from a sandbox to the door, or to a host by name.
func (s *site) dial(sandbox, host string) net.Conn {
	s.t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			s.t.Fatal(err)
		}
		f.Close()
	}
	s.conns.Go(func() { s.door.Serve(context.Background(), sandbox, host, ends[1]) })
	s.t.Cleanup(func() { ends[0].Close() })
	return ends[0]
}

// grant starts a run and returns its Proxy-Authorization.
func (s *site) grant(runID, sandbox string, hosts ...string) string {
	s.t.Helper()
	rules, err := s.Check(hosts)
	if err != nil {
		s.t.Fatal(err)
	}
	_, secrets := s.Grant("ann", runID, sandbox, rules)
	if len(secrets) == 0 {
		return ""
	}
	return basic(secrets[0])
}

func basic(token string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+token))
}

// send sends a request to the door and returns the answer's status and body, and the connection.
func (s *site) send(sandbox, auth, request string) (status int, body string, conn net.Conn) {
	s.t.Helper()
	conn = s.dial(sandbox, "")
	head, rest, _ := strings.Cut(request, "\r\n\r\n")
	if auth != "" {
		head += "\r\nProxy-Authorization: " + auth
	}
	_, _ = io.WriteString(conn, head+"\r\n\r\n"+rest) // the answer may come before all is sent
	r := bufio.NewReaderSize(oneByte{conn}, 16)       // it must not read beyond the answer
	res, err := http.ReadResponse(r, &http.Request{Method: strings.Fields(request)[0]})
	if err != nil {
		s.t.Fatalf("%q: %v", request, err)
	}
	if res.StatusCode == 200 && strings.HasPrefix(request, "CONNECT") {
		return 200, "", conn
	}
	data, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(data), conn
}

// oneByte reads a byte at a time.
type oneByte struct{ net.Conn }

func (o oneByte) Read(p []byte) (int, error) { return o.Conn.Read(p[:min(1, len(p))]) }

func (s *site) connect(sandbox, auth, host string) (int, string, net.Conn) {
	s.t.Helper()
	return s.send(sandbox, auth, "CONNECT "+host+" HTTP/1.1\r\nHost: "+host)
}

// get requests a page over TLS on a connection that is open.
func (s *site) get(conn net.Conn, name, path string) (string, error) {
	c := tls.Client(conn, &tls.Config{RootCAs: s.world.CA, ServerName: name})
	if err := c.Handshake(); err != nil {
		return "", err
	}
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, name)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

// wantBlocked ends a run and checks what was blocked: "host rule".
func (s *site) wantBlocked(runID string, want ...string) {
	s.t.Helper()
	var got []string
	for _, b := range s.Release(runID) {
		got = append(got, b.Host+" "+b.Rule)
	}
	for i, w := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], w) {
			s.t.Errorf("blocked %q, want %q", got, want)
			return
		}
	}
	if len(got) != len(want) {
		s.t.Errorf("blocked %q, want %q", got, want)
	}
}

// wantQueries checks which names were resolved since the last call.
func (s *site) wantQueries(want ...string) {
	s.t.Helper()
	got := s.world.Queries()
	for _, name := range want {
		if got[name] == 0 {
			s.t.Errorf("%s was not resolved: %v", name, got)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		s.t.Errorf("resolved %v", got)
	}
}
