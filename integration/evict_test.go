//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fullServer matches contract 4's sentence and the one that says what runs and when to try again.
var fullServer = regexp.MustCompile(`^max_sessions: Maximum \d+ concurrent sessions reached\. Close an existing session first\. ` +
	`[^.]*\d+ sessions? (is running code|are running code|was used|were used)[^.]*: try again (in \d+ seconds?|when one of these runs has ended)[^.]*\. ` +
	`(To make room sooner, end a run of yours|Closing a session of yours|None of these sessions is yours)[^.]*\.$`)

// cellOrFull runs a cell. If the server is full, it checks the refusal and returns false.
func (s *server) cellOrFull(t *testing.T, session, env, code string) (r cellResult, ok bool) {
	t.Helper()
	got := s.answer(t, "run", map[string]any{"env": env, "session": session, "code": code})
	if strings.HasPrefix(got, "max_sessions: ") {
		if !fullServer.MatchString(got) {
			t.Fatalf("a full server says: %s", got)
		}
		return r, false
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(got, "result: ")), &r); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	return r, true
}

// cellWhenFree runs a cell as soon as there is room for its session.
func (s *server) cellWhenFree(t *testing.T, session, env, code string) (r cellResult) {
	t.Helper()
	eventually(t, 30*time.Second, "room for "+session, func() (ok bool) {
		r, ok = s.cellOrFull(t, session, env, code)
		return ok
	})
	return r
}

const evictedState = "was ended to make room for other sessions"

// TestTenNotebooks checks that an eleventh notebook gets in when one of ten has been idle, and that
// the evicted one is told, also after a restart.
func TestTenNotebooks(t *testing.T) {
	s := serve(t, "SANDBOX_EVICT_IDLE_S=1")
	if line := regexp.MustCompile(`(?m)^  Sessions +10 at a time; SANDBOX_MAX_SESSIONS=[1-9]\d* would suit this machine if most of them are idle \(a busy one may take 512MB: SANDBOX_MEMORY_LIMIT\)$`); !line.MatchString(s.log.String()) {
		t.Errorf("the first lines suggest no number of sessions:\n%s", s.log)
	}
	s.cell(t, "n0", "python", "x = 1\nopen('/data/kept.txt', 'w').write('kept')")
	for i := 1; i < 10; i++ {
		s.cell(t, fmt.Sprint("n", i), "shell", "x=1")
	}
	if got := s.metric(t, "sandbox_live_sandboxes"); got != 10 {
		t.Fatalf("%v notebooks are live", got)
	}
	if r := s.cellWhenFree(t, "n10", "shell", "x=1; echo in"); r.Stdout != "in\n" || r.State != "" {
		t.Errorf("the eleventh: %+v", r)
	}
	r := s.cellWhenFree(t, "n0", "python", "print(open('/data/kept.txt').read(), 'x' in dir())")
	if r.Stdout != "kept False\n" || !strings.Contains(r.State, evictedState) || !strings.Contains(r.State, "SANDBOX_MAX_SESSIONS") {
		t.Errorf("the evicted one's next call: %+v", r)
	}
	if r := s.cellWhenFree(t, "n0", "python", "1"); strings.Contains(r.State, evictedState) {
		t.Errorf("it is told twice: %+v", r)
	}
	// n1 was evicted for n0.
	s.stop(t)
	s = serve(t, "SANDBOX_ROOT="+s.Root)
	if r := s.cell(t, "n1", "shell", "echo [$x]"); r.Stdout != "[]\n" || !strings.Contains(r.State, evictedState) {
		t.Errorf("after a restart: %+v", r)
	}
	if r := s.cell(t, "n10", "shell", "echo [$x]"); !strings.Contains(r.State, "had ended") {
		t.Errorf("one that the restart ended: %+v", r)
	}
}

// TestNobodyMakesRoom checks the refusal while every interpreter is or was just in use. It names
// nobody else's sessions.
func TestNobodyMakesRoom(t *testing.T) {
	p := serveProxied(t, "SANDBOX_MAX_SESSIONS=3", "SANDBOX_EVICT_IDLE_S=3600")
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	asAnn.cell(t, "anns-idle", "shell", "true")
	asBob.cell(t, "bobs-idle", "shell", "true")
	run := asBob.state(t, "run", map[string]any{"env": "shell", "session": "bobs-running", "code": "until [ -e go ]; do sleep 0.05; done", "background": true})
	want := regexp.MustCompile(`^max_sessions: Maximum 3 concurrent sessions reached\. Close an existing session first\. ` +
		`1 session is running code and 2 sessions were used in the last 3600 seconds \(yours: anns-idle\): ` +
		`try again in 3[56]\d\d seconds, when the first of them can make room\. Closing a session of yours makes room now, but deletes its files\.$`)
	if got := asAnn.answer(t, "run", map[string]any{"env": "shell", "session": "more", "code": "true"}); !want.MatchString(got) {
		t.Errorf("ann is told: %s", got)
	}
	if got := asBob.answer(t, "run", map[string]any{"env": "shell", "session": "more", "code": "true"}); !strings.Contains(got, "running code (yours: bobs-running) and 2 sessions were") || strings.Contains(got, "anns") {
		t.Errorf("bob is told: %s", got)
	}
	asBob.state(t, "cancel_run", map[string]any{"run_id": run.RunID})
	asAnn.answer(t, "read_artifact", map[string]any{"session_id": "anns-idle", "path": "missing"})
	if log := p.log.String(); strings.Contains(log, "<nil>") || strings.Count(log, "no session can make room for another one") != 2 {
		t.Error("the log tells of a refusal twice, or of an error that is none")
	}
}

// TestCallerWithMostMakesRoom checks that the caller who holds the most makes room, even if others
// have been idle for longer.
func TestCallerWithMostMakesRoom(t *testing.T) {
	p := serveProxied(t, "SANDBOX_MAX_SESSIONS=4", "SANDBOX_EVICT_IDLE_S=0")
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	asAnn.cell(t, "a0", "shell", "x=1") // the longest idle of all
	for i := range 3 {
		asBob.cell(t, fmt.Sprint("b", i), "shell", "x=1")
	}
	asAnn.cell(t, "a1", "shell", "x=1")
	if r := asAnn.cell(t, "a0", "shell", "echo $x"); r.Stdout != "1\n" || r.State != "" {
		t.Errorf("ann's first: %+v", r)
	}
	for i, evicted := range []bool{false, true} {
		id := fmt.Sprint("b", 1-i) // b1 is live; b0 comes back last, for it needs room itself
		if r := asBob.cell(t, id, "shell", "echo $x"); strings.Contains(r.State, evictedState) != evicted {
			t.Errorf("bob's %s: %+v", id, r)
		}
	}
}
