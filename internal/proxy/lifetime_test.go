package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/httpconn"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// stream is a service that sends one line and then nothing until the client leaves.
func stream(t *testing.T) (url string, left chan struct{}) {
	left = make(chan struct{}, 8)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		left <- struct{}{}
	}))
	t.Cleanup(up.Close)
	return up.URL, left
}

// A call in progress ends when its token does, and the client sees that it was cut off.
func TestHTTPProxyCutsCallsInFlight(t *testing.T) {
	url, left := stream(t)
	f := setup(t, url, nil)
	cfg := f.cfg
	cfg.Registerer, cfg.Instance, cfg.Alive = nil, "i2", func(string) bool { return true }
	other := f.start(cfg)

	for name, tc := range map[string]struct {
		ttl     time.Duration
		sandbox bool
		end     func(Token) error
		reason  string
	}{
		"revoked":            {time.Minute, false, func(tok Token) error { return f.p.Revoke(t.Context(), "ann", tok.JTI) }, errRevoked.Error()},
		"disconnected":       {time.Minute, false, func(Token) error { return f.p.RevokeService(t.Context(), "ann", "datadog") }, errRevoked.Error()},
		"by another process": {time.Minute, false, func(tok Token) error { return other.Revoke(t.Context(), "ann", tok.JTI) }, errRevoked.Error()},
		"expired":            {3 * time.Second, false, func(Token) error { return nil }, errExpired.Error()},
		"the run ended":      {time.Minute, true, func(Token) error { return f.p.RevokeRun(t.Context(), "run-1") }, errRevoked.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			var conn net.Conn
			var tok Token
			if tc.sandbox {
				tokens, err := f.p.IssueForRun(t.Context(), "ann", "run-1", "sb-1", tc.ttl, []GrantRequest{{Service: "datadog"}})
				if err != nil {
					t.Fatal(err)
				}
				tok = tokens[0]
				conn = f.sandbox(t, f.p, "sb-1")
			} else {
				tok = f.issue(func(r *GrantRequest) { r.TTL = tc.ttl })
				var err error
				if conn, err = net.Dial("tcp", f.addr); err != nil {
					t.Fatal(err)
				}
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(conn, "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\n\r\n", tok.Token)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			b := bufio.NewReader(res.Body)
			if line, err := b.ReadString('\n'); err != nil || line != "begun\n" {
				t.Fatalf("%q, %v", line, err)
			}
			if err := tc.end(tok); err != nil {
				t.Fatal(err)
			}
			if rest, err := io.ReadAll(b); err != io.ErrUnexpectedEOF {
				t.Errorf("%q, %v; the client must see that it was cut", rest, err)
			}
			select {
			case <-left:
			case <-time.After(patience):
				t.Error("the service's connection stays")
			}
			eventually(t, "noted as "+tc.reason, func() bool {
				return slices.ContainsFunc(f.records(), func(r audit.Record) bool {
					return r.JTI == tok.JTI && r.Event == audit.EventComplete && r.Reason == tc.reason
				})
			})
			// No new call starts.
			answer := ""
			if tc.sandbox {
				answer = exchange(t, f.sandbox(t, f.p, "sb-1"), "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer "+tok.Token+"\r\n\r\n")
			} else {
				answer = raw(t, f.addr, "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer "+tok.Token+"\r\n\r\n")
			}
			if !strings.HasPrefix(answer, "HTTP/1.1 401 ") || !strings.Contains(answer, "invalid execution token") {
				t.Errorf("afterwards: %q", answer)
			}
		})
	}
}

// A client that does not read holds nothing.
func TestHTTPProxyCutsClientsThatDoNotRead(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		close(begun)
		block := make([]byte, 1<<20)
		for {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}))
	defer up.Close()
	f := setup(t, up.URL, nil)
	tokens, err := f.p.IssueForRun(t.Context(), "ann", "run", "sb", time.Minute, []GrantRequest{{Service: "datadog"}})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f.sandbox(t, f.p, "sb"), "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\n\r\n", tokens[0].Token)
	<-begun
	if err := f.p.RevokeRun(t.Context(), "run"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the service goes on sending")
	}
	eventually(t, "the call has ended", func() bool { return strings.Contains(fmt.Sprint(f.records()), audit.EventComplete) })
}

// After a restart, run tokens are revoked, API tokens live until they expire, and those of a
// running instance are left alone.
func TestRestartRevokesRuns(t *testing.T) {
	up := serveWire(t, plainAnswer)
	f := setup(t, up.url, nil)
	net := f.issue(nil)
	run := func(p *Proxy, id string) Token {
		tokens, err := p.IssueForRun(t.Context(), "ann", "run-"+id, "sb", time.Minute, []GrantRequest{{Service: "datadog"}})
		if err != nil {
			t.Fatal(err)
		}
		return tokens[0]
	}
	dead := run(f.p, "1")
	start := func(instance string, alive ...string) *Proxy {
		cfg := f.cfg
		cfg.Registerer, cfg.Instance = nil, instance
		cfg.Alive = func(id string) bool { return strings.Contains(strings.Join(alive, " "), id) }
		return f.start(cfg)
	}
	call := func(p *Proxy, tok Token) string {
		return exchange(t, f.sandbox(t, p, "sb"), "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer "+tok.Token+"\r\n\r\n")[9:12]
	}
	second := start("i2", "i1") // while the first runs
	if got := call(f.p, dead); got != "200" {
		t.Errorf("with another instance running: %s", got)
	}
	if got := call(second, dead); got != "401" {
		t.Errorf("another instance takes a run's token: %s", got)
	}
	third := start("i3", "i2") // i1 was killed
	for name, p := range map[string]*Proxy{"the new one": third, "the old one, were it there": f.p} {
		if got := call(p, dead); got != "401" {
			t.Errorf("after the restart, %s: %s", name, got)
		}
	}
	if got := call(second, run(second, "2")); got != "200" {
		t.Errorf("the living instance: %s", got)
	}
	if res, text := f.get("/proxy/datadog/x", net.Token); res.StatusCode != 200 {
		t.Errorf("a token for use anywhere: %s %s", res.Status, text)
	}
}

// A token is valid only where it belongs.
func TestSandboxBinding(t *testing.T) {
	up := serveWire(t, plainAnswer)
	f := setup(t, up.url, func(c *Config) {
		linear := datadog(t, up.url)
		linear.Name = "linear"
		c.Services = append(c.Services, linear)
	})
	tokens, err := f.p.IssueForRun(t.Context(), "ann", "run-a", "sb-a", time.Hour, []GrantRequest{{Service: "datadog"}, {Service: "linear", Paths: []string{"/x"}}})
	if err != nil || len(tokens) != 2 {
		t.Fatal(tokens, err)
	}
	if got := time.Until(tokens[0].Expires); got > MaxTTL {
		t.Errorf("it is valid for %s", got)
	}
	anywhere := f.issue(nil)
	for _, tc := range []struct{ name, sandbox, service, token, want string }{
		{"its own sandbox", "sb-a", "datadog", tokens[0].Token, "200"},
		{"its own sandbox, the other service", "sb-a", "linear", tokens[1].Token, "200"},
		{"the other service's token", "sb-a", "linear", tokens[0].Token, "401"},
		{"another sandbox", "sb-b", "datadog", tokens[0].Token, "401"},
		{"a sandbox with a similar name", "sb-a ", "datadog", tokens[0].Token, "401"},
		{"a token for the network", "sb-a", "datadog", anywhere.Token, "401"},
		{"from the network", "", "datadog", tokens[0].Token, "401"},
		{"the network's from the network", "", "datadog", anywhere.Token, "200"},
	} {
		request := "GET /proxy/" + tc.service + "/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer " + tc.token + "\r\n\r\n"
		answer := ""
		if tc.sandbox == "" {
			answer = raw(t, f.addr, request)
		} else {
			answer = exchange(t, f.sandbox(t, f.p, tc.sandbox), request)
		}
		if !strings.HasPrefix(answer, "HTTP/1.1 "+tc.want) {
			t.Errorf("%s: %q, want %s", tc.name, answer, tc.want)
		}
	}
	for name, rs := range map[string][]GrantRequest{
		"one of them unknown": {{Service: "datadog"}, {Service: "nope"}},
		"one twice":           {{Service: "datadog"}, {Service: "datadog"}},
		"too many":            make([]GrantRequest, maxGrants+1),
		"none":                nil,
	} {
		if got, err := f.p.IssueForRun(t.Context(), "ann", "run-c", "sb-c", time.Minute, rs); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	if list, err := f.p.List(t.Context(), "ann"); err != nil || len(list) != 3 {
		t.Errorf("a refused run left tokens: %+v, %v", list, err)
	}
}

// serveSandbox serves a connection from a sandbox, as the door does.
func serveSandbox(p *Proxy, ctx context.Context, sandboxID string, conn net.Conn) {
	httpconn.Serve(ctx, conn, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.ServeSandbox(w, r, sandboxID)
	}), slog.New(slog.DiscardHandler))
}

// sandbox opens a connection from a sandbox. It must leave nothing behind when the test ends.
func (f *fixture) sandbox(t *testing.T, p *Proxy, id string) net.Conn {
	t.Helper()
	here, there := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveSandbox(p, ctx, id, there)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("the connection is still served")
		}
		here.Close()
	})
	return here
}

// exchange is raw on an existing connection.
func exchange(t *testing.T, conn net.Conn, text string) string {
	t.Helper()
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	go io.WriteString(conn, text) // the pipe is unbuffered: the other side may answer before it has read all
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatalf("%q, then %v", answer, err)
	}
	return string(answer)
}
