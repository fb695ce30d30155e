package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/logging/logtest"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
)

// realToken is the credential that only the service may see.
const realToken = "dd_live_9f8e7d6c5b4a3f2e1d0c+/tok=="

const patience = 20 * time.Second // for events that are about to happen

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// fixture is a proxy and what it needs.
type fixture struct {
	t     *testing.T
	p     *Proxy
	cfg   Config
	addr  string // of an HTTP server that serves only the proxy
	audit string
	log   *logtest.Buffer
	reg   *prometheus.Registry
}

// setup starts a proxy for the service "datadog" at upstream. change may edit its configuration.
func setup(t *testing.T, upstream string, change func(*Config)) *fixture {
	t.Helper()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	f := &fixture{t: t, audit: filepath.Join(dir, "audit.jsonl"), log: &logtest.Buffer{}, reg: prometheus.NewRegistry()}
	audit, err := audit.Open(f.audit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { audit.Close() })
	f.cfg = Config{
		Services:   []Service{datadog(t, upstream)},
		Keys:       executiontoken.NewKeys(bytes.Repeat([]byte{1}, 32), "execution token"),
		Store:      db,
		Audit:      audit,
		BaseURL:    "https://sandbox.example",
		Instance:   "i1",
		Registerer: f.reg,
		Logger:     slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		User:       func(caller string) string { return caller + "@example.com" },
	}
	if change != nil {
		change(&f.cfg)
	}
	f.p = f.start(f.cfg)
	server := httptest.NewUnstartedServer(f.p)
	server.Config.DisableGeneralOptionsHandler = true
	server.Start()
	t.Cleanup(server.Close)
	f.addr = server.Listener.Addr().String()
	return f
}

func (f *fixture) start(cfg Config) *Proxy {
	f.t.Helper()
	p, err := New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		for _, s := range p.services {
			if s.transport != nil {
				s.transport.CloseIdleConnections()
			}
		}
	})
	return p
}

func datadog(t *testing.T, upstream string) Service {
	t.Helper()
	u, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	return Service{Name: "datadog", DisplayName: "Datadog", BaseURL: u, AllowPrivate: loopback, Defaults: []string{"/**"}, Timeout: patience,
		Credential: credential.Bearer(secret.New(realToken))}
}

// issue issues a token.
func (f *fixture) issue(change func(*GrantRequest)) Token {
	f.t.Helper()
	r := GrantRequest{Service: "datadog", ExecutionID: "exec-1"}
	if change != nil {
		change(&r)
	}
	tok, err := f.p.Issue(f.t.Context(), "ann", r)
	if err != nil {
		f.t.Fatal(err)
	}
	return tok
}

// get calls the proxy with net/http.
func (f *fixture) get(path, token string) (*http.Response, string) {
	f.t.Helper()
	return f.do("GET", path, token, nil, nil)
}

func (f *fixture) do(method, path, token string, header map[string]string, body io.Reader) (*http.Response, string) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, "http://"+f.addr+path, body)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := direct(f.t).RoundTrip(req) // follows no redirect, decompresses nothing
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatalf("%s %s: %v after %q", method, path, err, text)
	}
	return res, string(text)
}

func direct(t *testing.T) *http.Transport {
	tr := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// raw sends bytes over a new connection and returns all that comes back.
func raw(t *testing.T, addr, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	var network net.Error
	if err != nil && (len(answer) == 0 || errors.As(err, &network) && network.Timeout()) {
		t.Fatalf("the connection was not closed after %q, %q: %v", text, answer, err)
	}
	return string(answer)
}

// records reads the audit trail, which must be intact.
func (f *fixture) records() []audit.Record {
	f.t.Helper()
	text, err := os.ReadFile(f.audit)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := audit.VerifyFile(f.audit); err != nil {
		f.t.Fatalf("audit trail: %v\n%s", err, text)
	}
	var rs []audit.Record
	for line := range bytes.Lines(text) {
		var r audit.Record
		if err := json.Unmarshal(line, &r); err != nil {
			f.t.Fatal(err)
		}
		rs = append(rs, r)
	}
	return rs
}

// eventually waits for an event that another goroutine does not signal.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it did not come to pass: %s", what)
		}
	}
}

// wire is a service that records the bytes of each request and answers with fixed bytes.
type wire struct {
	url string

	mu   sync.Mutex
	seen []string
}

const plainAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func serveWire(t *testing.T, answer string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{url: "http://" + l.Addr().String()}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				stop := context.AfterFunc(t.Context(), func() { conn.Close() })
				defer stop()
				defer conn.Close()
				w.serve(conn, answer)
			})
		}
	})
	t.Cleanup(func() { l.Close(); conns.Wait() })
	return w
}

// serve reads requests with Content-Length or chunked bodies.
func (w *wire) serve(conn net.Conn, answer string) {
	var kept bytes.Buffer
	b := bufio.NewReader(io.TeeReader(conn, &kept))
	for {
		req, err := http.ReadRequest(b)
		if err != nil {
			if left := kept.String(); left != "" {
				w.mu.Lock()
				w.seen = append(w.seen, "LEFT OVER: "+left)
				w.mu.Unlock()
			}
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return // cut off: not a request
		}
		w.mu.Lock()
		w.seen = append(w.seen, kept.String()) // our clients wait for the answer before the next request
		w.mu.Unlock()
		kept.Reset()
		if _, err := io.WriteString(conn, answer); err != nil || strings.Contains(answer, "Connection: close") {
			return
		}
	}
}

func (w *wire) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.seen...)
}

// source has the credentials of some callers.
type source map[string]credential.Credential

func (s source) Credential(_ context.Context, caller string) (credential.Credential, error) {
	c, ok := s[caller]
	if !ok {
		return credential.Credential{}, credential.ErrNotConnected
	}
	return c, nil
}
