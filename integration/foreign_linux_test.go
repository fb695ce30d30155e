package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestForeignFiles: a user can read what code has written under the user's subordinate ids. A
// server that does not have these ids any more says so, and serves other sessions.
func TestForeignFiles(t *testing.T) {
	home, _ := ordinaryRoot(t)
	withRange := newUser(t, home, sandboxtest.UserRange)
	s := withRange.serve(t)
	if r := s.run(t, "old", "python", "import os; os.mkdir('d'); print('kept', file=open('d/file', 'w'))"); !r.Success {
		t.Fatalf("%+v", r)
	}
	file := filepath.Join(s.workspaceOf(t, "old"), "d", "file")
	uid := strconv.Itoa(ordinaryUser)
	out, err := exec.CommandContext(t.Context(), "setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "cat", file).CombinedOutput()
	if err != nil || string(out) != "kept\n" {
		t.Errorf("the user reads %q, %v", out, err)
	}
	s.stop(t)

	s = newUser(t, home, sandboxtest.UserOutside).serve(t)
	s.checkForeign(t)
	s.stop(t)

	off := []string{"SANDBOX_ROOT=" + s.Root, "SANDBOX_OUTER_NAMESPACE=off"}
	s = serveWith(t, withRange.become, off...)
	s.checkForeign(t)
	s.stop(t)
	withRange.checkDoctor(t, off, "1 session .* in no outer namespace: SANDBOX_OUTER_NAMESPACE is off", "jail: uids .*SANDBOX_OUTER_NAMESPACE is off")

	if err := os.Chown(filepath.Dir(filepath.Dir(file)), 2_000_000_000, 2_000_000_000); err != nil {
		t.Fatal(err)
	}
	s = withRange.serve(t) // with another range than before
	s.checkForeign(t)
	s.stop(t)
	withRange.checkDoctor(t, off[:1], "1 session .*/etc/subuid or /etc/subgid gives the user other ids", "each sandbox has a uid of its own")
}

// checkForeign: the server cannot use the session old, reports that, and uses the others.
func (s *server) checkForeign(t *testing.T) {
	t.Helper()
	const why, fix = "This session cannot be used: its files belong to ids", "outer namespace with subordinate ids"
	if r := s.run(t, "old", "shell", "echo it ran"); r.Success || !strings.Contains(r.Output, why) || !strings.Contains(r.Output, fix) {
		t.Errorf("%+v", r)
	}
	if r := s.run(t, "new", "shell", "echo it ran"); r.Output != "it ran\n" {
		t.Errorf("%+v", r)
	}
	if got := s.answer(t, "list_sessions", nil); !strings.Contains(got, `"session_id": "new"`) ||
		!strings.Contains(got, `"session_id": "old"`) || !strings.Contains(got, "old: "+why) {
		t.Errorf("list_sessions: %s", got)
	}
	for _, tool := range []string{"list_artifacts", "close_session"} {
		got := s.answer(t, tool, map[string]any{"session_id": "old"})
		if !strings.HasPrefix(got, "backend_unavailable: "+why) || !strings.Contains(got, fix) {
			t.Errorf("%s: %s", tool, got)
		}
	}
	if _, got := s.post(t, `{"jsonrpc":"2.0","id":1,"method":"resources/list"}`); !strings.Contains(string(got), `"resources":`) {
		t.Errorf("resources/list: %s", got)
	}
	if got := s.answer(t, "close_session", map[string]any{"session_id": "new"}); !strings.Contains(got, "closed") {
		t.Errorf("close_session: %s", got)
	}
}

// checkDoctor: doctor prints lines that match, and the chown.
func (u *user) checkDoctor(t *testing.T, settings []string, lines ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "doctor")
	cmd.Env = append(baseEnv(), settings...)
	u.become(cmd)
	out, _ := cmd.Output() // the machine may lack other things
	for _, line := range append(lines, fmt.Sprintf("sudo chown -hR %[1]d:%[1]d %s/data", ordinaryUser, u.home)) {
		if !regexp.MustCompile(line).Match(out) {
			t.Errorf("doctor does not print %q:\n%s", line, out)
		}
	}
}
