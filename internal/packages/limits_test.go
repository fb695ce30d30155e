package packages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// getIn sends a request as code in a sandbox does.
func getIn(m *Mirror, sandbox, method, path string) answer {
	r := httptest.NewRequest(method, "http://127.0.0.1:8099"+path, nil)
	w := httptest.NewRecorder()
	m.ServeSandbox(w, r, sandbox)
	return answer{w.Code, w.Body.String(), w.Header()}
}

// TestDeniedRecords: a run cannot fill the audit trail with refusals.
func TestDeniedRecords(t *testing.T) {
	f := newFakeIndex(t)
	cfg := f.config(t)
	cfg.Kinds[PyPI] = Kind{Indexes: cfg.Kinds[PyPI].Indexes, Deny: []string{"*"}}
	cfg.Budget.Requests = 2 * maxDenied
	m := start(t, cfg)
	count := func() int {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), "\n")
	}
	m.Grant("caller", "run", "box")
	for range 2*maxDenied + 100 {
		get(m, "/packages/pypi/simple/six/")
	}
	if n := count(); n != 2 { // the name, and the number of requests
		t.Errorf("%d records of one name", n)
	}
	m.Release("run")
	m.Grant("caller", "run2", "box")
	for i := range 2 * maxDenied {
		get(m, fmt.Sprintf("/packages/pypi/simple/name-%d/", i))
	}
	if n := count(); n != 2+maxDenied {
		t.Errorf("%d records", n)
	}
	m.Release("run2")
	data, err := os.ReadFile(filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl"))
	if want := fmt.Sprintf(`"reason":"%d further refusals, of packages that are not listed"`, maxDenied); err != nil || strings.Count(string(data), want) != 1 {
		t.Errorf("%v, no %s", err, want)
	}
}

// TestSlowTransfers: the transfers of one run do not keep another from the index.
func TestSlowTransfers(t *testing.T) {
	f := newFakeIndex(t)
	var files []wheel
	arrived := make(chan struct{}, 100)
	for i := range 40 {
		w := f.add(fmt.Sprintf("slow-%d.0-py3-none-any.whl", i), fmt.Sprint(i))
		f.on(w.url, func(_ http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-r.Context().Done()
		})
		files = append(files, w)
	}
	f.project("slow", files...)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	var wg sync.WaitGroup
	for _, file := range listing(t, m, "slow").Files {
		wg.Go(func() { get(m, fileOf(file)) })
	}
	for range maxUpstream {
		<-arrived
	}
	m.Grant("other", "run2", "box2")
	if a := getIn(m, "box2", http.MethodGet, "/packages/pypi/files/six/"+sum("1.0")+"/six-1.0-py3-none-any.whl"); a.body != "1.0" {
		t.Errorf("%+v", a)
	}
	n := 0
	for _, w := range files {
		n += f.hit(w.url)
	}
	if n != maxUpstream {
		t.Errorf("one run had %d transfers", n)
	}
	m.Release("run") // ends those that wait, too
	wg.Wait()
}

// blocked is the connection of a sandbox that does not read.
type blocked struct {
	http.ResponseWriter
	reached chan<- string
	until   <-chan struct{}
}

func (b blocked) Write(p []byte) (int, error) {
	b.reached <- ""
	<-b.until
	return len(p), nil
}

// TestUnreadPages: a sandbox that does not read its pages keeps a bounded part of the memory,
// however many runs it has.
func TestUnreadPages(t *testing.T) {
	f := newFakeIndex(t)
	for _, name := range []string{"aaa", "bbb", "ccc"} {
		f.project(name, f.add(name+"-1.0-py3-none-any.whl", name))
	}
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	m.Grant("caller", "other", "box2")
	listing(t, m, "aaa")
	p, _ := m.pages.get("pypi aaa")
	m.pages.sending.quota.limit, m.pages.sending.quota.least = 2*p.cost(), 0
	reached, until := make(chan string, 2), make(chan struct{})
	var wg sync.WaitGroup
	for _, name := range []string{"aaa", "bbb"} {
		wg.Go(func() {
			w := httptest.NewRecorder()
			m.ServeSandbox(blocked{w, reached, until}, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8099/packages/pypi/simple/"+name+"/", nil), "box")
			if w.Code != http.StatusOK {
				reached <- w.Body.String()
			}
		})
	}
	for range 2 {
		if why := <-reached; why != "" {
			t.Error(why)
		}
	}
	m.Grant("caller", "overlapping", "box")
	if a := get(m, "/packages/pypi/simple/ccc/"); a.code() != CodeQuota || !strings.Contains(a.body, "too many packages on their way") {
		t.Errorf("a third page: %+v", a)
	}
	if a := getIn(m, "box2", http.MethodGet, "/packages/pypi/simple/ccc/"); a.status != http.StatusOK {
		t.Errorf("another sandbox: %+v", a)
	}
	close(until)
	wg.Wait()
	if used := m.pages.sending.quota.used; used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
}

// TestFairQuota: a sandbox that holds all bytes does not keep others from their share.
func TestFairQuota(t *testing.T) {
	q := &quota{limit: 100}
	greedy, other, third := &sandbox{}, &sandbox{}, &sandbox{}
	if !q.add(greedy, 100) || q.add(greedy, 1) {
		t.Error("alone, a sandbox has all")
	}
	if !q.add(other, 50) || q.add(other, 1) {
		t.Error("two sandboxes have a half each")
	}
	if !q.add(third, 33) || q.add(third, 1) || q.add(greedy, 1) {
		t.Error("three sandboxes have a third each")
	}
	elsewhere := &sandbox{caller: "other"}
	if !q.add(elsewhere, 50) || q.add(elsewhere, 1) {
		t.Error("two callers have a half each, however many sandboxes the other has")
	}
	q.add(elsewhere, -51)
	q.least = 60
	if !q.add(other, 9) || q.add(other, 1) {
		t.Error("each sandbox has the smallest share in any case")
	}
	q.add(greedy, -102)
	q.add(other, -61)
	if q.add(third, -34); q.used != 0 || len(q.held) != 0 {
		t.Errorf("%d bytes of %d sandboxes are left", q.used, len(q.held))
	}
}

// TestInFlight: the file of another run passes while one run's stalled file fills the cache.
func TestInFlight(t *testing.T) {
	s, err := openStore(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	full, done := make(chan struct{}), make(chan error)
	go func() {
		_, err := s.open(ctx, &sandbox{}, "slow", sum("x"), 1<<20, func(ctx context.Context, put func(io.Reader) error) error {
			stall := readerFunc(func([]byte) (int, error) {
				close(full)
				<-ctx.Done()
				return 0, ctx.Err()
			})
			return put(io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), stall))
		})
		done <- err
	}()
	<-full
	f, err := s.open(t.Context(), &sandbox{}, "good", sum("y"), 1<<20, func(_ context.Context, put func(io.Reader) error) error {
		return put(strings.NewReader("y"))
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestStalledReaders: files that are evicted while sandboxes do not read on take bounded space, and
// those that were evicted first give way.
func TestStalledReaders(t *testing.T) {
	const size = 4 << 10
	s, err := openStore(t.TempDir(), 5*size/2) // two files
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	var open []*content
	for i := range 20 {
		text := fmt.Sprintf("%0*d", size, i)
		put := func(_ context.Context, put func(io.Reader) error) error { return put(strings.NewReader(text)) }
		for range 2 { // two readers of one file take its space once
			c, err := s.open(t.Context(), &sandbox{}, "", sum(text), size, put)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
		}
		used := start.Add(time.Duration(i+1) * time.Hour) // so each is newer than those before
		if err := os.Chtimes(s.path(sum(text)), used, used); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.inFlight.used; n != size { // a half, since a download came last
		t.Errorf("evicted files take %d bytes", n)
	}
	for i, c := range open {
		_, err := io.ReadAll(c)
		if cut := i < len(open)-2*3; cut != errors.Is(err, errBusy) || !cut && err != nil { // two are in the cache, one evicted
			t.Errorf("reader %d: %v", i, err)
		}
		_ = c.Close()
	}
	if s.inFlight.used != 0 || len(s.evicted) != 0 || len(s.reading) != 0 {
		t.Errorf("%d bytes, %d and %d files are left", s.inFlight.used, len(s.evicted), len(s.reading))
	}
}

// writerFunc is called before the first byte of an answer.
type writerFunc struct {
	*httptest.ResponseRecorder
	first func()
}

func (w *writerFunc) Write(p []byte) (int, error) {
	if w.first != nil {
		w.first()
		w.first = nil
	}
	return w.ResponseRecorder.Write(p)
}

// TestCutTransfer: a transfer that gives way to others does not look complete, and the run learns
// why.
func TestCutTransfer(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", strings.Repeat("x", 800<<10)))
	cfg := f.config(t)
	cfg.CacheBytes = 1 << 20
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	path := fileOf(listing(t, m, "six").Files[0])
	wantCut(t, func() {
		w := &writerFunc{httptest.NewRecorder(), func() {
			other := &sandbox{}
			m.files.inFlight.add(other, 1<<20)
			if err := m.files.evict(cfg.CacheBytes); err != nil {
				t.Error(err)
			}
			m.files.inFlight.add(other, -1<<20)
		}}
		m.ServeSandbox(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8099"+path, nil), "box")
	})
	if p := problem(t, m); p.Code != CodeQuota || !strings.Contains(p.Message, "Try again later") {
		t.Errorf("%+v", p)
	}
}

// TestTooLarge: the message names a setting only if that would help.
func TestTooLarge(t *testing.T) {
	f := newFakeIndex(t)
	big := f.add("big-1.0-py3-none-any.whl", "1.0")
	big.metadata = "Name: big\n\n" + strings.Repeat("x", maxMetadata)
	f.project("big", big, f.add("big-2.0-py3-none-any.whl", strings.Repeat("x", maxMetadata+2<<20)))
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	cfg := f.config(t)
	cfg.CacheBytes = maxMetadata + 1<<20
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	files := listing(t, m, "big").Files
	check := func(path, want string, setting bool) {
		t.Helper()
		a := get(m, path)
		if wantCode(t, a, CodeQuota); !strings.Contains(a.body, want) || strings.Contains(a.body, "cacheBytes") != setting {
			t.Error(a.body)
		}
	}
	check(fileOf(files[0])+".metadata", "more than 8 MB", false)
	check(fileOf(files[1]), "more than 9 MB", true)
	six := fileOf(listing(t, m, "six").Files[0])
	others := []*sandbox{{}, {}}
	for _, other := range others {
		m.files.inFlight.add(other, cfg.CacheBytes)
	}
	m.files.inFlight.add(m.sandboxes["box"], cfg.CacheBytes)
	check(six, "Try again later", false)
	m.files.inFlight.add(m.sandboxes["box"], -cfg.CacheBytes)
	if a := get(m, six); a.body != "1.0" {
		t.Errorf("%+v", a)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestDownloadIsCharged: a run pays for what the server downloads for it, whatever it receives.
func TestDownloadIsCharged(t *testing.T) {
	const size = 1 << 20
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", strings.Repeat("a", size)), f.add("six-2.0-py3-none-any.whl", strings.Repeat("b", size)),
		f.add("six-3.0-py3-none-any.whl", strings.Repeat("c", size)))
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	files := listing(t, m, "six").Files
	used := func(do func()) int64 {
		before := m.runs["run"].bytes
		do()
		return m.runs["run"].bytes - before
	}
	for name, do := range map[string]func(){
		"HEAD": func() { getIn(m, "box", http.MethodHead, fileOf(files[0])) },
		"part": func() { get(m, fileOf(files[1]), "Range", "bytes=0-9") },
		"GET":  func() { get(m, fileOf(files[2])) },
	} {
		if n := used(do); n != size {
			t.Errorf("%s: %d bytes were charged", name, n)
		}
	}
	if n := used(func() { get(m, fileOf(files[1]), "Range", "bytes=0-9") }); n != 10 {
		t.Errorf("a part of a cached file: %d bytes were charged", n)
	}
}

// TestTinyEntries: a page of millions of tiny entries is refused before it takes memory.
func TestTinyEntries(t *testing.T) {
	m, x, base := forParsers(t)
	const size = 8 << 20
	many := func(open, entry, end string) []byte {
		n := size / len(entry)
		return []byte(open + strings.Repeat(entry+",", n-1) + entry + end)
	}
	numbered := func(open, format, end string) []byte {
		var b strings.Builder
		b.WriteString(open)
		for i := 0; b.Len() < size; i++ {
			fmt.Fprintf(&b, format+",", i)
		}
		return []byte(strings.TrimSuffix(b.String(), ",") + end)
	}
	file := `{"files":[{"filename":"six-1.0-py3-none-any.whl",`
	for name, test := range map[string]struct {
		parse func(*index, string, *url.URL, string, []byte) (*project, error)
		media string
		page  []byte
	}{
		"files":        {m.parsePyPI, simpleJSON, many(`{"files":[`, `{}`, `]}`)},
		"hashes":       {m.parsePyPI, simpleJSON, numbered(file+`"hashes":{`, `"%d":""`, `}}]}`)},
		"metadata":     {m.parsePyPI, simpleJSON, numbered(file+`"core-metadata":{`, `"%d":""`, `}}]}`)},
		"anchors":      {m.parsePyPI, "text/html", many("", "<a href=x>", "")},
		"a long base":  {m.parsePyPI, "text/html", many("<base href='/"+strings.Repeat("x", 1<<19)+"/'>", "<a href=x>", "")},
		"versions":     {m.parseNPM, "", numbered(`{"versions":{`, `"%d":{}`, `}}`)},
		"times":        {m.parseNPM, "", numbered(`{"time":{`, `"%d":""`, `}}`)},
		"tags":         {m.parseNPM, "", numbered(`{"dist-tags":{`, `"%d":""`, `}}`)},
		"fields":       {m.parseNPM, "", numbered(`{"time":{"1.0":"`+oldRelease+`"},"versions":{"1.0":{`, `"%d":0`, `}}}`)},
		"dependencies": {m.parseNPM, "", numbered(`{"time":{"1.0":"`+oldRelease+`"},"versions":{"1.0":{"dependencies":{`, `"%d":""`, `}}}}`)},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			p, err := test.parse(x, "six", base, test.media, test.page)
			runtime.ReadMemStats(&after)
			if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n > 130 {
				t.Errorf("it took %d MB in all", n)
			}
			if !errors.Is(err, errTooMany) && (err != nil || p.note == nil || len(p.files) > 0 || p.cost() > 1<<20) {
				t.Errorf("it passes: %+v %v", p, err)
			}
		})
	}
}

// TestRepeatedMember: a page cannot evade the limits of its lists with several lists.
func TestRepeatedMember(t *testing.T) {
	m, x, base := forParsers(t)
	for name, test := range map[string]struct {
		parse func(*index, string, *url.URL, string, []byte) (*project, error)
		page  string
	}{
		"files":     {m.parsePyPI, `{"files":[],"files":[]}`},
		"other":     {m.parsePyPI, `{"x":0,"files":[],"x":0}`},
		"versions":  {m.parseNPM, `{"versions":{},"versions":{}}`},
		"a version": {m.parseNPM, `{"versions":{"1.0.0":{},"1.0.0":{}}}`},
		"a time":    {m.parseNPM, `{"time":{"1.0.0":"","1.0.0":""}}`},
		"tags":      {m.parseNPM, `{"dist-tags":{"latest":"1.0.0"},"dist-tags":{}}`},
		"a tag":     {m.parseNPM, `{"dist-tags":{"latest":"1.0.0","latest":"2.0.0"}}`},
	} {
		if _, err := test.parse(x, "six", base, simpleJSON, []byte(test.page)); !errors.Is(err, errRepeated) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if found := foreignDependency([]byte(`{"a":"^1","a":"^2"}`)); found == "" {
		t.Error("a repeated dependency passes")
	}
}

// TestPageCost: what the cache keeps of a page with many refused versions is small, and counted.
func TestPageCost(t *testing.T) {
	m, x, base := forParsers(t)
	var page strings.Builder
	page.WriteString(`{"files":[`)
	for i := range 20_000 {
		fmt.Fprintf(&page, `{"filename":"six-%d.0-py3-none-any.whl","upload-time":%q},`, i, anHourAgo)
	}
	long := "https://files.example.com/" + strings.Repeat("x", 4000)
	fmt.Fprintf(&page, `{"filename":"six-0.1-py3-none-any.whl","upload-time":%q,"url":%q,"hashes":{"sha256":%q}}]}`, oldRelease, long, sum("x"))
	p, err := m.parsePyPI(x, "six", base, simpleJSON, []byte(page.String()))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.dropped) != maxDropped || !strings.Contains(p.note.message, "six 19999.0") || !strings.HasSuffix(p.note.message, "version is 0.1.") {
		t.Errorf("%d versions, %v", len(p.dropped), p.note)
	}
	if c := p.cost(); c < 4000+maxDropped*100 || c > 1<<20 {
		t.Errorf("cost: %d", c)
	}
}

// TestSameHashElsewhere: an index that stalls does not keep the same file of another from a run.
func TestSameHashElsewhere(t *testing.T) {
	public, private := newFakeIndex(t), newFakeIndex(t)
	public.project("six", public.add("six-1.0-py3-none-any.whl", "1.0"))
	w := private.add("acme-1.0-py3-none-any.whl", "1.0")
	private.project("acme", w)
	arrived := make(chan struct{})
	private.on(w.url, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	cfg := public.config(t)
	cfg.Kinds = map[string]Kind{PyPI: {Indexes: []Index{{URL: public.URL + "/simple"}, {URL: private.URL + "/simple", Names: []string{"acme"}}}}}
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	done := make(chan answer)
	slow := fileOf(listing(t, m, "acme").Files[0])
	go func() { done <- get(m, slow) }()
	<-arrived
	m.Grant("other", "run2", "box2")
	if a := getIn(m, "box2", http.MethodGet, "/packages/pypi/files/six/"+sum("1.0")+"/six-1.0-py3-none-any.whl"); a.body != "1.0" {
		t.Errorf("%+v", a)
	}
	m.Release("run")
	<-done
}

// TestOddLineBreaks: no dependency by address hides from the mirror and shows to a client.
func TestOddLineBreaks(t *testing.T) {
	const evil = "Requires-Dist: evil @ http://example.com/x"
	for _, end := range []string{"\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u0085", "\u2028", "\u2029", "\x00", "\n\r", "\r\r"} {
		if found, ok := foreignRequirement("Name: six\nSummary: a" + end + evil + "\n\nText\n"); ok && found == "" {
			t.Errorf("%q hides it", end)
		}
		if found, ok := foreignRequirement("Name: six\r\nSummary: a" + end + evil + "\r\n\r\nText\n"); ok && found == "" {
			t.Errorf("%q hides it among CRLF", end)
		}
	}
	for _, text := range []string{evil, "requires-dist : evil@http://x", "Name: six\nRequires-Dist: evil\n @ http://x\n\n", "Name: six\r\nRequires-Dist: evil\r\n\t@ http://x\r\n\r\n",
		"Name: six\r\n\n" + evil + "\r\n\r\n", "Name: six\n\r\n" + evil + "\n\n",
		"requires-dist: =?utf-8?Q?evil_=40_http=3A//x?=\n\n"} {
		if found, ok := foreignRequirement(text); ok && found == "" {
			t.Errorf("%q passes", text)
		}
	}
	for _, text := range []string{"", "Name: six\r\nAuthor: J\u00c5 <a@b>\r\nRequires-Dist: idna (>=2) ; extra == 'a@b'\r\n\r\n" + evil, "Name: six\n\n\f" + evil + "\r"} {
		if found, ok := foreignRequirement(text); !ok || found != "" {
			t.Errorf("%q: %q %t", text, found, ok)
		}
	}
}

// TestMessagesArePrintable: no text of an index moves the cursor or turns the text of a message.
func TestMessagesArePrintable(t *testing.T) {
	f := newFakeIndex(t)
	f.packument("six", "1.0.0", release{version: "1.0.0", content: "1", uploaded: oldRelease,
		fields: map[string]any{"dependencies": map[string]string{"a\x1b[2J": "git+https://e\u202e.example\r\n\u2066"}}})
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	a := get(m, "/packages/npm/six")
	wantCode(t, a, CodeNotAllowed)
	message := problem(t, m).Message
	if text := a.body + a.header.Get("npm-notice") + message; strings.ContainsAny(text, "\x1b\u202e\u2066\r") || !strings.Contains(message, "an address") {
		t.Errorf("%q", text)
	}
}

// TestRefusedNames: a name that the index answers with an error tells its owner as much as any.
func TestRefusedNames(t *testing.T) {
	f := newFakeIndex(t)
	statuses := []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone, http.StatusInternalServerError, http.StatusBadGateway}
	for i := range 60 {
		f.on(fmt.Sprintf("/simple/secret-%d/", i), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(statuses[i%len(statuses)]) })
	}
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	for i := range 60 {
		get(m, fmt.Sprintf("/packages/pypi/simple/secret-%d/", i))
	}
	if n := f.total(); n != 50 {
		t.Errorf("%d names reached the index", n)
	}
}

// TestNewcomer: who comes when the last one leaves gets work of its own, not cancelled work.
func TestNewcomer(t *testing.T) {
	queue := func() { // lets goroutines wait for the lock
		for range 20_000 {
			runtime.Gosched()
		}
	}
	var g group[int]
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		started, proceed := make(chan struct{}, 2), make(chan struct{})
		work := func(ctx context.Context) (int, error) {
			started <- struct{}{}
			select {
			case <-proceed:
				return 1, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		left, came := make(chan struct{}), make(chan error)
		go func() {
			defer close(left)
			_, _ = g.do(ctx, "x", time.Hour, work)
		}()
		<-started
		g.mu.Lock()
		cancel()
		queue()
		go func() {
			_, err := g.do(t.Context(), "x", time.Hour, work)
			came <- err
		}()
		queue()
		g.mu.Unlock()
		g.mu.Lock() // now the lock goes to who waits, in turn
		queue()
		g.mu.Unlock()
		<-left
		close(proceed)
		if err := <-came; err != nil {
			t.Fatal(err)
		}
	}
}
