package packages

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"mcp-code-sandbox/internal/logging/logtest"
	"mcp-code-sandbox/internal/secret"
)

// TestWrongHash: no byte of a file that is not what the index says reaches the sandbox or the
// cache.
func TestWrongHash(t *testing.T) {
	f := newFakeIndex(t)
	w := f.add("six-1.0-py3-none-any.whl", "poison")
	w.hash = sum("what was reviewed")
	f.project("six", w)
	f.packument("x", "1.0.0", release{version: "1.0.0", content: "reviewed", uploaded: oldRelease})
	f.serve("/npm/x/-/x-1.0.0.tgz", "application/octet-stream", []byte("poison"))
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	for range 2 { // a second try does not get a cached one
		for _, path := range []string{fileOf(listing(t, m, "six").Files[0]), "/packages/npm/x/-/x-1.0.0.tgz"} {
			a := get(m, path)
			if wantCode(t, a, CodeHash); strings.Contains(a.body, "poison") {
				t.Error(a.body)
			}
		}
	}
	if n, _, err := Usage(m.cfg.CacheDir); n != 0 || err != nil {
		t.Errorf("%d files in the cache, %v", n, err)
	}
	if entries, err := os.ReadDir(m.files.temporary()); len(entries) != 0 || err != nil {
		t.Errorf("%v %v", entries, err)
	}
	if list := m.Release("run"); len(list) != 2 || list[0].Code != CodeHash {
		t.Errorf("%+v", list)
	}
}

// TestFileElsewhere: a file address leads the server to no private address, not even one on the
// index's own machine.
func TestFileElsewhere(t *testing.T) {
	var reached atomic.Int32
	private := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer private.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(private.URL, "https://"), ":")
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "2130706433"} {
		f := newFakeIndex(t)
		w := f.add("six-1.0-py3-none-any.whl", "1.0")
		w.url = "https://" + host + ":" + port + "/six-1.0-py3-none-any.whl"
		f.project("six", w)
		m := start(t, f.config(t))
		m.Grant("caller", "run", "box")
		if a := get(m, fileOf(listing(t, m, "six").Files[0])); a.code() != CodeNotAllowed && a.code() != CodeUnreachable {
			t.Errorf("%s: %+v", host, a)
		}
	}
	if reached.Load() != 0 {
		t.Error("the private server was reached")
	}
}

// TestRedirectLosesCredentials: another host may serve a page or a file, but never sees the
// credential.
func TestRedirectLosesCredentials(t *testing.T) {
	var seen http.Header
	content := map[string]string{"/six-1.0-py3-none-any.whl": "1.0"}
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		_, _ = w.Write([]byte(content[r.URL.Path]))
	}))
	defer other.Close()
	var target atomic.Value
	target.Store(other.URL + "/six-1.0-py3-none-any.whl")
	own := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Key") != "index-secret":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/simple/six/":
			w.Header().Set("Content-Type", simpleJSON)
			fmt.Fprintf(w, `{"files":[{"filename":"six-1.0-py3-none-any.whl","url":"/file","hashes":{"sha256":"%s"},"upload-time":"%s"}]}`, sum("1.0"), oldRelease)
		default:
			http.Redirect(w, r, target.Load().(string), http.StatusFound)
		}
	}))
	defer own.Close()
	cfg := newFakeIndex(t).config(t)
	cfg.Kinds = map[string]Kind{PyPI: {Indexes: []Index{{URL: own.URL + "/simple", Header: "X-Key", Credential: secret.New("index-secret"), CAFile: certificateOf(t, own),
		AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}}}
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	file := fileOf(listing(t, m, "six").Files[0])
	for _, bad := range []string{strings.Replace(other.URL, "https", "http", 1), strings.Replace(other.URL, "https://", "https://u:p@", 1), own.URL + "/loop", "file:///etc/passwd"} {
		target.Store(bad)
		if a := get(m, file); a.status < 400 {
			t.Errorf("%s: %+v", bad, a)
		}
	}
	if seen != nil {
		t.Errorf("the other host got a request it must not get: %v", seen)
	}
	host := strings.TrimPrefix(other.URL, "https://")
	trail := filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl")
	if data, err := os.ReadFile(trail); err != nil || strings.Contains(string(data), host) {
		t.Errorf("%v\n%s", err, data)
	}
	target.Store(other.URL + "/six-1.0-py3-none-any.whl?signature=secret")
	if a := get(m, file); a.body != "1.0" {
		t.Errorf("%+v", a)
	}
	if data, err := os.ReadFile(trail); err != nil || !strings.Contains(string(data), `"host":"`+host+`"`) || strings.Contains(string(data), "signature") {
		t.Errorf("%v\n%s", err, data)
	}
	if seen == nil || strings.Contains(fmt.Sprint(seen), "index-secret") {
		t.Errorf("the other host got %v", seen)
	}
}

// TestRepeatedCredential: an index that shows the request's headers in its page does not give the
// credential to the sandbox.
func TestRepeatedCredential(t *testing.T) {
	f := newFakeIndex(t)
	f.on("/simple/debug/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", simpleJSON)
		fmt.Fprintf(w, `{"files":[{"filename":"debug-1.0-py3-none-any.whl","upload-time":%q,"hashes":{"sha256":%q},"requires-python":%q,"url":"x.whl"}]}`,
			oldRelease, sum("x"), r.Header.Get("Authorization"))
	})
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	a := get(m, "/packages/pypi/simple/debug/", "Accept", simpleJSON)
	if wantCode(t, a, CodeUnreachable); strings.Contains(a.body, "index-secret") {
		t.Error(a.body)
	}
}

// TestRepeatedPassword: nor does one that shows the password. Its malformed answers do not bring
// the credential into the log.
func TestRepeatedPassword(t *testing.T) {
	const password = "S3cretPassw0rd"
	f := newFakeIndex(t)
	f.on("/simple/decoded/", func(w http.ResponseWriter, r *http.Request) {
		_, given, _ := r.BasicAuth()
		w.Header().Set("Content-Type", simpleJSON)
		fmt.Fprintf(w, `{"files":[{"filename":"decoded-1.0-py3-none-any.whl","upload-time":%q,"hashes":{"sha256":%q},"yanked":%q,"url":"x.whl"}]}`,
			oldRelease, sum("x"), given)
	})
	f.on("/simple/malformed/", func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%s nonsense\r\n\r\n", strings.Replace(r.Header.Get("Authorization"), "Basic", "HTTP/1.1", 1))
	})
	cfg, log := f.config(t), &logtest.Buffer{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	credential := "Basic " + base64.StdEncoding.EncodeToString([]byte("mirror:"+password))
	cfg.Kinds[PyPI].Indexes[0].Header, cfg.Kinds[PyPI].Indexes[0].Credential = "Authorization", secret.New(credential)
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	for _, name := range []string{"decoded", "malformed"} {
		a := get(m, "/packages/pypi/simple/"+name+"/", "Accept", simpleJSON)
		if wantCode(t, a, CodeUnreachable); strings.Contains(a.body, password) {
			t.Error(a.body)
		}
	}
	if text := log.String(); !strings.Contains(text, "[redacted]") || strings.Contains(text, credential[len("Basic "):]) || strings.Contains(text, password) {
		t.Error(text)
	}
}

// TestHugePage: the server reads a bounded part of a page, packed or not.
func TestHugePage(t *testing.T) {
	f := newFakeIndex(t)
	var sent atomic.Int64
	f.on("/simple/huge/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", simpleJSON)
		chunk := bytes.Repeat([]byte(" "), 1<<20)
		for range 1 << 10 {
			n, err := w.Write(chunk)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
	var packed bytes.Buffer
	gzipped(&packed, 100<<20)
	f.on("/npm/bomb", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed.Bytes())
	})
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	for _, path := range []string{"/packages/pypi/simple/huge/", "/packages/npm/bomb"} {
		a := get(m, path)
		if wantCode(t, a, CodeQuota); !strings.Contains(a.body, "more than 64 MB") || strings.Contains(a.body, "cacheBytes") {
			t.Error(a.body)
		}
	}
	if n := sent.Load(); n > maxPage+(32<<20) {
		t.Errorf("the index could send %d MB", n>>20)
	}
	if held := m.pages.reading.used; held != 0 {
		t.Errorf("%d bytes are still counted", held)
	}
}

// TestZipBomb: the mirror passes on an archive as it is. Unpacking it is the sandbox's business,
// under the sandbox's limits.
func TestZipBomb(t *testing.T) {
	f := newFakeIndex(t)
	var bomb bytes.Buffer
	gzipped(&bomb, 64<<20)
	f.project("six", f.add("six-1.0-py3-none-any.whl", bomb.String()))
	f.on("/f/six-1.0-py3-none-any.whl", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip") // an invitation to unpack it
		_, _ = w.Write(bomb.Bytes())
	})
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	if a := get(m, fileOf(listing(t, m, "six").Files[0])); a.body != bomb.String() {
		t.Errorf("%d bytes, want %d", len(a.body), bomb.Len())
	}
}

// TestHostileNames: no such name reaches an index.
func TestHostileNames(t *testing.T) {
	f := newFakeIndex(t)
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	for _, name := range []string{"..", ".", "../x", "%2e%2e", "a/../b", "a\x00b", "a b", "a%2fb", "ä", "a?b", "a#b", "-a", strings.Repeat("a", 300), "@/x", "@a/../b", "@a/b/c", "@../x", "a\\b", "a\r\nX: y", "~"} {
		for _, path := range []string{"/packages/pypi/simple/" + name + "/", "/packages/pypi/files/" + name + "/" + sum("x") + "/x-1-py3-none-any.whl",
			"/packages/npm/" + name, "/packages/npm/files/" + name + "/" + sum("x") + "/x.tgz"} {
			if name == "~" && strings.Contains(path, "npm") {
				continue // npm allows it
			}
			if a := get(m, path+" raw "+(&url.URL{Path: path}).EscapedPath()); a.status < 400 {
				t.Errorf("%q: %+v", path, a)
			}
		}
	}
	for _, path := range []string{"/", "/packages", "/packages/", "/packages/../proxy/x", "/packages/pypi/simple/", "/packages/cargo/x", "/packages/pypi/files/six/" + sum("x") + "/../x"} {
		if a := get(m, path); a.status < 400 {
			t.Errorf("%q: %+v", path, a)
		}
	}
	if n := f.total(); n != 0 {
		t.Errorf("%d requests reached the index: %v", n, f.hits)
	}
}

// TestOneIndexPerName: a private name is asked at its own index only, also if that does not have
// it.
func TestOneIndexPerName(t *testing.T) {
	public, private := newFakeIndex(t), newFakeIndex(t)
	public.project("acme-tool", public.add("acme_tool-9.9-py3-none-any.whl", "evil"))
	public.project("six", public.add("six-1.0-py3-none-any.whl", "1.0"))
	private.project("six", private.add("six-9.9-py3-none-any.whl", "evil"))
	cfg := public.config(t)
	pypi := func(indexes ...Index) map[string]Kind { return map[string]Kind{PyPI: {Indexes: indexes}} }
	cfg.Kinds = pypi(Index{URL: public.URL + "/simple"}, Index{URL: private.URL + "/simple", Names: []string{"acme-*"}})
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	for _, name := range []string{"acme-tool", "ACME_tool", "acme.tool"} {
		if a := get(m, "/packages/pypi/simple/"+name+"/"); a.status != http.StatusNotFound {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if p := listing(t, m, "six"); p.Files[0].Filename != "six-1.0-py3-none-any.whl" || public.hit("/simple/acme-tool/") != 0 {
		t.Errorf("%+v %v", p, public.hits)
	}
	for name, indexes := range map[string][]Index{
		"two defaults":     {{URL: public.URL}, {URL: private.URL}},
		"the same pattern": {{URL: public.URL, Names: []string{"acme-*"}}, {URL: private.URL, Names: []string{"Acme_*"}}},
		"overlap":          {{URL: public.URL, Names: []string{"acme-*"}}, {URL: private.URL, Names: []string{"*-tool"}}},
		"a bad pattern":    {{URL: public.URL, Names: []string{"../*"}}},
		"a login":          {{URL: "https://user:secret@index.example.com"}},
		"no address":       {{URL: "index"}},
	} {
		cfg.Kinds = pypi(indexes...)
		if _, err := New(cfg); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnknownNames: code can tell the owner of an index only so much by asking for names.
func TestUnknownNames(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	done := make(chan answer)
	for i := range 200 {
		go func() { done <- get(m, fmt.Sprintf("/packages/pypi/simple/secret-%d/", i)) }()
	}
	codes := map[string]int{}
	for range 200 {
		codes[(<-done).code()]++
	}
	if codes[CodeUnknown] != 50 || codes[CodeQuota] != 150 || f.total() != 50 {
		t.Errorf("%v, %d names reached the index", codes, f.total())
	}
	if p := m.Release("run"); len(p) == 0 || p[0].Code != CodeQuota || len(p) > maxProblems {
		t.Errorf("%+v", p)
	}
	m.Grant("caller", "run2", "box")
	listing(t, m, "six") // the next run may ask again
}
