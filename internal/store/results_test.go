package store

import (
	"fmt"

	"testing"
	"time"

	"mcp-code-sandbox/internal/store/storetest"
)

func TestResults(t *testing.T) { storetest.Each(t, testResults) }

func testResults(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	begun := Result{ID: "r1", Caller: "ann", Session: "s", Instance: "i1", Started: now, Data: []byte("what it is")}
	ended := begun
	ended.Ended, ended.Data = now.Add(time.Second), []byte("\x00 result")
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	step(s.BeginResult(ctx, begun))
	if got, err := s.GetResult(ctx, "ann", "r1"); err != nil || !got.Running() || string(got.Data) != "what it is" || got.Instance != "i1" || got.Session != "s" || !got.Started.Equal(now) {
		t.Errorf("a run that is going: %+v, %v", got, err)
	}
	for _, other := range [][2]string{{"bob", "r1"}, {"", "r1"}, {"ann", "r2"}, {"ann", "%"}} {
		if _, err := s.GetResult(ctx, other[0], other[1]); err != ErrNotFound {
			t.Errorf("%q: %v", other, err)
		}
	}
	// The same id from another caller or process changes nothing.
	for _, foreign := range []Result{
		{ID: "r1", Caller: "bob", Instance: "i1", Started: now, Ended: now, Data: []byte("forged")},
		{ID: "r1", Caller: "ann", Instance: "i2", Started: now, Ended: now, Data: []byte("forged")},
	} {
		step(s.EndResult(ctx, foreign, 10))
	}
	if got, err := s.GetResult(ctx, "ann", "r1"); err != nil || !got.Running() {
		t.Errorf("after a forged end: %+v, %v", got, err)
	}
	step(s.EndResult(ctx, ended, 10))
	step(s.BeginResult(ctx, begun)) // comes late
	if got, err := s.GetResult(ctx, "ann", "r1"); err != nil || got.Running() || string(got.Data) != string(ended.Data) || !got.Ended.Equal(ended.Ended) {
		t.Errorf("a run that has ended: %+v, %v", got, err)
	}
	step(s.EndResult(ctx, Result{ID: "bob's", Caller: "bob", Started: now, Ended: now, Data: []byte("x")}, 10))
	for i := range 3 {
		at := now.Add(time.Duration(i+2) * time.Second)
		step(s.EndResult(ctx, Result{ID: fmt.Sprint("n", i), Caller: "ann", Started: at, Ended: at, Data: []byte("x")}, 2))
	}
	step(s.BeginResult(ctx, Result{ID: "going", Caller: "ann", Instance: "i1", Started: now.Add(-time.Hour), Data: []byte{}}))
	step(s.BeginResult(ctx, Result{ID: "lost", Caller: "ann", Instance: "i0", Started: now.Add(-time.Hour), Data: []byte{}}))
	there := func(want map[string]bool) {
		t.Helper()
		for id, want := range want {
			caller := "ann"
			if id == "bob's" {
				caller = "bob"
			}
			if _, err := s.GetResult(ctx, caller, id); (err == nil) != want {
				t.Errorf("%s: %v, want it kept: %t", id, err, want)
			}
		}
	}
	there(map[string]bool{"r1": false, "n0": false, "n1": true, "n2": true, "bob's": true, "going": true, "lost": true})
	step(s.PurgeResults(ctx, now.Add(4*time.Second), "i1"))
	there(map[string]bool{"n1": false, "n2": true, "bob's": false, "going": true, "lost": false})
}
