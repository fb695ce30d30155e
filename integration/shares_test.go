//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestOneUserHoldsEverything lets a user take every sandbox, with idle interpreters and then with
// endless runs. Another user and the operator still get their first run, and the user who gave
// something up is told why.
func TestOneUserHoldsEverything(t *testing.T) {
	p := serveProxied(t, "SANDBOX_MAX_SESSIONS=4", "SANDBOX_EVICT_IDLE_S=3600")
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	others := []*server{asBob, p.server}

	for i := range 4 {
		asAnn.cell(t, fmt.Sprint("a", i), "shell", "x=1")
	}
	if got := asAnn.answer(t, "run", map[string]any{"env": "shell", "session": "more", "code": "true"}); !fullServer.MatchString(got) {
		t.Errorf("ann is told: %s", got)
	}
	for _, other := range others {
		if r := other.cell(t, "first", "shell", "x=2; echo in"); r.Stdout != "in\n" {
			t.Fatalf("%+v", r)
		}
	}
	for _, other := range others { // nobody takes from one who has an equal share
		if got := asAnn.answer(t, "run", map[string]any{"env": "shell", "session": "more", "code": "true"}); !fullServer.MatchString(got) {
			t.Errorf("ann is told: %s", got)
		}
		if r := other.cell(t, "first", "shell", "echo $x"); r.Stdout != "2\n" || r.State != "" {
			t.Errorf("%+v", r)
		}
	}
	want := map[string]float64{
		`sandbox_live_sessions{caller="local"}`: 1, `sandbox_live_sessions{caller="others"}`: 3, `sandbox_interpreters{caller="others"}`: 3,
		`sandbox_session_evictions_total{caller="local"}`: 0, `sandbox_session_evictions_total{caller="others"}`: 2,
		`sandbox_session_preemptions_total{caller="others"}`: 0, `sandbox_session_refusals_total{caller="others"}`: 3,
	}
	for name, n := range want {
		if got := p.metric(t, name); got != n {
			t.Errorf("%s is %v, want %v", name, got, n)
		}
	}

	for _, other := range others {
		other.call(t, "close_session", map[string]any{"session_id": "first"})
	}
	runs := map[string]string{} // by session
	for i := range 4 {
		id := fmt.Sprint("a", 3-i) // the live ones first
		runs[id] = asAnn.state(t, "run", map[string]any{"env": "shell", "session": id, "code": "echo begun; while :; do sleep 0.1; done", "background": true}).RunID
	}
	eventually(t, 20*time.Second, "four runs", func() bool { return p.metric(t, `sandbox_active_runs{caller="others"}`) == 4 })
	for i, other := range others {
		if r := other.cell(t, "first", "shell", "echo in"); r.Stdout != "in\n" {
			t.Fatalf("%+v", r)
		}
		st := asAnn.state(t, "wait_run", map[string]any{"run_id": runs[fmt.Sprint("a", i)]}) // the last one that was started
		var res struct {
			Cause, Hint, Stdout string
			State               string
		}
		if err := json.Unmarshal(st.Result, &res); err != nil || st.Status != "completed" {
			t.Fatalf("%v in %+v", err, st)
		}
		hint := fmt.Sprintf("The run was stopped to make room for another user: you held %d of 4 sandboxes.", 4-i)
		if res.Cause != "preempted" || !strings.HasPrefix(res.Hint, hint) || res.Stdout != "begun\n" || !strings.Contains(res.State, "variables are lost") {
			t.Errorf("ann is told: %+v", res)
		}
	}
	if got := p.metric(t, `sandbox_session_preemptions_total{caller="others"}`); got != 2 {
		t.Errorf("%v preemptions", got)
	}
	if got := p.metric(t, `sandbox_active_runs{caller="others"}`); got != 2 {
		t.Errorf("%v of ann's runs go on", got)
	}
	asAnn.call(t, "close_session", map[string]any{"session_id": "a2"})
	r := asAnn.cell(t, "a0", "shell", "echo [$x]")
	if r.Stdout != "[]\n" || !strings.Contains(r.State, evictedState) {
		t.Errorf("the next call of a stopped session: %+v", r)
	}
}
