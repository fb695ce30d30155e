//go:build linux

package integration

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// operatorsView is a session as sessions list --json prints it.
type operatorsView struct {
	Key, Caller, Session, State string
	Runs, Sandboxes             int
	Interpreters, Servers       []string
}

// TestOperatorsSessions checks that the operator sees the sessions of all callers in all servers on
// the root, and ends one without affecting the others.
func TestOperatorsSessions(t *testing.T) {
	p := serveProxied(t)
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	second := serve(t, "SANDBOX_ROOT="+p.Root)
	list := func() map[string]operatorsView {
		t.Helper()
		stdout, stderr, code := command(t, p.Root, "", "sessions", "list", "--json")
		var all []operatorsView
		if err := json.Unmarshal([]byte(stdout), &all); err != nil || code != 0 || stderr != "" {
			t.Fatalf("%d %v: %s%s", code, err, stdout, stderr)
		}
		views := map[string]operatorsView{}
		for _, v := range all {
			views[v.Session] = v
		}
		return views
	}
	run := asAnn.state(t, "run", map[string]any{"env": "shell", "session": "anns", "code": "echo kept > f.txt; echo begun; while :; do sleep 0.1; done", "background": true})
	eventually(t, 20*time.Second, "ann's run to begin", func() bool {
		return strings.Contains(asAnn.state(t, "wait_run", map[string]any{"run_id": run.RunID, "timeout_seconds": 0}).Output, "begun")
	})
	asBob.cell(t, "bobs", "shell", "x=1")
	second.cell(t, "locals", "shell", "x=1")
	got := list()
	if v := got["anns"]; v.State != "running" || v.Runs != 1 || v.Sandboxes != 1 || v.Caller == "local" || v.Caller == got["bobs"].Caller || len(v.Servers) != 1 {
		t.Errorf("ann's: %+v", v)
	}
	if v := got["bobs"]; v.State != "live" || v.Runs != 0 || len(v.Interpreters) != 1 {
		t.Errorf("bob's: %+v", v)
	}
	if v := got["locals"]; v.State != "live" || v.Caller != "local" || len(v.Servers) != 1 || v.Servers[0] == got["bobs"].Servers[0] {
		t.Errorf("the operator's own, in the other server: %+v", v)
	}

	if r := asBob.cell(t, "bobs", "shell", "find / -xdev -name control.sock 2>/dev/null; find / -name control.sock -not -path '/proc/*' 2>/dev/null; grep -c control.sock /proc/net/unix"); r.Stdout != "0\n" {
		t.Errorf("code finds the socket: %q", r.Stdout)
	}

	stop := func(name, want string, code int) {
		t.Helper()
		stdout, stderr, c := command(t, p.Root, "", "sessions", "stop", name)
		if c != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("stop %s: %d %s%s", name, c, stdout, stderr)
		}
	}
	stop(got["anns"].Key[:12], "ended 1 run and 1 sandbox. Its files are kept.", 0)
	if !strings.Contains(p.log.String(), "caller="+got["anns"].Caller+" session_id=anns") {
		t.Error("the log does not say whose session was stopped")
	}
	st := asAnn.state(t, "wait_run", map[string]any{"run_id": run.RunID})
	if st.Status != "cancelled" || !strings.Contains(string(st.Result), "The operator of the server ended the run.") {
		t.Errorf("ann is told: %s %s", st.Status, st.Result)
	}
	if r := asAnn.cell(t, "anns", "shell", "cat f.txt"); r.Stdout != "kept\n" {
		t.Errorf("ann's files: %+v", r)
	}
	stop("local/locals", "ended 0 runs and 1 sandbox", 0)
	stop("local/anns", "session local/anns not found", 2)
	if r := asBob.cell(t, "bobs", "shell", "echo $x"); r.Stdout != "1\n" {
		t.Errorf("bob's notebook: %+v", r)
	}
	_ = second.cmd.Process.Kill() // its socket stays, and matters to nobody
	<-second.done
	second.done <- nil
	if v := list()["locals"]; v.State != "idle" || len(v.Servers) != 0 {
		t.Errorf("after its server was killed: %+v", v)
	}
	stop("local/locals", "has nothing running", 0)
	p.stop(t)
	stop("local/locals", "no server is running on", 1)
}
