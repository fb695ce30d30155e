package proxy

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"mcp-code-sandbox/internal/audit"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
)

func pack(t *testing.T, coding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zlib":
		w = zlib.NewWriter(&b)
	case "deflate":
		w, _ = flate.NewWriter(&b, 9)
	case "br":
		w = brotli.NewWriter(&b)
	}
	_, err := io.WriteString(w, text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// The proxy masks the credential wherever a service repeats it.
func TestHTTPProxyScrubsAnswers(t *testing.T) {
	const body = `{"headers":{"Authorization":"Bearer ` + realToken + `"}}`
	masked := strings.ReplaceAll(body, realToken, strings.Repeat("*", len(realToken)))
	length := func(s string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(s), s) }
	chunks := ""
	for _, c := range body {
		chunks += fmt.Sprintf("1\r\n%c\r\n", c)
	}
	for name, tc := range map[string]struct{ answer, body string }{
		"body":                 {"HTTP/1.1 200 OK\r\n" + length(body), masked},
		"a byte a chunk":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + "0\r\n\r\n", masked},
		"an error's body":      {"HTTP/1.1 500 " + realToken + "\r\n" + length(body), masked},
		"until the end":        {"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n" + body, masked},
		"gzip":                 {"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n" + length(pack(t, "gzip", body)), masked},
		"zlib":                 {"HTTP/1.1 200 OK\r\nContent-Encoding: deflate\r\n" + length(pack(t, "zlib", body)), masked},
		"bare deflate":         {"HTTP/1.1 200 OK\r\nContent-Encoding: Deflate\r\n" + length(pack(t, "deflate", body)), masked},
		"brotli":               {"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n" + length(pack(t, "br", body)), masked},
		"gzip in brotli":       {"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Encoding: br\r\n" + length(pack(t, "br", pack(t, "gzip", body))), masked},
		"identity":             {"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\n" + length(body), masked},
		"headers":              {"HTTP/1.1 200 OK\r\nX-Echo: Bearer " + realToken + "\r\n" + length("x"), "x"},
		"early hints":          {"HTTP/1.1 103 Early Hints\r\nX-Echo: " + realToken + "\r\n\r\nHTTP/1.1 200 OK\r\n" + length("x"), "x"},
		"trailers":             {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Echo, Set-Cookie\r\n\r\n1\r\nx\r\n0\r\nX-Echo: " + realToken + "\r\nSet-Cookie: a=b\r\nX-Late: " + realToken + "\r\n\r\n", "x"},
		"unknown coding":       {"HTTP/1.1 200 OK\r\nContent-Encoding: zstd\r\n" + length(body), "502"},
		"secret as the coding": {"HTTP/1.1 200 OK\r\nContent-Encoding: " + realToken + "\r\n" + length("x"), "502"},
		"packed thrice":        {"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip, gzip\r\n" + length("x"), "502"},
		"no HTTP":              {"EHLO " + realToken + "\r\n\r\n", "502"},
		"switching protocols":  {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n" + realToken, "502"},
		"in the location":      {"HTTP/1.1 302 Found\r\nLocation: /x?t=" + realToken + "\r\n" + length(""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(tc.answer, "Connection:") {
				tc.answer = strings.Replace(tc.answer, "\r\n", "\r\nConnection: close\r\n", 1)
				if strings.HasPrefix(tc.answer, "HTTP/1.1 103") {
					tc.answer = strings.Replace(tc.answer, "200 OK\r\n", "200 OK\r\nConnection: close\r\n", 1)
				}
			}
			up := serveWire(t, tc.answer)
			f := setup(t, up.url, nil)
			tok := f.issue(nil).Token
			answer := raw(t, f.addr, "GET /proxy/datadog/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "+tok+"\r\nConnection: close\r\n\r\n")
			for _, part := range []string{realToken[:16], realToken[10:], "Set-Cookie"} {
				if strings.Contains(answer, part) {
					t.Errorf("%q comes through: %q", part, answer)
				}
			}
			if strings.Contains(f.log.String(), realToken[:16]) {
				t.Errorf("the log has it: %s", f.log)
			}
			res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), nil)
			if err != nil {
				t.Fatalf("%v: %q", err, answer)
			}
			text, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			if tc.body == "502" {
				if res.StatusCode != 502 {
					t.Errorf("%s %s", res.Status, text)
				}
				return
			}
			if string(text) != tc.body || res.Header.Get("Content-Encoding") != "" && name != "identity" {
				t.Errorf("%v %q, want %q", res.Header, text, tc.body)
			}
			if name == "body" && res.ContentLength != int64(len(body)) {
				t.Errorf("its length is lost: %v", res.Header)
			}
		})
	}
}

func TestHTTPProxyHeadersOfAnswers(t *testing.T) {
	up := serveWire(t, "HTTP/1.1 200 OK\r\nConnection: X-Hop\r\nX-Hop: 1\r\nSet-Cookie: a=b\r\nAlt-Svc: h3=\":443\"\r\nProxy-Status: forged\r\nProxy-Authenticate: Basic\r\n"+
		"Strict-Transport-Security: max-age=1\r\nAccess-Control-Allow-Origin: *\r\nClear-Site-Data: *\r\nRefresh: 0;url=http://evil\r\nX-Accel-Redirect: /etc/passwd\r\n"+
		"X-RateLimit-Remaining: 7\r\nETag: \"x\"\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nok")
	f := setup(t, up.url, nil)
	res, _ := f.get("/proxy/datadog/x", f.issue(nil).Token)
	res.Header.Del("Date")
	want := "map[Cache-Control:[private] Content-Length:[2] Content-Security-Policy:[sandbox; default-src 'none'] Content-Type:[text/html] Etag:[\"x\"] X-Content-Type-Options:[nosniff] X-Ratelimit-Remaining:[7]]"
	if got := fmt.Sprint(res.Header); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestHTTPProxyRedirects(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // another host: nobody may connect
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			t.Error("the redirect was followed")
			c.Close()
		}
	}()
	var status int
	var location string
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", location)
		w.WriteHeader(status)
	}))
	defer up.Close()
	f := setup(t, up.URL+"/v1", nil)
	tok := f.issue(nil).Token
	for _, tc := range []struct {
		status   int
		location string
		want     string // the location, or the status of a refusal
	}{
		{302, up.URL + "/v1/a%2Fb?x=1#y", "/proxy/datadog/a%2Fb?x=1#y"},
		{301, "/v1/other", "/proxy/datadog/other"},
		{307, "next", "/proxy/datadog/a/next"},
		{308, "?page=2", "/proxy/datadog/a/b?page=2"},
		{302, "/v1", "/proxy/datadog"},
		{302, "/v10/x", "502"},
		{302, "/admin", "502"},
		{302, "http://" + l.Addr().String() + "/v1/x", "502"},
		{302, "//" + l.Addr().String() + "/v1/x", "502"},
		{302, strings.Replace(up.URL, "http://", "https://", 1) + "/v1/x", "502"},
		{302, strings.Replace(up.URL, "http://", "http://u:p@", 1) + "/v1/x", "502"},
		{303, "javascript:alert(1)", "502"},
		{201, up.URL + "/v1/made/7", "/proxy/datadog/made/7"},
		{201, "https://elsewhere.example/made/7", ""},
	} {
		status, location = tc.status, tc.location
		res, text := f.get("/proxy/datadog/a/b", tok)
		got := res.Header.Get("Location")
		if res.StatusCode == 502 {
			got = "502"
		} else if res.StatusCode != tc.status {
			t.Errorf("%s: %s %s", tc.location, res.Status, text)
		}
		if got != tc.want {
			t.Errorf("%d to %s: %q, want %q", tc.status, tc.location, got, tc.want)
		}
	}
}

func TestHTTPProxyWithoutBodies(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip") // of what GET would return
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.WriteHeader(304)
		}
	}))
	defer up.Close()
	f := setup(t, up.URL, nil)
	tok := f.issue(nil).Token
	for _, tc := range []struct {
		method, path string
		status       int
	}{{"HEAD", "/x", 200}, {"GET", "/204", 204}, {"GET", "/304", 304}, {"GET", "/x", 200}} {
		if res, text := f.do(tc.method, "/proxy/datadog"+tc.path, tok, nil, nil); res.StatusCode != tc.status || text != "" {
			t.Errorf("%s %s: %s %q", tc.method, tc.path, res.Status, text)
		}
	}
}

func TestHTTPProxyBadServices(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer silent.Close()
	stalls := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "half")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer stalls.Close()
	named := strings.Replace(silent.URL, "127.0.0.1", "localhost", 1)
	f := setup(t, silent.URL, func(c *Config) {
		c.Services = nil
		for name, u := range map[string]string{"closed": "http://" + closed.Addr().String(), "silent": silent.URL, "stalls": stalls.URL, "named": named} {
			s := datadog(t, u)
			s.Name, s.Timeout, s.IdleTimeout = name, 200*time.Millisecond, 200*time.Millisecond
			if name == "named" { // the dialer finds out that the name leads to loopback
				s.AllowPrivate = nil
			}
			c.Services = append(c.Services, s)
		}
	})
	token := func(service string) string { return f.issue(func(r *GrantRequest) { r.Service = service }).Token }
	for service, want := range map[string]string{
		"closed": "502 Bad Gateway: Backend service unavailable",
		"named":  "502 Bad Gateway: Backend service unavailable",
		"silent": "504 Gateway Timeout: Backend service unavailable",
	} {
		res, text := f.do("POST", "/proxy/"+service+"/x", token(service), nil, strings.NewReader("x"))
		if fmt.Sprint(res.StatusCode) != want[:3] || !strings.Contains(text, want) {
			t.Errorf("%s: %s %s", service, res.Status, text)
		}
	}
	if !strings.Contains(f.log.String(), "is not a public address") {
		t.Errorf("the operator is not told: %s", f.log)
	}
	answer := raw(t, f.addr, "GET /proxy/stalls/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "+token("stalls")+"\r\n\r\n")
	if !strings.Contains(answer, "half") || strings.HasSuffix(answer, "0\r\n\r\n") {
		t.Errorf("an answer that stalls is cut, and seen to be: %q", answer)
	}
	// A client that sends less than it announces is at fault.
	answer = raw(t, f.addr, "POST /proxy/silent/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "+token("silent")+"\r\nContent-Length: 10\r\n\r\nhalf")
	if !strings.HasPrefix(answer, "HTTP/1.1 408 ") {
		t.Errorf("a slow client: %q", answer)
	}
}

// An event arrives before the next one is sent, and the service notices when the client leaves.
func TestHTTPProxyStreams(t *testing.T) {
	next, gone := make(chan struct{}), make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; ; i++ { // endless
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer up.Close()
	f := setup(t, up.URL, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+f.addr+"/proxy/datadog/events", nil)
	req.Header.Set("Authorization", "Bearer "+f.issue(nil).Token)
	res, err := direct(t).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	b := bufio.NewReader(res.Body)
	for i := range 5 {
		line, err := b.ReadString('\n')
		blank, _ := b.ReadString('\n')
		if want := fmt.Sprintf("data: %d\n", i); err != nil || line != want || blank != "\n" {
			t.Fatalf("%q %q, %v", line, blank, err)
		}
		next <- struct{}{}
	}
	cancel()
	res.Body.Close()
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the service was not told")
	}
	eventually(t, "the end is in the audit trail", func() bool {
		records := f.records()
		return records[len(records)-1].Event == audit.EventComplete
	})
}

// Full duplex: the answer to the first half arrives before the second half is sent.
func TestHTTPProxyBothWays(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		b := bufio.NewReader(r.Body)
		for {
			line, err := b.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(w, "got "+line)
			_ = rc.Flush()
		}
	}))
	defer up.Close()
	f := setup(t, up.URL, nil)
	pr, pw := io.Pipe()
	req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://"+f.addr+"/proxy/datadog/x", pr)
	req.Header.Set("Authorization", "Bearer "+f.issue(nil).Token)
	go io.WriteString(pw, "one\n")
	res, err := direct(t).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b := bufio.NewReader(res.Body)
	for _, word := range []string{"one\n", "two\n", "three\n"} {
		if word != "one\n" {
			go io.WriteString(pw, word)
		}
		if line, err := b.ReadString('\n'); err != nil || line != "got "+word {
			t.Fatalf("%q, %v", line, err)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(b); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// Large bodies pass in both directions without being buffered.
func TestHTTPProxyLargeBodies(t *testing.T) {
	const size = 64 << 20
	var heap atomic.Uint64
	sample := func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heap.Store(max(heap.Load(), m.HeapInuse))
	}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); n != size || err != nil {
			t.Errorf("the service got %d bytes, %v", n, err)
		}
		sample()
		block := bytes.Repeat([]byte("0123456789abcdef"), 4096)
		for sent := 0; sent < size; sent += len(block) {
			if _, err := w.Write(block); err != nil {
				t.Error(err)
				return
			}
			if sent == size/2 {
				sample()
			}
		}
	}))
	defer up.Close()
	f := setup(t, up.URL, nil)
	runtime.GC()
	sample()
	before := heap.Load()
	req, _ := http.NewRequestWithContext(t.Context(), "PUT", "http://"+f.addr+"/proxy/datadog/x", io.LimitReader(zeros{}, size))
	req.Header.Set("Authorization", "Bearer "+f.issue(nil).Token)
	res, err := direct(t).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
		t.Errorf("%d bytes came back, %v", n, err)
	}
	if grown := int64(heap.Load()) - int64(before); grown > 16<<20 {
		t.Errorf("the heap grew by %d MB", grown>>20)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
