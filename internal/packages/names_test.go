package packages

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// asked returns how many names have a slot of a run.
func asked(m *Mirror, run string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.runs[run].asked)
}

// getUntil sends a request that its sandbox ends with ctx.
func getUntil(ctx context.Context, m *Mirror, sandbox, path string) answer {
	w := httptest.NewRecorder()
	m.ServeSandbox(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8099"+path, nil), sandbox)
	return answer{w.Code, w.Body.String(), w.Header()}
}

// TestUnansweredNames: a name that an index has seen counts, also if the client leaves before the
// index answers, or if the index never does.
func TestUnansweredNames(t *testing.T) {
	f := newFakeIndex(t)
	const all, limit = 60, 50
	arrived := make(chan struct{}, all)
	for i := range all {
		f.on(fmt.Sprintf("/simple/left-%d/", i), func(_ http.ResponseWriter, r *http.Request) {
			arrived <- struct{}{}
			<-r.Context().Done()
		})
		f.on(fmt.Sprintf("/simple/dropped-%d/", i), func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	}
	m := start(t, f.config(t))
	m.Grant("caller", "leaves", "box")
	for i := range all {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan answer, 1)
		go func() { done <- getUntil(ctx, m, "box", fmt.Sprintf("/packages/pypi/simple/left-%d/", i)) }()
		select {
		case <-arrived:
			cancel()
			<-done
		case a := <-done:
			cancel()
			wantCode(t, a, CodeQuota)
		}
	}
	if n := f.total(); n != limit {
		t.Errorf("%d names reached the index from clients that leave", n)
	}
	m.Grant("caller", "dropped", "box2")
	for i := range all {
		for range 2 { // a repeat does not count
			getIn(m, "box2", http.MethodGet, fmt.Sprintf("/packages/pypi/simple/dropped-%d/", i))
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.hits) - limit; n != limit {
		t.Errorf("%d names reached the index, which drops them", n)
	}
}

// TestKnownNames: a name gives its slot back when the index answers with its page, also if the
// request that asked for it has left.
func TestKnownNames(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	page := f.handlers["/simple/six/"]
	arrived, proceed := make(chan struct{}), make(chan struct{})
	slow := func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-proceed
		page(w, r)
	}
	cfg := f.config(t)
	cfg.Budget.UnknownNames = 1
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	m.Grant("other", "run2", "box2")
	const six = "/packages/pypi/simple/six/"

	f.on("/simple/six/", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	wantCode(t, get(m, six), CodeUnreachable)
	wantCode(t, get(m, "/packages/pypi/simple/unknown/"), CodeQuota)
	f.on("/simple/six/", slow)
	ctx, cancel := context.WithCancel(t.Context())
	left, stayed := make(chan answer, 1), make(chan answer, 1)
	go func() { left <- getUntil(ctx, m, "box", six) }()
	<-arrived
	go func() { stayed <- getIn(m, "box2", http.MethodGet, six) }()
	awaitWaiters(&m.pages.fetches, 2)
	cancel()
	<-left
	if n := asked(m, "run"); n != 1 {
		t.Errorf("%d names count while the index is asked", n)
	}
	close(proceed)
	if a := <-stayed; a.status != http.StatusOK {
		t.Errorf("%+v", a)
	}
	if a, b := asked(m, "run"), asked(m, "run2"); a+b != 0 {
		t.Errorf("known names take %d and %d slots", a, b)
	}
	wantCode(t, get(m, "/packages/pypi/simple/unknown/"), CodeUnknown) // the slot is free again
	wantCode(t, get(m, "/packages/pypi/simple/another/"), CodeQuota)

	f.CloseClientConnections()
	f.Close()
	wantCode(t, getIn(m, "box2", http.MethodGet, "/packages/pypi/simple/idna/"), CodeUnreachable)
	if n := asked(m, "run2"); n != 0 {
		t.Errorf("%d names count that never reached the index", n)
	}
}

// TestSlotGivenBack: work whose request has left before it starts sends nothing.
func TestSlotGivenBack(t *testing.T) {
	m := start(t, newFakeIndex(t).config(t))
	m.Grant("caller", "run", "box")
	s, why := m.ask(t.Context(), m.runs["run"], "pypi six")
	if why != nil {
		t.Fatal(why)
	}
	if !m.hold(s) {
		t.Error("the request still waits")
	}
	m.leave(s)
	m.leave(s)
	if m.hold(s) || asked(m, "run") != 0 || len(m.runs["run"].slots) != 0 {
		t.Error("the slot was given back")
	}
}

// TestUnknownNamesHTTP2: names count and attempts are recorded over HTTP/2 as well, which repeats
// requests that the index did not process.
func TestUnknownNamesHTTP2(t *testing.T) {
	var requests, others atomic.Int32
	index := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1); r.ProtoMajor != 2 {
			others.Add(1)
		}
		if requests.Load()%2 == 0 {
			panic(http.ErrAbortHandler)
		}
		http.NotFound(w, r)
	}))
	index.EnableHTTP2 = true
	index.StartTLS()
	defer index.Close()
	cfg := newFakeIndex(t).config(t)
	cfg.Kinds = map[string]Kind{PyPI: {Indexes: []Index{{URL: index.URL + "/simple", CAFile: certificateOf(t, index)}}}}
	cfg.Budget.UnknownNames = 5
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	for i := range 10 {
		a := get(m, fmt.Sprintf("/packages/pypi/simple/secret-%d/", i))
		if a.code() == CodeQuota != (i >= 5) {
			t.Errorf("%d: %+v", i, a)
		}
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl"))
	if n := strings.Count(string(data), `"event":"request"`); n != int(requests.Load()) || others.Load() > 0 || err != nil {
		t.Errorf("%d of %d requests are in the trail, %d not over HTTP/2, %v", n, requests.Load(), others.Load(), err)
	}
}

// TestLetterCase: no spelling of a name evades a pattern.
func TestLetterCase(t *testing.T) {
	m, err := New(Config{CacheDir: t.TempDir(), Kinds: map[string]Kind{NPM: {
		Deny: []string{"LeftPad"}, Indexes: []Index{{URL: "https://a.example"}, {URL: "https://b.example", Names: []string{"Secret-*"}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"leftpad", "LeftPad", "LEFTPAD"} {
		if _, why := m.kinds[NPM].indexOf(name); why == nil {
			t.Errorf("%s is allowed", name)
		}
	}
	for _, name := range []string{"secret-tool", "Secret-Tool", "SECRET-tool"} {
		if x, why := m.kinds[NPM].indexOf(name); why != nil || x.url.Host != "b.example" {
			t.Errorf("%s: %v", name, why)
		}
	}
}
