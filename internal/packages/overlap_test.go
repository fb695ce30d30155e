package packages

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcp-code-sandbox/internal/logging/logtest"
)

// awaitWaiters returns when n callers wait for the same work.
func awaitWaiters[T any](g *group[T], n int) {
	await(&g.mu, func() bool {
		for _, c := range g.calls {
			if c.waiters == n {
				return true
			}
		}
		return false
	})
}

// await returns when what mu guards is as wanted.
func await(mu *sync.Mutex, wanted func() bool) {
	for {
		mu.Lock()
		ok := wanted()
		mu.Unlock()
		if ok {
			return
		}
		runtime.Gosched()
	}
}

// TestOverlappingRuns: when a run ends before another one of its sandbox, its transfers go on, and
// the other one answers for them. They end with the last run, whatever runs in other sandboxes.
func TestOverlappingRuns(t *testing.T) {
	const half = 1 << 16
	f := newFakeIndex(t)
	good := f.add("six-1.0-py3-none-any.whl", strings.Repeat("x", 2*half))
	bad := f.add("six-2.0-py3-none-any.whl", "reviewed")
	endless := f.add("six-3.0-py3-none-any.whl", "3.0")
	f.project("six", good, bad, endless)
	arrived, proceed, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	inParts := func(first, second string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(first))
			_ = http.NewResponseController(w).Flush()
			arrived <- struct{}{}
			<-proceed
			_, _ = w.Write([]byte(second))
		}
	}
	f.on(good.url, inParts(strings.Repeat("x", half), strings.Repeat("x", half)))
	f.on(bad.url, inParts("poi", "son"))
	f.on(endless.url, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
		close(left)
	})
	m := start(t, f.config(t))
	m.Grant("caller", "long", "box")
	files := listing(t, m, "six").Files
	m.Grant("caller", "short", "box")
	m.Grant("other", "elsewhere", "box2")
	long := m.runs["long"]
	before := long.bytes
	answers := [3]chan answer{}
	ask := func(i int) {
		answers[i] = make(chan answer, 1)
		go func() { answers[i] <- get(m, fileOf(files[i])) }()
		select {
		case <-arrived:
		case a := <-answers[i]:
			t.Fatalf("%+v", a)
		}
	}
	ask(0)
	ask(1)
	if list := m.Release("short"); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	close(proceed)
	if a := <-answers[0]; len(a.body) != 2*half {
		t.Errorf("%d, %d bytes", a.status, len(a.body))
	}
	wantCode(t, <-answers[1], CodeHash)
	if n := long.bytes - before; n < half {
		t.Errorf("%d bytes were charged to the run that is left", n)
	}
	m.Grant("caller", "short", "box")
	ask(2)
	m.Release("short")
	if list := m.Release("long"); len(list) != 1 || list[0].Code != CodeHash {
		t.Errorf("%+v", list)
	}
	<-left
	wantCode(t, <-answers[2], codeNoRun)
	if len(m.runs) != 1 || len(m.sandboxes) != 1 || m.sandboxes["box2"].ctx.Err() != nil {
		t.Errorf("%v %v", m.runs, m.sandboxes)
	}
}

// TestExhaustedBudget: what a run requested after its budget was exhausted does not pass to another
// run's budget.
func TestExhaustedBudget(t *testing.T) {
	const size = 1 << 20
	f := newFakeIndex(t)
	w := f.add("six-1.0-py3-none-any.whl", strings.Repeat("x", size))
	f.project("six", w)
	proceed := make(chan struct{})
	f.on(w.url, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(strings.Repeat("x", size-1)))
		_ = http.NewResponseController(w).Flush()
		<-proceed
		_, _ = w.Write([]byte("x"))
	})
	cfg := f.config(t)
	cfg.Budget.Bytes = size / 2
	m := start(t, cfg)
	m.Grant("caller", "first", "box")
	path := fileOf(listing(t, m, "six").Files[0])
	m.Release("first")
	m.Grant("caller", "long", "box")
	m.Grant("caller", "short", "box")
	long, short := m.runs["long"], m.runs["short"]
	done := make(chan answer)
	go func() { done <- get(m, path) }()
	await(&m.mu, func() bool { return short.bytes > cfg.Budget.Bytes })
	m.Release("short")
	close(proceed)
	wantCode(t, <-done, CodeQuota)
	if long.bytes != 0 || short.bytes != size {
		t.Errorf("%d and %d bytes were charged", long.bytes, short.bytes)
	}
}

// TestManyShortRuns: short runs do not get their sandbox more transfers at once.
func TestManyShortRuns(t *testing.T) {
	f := newFakeIndex(t)
	var files []wheel
	arrived := make(chan struct{}, 100)
	for i := range 3 * maxUpstream {
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
	m.Grant("caller", "long", "box")
	list := listing(t, m, "slow").Files
	var wg sync.WaitGroup
	for i := range 3 {
		id := fmt.Sprint(i)
		m.Grant("caller", id, "box")
		short := m.runs[id]
		for _, file := range list[i*maxUpstream : (i+1)*maxUpstream] {
			wg.Go(func() { get(m, fileOf(file)) })
		}
		await(&m.mu, func() bool { return short.requests == maxUpstream })
		m.Release(id)
	}
	for range maxUpstream {
		<-arrived
	}
	m.Grant("other", "run", "box2")
	if a := getIn(m, "box2", http.MethodGet, "/packages/pypi/files/six/"+sum("1.0")+"/six-1.0-py3-none-any.whl"); a.body != "1.0" {
		t.Errorf("%+v", a)
	}
	n := 0
	for _, w := range files {
		n += f.hit(w.url)
	}
	if n != maxUpstream {
		t.Errorf("one sandbox had %d transfers", n)
	}
	m.Release("long")
	wg.Wait()
}

// TestPanic: work that panics is an error for all that wait for it, and the next one starts again.
func TestPanic(t *testing.T) {
	log := &logtest.Buffer{}
	g := group[int]{log: slog.New(slog.NewTextHandler(log, nil))}
	proceed, failed := make(chan struct{}), make(chan error)
	for range 2 {
		go func() {
			_, err := g.do(t.Context(), "x", time.Hour, func(context.Context) (int, error) {
				<-proceed
				panic("odd page")
			})
			failed <- err
		}()
	}
	awaitWaiters(&g, 2)
	close(proceed)
	for range 2 {
		if err := <-failed; err == nil || !strings.Contains(err.Error(), "odd page") {
			t.Error(err)
		}
	}
	if n, err := g.do(t.Context(), "x", time.Hour, func(context.Context) (int, error) { return 1, nil }); n != 1 || err != nil {
		t.Error(n, err)
	}
	if text := log.String(); strings.Count(text, "TestPanic") == 0 || strings.Count(text, "\n") != 1 || len(text) > 2*maxStack {
		t.Error(text)
	}
}

// TestPanickingParser: a page at which the parser panics ends its request only, and its name counts
// as one of which the index gave no page.
func TestPanickingParser(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	f.project("odd", f.add("odd-1.0-py3-none-any.whl", "1.0"))
	var isOdd atomic.Bool
	page := f.handlers["/simple/odd/"]
	f.on("/simple/odd/", func(w http.ResponseWriter, r *http.Request) {
		isOdd.Store(f.hit("/simple/odd/") == 1)
		page(w, r)
	})
	cfg := f.config(t)
	cfg.Now = func() time.Time {
		if isOdd.CompareAndSwap(true, false) {
			panic("odd page")
		}
		return now
	}
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	wantCode(t, get(m, "/packages/pypi/simple/odd/"), CodeUnreachable)
	if r := m.runs["run"]; r.unknown != 1 || len(r.asked) != 1 || m.pages.reading.used != 0 {
		t.Errorf("%d names are lost of %d, %d bytes are still counted", r.unknown, len(r.asked), m.pages.reading.used)
	}
	listing(t, m, "six")
	listing(t, m, "odd")
	if r := m.runs["run"]; r.unknown != 0 {
		t.Errorf("%d names are lost", r.unknown)
	}
}

// TestGreedyLeader: a sandbox that holds too many bytes when it asks for a file or a page does not
// keep it from the others that wait for the same.
func TestGreedyLeader(t *testing.T) {
	f := newFakeIndex(t)
	w := f.add("six-1.0-py3-none-any.whl", "1.0")
	f.project("six", w)
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	m.Grant("other", "run2", "box2")
	stall := func(path string) (arrived, proceed chan struct{}) {
		arrived, proceed = make(chan struct{}, 2), make(chan struct{})
		plain := f.handlers[path]
		f.on(path, func(w http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-proceed
			plain(w, r)
		})
		return arrived, proceed
	}
	test := func(q *quota, address, path string, awaitBoth func()) {
		t.Helper()
		arrived, proceed := stall(address)
		q.add(&sandbox{}, q.limit)
		q.add(m.sandboxes["box"], q.limit)
		greedy, other := make(chan answer, 1), make(chan answer, 1)
		go func() { greedy <- get(m, path) }()
		<-arrived
		go func() { other <- getIn(m, "box2", http.MethodGet, path) }()
		awaitBoth()
		close(proceed)
		wantCode(t, <-greedy, CodeQuota)
		if a := <-other; a.status != http.StatusOK {
			t.Errorf("%+v", a)
		}
		if n := f.hit(address); n != 2 {
			t.Errorf("%d requests reached the index", n)
		}
	}
	test(&m.pages.reading, "/simple/six/", "/packages/pypi/simple/six/", func() { awaitWaiters(&m.pages.fetches, 2) })
	test(&m.files.inFlight, w.url, fileOf(listing(t, m, "six").Files[0]), func() { awaitWaiters(&m.files.work, 2) })
}
