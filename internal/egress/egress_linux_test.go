package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/egress/egresstest"
)

// TestReach: code reaches the hosts that its run names, in every way that clients use.
func TestReach(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := enter(t, Config{Registerer: reg, Ceiling: []string{"api.example.com", "*.example.org", "db.example.com:5432", "api.example.com:8443"}})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	s.world.Name("deep.er.example.org", egresstest.Public2)
	s.world.Name("db.example.com", egresstest.Public2)
	auth := s.grant("run_1", "sb", "api.example.com", "*.example.org", "db.example.com:5432", "api.example.com:8443")

	for _, host := range []string{"api.example.com:443", "API.example.com.:443", "api.example.com:8443", "deep.er.example.org:443"} {
		for _, auth := range []string{auth, ""} { // some clients drop the token
			status, body, conn := s.connect("sb", auth, host)
			if status != 200 {
				t.Fatalf("%s: %d %s", host, status, body)
			}
			name, _, _ := net.SplitHostPort(strings.ToLower(host))
			name = strings.TrimSuffix(name, ".")
			if got, err := s.get(conn, name, "/a?b=c"); err != nil || !strings.Contains(got, "GET /a?b=c host="+name) {
				t.Errorf("%s: %q, %v", host, got, err)
			}
			conn.Close()
		}
	}
	// By name, without a proxy: TLS, plain HTTP, and a protocol in which the server speaks first.
	if got, err := s.get(s.dial("sb", "api.example.com:443"), "api.example.com", "/"); err != nil || !strings.Contains(got, "host=api.example.com") {
		t.Errorf("by name: %q, %v", got, err)
	}
	conn := s.dial("sb", "db.example.com:5432")
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); line != "greeting from "+egresstest.Public2+":5432\n" {
		t.Errorf("%q, %v", line, err)
	}
	fmt.Fprint(conn, "echo this\n")
	if line, err := r.ReadString('\n'); line != "echo this\n" {
		t.Errorf("%q, %v", line, err)
	}
	_ = conn.(*net.UnixConn).CloseWrite() // the end passes through, and comes back
	if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
	conn.Close()
	named := s.dial("sb", "api.example.com:80")
	fmt.Fprint(named, "POST /x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
	if got, _ := io.ReadAll(named); !strings.Contains(string(got), "POST /x host=api.example.com body=5") {
		t.Errorf("%s", got)
	}

	// Plain HTTP through the proxy: headers for the proxy stay here.
	status, body, _ := s.send("sb", auth, "POST http://api.example.com/a%2Fb?c=%20;d HTTP/1.1\r\nHost: api.example.com\r\nProxy-Connection: keep-alive\r\n"+
		"Connection: X-Test\r\nX-Test: 1\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc")
	if status != 200 || body != "POST /a%2Fb?c=%20;d host=api.example.com body=3 Connection=close\n" {
		t.Errorf("%d %q", status, body)
	}
	s.wantBlocked("run_1")

	ok, other := s.metrics.connections.WithLabelValues("api.example.com", resultOK), s.metrics.connections.WithLabelValues("other", resultOK)
	if ok, other := valueOf(t, ok), valueOf(t, other); ok < 5 || other != 2 {
		t.Errorf("%g connections to api.example.com, %g to others", ok, other)
	}
	if n := valueOf(t, s.metrics.bytes.WithLabelValues("api.example.com", "sent")); n == 0 {
		t.Error("no bytes are counted")
	}
	if metrics, err := reg.Gather(); err != nil || len(metrics) != 2 {
		t.Errorf("%v, %v", metrics, err)
	}
}

// TestUnreachable: code that connects by name sees only the end of the connection, so the result of
// its run has the reason.
func TestUnreachable(t *testing.T) {
	s := enter(t, Config{})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	s.grant("run_1", "sb", "nowhere.example.com", "api.example.com:9999")
	for _, host := range []string{"nowhere.example.com:443", "api.example.com:9999"} {
		if got, err := io.ReadAll(s.dial("sb", host)); len(got) > 0 || err != nil {
			t.Errorf("%s: %q, %v", host, got, err)
		}
	}
	s.wantBlocked("run_1", "nowhere.example.com none: the name does not exist", "api.example.com:9999 none: the host cannot be reached")

	auth := s.grant("run_2", "sb", "nowhere.example.com")
	if status, body, _ := s.connect("sb", auth, "nowhere.example.com:443"); status != 502 || !strings.Contains(body, "does not exist") {
		t.Errorf("%d %s", status, body)
	}
	s.wantBlocked("run_2", "nowhere.example.com none: the name does not exist")
	if trail, err := os.ReadFile(s.file); err != nil || strings.Contains(string(trail), audit.EventDenied) {
		t.Errorf("nothing was denied: %v\n%s", err, trail)
	}
}

// TestCodeLeaves: the result says so if code gave up before the host had answered.
func TestCodeLeaves(t *testing.T) {
	s := enter(t, Config{})
	if s == nil {
		return
	}
	asked := make(chan struct{}, 10)
	s.dialer.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	auth := s.grant("run_1", "sb", "api.example.com")
	c := s.dial("sb", "")
	fmt.Fprintf(c, "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\nProxy-Authorization: %s\r\n\r\n", auth)
	<-asked
	c.Close()
	s.conns.Wait()
	s.wantBlocked("run_1", "api.example.com none: the code left before the host had answered")
	if trail, err := os.ReadFile(s.file); err != nil || !strings.Contains(string(trail), `"reason":"interrupted"`) {
		t.Errorf("%v\n%s", err, trail)
	}
}

// TestRefusedByName: the result of a run also says why the server did not connect code that may.
func TestRefusedByName(t *testing.T) {
	s := enter(t, Config{MaxTunnels: 1})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	dial := func() {
		t.Helper()
		if got, err := io.ReadAll(s.dial("sb", "api.example.com:5432")); len(got) > 0 || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	for reason, prevent := range map[string]func(*run){
		"the runs of this user open too many connections per second":      func(r *run) { r.opens = rate.NewLimiter(0, 0) },
		"the run has opened 10000 connections, the most that one run may": func(r *run) { r.opened.Store(maxOpens) },
		"all callers together have too many connections at a time":        func(*run) { s.connect("sb", "", "api.example.com:5432") },
		"the server cannot write its audit trail":                         func(*run) { s.cfg.Audit = brokenTrail(t) },
	} {
		trail := s.cfg.Audit
		s.grant("run_1", "sb", "api.example.com:5432")
		prevent(s.runs["run_1"])
		dial()
		s.wantBlocked("run_1", "api.example.com:5432 none: "+reason)
		s.cfg.Audit = trail
	}
}

// TestSharedRule: without a token, the newest run that can pays for a connection, and every run
// that may have made it learns why it failed.
func TestSharedRule(t *testing.T) {
	s := enter(t, Config{})
	if s == nil {
		return
	}
	s.world.Name("db.example.com", egresstest.Public)
	greet := func() *bufio.Reader {
		t.Helper()
		r := bufio.NewReader(s.dial("sb", "db.example.com:5432"))
		if line, err := r.ReadString('\n'); err != nil {
			t.Errorf("%q, %v", line, err)
		}
		return r
	}
	ended := func(r *bufio.Reader) {
		t.Helper()
		if rest, _ := io.ReadAll(r); len(rest) > 0 {
			t.Errorf("%q", rest)
		}
	}
	used := func(run string) int64 { return s.runs[run].opened.Load() }
	rules := []string{"db.example.com:5432", "db.example.com:9999"}
	s.grant("run_1", "sb", rules...)
	first := greet()
	s.grant("run_2", "sb", rules...)
	s.grant("run_3", "sb", "other.example.com")
	second := greet()
	if used("run_1") != 1 || used("run_2") != 1 {
		t.Errorf("%d connections of the older run, %d of the newer one", used("run_1"), used("run_2"))
	}
	_, _ = io.ReadAll(s.dial("sb", "db.example.com:9999"))
	s.runs["run_2"].upload.Store(-1) // now the older run can, and the newer one cannot
	third := greet()
	if used("run_1") != 2 || used("run_2") != 2 {
		t.Errorf("%d connections of the older run, %d of the exhausted one", used("run_1"), used("run_2"))
	}
	s.wantBlocked("run_2", "db.example.com:9999 none: the host cannot be reached")
	ended(second)
	s.wantBlocked("run_1", "db.example.com:9999 none: the host cannot be reached")
	ended(first)
	ended(third)
	s.wantBlocked("run_3")
}

// TestLookups: the rule for a name that code looked up has the port that the ceiling allows.
func TestLookups(t *testing.T) {
	s := enter(t, Config{Ceiling: []string{"db.example.com:5432", "*.example.org:6379", "api.example.com:8443", "api.example.com"}})
	if s == nil {
		return
	}
	s.grant("run_1", "sb")
	for _, name := range []string{"db.example.com", "a.example.org", "api.example.com", "evil.example.com", "db"} {
		_, _ = io.ReadAll(s.dial("sb", name+":0"))
	}
	s.wantBlocked("run_1", "db.example.com:5432 db.example.com:5432", "a.example.org:6379 a.example.org:6379", "api.example.com api.example.com",
		"evil.example.com none: ask the operator to add evil.example.com to network.allow", "db none: it is a single word")
}

func valueOf(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// TestTrail: the audit trail has a line before each connection and one with its bytes after it.
func TestTrail(t *testing.T) {
	s := enter(t, Config{User: func(caller string) string { return caller + "@example.com" }})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	auth := s.grant("run_1", "sb", "api.example.com")
	_, _, conn := s.connect("sb", auth, "api.example.com:443")
	if _, err := s.get(conn, "api.example.com", "/bytes/100000"); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	s.conns.Wait() // it ends by itself, not with the run
	s.connect("sb", auth, "evil.example.com:443")
	s.connect("sb", auth, "evil.example.com:443")
	if b := s.Release("run_1"); len(b) != 1 || b[0].Times != 2 {
		t.Errorf("%+v", b)
	}
	s.conns.Wait()
	text, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	data := string(text)
	for _, want := range []string{
		`"event":"request","caller":"ann","user":"ann@example.com","execution_id":"run_1","room":"egress","host":"api.example.com:443","decision":"allow"`,
		`"event":"response"`, `"host":"api.example.com:443","reason":"ok","bytes_sent":`,
		`"event":"denied"`, `"host":"evil.example.com","decision":"deny"`,
	} {
		if strings.Count(data, want) != 1 {
			t.Errorf("not once: %s\n%s", want, data)
		}
	}

	// No line, no connection.
	auth = s.grant("run_2", "sb", "api.example.com")
	s.cfg.Audit = brokenTrail(t)
	s.world.Queries()
	if status, body, _ := s.connect("sb", auth, "api.example.com:443"); status != 500 {
		t.Errorf("without an audit trail: %d %s", status, body)
	}
	s.wantQueries()
	s.Release("run_2")
}

// brokenTrail cannot be written.
func brokenTrail(t *testing.T) *audit.Trail {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dir")
	trail, err := audit.Open(filepath.Join(dir, "audit.jsonl"))
	if err := errors.Join(err, os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return trail
}

// TestBudget: a run sends no more than it may, over all its connections.
func TestBudget(t *testing.T) {
	s := enter(t, Config{UploadBytes: 100_000})
	if s == nil {
		return
	}
	s.world.Name("db.example.com", egresstest.Public)
	auth := s.grant("run_1", "sb", "db.example.com:5432", "db.example.com")
	first, second := s.dial("sb", "db.example.com:5432"), s.dial("sb", "db.example.com:5432")
	chunk := make([]byte, 40_000)
	echoed := func(conn net.Conn) error {
		if _, err := conn.Write(chunk); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, len(chunk)))
		return err
	}
	for _, conn := range []net.Conn{first, second} {
		if err := echoed(conn); err != nil {
			t.Fatal(err)
		}
	}
	if err := echoed(first); err == nil {
		t.Error("the budget does not bind")
	}
	if status, body, _ := s.connect("sb", auth, "db.example.com:5432"); status != 403 || !strings.Contains(body, "uploadBytes") {
		t.Errorf("%d %s", status, body)
	}
	post := "POST http://db.example.com/ HTTP/1.1\r\nHost: db.example.com\r\nContent-Length: 1\r\n\r\nx"
	if status, body, _ := s.send("sb", auth, post); status != 403 || !strings.Contains(body, codeBudget) {
		t.Errorf("%d %s", status, body)
	}
	// A connection to port 80 ends with the refusal: another run may pay for the next one.
	plain := s.dial("sb", "db.example.com:80")
	fmt.Fprint(plain, "GET / HTTP/1.1\r\nHost: db.example.com\r\n\r\n")
	if got, _ := io.ReadAll(plain); !strings.Contains(string(got), codeBudget) {
		t.Errorf("%s", got)
	}
	s.wantBlocked("run_1", "db.example.com:5432 none: the run has used up its upload budget", "db.example.com none: the run has used up")
	// Another run has its own, also for bodies of plain requests.
	auth = s.grant("run_2", "sb", "db.example.com")
	post = "POST http://db.example.com/ HTTP/1.1\r\nHost: db.example.com\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 1_000_000)
	if status, body, _ := s.send("sb", auth, post); status != 403 || !strings.Contains(body, codeBudget) {
		t.Errorf("%d %s", status, body)
	}
	s.wantBlocked("run_2", "db.example.com none: the run has used up")
}

// TestYieldedRequest: a request that makes room for another caller ends its connection, which would
// refuse the next one.
func TestYieldedRequest(t *testing.T) {
	s := enter(t, Config{MaxTunnels: 2})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	arrived := make(chan struct{})
	s.world.Site("api.example.com", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	}))
	auth := s.grant("run_1", "sb", "api.example.com", "api.example.com:5432")
	conn := s.dial("sb", "")
	fmt.Fprintf(conn, "GET http://api.example.com/ HTTP/1.1\r\nHost: x\r\nProxy-Authorization: %s\r\n\r\n", auth)
	<-arrived
	_, _, other := s.connect("sb", auth, "api.example.com:5432")
	defer other.Close()
	rules, _ := s.Check([]string{"api.example.com:5432"})
	s.Grant("bob", "run_2", "sb_2", rules)
	_, _, bob := s.connect("sb_2", "", "api.example.com:5432")
	defer bob.Close()
	if got, _ := io.ReadAll(conn); !strings.Contains(string(got), "make room") {
		t.Errorf("%s", got)
	}
	s.Release("run_2")
	s.wantBlocked("run_1", "api.example.com none: the connection was ended to make room for another user")
}

// TestPrivate: SANDBOX_NETWORK_ALLOW opens private networks to names, and DENY wins.
func TestPrivate(t *testing.T) {
	w := egresstest.Enter(t)
	if w == nil {
		return
	}
	p := netip.MustParsePrefix
	s := newSite(t, w, Config{Closed: closednet.New(t.Context(), closednet.Config{
		Allow: []netip.Prefix{p("10.9.0.0/16"), p("169.254.0.0/16"), p("0.0.0.0/0"), p("::/0")}, Deny: []netip.Prefix{p(egresstest.Metadata + "/32"), p(egresstest.Public2 + "/32")},
	})})
	for name, addr := range map[string]string{"private.example.com": egresstest.Private, "metadata.example.com": egresstest.Metadata, "denied.example.com": egresstest.Public2,
		"loop.example.com": "127.0.0.1", "zero.example.com": "0.0.0.0"} {
		w.Name(name, addr)
	}
	w.Name6("zero6.example.com", "::")
	w.Name6("loop6.example.com", "::1")
	for network, address := range map[string]string{"tcp4": "127.0.0.1:5432", "tcp6": "[::1]:5432"} { // must not be reached, although the list opens everything
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	auth := s.grant("run_1", "sb", "private.example.com:5432", "metadata.example.com:5432", "denied.example.com:5432", "loop.example.com:5432",
		"zero.example.com:5432", "zero6.example.com:5432", "loop6.example.com:5432")
	for name, want := range map[string]int{"private": 200, "metadata": 403, "denied": 403, "loop": 403, "zero": 403, "zero6": 403, "loop6": 403} {
		if status, body, _ := s.connect("sb", auth, name+".example.com:5432"); status != want {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if b := s.Release("run_1"); len(b) != 6 || !strings.Contains(b[0].Rule, "SANDBOX_NETWORK_ALLOW") {
		t.Errorf("%+v", b)
	}
}
