//go:build linux

package integration

import (
	"strings"
	"testing"
	"time"
)

// TestRestart checks that restart gives a new interpreter with the old files, also while code hangs
// in the old one, and that only the caller who asks for it loses variables.
func TestRestart(t *testing.T) {
	s := serve(t)
	s.cell(t, "r", "python", "x = 1\nopen('/data/kept', 'w').write('kept')")
	s.cell(t, "other", "python", "x = 1")
	restart := func(code string) cellResult {
		t.Helper()
		return s.callRun(t, map[string]any{"env": "python", "session": "r", "code": code, "restart": true})
	}
	const look = "print('x' in globals(), open('/data/kept').read())"
	if r := restart(look); r.Stdout != "False kept\n" || r.ExitCode != 0 || r.State != "" {
		t.Errorf("restarted: %+v", r)
	}
	s.cell(t, "r", "python", "x = 1")
	if r := s.cell(t, "r", "python", look); r.Stdout != "True kept\n" {
		t.Errorf("afterwards: %+v", r)
	}
	hangs := s.state(t, "run", map[string]any{"env": "python", "session": "r", "background": true,
		"code": "print('on', flush=True)\nwhile True:\n    try:\n        while True: pass\n    except KeyboardInterrupt: pass"})
	eventually(t, 60*time.Second, "the code to hang", func() bool {
		return strings.Contains(s.state(t, "wait_run", map[string]any{"run_id": hangs.RunID, "timeout_seconds": 0}).Output, "on\n")
	})
	if r := restart(look); r.Stdout != "False kept\n" || r.ExitCode != 0 {
		t.Errorf("while code hung: %+v", r)
	}
	if end := s.state(t, "wait_run", map[string]any{"run_id": hangs.RunID, "timeout_seconds": 30}); end.Status != "cancelled" {
		t.Errorf("the code that hung: %+v", end)
	}
	if r := s.cell(t, "other", "python", "x"); r.Stdout != "1\n" {
		t.Errorf("another session: %+v", r)
	}
}
