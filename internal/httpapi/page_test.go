package httpapi_test

import (
	"compress/gzip"
	"io"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"mcp-code-sandbox/internal/httpapi"
)

func testPage() *httpapi.Page {
	page, err := httpapi.NewPage(fstest.MapFS{
		"index.html":          {Data: []byte(`<meta name="csp-nonce" content="__CSP_NONCE__"><script nonce="__CSP_NONCE__" src="/assets/main-x1.js"></script>` + strings.Repeat(" ", 500))},
		"assets/main-x1.js":   {Data: []byte(strings.Repeat("let a;", 500) + "__CSP_NONCE__")},
		"assets/style-x1.css": {Data: []byte("a{}")},
		"icon.svg":            {Data: []byte("<svg/>")},
	})
	if err != nil {
		panic(err)
	}
	return page
}

// body decodes an answer as a browser does.
func body(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	if w.Header().Get("Content-Encoding") == "" {
		return w.Body.String()
	}
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Each answer with the index has a new nonce in its policy and in its body, and browsers do not
// cache it.
func TestPageIndex(t *testing.T) {
	h := httpapi.New(config(nil))
	seen := map[string]bool{}
	for _, encoding := range []string{"", "gzip", "br, gzip;q=0.5"} {
		w := do(h, request("GET", "/", "Accept-Encoding", encoding))
		page := body(t, w)
		header := w.Header()
		if w.Code != 200 || header.Get("Content-Type") != "text/html; charset=utf-8" || header.Get("ETag") != "" || header.Get("Last-Modified") != "" ||
			(header.Get("Content-Encoding") == "gzip") != (encoding != "") {
			t.Fatalf("%d %v", w.Code, header)
		}
		m := regexp.MustCompile(`script-src 'nonce-([A-Z2-7]{26})'; style-src 'nonce-([A-Z2-7]{26})';`).FindStringSubmatch(header.Get("Content-Security-Policy"))
		if m == nil || m[1] != m[2] || seen[m[1]] || strings.Count(page, `"`+m[1]+`"`) != 2 || strings.Contains(page, "__CSP_NONCE__") {
			t.Fatalf("policy %q of %.200s", header.Get("Content-Security-Policy"), page)
		}
		seen[m[1]] = true
		for name, want := range map[string]string{
			"Cache-Control": "no-cache", "X-Frame-Options": "DENY", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Vary": "Accept-Encoding",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
	policy := do(h, request("GET", "/")).Header().Get("Content-Security-Policy")
	for _, never := range []string{"unsafe", "http:", "https:", "*", "script-src 'self'", "strict-dynamic"} {
		if strings.Contains(policy, never) {
			t.Errorf("the policy has %q: %s", never, policy)
		}
	}
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy lacks %q: %s", want, policy)
		}
	}
}

func TestPageAssets(t *testing.T) {
	h := httpapi.New(config(nil))
	const immutable = "public, max-age=31536000, immutable"
	for _, tt := range []struct {
		path, encoding   string
		kind, cache      string
		compressed, what bool
	}{
		{"/assets/main-x1.js", "gzip, deflate, br, zstd", "text/javascript; charset=utf-8", immutable, true, true},
		{"/assets/main-x1.js", "GZIP;q=0.001", "text/javascript; charset=utf-8", immutable, true, true},
		{"/assets/main-x1.js", "gzip; q=0", "text/javascript; charset=utf-8", immutable, false, true},
		{"/assets/main-x1.js", "gzip;q=0.000", "text/javascript; charset=utf-8", immutable, false, true},
		{"/assets/main-x1.js", "xgzip", "text/javascript; charset=utf-8", immutable, false, true},
		{"/assets/main-x1.js", "", "text/javascript; charset=utf-8", immutable, false, true},
		{"/assets/style-x1.css", "gzip", "text/css; charset=utf-8", immutable, false, false}, // too small to gain
		{"/icon.svg", "", "image/svg+xml", "no-cache", false, false},
	} {
		w := do(h, request("GET", tt.path, "Accept-Encoding", tt.encoding))
		header := w.Header()
		etag := header.Get("ETag")
		if w.Code != 200 || header.Get("Content-Type") != tt.kind || header.Get("Cache-Control") != tt.cache || (header.Get("Content-Encoding") == "gzip") != tt.compressed ||
			header.Get("Content-Security-Policy") != "default-src 'none'; frame-ancestors 'none'" || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s, %q: %d %v", tt.path, tt.encoding, w.Code, header)
		}
		if got := body(t, w); tt.what && !strings.HasSuffix(got, "let a;__CSP_NONCE__") {
			t.Errorf("%s, %q: %.80s", tt.path, tt.encoding, got)
		}
		if w := do(h, request("GET", tt.path, "Accept-Encoding", tt.encoding, "If-None-Match", etag)); w.Code != 304 || w.Body.Len() != 0 {
			t.Errorf("%s again: %d", tt.path, w.Code)
		}
		if w := do(h, request("HEAD", tt.path, "Accept-Encoding", tt.encoding)); w.Code != 200 || w.Body.Len() != 0 {
			t.Errorf("HEAD %s: %d", tt.path, w.Code)
		}
	}
	if w := do(h, request("GET", "/assets/main-x1.js", "Accept-Encoding", "gzip", "Range", "bytes=0-5")); w.Code != 206 || w.Body.String() != "let a;" {
		t.Errorf("a range: %d %q", w.Code, w.Body)
	}
	for _, tt := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/", 405}, {"DELETE", "/icon.svg", 405}, {"GET", "/nothing", 404}, {"GET", "/index.html", 404}, {"GET", "/assets/", 404},
		{"GET", "/assets/other.js", 404}, {"GET", "/assets/..%2findex.html", 404}, {"POST", "/healthz", 405},
	} {
		if w := do(h, request(tt.method, tt.path)); w.Code != tt.status {
			t.Errorf("%s %s: %d, want %d", tt.method, tt.path, w.Code, tt.status)
		}
	}
	if w := do(h, request("GET", "/", "Host", "evil.example.net")); w.Code != 403 {
		t.Errorf("by a foreign name: %d", w.Code)
	}
	if w := do(httpapi.New(config(func(c *httpapi.Config) { c.Page = nil })), request("GET", "/")); w.Code != 404 {
		t.Errorf("without a page: %d", w.Code)
	}
	if _, err := httpapi.NewPage(fstest.MapFS{"icon.svg": {}}); err == nil {
		t.Error("a page without an index was taken")
	}
}
