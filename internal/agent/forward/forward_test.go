package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"mcp-code-sandbox/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a Forwarder with the server's side of its connection. The server greets with the host of
// the dial and echoes.
type world struct {
	*Forwarder
	server *wire.Conn
	mu     sync.Mutex
	dials  []string
	hangUp bool // after the greeting
}

func newWorld(t *testing.T) *world {
	t.Helper()
	f, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for err = f.ListenNames(freeAddr(t)); err != nil; err = f.ListenNames(freeAddr(t)) {
		t.Log(err) // somebody took the port
	}
	w := &world{Forwarder: f}
	here, there := net.Pipe()
	w.server = wire.NewConn(there, wire.ServerSide, w.accept)
	agent := wire.NewConn(here, wire.AgentSide, nil)
	f.Serve(agent)
	t.Cleanup(func() { f.Close(); agent.Close(); w.server.Close() })
	return w
}

func (w *world) accept(s *wire.Stream, f wire.Frame) {
	defer s.Close()
	w.mu.Lock()
	w.dials = append(w.dials, f.Host)
	hangUp := w.hangUp
	w.mu.Unlock()
	if !strings.HasSuffix(f.Host, ":0") {
		_, _ = io.WriteString(s, f.Host+"\n")
		if hangUp {
			return
		}
		_, _ = io.Copy(struct{ io.Writer }{s}, s)
	}
}

// told returns the hosts of the dials so far.
func (w *world) told() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dials)
}

// freeAddr returns an address whose port was free for TCP.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, _ := net.SplitHostPort(freeAddr(t))
	return port
}

// goResolver is the resolver of static Go programs.
func (w *world) goResolver(network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, w.resolver.tcp.Addr().String())
	}}
}

// ask returns the address of a name as a program sees it, or "" if it is unknown.
func (w *world) ask(t *testing.T, host string) string {
	t.Helper()
	addrs, err := w.goResolver("udp").LookupHost(t.Context(), host+".")
	var unknown *net.DNSError
	if errors.As(err, &unknown) && unknown.IsNotFound {
		return ""
	}
	if err != nil || len(addrs) != 1 || !strings.HasPrefix(addrs[0], "127.66.") {
		t.Fatalf("%s: %v, %v", host, addrs, err)
	}
	return addrs[0]
}

// connect connects to an address and returns the connection after the greeting.
func connect(t *testing.T, addr, want string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	got := make([]byte, len(want)+1)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want+"\n" {
		t.Fatalf("%s: %q, %v; want %s", addr, got, err, want)
	}
	return c
}

func refused(addr string) bool {
	c, err := net.Dial("tcp", addr)
	if err == nil {
		c.Close()
	}
	return err != nil
}

// count counts known names and listeners.
func (w *world) count() (names, listeners int) {
	w.names.mu.Lock()
	defer w.names.mu.Unlock()
	return len(w.names.known), w.names.listeners
}

func TestDoor(t *testing.T) {
	w := newWorld(t)
	c := connect(t, w.door.Addr().String(), "")
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestResolve: names resolve during the run that has a rule for them, over both protocols.
func TestResolve(t *testing.T) {
	w := newWorld(t)
	end := w.Begin([]string{"db.example.com:5432", "*.wiki.example:443", "*:443", "bad", "bad:0", "bad:65536", ":443"})
	for _, network := range []string{"udp", "tcp"} {
		for host, want := range map[string]bool{
			"db.example.com": true, "DB.example.COM": true, "en.wiki.example": true, "a.b.wiki.example": true,
			"wiki.example": false, "xwiki.example": false, "x.db.example.com": false, "com": false, "bad": false,
		} {
			addrs, err := w.goResolver(network).LookupHost(t.Context(), host+".")
			var unknown *net.DNSError
			if want != (err == nil) || !want && !(errors.As(err, &unknown) && unknown.IsNotFound) {
				t.Errorf("%s over %s: %v, %v", host, network, addrs, err)
			}
		}
	}
	end()
	if got := w.ask(t, "db.example.com"); got != "" {
		t.Errorf("after the run: %s", got)
	}
	if _, listeners := w.count(); listeners != 0 {
		t.Errorf("%d listeners are left", listeners)
	}
}

// TestOverlap: a name lives until the last run that has a rule for it ends; then its connections
// end, too.
func TestOverlap(t *testing.T) {
	w := newWorld(t)
	port, other := freePort(t), freePort(t)
	rule := "db.example.com:" + port
	endFirst := w.Begin([]string{rule})
	endSecond := w.Begin([]string{rule, "db.example.com:" + other})
	ip := w.ask(t, "db.example.com")
	addr, otherAddr := net.JoinHostPort(ip, port), net.JoinHostPort(ip, other)
	c, d := connect(t, addr, rule), connect(t, otherAddr, "db.example.com:"+other)

	endSecond()
	if got, err := io.ReadAll(d); len(got) != 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the second run's own connection: %q, %v", got, err)
	}
	if !refused(otherAddr) || w.ask(t, "db.example.com") != ip {
		t.Error("the ports of the name are wrong")
	}
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("the first run's connection: %v", err)
	}
	endFirst()
	if got, err := io.ReadAll(c); len(got) != 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("%q, %v", got, err)
	}
	if !refused(addr) {
		t.Error("the address is still served")
	}
	// A program that remembers the address reaches the name in a later run that has a rule for it.
	for range 2 {
		end := w.Begin([]string{rule})
		connect(t, addr, rule)
		if !refused(otherAddr) {
			t.Error("a port without a rule is served")
		}
		end()
		if !refused(addr) {
			t.Error("the address is still served")
		}
	}
	end := w.Begin([]string{rule})
	defer end()
	if got := w.ask(t, "db.example.com"); got != ip {
		t.Errorf("its address changed from %s to %s", ip, got)
	}
}

// TestReports: the server learns of a denied name once in a run, before the program does, and only
// of some.
func TestReports(t *testing.T) {
	w := newWorld(t)
	for run := range 2 {
		end := w.Begin(nil)
		w.ask(t, "a.example")
		w.ask(t, "A.example")
		if got := w.told(); len(got) != run+1 || got[run] != "a.example:0" {
			t.Errorf("run %d: %q", run, got)
		}
		_, _ = w.goResolver("udp").LookupAddr(t.Context(), "127.0.0.1") // a query, but not for a host
		_, _ = w.goResolver("udp").LookupTXT(t.Context(), "txt.example")
		end()
	}
	w.Begin(nil)()
	for i := range 3 * maxReports {
		w.ask(t, fmt.Sprintf("n%d.example", i))
	}
	if got := len(w.told()); got != 2+maxReports {
		t.Errorf("%d reports", got)
	}
}

// TestTaken: a name has no address while another process listens there.
func TestTaken(t *testing.T) {
	w := newWorld(t)
	port := freePort(t)
	defer w.Begin([]string{"db.example.com:" + port})()
	addr := net.JoinHostPort(w.names.addressLocked("db.example.com").String(), port)
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	if addr, allowed, err := w.resolve("db.example.com"); err == nil || !allowed {
		t.Errorf("%v, %v, %v", addr, allowed, err)
	}
	if names, listeners := w.count(); names+listeners != 0 {
		t.Errorf("left: %d names, %d listeners", names, listeners)
	}
	l.Close()
	connect(t, net.JoinHostPort(w.ask(t, "db.example.com"), port), "db.example.com:"+port)
}

// TestManyNames: a wildcard makes room for new names, but not at the expense of one in use.
func TestManyNames(t *testing.T) {
	w := newWorld(t)
	port := freePort(t)
	end := w.Begin([]string{"*.example.com:" + port})
	used := net.JoinHostPort(w.ask(t, "used.example.com"), port)
	c := connect(t, used, "used.example.com:"+port)
	seen := map[string]bool{}
	for i := range 2 * maxListeners {
		host := "h" + strconv.Itoa(i) + ".example.com"
		addr := w.ask(t, host)
		if i%100 == 0 {
			connect(t, net.JoinHostPort(addr, port), host+":"+port).Close()
		}
		seen[addr] = true
		if names, listeners := w.count(); names > maxListeners || listeners > maxListeners {
			t.Fatalf("%d names, %d listeners", names, listeners)
		}
	}
	if len(seen) < maxListeners {
		t.Errorf("%d addresses", len(seen))
	}
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("the connection in use: %v", err)
	}
	end()
	for i := range 2 * maxListeners { // names of earlier runs count
		host := "h" + strconv.Itoa(i) + ".example.org"
		end := w.Begin([]string{host + ":" + port})
		w.ask(t, host)
		end()
	}
	if names, listeners := w.count(); names > maxListeners || listeners != 0 {
		t.Errorf("%d names, %d listeners", names, listeners)
	}
}

// TestListedName: a name that a run lists in full keeps its listener, whatever else is looked up.
func TestListedName(t *testing.T) {
	w := newWorld(t)
	port := freePort(t)
	defer w.Begin([]string{"db.example.com:" + port, "*.example.org:" + port})()
	addr := net.JoinHostPort(w.ask(t, "db.example.com"), port)
	for i := range 2 * maxListeners {
		w.ask(t, "h"+strconv.Itoa(i)+".example.org")
	}
	if l, err := net.Listen("tcp4", addr); err == nil {
		l.Close()
		t.Fatal("code can listen in its place")
	}
	connect(t, addr, "db.example.com:"+port).Close()
}

// TestManyConnections: connections beyond the wire's limit are closed and cost no goroutine.
func TestManyConnections(t *testing.T) {
	w := newWorld(t)
	port := freePort(t)
	defer w.Begin([]string{"db.example.com:" + port})()
	addr := net.JoinHostPort(w.ask(t, "db.example.com"), port)
	var held []net.Conn
	for len(held) < 256 {
		held = append(held, connect(t, addr, "db.example.com:"+port))
	}
	before := runtime.NumGoroutine()
	for range 10_000 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Fatalf("%q", got)
		}
		c.Close()
	}
	if after := runtime.NumGoroutine(); after > before+10 {
		t.Errorf("%d goroutines, before %d", after, before)
	}
	for _, c := range held { // they still work
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHangUp: connections that the server has closed take no place, although code keeps them.
func TestHangUp(t *testing.T) {
	w := newWorld(t)
	w.mu.Lock()
	w.hangUp = true
	w.mu.Unlock()
	for range 1000 {
		c := connect(t, w.door.Addr().String(), "")
		if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// TestSlowReader: code that does not read what the server sent before it hung up keeps the
// connection for a while only.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		server := wire.NewConn(there, wire.ServerSide, func(s *wire.Stream, _ wire.Frame) {
			_, _ = io.WriteString(s, "hello")
			s.Close()
		})
		agent := wire.NewConn(here, wire.AgentSide, nil)
		s, err := agent.Open(wire.Frame{Type: wire.TypeDial, Host: "db.example.com:5432"})
		if err != nil {
			t.Fatal(err)
		}
		code, end := net.Pipe() // a write waits for a read
		start := time.Now()
		carry(pipeEnd{end}, s)
		if took := time.Since(start); took != lastRead { // in the bubble's time
			t.Errorf("it took %v", took)
		}
		if got, err := io.ReadAll(code); len(got) > 0 || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		agent.Close()
		server.Close()
	})
}

// pipeEnd is an end of a pipe, which closes as a whole.
type pipeEnd struct{ net.Conn }

func (p pipeEnd) CloseWrite() error { return p.Close() }

// TestTCPFlood: connections for lookups are few and short, whatever they carry.
func TestTCPFlood(t *testing.T) {
	w := newWorld(t)
	defer w.Begin([]string{"db.example.com:443"})()
	addr := w.resolver.tcp.Addr().String()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(append([]byte{0xff, 0xff}, make([]byte, 65535)...))
	if got, _ := io.ReadAll(c); len(got) > 0 {
		t.Errorf("% x", got)
	}
	var held []net.Conn
	closed := make(chan struct{}, 2*maxTCP)
	for range 2 * maxTCP {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		go func() {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				closed <- struct{}{}
			}
		}()
	}
	for range maxTCP { // at least as many are refused
		<-closed
	}
	for _, c := range held {
		c.Close()
	}
	if _, err := w.goResolver("udp").LookupHost(t.Context(), "db.example.com."); err != nil {
		t.Error(err)
	}
}

// TestSilentServer: a denied lookup fails although the server does not answer the report.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		release := make(chan struct{})
		server := wire.NewConn(there, wire.ServerSide, func(s *wire.Stream, _ wire.Frame) { <-release; s.Close() })
		f := &Forwarder{conn: wire.NewConn(here, wire.AgentSide, nil)}
		start := time.Now()
		f.report("example.com")
		if took := time.Since(start); took != reportTimeout {
			t.Errorf("it took %v", took)
		}
		close(release)
		f.conn.Close()
		server.Close()
	})
}
