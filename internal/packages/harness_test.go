package packages

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/secret"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

var now = time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)

const (
	oldRelease = "2026-01-02T03:04:05Z"
	anHourAgo  = "2026-06-15T11:00:00.123456Z"
)

// fakeIndex is an index that answers as a test wants. It counts requests by path.
type fakeIndex struct {
	*httptest.Server
	mu       sync.Mutex
	hits     map[string]int
	headers  map[string]http.Header
	handlers map[string]http.HandlerFunc // by path
}

func newFakeIndex(t testing.TB) *fakeIndex {
	f := &fakeIndex{hits: map[string]int{}, headers: map[string]http.Header{}, handlers: map[string]http.HandlerFunc{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.hits[r.URL.EscapedPath()]++
		f.headers[r.URL.EscapedPath()] = r.Header.Clone()
		h := f.handlers[r.URL.EscapedPath()]
		f.mu.Unlock()
		if h == nil {
			http.NotFound(w, r)
			return
		}
		h(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// certificateOf writes the certificate of a server to a file.
func certificateOf(t *testing.T, server *httptest.Server) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func (f *fakeIndex) on(path string, h http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handlers[path] = h
}

func (f *fakeIndex) serve(path, contentType string, body []byte) {
	f.on(path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body)
	})
}

func (f *fakeIndex) hit(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits[path]
}

func (f *fakeIndex) total() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, hits := range f.hits {
		n += hits
	}
	return n
}

// wheel is a file of a project.
type wheel struct {
	name, url, uploaded, hash string
	yanked                    any
	metadata                  string
}

func sum(content string) string {
	h := sha256.Sum256([]byte(content))
	return hex.EncodeToString(h[:])
}

// add serves a file, and returns it as the page lists it.
func (f *fakeIndex) add(name, content string) wheel {
	f.serve("/f/"+name, "application/octet-stream", []byte(content))
	return wheel{name: name, url: "/f/" + name, uploaded: oldRelease, hash: sum(content)}
}

func (f *fakeIndex) project(name string, files ...wheel) {
	list := []map[string]any{}
	for _, w := range files {
		entry := map[string]any{"filename": w.name, "url": w.url, "hashes": map[string]string{"sha256": w.hash}, "requires-python": ">=3.6"}
		if w.uploaded != "" {
			entry["upload-time"] = w.uploaded
		}
		if w.yanked != nil {
			entry["yanked"] = w.yanked
		}
		if w.metadata != "" {
			entry["core-metadata"] = map[string]string{"sha256": sum(w.metadata)}
			f.serve(w.url+".metadata", "text/plain", []byte(w.metadata))
		}
		list = append(list, entry)
	}
	body, err := json.Marshal(map[string]any{"meta": map[string]string{"api-version": "1.1"}, "name": name, "files": list})
	if err != nil {
		panic(err)
	}
	f.serve("/simple/"+name+"/", simpleJSON, body)
}

// release is a version of an npm package; fields are added to its description.
type release struct {
	version, content, uploaded string
	fields                     map[string]any
	dist                       map[string]any
}

func integrity(content string) string {
	h := sha512.Sum512([]byte(content))
	return "sha512-" + base64.StdEncoding.EncodeToString(h[:])
}

func (f *fakeIndex) packument(name string, latest string, releases ...release) {
	versions, times := map[string]any{}, map[string]string{"created": oldRelease}
	for _, r := range releases {
		path := "/npm/" + name + "/-/" + baseName(name) + "-" + r.version + ".tgz"
		f.serve(path, "application/octet-stream", []byte(r.content))
		v := map[string]any{"name": name, "version": r.version, "dist": map[string]any{"tarball": f.URL + path, "integrity": integrity(r.content)}}
		for key, value := range r.fields {
			v[key] = value
		}
		if r.dist != nil {
			v["dist"] = r.dist
		}
		versions[r.version] = v
		if r.uploaded != "" {
			times[r.version] = r.uploaded
		}
	}
	body, err := json.Marshal(map[string]any{"name": name, "dist-tags": map[string]string{"latest": latest}, "versions": versions, "time": times})
	if err != nil {
		panic(err)
	}
	f.serve("/npm/"+strings.ReplaceAll(name, "/", "%2f"), "application/json", body)
}

// config returns the usual configuration with f as the index of both kinds.
func (f *fakeIndex) config(t testing.TB) Config {
	dir := t.TempDir()
	trail, err := audit.Open(filepath.Join(dir, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = trail.Close() })
	return Config{
		Kinds: map[string]Kind{
			PyPI: {Indexes: []Index{{URL: f.URL + "/simple", Header: "Authorization", Credential: secret.New("Bearer index-secret")}}},
			NPM:  {Indexes: []Index{{URL: f.URL + "/npm/"}}},
		},
		MinAge: DefaultMinAge, WheelsOnly: true, CacheDir: filepath.Join(dir, "cache"), Audit: trail,
		Now: func() time.Time { return now },
	}
}

func start(t testing.TB, cfg Config) *Mirror {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// answer is what a sandbox got.
type answer struct {
	status int
	body   string
	header http.Header
}

func (a answer) code() string {
	var e struct{ Error string }
	_ = json.Unmarshal([]byte(a.body), &e)
	return e.Error
}

// get sends a request as code in the sandbox "box" does.
func get(m *Mirror, path string, header ...string) answer {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8099/", nil)
	r.URL.Path, r.URL.RawPath = path, ""
	if decoded, raw, ok := strings.Cut(path, " raw "); ok {
		r.URL.Path, r.URL.RawPath = decoded, raw
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	m.ServeSandbox(w, r, "box")
	return answer{w.Code, w.Body.String(), w.Header()}
}

// listing returns the files that the mirror lists for a project.
func listing(t testing.TB, m *Mirror, name string) simplePage {
	t.Helper()
	a := get(m, "/packages/pypi/simple/"+name+"/", "Accept", simpleJSON)
	var p simplePage
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != http.StatusOK {
		t.Fatalf("%s: %d %s %v", name, a.status, a.body, err)
	}
	return p
}

func fileOf(f simpleFile) string {
	return "/packages/pypi/" + strings.TrimPrefix(f.URL, "../../")
}

// problem returns the only problem of the run, which it ends.
func problem(t testing.TB, m *Mirror) Problem {
	t.Helper()
	list := m.Release("run")
	if len(list) != 1 {
		t.Fatalf("problems: %+v", list)
	}
	return list[0]
}

func wantCode(t testing.TB, a answer, code string) {
	t.Helper()
	if a.code() != code {
		t.Errorf("%d %.1000s, want %s", a.status, a.body, code)
	}
}

// wantCut calls f, which asks for a file that is cut.
func wantCut(t testing.TB, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if recover() != http.ErrAbortHandler {
			t.Error("a cut answer looks complete")
		}
	}()
	f()
}

// gzipped writes n bytes, packed, without keeping them.
func gzipped(w io.Writer, n int) {
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		panic(err)
	}
	chunk := bytes.Repeat([]byte(" "), 1<<20)
	for ; n > 0; n -= len(chunk) {
		if _, err := z.Write(chunk); err != nil {
			panic(err)
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
}
