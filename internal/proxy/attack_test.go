package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The tokens of a run end with it, even if the database cannot be changed.
func TestRunEndsWithoutTheStore(t *testing.T) {
	url, left := stream(t)
	f := setup(t, url, nil)
	tokens, err := f.p.IssueForRun(t.Context(), "ann", "run_1", "sb", time.Minute, []GrantRequest{{Service: "datadog"}})
	if err != nil {
		t.Fatal(err)
	}
	get := "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + tokens[0].Token + "\r\nConnection: close\r\n\r\n"
	going := f.sandbox(t, f.p, "sb")
	go func() { _, _ = io.WriteString(going, get) }()
	if _, err := io.ReadAtLeast(going, make([]byte, 4096), 12); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, going) }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.p.RevokeRun(ctx, "run_1"); err == nil {
		t.Fatal("the store was not asked")
	}
	select {
	case <-left:
	case <-time.After(patience):
		t.Fatal("the call goes on")
	}
	if answer := exchange(t, f.sandbox(t, f.p, "sb"), get); !strings.Contains(answer, "401 Unauthorized") {
		t.Errorf("the token of a run that has ended: %s", answer)
	}
	// The next attempt changes the rows.
	if err := f.p.RevokeRun(t.Context(), "run_1"); err != nil {
		t.Error(err)
	}
	if live, err := f.p.List(t.Context(), "ann"); err != nil || len(live) != 0 {
		t.Errorf("%v, %v", live, err)
	}
}

// After RevokeRun has returned, no call of the run starts, however many were on their way.
func TestRevocationRace(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	f := setup(t, up.URL, func(c *Config) {
		c.Services[0].TokenRate, c.Services[0].RateLimit = Rate{PerSecond: 1e6, Burst: 1e6}, Rate{PerSecond: 1e6, Burst: 1e6}
	})
	for round := range 5 {
		run := fmt.Sprint("run_", round)
		tokens, err := f.p.IssueForRun(t.Context(), "ann", run, "sb", time.Minute, []GrantRequest{{Service: "datadog"}})
		if err != nil {
			t.Fatal(err)
		}
		var revoked atomic.Bool
		var calls, first sync.WaitGroup
		for range 8 {
			first.Add(1)
			calls.Go(func() {
				for n := 0; ; n++ {
					late := revoked.Load()
					w := httptest.NewRecorder()
					r := httptest.NewRequest("GET", "/proxy/datadog/x", nil)
					r.Header.Set("Authorization", "Bearer "+tokens[0].Token)
					f.p.serve(w, r, "sb")
					if n == 0 {
						first.Done()
					}
					if late {
						if w.Code != http.StatusUnauthorized {
							t.Errorf("after the revocation: %d", w.Code)
						}
						return
					}
				}
			})
		}
		first.Wait()
		if err := f.p.RevokeRun(t.Context(), run); err != nil {
			t.Error(err)
		}
		revoked.Store(true)
		calls.Wait()
	}
}

// Answers that could break the server, or reach other clients.
func TestHTTPProxyHostileAnswers(t *testing.T) {
	member := func(text string) string { return pack(t, "gzip", text) }
	half := len(realToken) / 2
	split := member("a "+realToken[:half]) + member(realToken[half:]+" z")
	for name, tc := range map[string]struct {
		answer string
		check  func(*http.Response, string) bool
	}{
		"a status that is none": {"HTTP/1.1 042 What\r\nContent-Length: 0\r\n\r\n",
			func(res *http.Response, _ string) bool { return res.StatusCode == 502 }},
		"status 000": {"HTTP/1.1 000 What\r\nContent-Length: 0\r\n\r\n",
			func(res *http.Response, _ string) bool { return res.StatusCode == 502 }},
		"status 999": {"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
			func(res *http.Response, _ string) bool { return res.StatusCode == 999 }},
		"secret over two members of gzip": {fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", len(split), split),
			func(_ *http.Response, text string) bool {
				return text == "a "+strings.Repeat("*", len(realToken))+" z"
			}},
		"for everybody's caches": {"HTTP/1.1 200 OK\r\nCache-Control: Public, s-maxage=600, max-age=60\r\nCDN-Cache-Control: max-age=600\r\nSurrogate-Control: max-age=600\r\nContent-Length: 0\r\n\r\n",
			func(res *http.Response, _ string) bool {
				return fmt.Sprint(res.Header["Cache-Control"], res.Header["Cdn-Cache-Control"], res.Header["Surrogate-Control"]) == "[private, max-age=60] [] []"
			}},
		"not for caches": {"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\r\n",
			func(res *http.Response, _ string) bool {
				return fmt.Sprint(res.Header["Cache-Control"]) == "[private, no-store]"
			}},
		"nothing said of caches": {"HTTP/1.1 200 OK\r\nExpires: Thu, 01 Jan 2099 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n",
			func(res *http.Response, _ string) bool { return fmt.Sprint(res.Header["Cache-Control"]) == "[private]" }},
		"a way up, escaped": {"HTTP/1.1 302 Found\r\nLocation: /%2e%2e/%2e%2e/mcp\r\nContent-Length: 0\r\n\r\n",
			func(res *http.Response, _ string) bool { return res.StatusCode == 502 }},
		"a way up, halfway": {"HTTP/1.1 302 Found\r\nLocation: /a/..%5c..%5cmcp\r\nContent-Length: 0\r\n\r\n",
			func(res *http.Response, _ string) bool { return res.StatusCode == 502 }},
	} {
		t.Run(name, func(t *testing.T) {
			up := serveWire(t, strings.Replace(tc.answer, "\r\n", "\r\nConnection: close\r\n", 1))
			f := setup(t, up.url, nil)
			res, text := f.get("/proxy/datadog/x", f.issue(nil).Token)
			if !tc.check(res, text) {
				t.Errorf("%s %v %q", res.Status, res.Header, text)
			}
			if strings.Contains(f.log.String(), "panic") {
				t.Errorf("it panicked: %s", f.log)
			}
		})
	}
}

// Neither the names of trailers nor those of header fields may contain the secret.
func TestHTTPProxySecretsAsNames(t *testing.T) {
	const secret = "Sk-Live-0123456789abcdef"
	var coded []string
	for _, s := range encodings(secret) {
		coded = append(coded, string(s))
	}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range coded {
			if IsToken(name) {
				w.Header().Add("Trailer", "T-"+name)
				w.Header().Set("H-"+name, "1")
			}
		}
		w.Header().Add("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "x")
		w.Header().Set("X-Sum", "7")
		w.Header().Set(http.TrailerPrefix+"L-"+secret, "1")
	}))
	defer up.Close()
	f := setup(t, up.URL, func(c *Config) {
		c.Services[0].Credential = source{"ann": {Header: "X-Key", Value: secret, Secrets: []string{secret}}}
	})
	answer := strings.ToLower(raw(t, f.addr, "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "+f.issue(nil).Token+"\r\nConnection: close\r\n\r\n"))
	for _, name := range coded {
		if strings.Contains(answer, strings.ToLower(name)) {
			t.Errorf("%s comes through: %q", name, answer)
		}
	}
	if !strings.Contains(answer, "x-sum: 7") {
		t.Errorf("other trailers are lost: %q", answer)
	}
}

// Header fields that name a source or carry rights are not forwarded as a client's version, and
// ours are not doubled.
func TestHTTPProxyHeadersInDisguise(t *testing.T) {
	up := serveWire(t, plainAnswer)
	f := setup(t, up.url, nil)
	w := httptest.NewRecorder()
	w.Header().Set("X-Content-Type-Options", "nosniff") // as the middleware does
	r := httptest.NewRequest("GET", "/proxy/datadog/x", nil)
	r.Header = http.Header{"Authorization": {"Bearer " + f.issue(nil).Token}, "X-Forwarded-Version": {"1"}, "Proxy-Beta": {"1"}, "X-Api-Version": {"7"}}
	f.p.ServeHTTP(w, r)
	if got := w.Result().Header["X-Content-Type-Options"]; len(got) != 1 {
		t.Errorf("%q", got)
	}
	seen := strings.Join(up.requests(), "")
	if strings.Contains(seen, "Forwarded") || strings.Contains(seen, "Proxy-") || !strings.Contains(seen, "X-Api-Version: 7\r\n") {
		t.Errorf("the service saw %q", seen)
	}
}

// A body that decompresses to a thousand times its size streams in bounded memory, and ends when
// the client leaves.
func TestHTTPProxyBomb(t *testing.T) {
	bomb := pack(t, "gzip", strings.Repeat("\x00", 16<<20))
	gone := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		w.Header().Set("Content-Encoding", "gzip")
		for r.Context().Err() == nil { // endless: one gzip member after the other
			if _, err := io.WriteString(w, bomb); err != nil {
				return
			}
		}
	}))
	defer up.Close()
	f := setup(t, up.URL, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+f.addr+"/proxy/datadog/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.issue(nil).Token)
	res, err := direct(t).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.CopyN(io.Discard, res.Body, 40<<20); err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	cancel()
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the service goes on sending to nobody")
	}
}

// Text that a caller chooses takes one line in log and audit trail, without terminal escapes.
func TestHTTPProxyLogInjection(t *testing.T) {
	up := serveWire(t, plainAnswer)
	f := setup(t, up.url, nil)
	tok := f.issue(nil).Token
	for _, target := range []string{
		"/proxy/datadog/a%E2%80%A8b%E2%80%AEc?%0Aforged=1&%1b[31m=2&%C2%9b31m=3",
		"/proxy/dd%0Alevel=ERROR/x", "/proxy/datadog/x%0D%0Aevil", "/proxy/%1b]0;owned%07/x",
	} {
		raw(t, f.addr, "GET "+target+" HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "+tok+"\r\nConnection: close\r\n\r\n")
	}
	if n := len(f.records()); n != 1+2+3 { // issued, request, response and three refusals, in an intact chain
		t.Errorf("%d records", n)
	}
	for line := range strings.Lines(f.log.String()) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("a separate line: %q", line)
		}
	}
	for _, bad := range []string{"\x1b", "\u202e", "\u2028", "\u009b", "\x07"} {
		if strings.Contains(f.log.String(), bad) {
			t.Errorf("%q in the log", bad)
		}
		for _, r := range f.records() {
			if strings.Contains(fmt.Sprint(r.Path, r.Query, r.Reason, r.Service), bad) {
				t.Errorf("%q in the audit trail: %+v", bad, r)
			}
		}
	}
}

// Secrets that are encoded twice, as in a link in a link or JSON in JSON.
func TestScrubTwiceEncoded(t *testing.T) {
	for name, once := range encoded(credentialText) {
		for outer, encode := range map[string]func(string) string{
			"query":      func(s string) string { return encoded(s)["query"] },
			"path":       func(s string) string { return encoded(s)["path"] },
			"JSON":       func(s string) string { return encoded(s)["JSON"] },
			"PHP's JSON": func(s string) string { return encoded(s)["PHP's JSON"] },
		} {
			switch name {
			case "query", "path", "JSON", "PHP's JSON", "base64 in a query", "base64 in PHP's JSON":
			default:
				continue
			}
			text := encode(once)
			got := scrubAll(t, []string{credentialText}, strings.NewReader("x="+text+"&"), 64<<10)
			if want := "x=" + strings.Repeat("*", len(text)) + "&"; got != want && !strings.HasPrefix(name, "base64") {
				t.Errorf("%s in %s: %q of %q", name, outer, got, text)
			}
		}
	}
}

// A sandbox connection that does not speak HTTP/1.1 ends soon.
func TestSandboxSpeaksNonsense(t *testing.T) {
	f := setup(t, "http://127.0.0.1:1", nil)
	for _, text := range []string{
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "SSH-2.0-x\r\n", strings.Repeat("A", 70<<10),
		"GET /proxy/datadog/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET /proxy/datadog/x HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: y\r\n", 20<<10) + "\r\n",
		"GET /api/execution-tokens HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "POST /mcp HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
	} {
		conn := f.sandbox(t, f.p, "sb")
		go func() { _, _ = io.WriteString(conn, text) }()
		answer, _ := io.ReadAll(conn)
		if !bytes.HasPrefix(answer, []byte("HTTP/1.1 4")) && !bytes.HasPrefix(answer, []byte("HTTP/1.1 505")) && !bytes.HasPrefix(answer, []byte("HTTP/1.0 4")) && len(answer) > 0 {
			t.Errorf("%.40q: %q", text, answer)
		}
		conn.Close()
	}
}
