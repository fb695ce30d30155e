package packages

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/httpconn"
)

// TestOneDownload: a hundred sessions at once download a file once, and its page once.
func TestOneDownload(t *testing.T) {
	f := newFakeIndex(t)
	w := f.add("six-1.0-py3-none-any.whl", "1.0")
	f.project("six", w)
	arrived, proceed := make(chan struct{}, 1), make(chan struct{})
	f.on(w.url, func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-proceed
		_, _ = w.Write([]byte("1.0"))
	})
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	results := make(chan answer)
	path := fileOf(listing(t, m, "six").Files[0])
	for range 100 {
		go func() { results <- get(m, path) }()
	}
	<-arrived
	close(proceed)
	for range 100 {
		if a := <-results; a.body != "1.0" {
			t.Errorf("%+v", a)
		}
	}
	if f.hit(w.url) != 1 || f.hit("/simple/six/") != 1 {
		t.Errorf("%v", f.hits)
	}
}

// TestOnePage: the requests that wait for their turn to ask for a page do not ask again.
func TestOnePage(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	plain, proceed := f.handlers["/simple/six/"], make(chan struct{})
	f.on("/simple/six/", func(w http.ResponseWriter, r *http.Request) {
		<-proceed
		plain(w, r)
	})
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	var wg sync.WaitGroup
	for range 5 * maxUpstream {
		wg.Go(func() {
			if a := get(m, "/packages/pypi/simple/six/"); a.status != http.StatusOK {
				t.Errorf("%+v", a)
			}
		})
	}
	r := m.runs["run"]
	await(&m.mu, func() bool { return r.requests == 5*maxUpstream })
	close(proceed)
	wg.Wait()
	if n := f.hit("/simple/six/"); n != 1 {
		t.Errorf("%d requests reached the index", n)
	}
}

// TestReleaseCuts: a transfer ends with the sandbox's last run, while it is downloaded and while it
// is sent to a sandbox that does not read. A request counts against the newest run.
func TestReleaseCuts(t *testing.T) {
	f := newFakeIndex(t)
	w := f.add("six-1.0-py3-none-any.whl", "1.0")
	big := f.add("six-2.0-py3-none-any.whl", strings.Repeat("x", 8<<20))
	f.project("six", w, big)
	arrived, left := make(chan struct{}), make(chan struct{})
	f.on(w.url, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(left)
	})
	m := start(t, f.config(t))
	m.Grant("caller", "first", "box")
	m.Grant("caller", "second", "box")
	files := listing(t, m, "six").Files
	done := make(chan answer)
	go func() { done <- get(m, fileOf(files[0])) }()
	<-arrived
	m.Release("first")
	m.Release("second")
	if a := <-done; a.status < 400 {
		t.Errorf("%+v", a)
	}
	<-left // nobody waits for the download any more

	m.Grant("caller", "third", "box")
	inside, outside := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		httpconn.Serve(context.Background(), outside, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.ServeSandbox(w, r, "box") }), m.log)
	}()
	if _, err := inside.Write([]byte("GET " + fileOf(files[1]) + " HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(inside, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	m.Release("third")
	<-served
	_ = inside.Close()
}

// TestBudgets: requests and bytes of a run are limited.
func TestBudgets(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", strings.Repeat("x", 1<<20)))
	cfg := f.config(t)
	cfg.Budget = Budget{Requests: 3, Bytes: 1 << 19}
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	path := fileOf(listing(t, m, "six").Files[0])
	wantCode(t, get(m, path), CodeQuota) // it paid for the download
	m.Release("run")
	m.Grant("caller", "run", "box")
	wantCut(t, func() { get(m, path) })
	wantCode(t, get(m, path), CodeQuota)
	get(m, path)
	wantCode(t, get(m, path), CodeQuota)
	list := m.Release("run")
	if len(list) != 2 || !strings.Contains(list[0].Message, "received") || !strings.Contains(list[len(list)-1].Message, "requests") {
		t.Errorf("%+v", list)
	}
}

// TestRevalidate: a stale page costs a short question.
func TestRevalidate(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	plain, same := f.handlers["/simple/six/"], 0
	f.on("/simple/six/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if r.Header.Get("If-None-Match") == `"1"` {
			same++
			w.WriteHeader(http.StatusNotModified)
			return
		}
		plain(w, r)
	})
	cfg := f.config(t)
	clock := now
	cfg.Now = func() time.Time { return clock }
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	for range 3 {
		listing(t, m, "six")
		listing(t, m, "six")
		clock = clock.Add(pageTTL)
	}
	if same != 2 || f.hit("/simple/six/") != 3 {
		t.Errorf("%d of %d", same, f.hit("/simple/six/"))
	}
}

// TestUnreachable: the error names the fix and no address.
func TestUnreachable(t *testing.T) {
	f := newFakeIndex(t)
	f.on("/simple/broken/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	f.serve("/simple/garbage/", simpleJSON, []byte(`{"files":[{]`))
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	for _, name := range []string{"broken", "garbage"} {
		a := get(m, "/packages/pypi/simple/"+name+"/")
		if wantCode(t, a, CodeUnreachable); strings.Contains(a.body, f.URL) || a.status != http.StatusFailedDependency {
			t.Errorf("%+v", a)
		}
	}
	f.CloseClientConnections()
	f.Close()
	wantCode(t, get(m, "/packages/pypi/simple/six/"), CodeUnreachable)
	if err := m.Check(t.Context()); err == nil || strings.Contains(err.Error(), "index-secret") {
		t.Errorf("%v", err)
	}
}

// TestAudit: the trail has a record before and after each request to an index, and no secret.
func TestAudit(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	cfg := f.config(t)
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	get(m, fileOf(listing(t, m, "six").Files[0]))
	path := filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl")
	data, err := os.ReadFile(path)
	v, verr := audit.VerifyFile(path)
	if err != nil || verr != nil || v.Last != 5 || bytes.Contains(data, []byte("index-secret")) || !bytes.Contains(data, []byte(`"room":"packages","service":"pypi"`)) {
		t.Errorf("%v %v %+v\n%s", err, verr, v, data)
	}
}

// TestAuditedFiles: the trail says which run got which file, also from the cache, and how much of a
// file came that was not received whole.
func TestAuditedFiles(t *testing.T) {
	f := newFakeIndex(t)
	six, cut := f.add("six-1.0-py3-none-any.whl", "1.0"), f.add("cut-1.0-py3-none-any.whl", "longer")
	f.project("six", six)
	f.project("cut", cut)
	f.on(cut.url, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte("1.0"))
	})
	cfg := f.config(t)
	m := start(t, cfg)
	for _, run := range []string{"run_1", "run_2"} {
		m.Grant("caller", run, "box")
		for range 2 {
			get(m, fileOf(listing(t, m, "six").Files[0]))
		}
		get(m, fileOf(listing(t, m, "cut").Files[0]))
		m.Release(run)
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl"))
	for want, times := range map[string]int{
		`"execution_id":"run_1","room":"packages","service":"pypi","method":"GET","path":"six/six-1.0-py3-none-any.whl","decision":"allow","digest":"` + six.hash + `"`: 1,
		`"execution_id":"run_2","room":"packages","service":"pypi","method":"GET","path":"six/six-1.0-py3-none-any.whl","decision":"allow","digest":"` + six.hash + `"`: 1,
		`"path":"cut/`: 0,
		`"reason":"incomplete","status":200,"bytes_received":3,`: 2,
	} {
		if n := strings.Count(string(data), want); n != times || err != nil {
			t.Errorf("%d of %d times %s, %v\n%s", n, times, want, err, data)
		}
	}
}

// TestNoTrailNoRequest: if the trail cannot be written, nothing is asked of an index.
func TestNoTrailNoRequest(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	cfg := f.config(t)
	dir := filepath.Join(t.TempDir(), "audit")
	trail, err := audit.Open(filepath.Join(dir, "trail.jsonl"))
	if err == nil {
		err = os.WriteFile(dir, nil, 0o600) // where the trail's directory would be
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg.Audit = trail
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	wantCode(t, get(m, "/packages/pypi/simple/six/"), CodeUnreachable)
	if f.total() != 0 {
		t.Error("the index was asked")
	}
}

// TestStore: a damaged file is downloaded again, what a crash left is removed, and what nobody used
// for the longest time makes room.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	const limit = 11_000 // has room for two small files
	s, err := openStore(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	downloads := 0
	open := func(content string) string {
		t.Helper()
		f, err := s.open(t.Context(), nil, "", sum(content), 2*limit, func(_ context.Context, put func(io.Reader) error) error {
			downloads++
			return put(strings.NewReader(content))
		})
		if err != nil {
			return err.Error()
		}
		defer f.Close()
		data, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	a, b, c := strings.Repeat("a", 40), strings.Repeat("b", 40), strings.Repeat("c", 40)
	if first, second := open(a), open(a); first != a || second != a || downloads != 1 {
		t.Errorf("%q, %q, %d downloads", first, second, downloads)
	}
	if err := os.WriteFile(s.path(sum(a)), []byte(b), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.temporary(), "crashed"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	living, err := s.create()
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	if s, err = openStore(dir, limit); err != nil { // another process
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.temporary()); len(left) != 1 || err != nil {
		t.Errorf("%v %v", left, err)
	}
	if open(a) != a || downloads != 2 {
		t.Errorf("a damaged file was used: %d downloads", downloads)
	}
	open(b)
	old := time.Unix(1e9, 0)
	if err := os.Chtimes(s.path(sum(a)), old, old); err != nil {
		t.Fatal(err)
	}
	open(c)
	if n, size, err := Usage(dir); n != 2 || size != 2*onDisk(40) || err != nil {
		t.Errorf("%d files of %d bytes, %v", n, size, err)
	}
	if f, err := s.cached(t.Context(), sum(a)); f != nil || err != nil {
		t.Errorf("the oldest file is still there: %v", err)
	}
	if got := open(strings.Repeat("d", limit+1)); !strings.Contains(got, errCacheSize.Error()) {
		t.Error(got)
	}
	if err := Purge(dir); err != nil {
		t.Fatal(err)
	}
	if n, _, err := Usage(dir); n != 0 || err != nil {
		t.Errorf("%d files, %v", n, err)
	}
	if err := Purge(filepath.Join(dir, "missing")); err != nil {
		t.Error(err)
	}
}

// dropped serves a path as an index does that ends the connection instead of answering.
func (f *fakeIndex) dropped(path string, first func()) {
	f.on(path, func(http.ResponseWriter, *http.Request) {
		if f.hit(path) == 1 {
			first()
		}
		panic(http.ErrAbortHandler)
	})
}

// TestAuditRepeats: each repeat of a request is in the trail, also those by Go's transport.
func TestAuditRepeats(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	f.dropped("/simple/lost/", func() {})
	cfg := f.config(t)
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	listing(t, m, "six") // leaves a connection that can be reused
	wantCode(t, get(m, "/packages/pypi/simple/lost/"), CodeUnreachable)
	data, err := os.ReadFile(filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl"))
	n := 0
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, `"event":"request"`) && strings.Contains(line, `"path":"/simple/lost/"`) {
			n++
		}
	}
	if hits := f.hit("/simple/lost/"); n != hits || hits != 3 || err != nil {
		t.Errorf("%d of %d requests are in the trail, %v", n, hits, err)
	}
}

// TestNoTrailNoRepeat: a repeat that the trail cannot have is not sent.
func TestNoTrailNoRepeat(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	cfg := f.config(t)
	dir := filepath.Join(t.TempDir(), "audit")
	trail, err := audit.Open(filepath.Join(dir, "trail.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Audit = trail
	f.dropped("/simple/lost/", func() {
		_ = trail.Close()
		_ = os.RemoveAll(dir)
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // where the trail's directory would be
			t.Error(err)
		}
	})
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	listing(t, m, "six")
	wantCode(t, get(m, "/packages/pypi/simple/lost/"), CodeUnreachable)
	if n := f.hit("/simple/lost/"); n != 1 {
		t.Errorf("%d requests were sent", n)
	}
}
