package packages

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/filelock"
	"mcp-code-sandbox/internal/logging/logtest"
)

// recorded returns the records of an event in the audit trail.
func recorded(t testing.TB, cfg Config, event string) (list []audit.Record) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl"))
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(data)) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Error(err)
		}
		if r.Event == event {
			list = append(list, r)
		}
	}
	return list
}

// results returns how many requests had each result.
func results(t testing.TB, reg *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "result" {
					counts[label.GetValue()] += int(metric.GetCounter().GetValue())
				}
			}
		}
	}
	return counts
}

// cuttable is a connection that is cut once.
type cuttable struct {
	http.ResponseWriter
	cut chan struct{}
}

func (c cuttable) SetWriteDeadline(time.Time) error {
	close(c.cut)
	return nil
}

// withFile returns a mirror that has a file, with the content 1.0, in its cache. The run "second"
// may get it.
func withFile(t *testing.T) (m *Mirror, cfg Config, path string) {
	t.Helper()
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	cfg = f.config(t)
	m = start(t, cfg)
	m.Grant("caller", "first", "box")
	path = fileOf(listing(t, m, "six").Files[0])
	get(m, path)
	m.Release("first")
	m.Grant("caller", "second", "box")
	return m, cfg, path
}

// TestNoTrailNoFile: while the trail cannot be written, no file is sent from the cache. Afterwards,
// the file is in the trail.
func TestNoTrailNoFile(t *testing.T) {
	m, cfg, path := withFile(t)
	_ = cfg.Audit.Close()
	checkpoint := filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl.turn")
	if err := os.Rename(checkpoint, checkpoint+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(checkpoint, 0o700); err != nil { // cannot be opened for writing
		t.Fatal(err)
	}
	for range 2 {
		wantCode(t, get(m, path), CodeUnreachable)
	}
	if err := os.Remove(checkpoint); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(checkpoint+".away", checkpoint); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if a := get(m, path); a.body != "1.0" {
			t.Errorf("%+v", a)
		}
	}
	if list := recorded(t, cfg, audit.EventFile); len(list) != 2 || list[1].Execution != "second" {
		t.Errorf("%+v", list)
	}
}

// TestRecordedBeforeSent: no request for a file is answered before the run's record of the file is
// written, also if another request writes it.
func TestRecordedBeforeSent(t *testing.T) {
	m, cfg, path := withFile(t)
	lock, err := os.OpenFile(filepath.Join(filepath.Dir(cfg.CacheDir), "audit.jsonl.turn"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := filelock.Lock(lock); err != nil { // as another process that writes the trail
		t.Fatal(err)
	}
	const requests = 8
	var wg sync.WaitGroup
	for range requests {
		wg.Go(func() {
			w := &writerFunc{httptest.NewRecorder(), func() {
				if n := len(recorded(t, cfg, audit.EventFile)); n != 2 {
					t.Errorf("a file is sent, and %d files are in the trail", n)
				}
			}}
			m.ServeSandbox(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8099"+path, nil), "box")
			if w.Body.String() != "1.0" {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	r := m.runs["second"]
	await(&m.mu, func() bool { return r.requests == requests })
	for range 20_000 { // lets requests go on that wait for nothing
		runtime.Gosched()
	}
	if err := filelock.Unlock(lock); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := len(recorded(t, cfg, audit.EventFile)); n != 2 {
		t.Errorf("%d files are in the trail", n)
	}
}

// TestEveryFileIsRecorded: no number of tiny files keeps a later file out of the trail.
func TestEveryFileIsRecorded(t *testing.T) {
	cfg := newFakeIndex(t).config(t)
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	const files = 2500
	for i := range files {
		if err := m.recordFile(m.runs["run"], PyPI, fmt.Sprint("tiny/", i), sum(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	m.Release("run")
	if n := len(recorded(t, cfg, audit.EventFile)); n != files {
		t.Errorf("%d of %d files are in the trail", n, files)
	}
}

// TestFurtherRefusals: the number of a run's refusals that are not listed is recorded under this
// run, although another run has taken over its requests.
func TestFurtherRefusals(t *testing.T) {
	f := newFakeIndex(t)
	cfg := f.config(t)
	cfg.Kinds[PyPI] = Kind{Indexes: cfg.Kinds[PyPI].Indexes, Deny: []string{"*"}}
	m := start(t, cfg)
	m.Grant("caller", "long", "box")
	m.Grant("caller", "short", "box")
	for i := range maxDenied + 3 {
		get(m, fmt.Sprintf("/packages/pypi/simple/name-%d/", i))
	}
	m.Release("short")
	m.Release("long")
	list := recorded(t, cfg, audit.EventDenied)
	if len(list) != maxDenied+1 {
		t.Fatalf("%d records", len(list))
	}
	if last := list[maxDenied]; last.Execution != "short" || !strings.HasPrefix(last.Reason, "3 further refusals") {
		t.Errorf("%+v", last)
	}
}

// TestCutsAreCounted: a transfer that is cut is counted with its reason. The trail has the refusal
// if it was the budget, and nothing if the run ended.
func TestCutsAreCounted(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", strings.Repeat("x", 1<<20)))
	cfg, reg := f.config(t), prometheus.NewRegistry()
	cfg.Budget.Bytes, cfg.Registerer = 3<<19, reg
	m := start(t, cfg)
	m.Grant("caller", "first", "box")
	path := fileOf(listing(t, m, "six").Files[0])
	get(m, path)
	m.Release("first")
	m.Grant("caller", "ended", "box")
	wantCut(t, func() {
		cut := make(chan struct{})
		w := &writerFunc{httptest.NewRecorder(), func() {
			m.Release("ended")
			<-cut
		}}
		m.ServeSandbox(cuttable{w, cut}, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8099"+path, nil), "box")
	})
	m.Grant("caller", "greedy", "box")
	get(m, path)
	wantCut(t, func() { get(m, path) })
	if got := results(t, reg); got["ok"] != 3 || got[codeNoRun] != 1 || got[CodeQuota] != 1 || len(got) != 3 {
		t.Errorf("%v", got)
	}
	list := recorded(t, cfg, audit.EventDenied)
	if len(list) != 1 || list[0].Execution != "greedy" || list[0].Path != "six" || list[0].Reason != CodeQuota {
		t.Errorf("%+v", list)
	}
	if list := m.Release("greedy"); len(list) != 1 || list[0].Code != CodeQuota {
		t.Errorf("%+v", list)
	}
}

// TestEndedRunIsNoFailure: the log has no line for a request that ends with its run. It has one for
// a wrong hash.
func TestEndedRunIsNoFailure(t *testing.T) {
	f := newFakeIndex(t)
	slow, bad := f.add("six-1.0-py3-none-any.whl", "1.0"), f.add("six-2.0-py3-none-any.whl", "reviewed")
	f.project("six", slow, bad)
	f.serve(bad.url, "application/octet-stream", []byte("poison"))
	arrived := make(chan struct{}, 1)
	f.on(slow.url, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	cfg, log := f.config(t), &logtest.Buffer{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	files := listing(t, m, "six").Files
	done := make(chan answer)
	go func() { done <- get(m, fileOf(files[0])) }()
	<-arrived
	m.Release("run")
	wantCode(t, <-done, codeNoRun)
	if text := log.String(); text != "" {
		t.Error(text)
	}
	m.Grant("caller", "run", "box")
	wantCode(t, get(m, fileOf(files[1])), CodeHash)
	if text := log.String(); !strings.Contains(text, errHash.Error()) {
		t.Error(text)
	}
}
