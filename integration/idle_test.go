//go:build linux

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestLetGoAndBack checks that an idle session's sandbox ends after a second and that the next run
// finds the files and is answered within a second. Only an interpreter's variables are lost, which
// the answer says.
func TestLetGoAndBack(t *testing.T) {
	s := serve(t, "SESSION_IDLE_TIMEOUT=1")
	idle := func() {
		t.Helper()
		eventually(t, 20*time.Second, "the sandbox to be let go", func() bool { return s.metric(t, "sandbox_live_sandboxes") == 0 })
	}
	if r := s.run(t, "x", "shell", "mkdir -p a/b && echo 0 >a/b/count && chmod 700 a"); !r.Success {
		t.Fatalf("%+v", r)
	}
	best := time.Hour
	for n := range 3 {
		idle()
		began := time.Now()
		r := s.run(t, "x", "shell", "cat a/b/count; echo $(($(cat a/b/count) + 1)) >a/b/count")
		best = min(best, time.Since(began))
		if r.Output != fmt.Sprintf("%d\n", n) || !r.Success || r.Cause != "" || r.Hint != "" || len(r.Files) != 1 || r.Files[0].Name != "a/b/count" {
			t.Errorf("after a rest: %+v", r)
		}
	}
	t.Logf("back within %v", best)
	if best > time.Second {
		t.Errorf("the sandbox was back after %v at best, want a second at most", best)
	}
	if r := s.cell(t, "y", "shell", "kept=1; echo here >file"); r.State != "" {
		t.Errorf("a new interpreter: %+v", r)
	}
	idle()
	if r := s.cell(t, "y", "shell", `echo "[$kept]"; cat file`); r.Stdout != "[]\nhere\n" || r.ExitCode != 0 || !strings.Contains(r.State, "had ended") {
		t.Errorf("an interpreter after a rest: %+v", r)
	}
}
