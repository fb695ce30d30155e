//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestOrdinaryUser checks that the user has an account, subordinate ids and a way to what it needs,
// and that the machine sees nothing of this.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "needs root: a mount namespace")
	}
	closed := t.TempDir()
	needed, other := filepath.Join(closed, "a", "needed"), filepath.Join(closed, "a", "other")
	for _, dir := range []string{needed, other} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(needed, "file"), []byte("reached"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	seen := func() string {
		var all strings.Builder
		for _, path := range []string{"/proc/self/mountinfo", "/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"} {
			text, err := os.ReadFile(path)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			all.Write(text)
		}
		return all.String()
	}
	before := seen()
	u, err := newOrdinaryUser(needed, []string{needed})
	if err != nil {
		t.Fatal(err)
	}
	closeUser := func() { u.close() }
	defer func() { closeUser() }()

	for name, test := range map[string]struct{ script, want string }{
		"account":         {"id -un; id -gn; id -G; echo ~", "bench\nbench\n59321\n" + u.home + "\n"},
		"home":            {"cd && echo x >file && cat file", "x\n"},
		"capabilities":    {"grep -c '^Cap\\(Eff\\|Prm\\|Inh\\|Amb\\):.*[1-9a-f]' /proc/self/status || true", "0\n"},
		"needed":          {"cat " + needed + "/file", "reached"},
		"nothing else":    {"ls " + closed + "/a", "needed\n"},
		"subordinate ids": {"! test -e /etc/subuid || grep ^bench: /etc/subuid", "bench:2000000000:65536\n"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/bin/sh", "-c", test.script)
			cmd.Env, cmd.SysProcAttr = u.environ(), &syscall.SysProcAttr{}
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := u.start(cmd); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil || out.String() != test.want {
				t.Errorf("%v: %q, want %q", err, &out, test.want)
			}
		})
	}
	if after := seen(); after != before {
		t.Errorf("the machine has changed from\n%s\nto\n%s", before, after)
	}

	// A program that has not ended when the user is closed ends with it.
	cmd := exec.Command("/bin/sh", "-c", "read x")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := u.start(cmd); err != nil {
		t.Fatal(err)
	}
	closeUser = func() {}
	u.close()
	if err := cmd.Wait(); err == nil || err.Error() != "signal: terminated" {
		t.Errorf("what the user had started: %v", err)
	}
}

func TestClosedAbove(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "c")
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	above, err := closedAbove(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ chmod, want string }{{"", above}, {path, above}, {filepath.Join(dir, "a", "b"), filepath.Join(dir, "a", "b")}, {filepath.Join(dir, "a"), filepath.Join(dir, "a")}} {
		if test.chmod != "" {
			if err := os.Chmod(test.chmod, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		want := test.want
		if above != "" {
			want = above
		}
		if got, err := closedAbove(path); got != want || err != nil {
			t.Errorf("after chmod %q: %q, %v; want %q", test.chmod, got, err, want)
		}
	}
}
