package integration

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestForeignFiles: a user can read what code has written under the user's subordinate ids. A
// server that does not have these ids any more says so, and serves other sessions.
func TestForeignFiles(t *testing.T) {
	if onDocker() {
		t.Skip("only the jail uses an outer namespace")
	}
	home, _ := ordinaryRoot(t)
	s := newUser(t, home, sandboxtest.UserRange).serve(t)
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
	if r := s.run(t, "old", "shell", "echo it ran"); r.Success || !strings.Contains(r.Output, "outer namespace with subordinate ids") {
		t.Errorf("%+v", r)
	}
	if r := s.run(t, "new", "shell", "echo it ran"); r.Output != "it ran\n" {
		t.Errorf("%+v", r)
	}
}
