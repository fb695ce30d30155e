package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/userns"
)

// TestWhyNoOuterNamespace: settings and environments that need the machine's own user namespace.
func TestWhyNoOuterNamespace(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has user namespaces")
	}
	wrappers := t.TempDir()
	bin := filepath.Join(wrappers, "own", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "run"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	meta := []byte(`{"name":"own","interpreter_type":"bash","timeout_seconds":5,"memory_mb":64}`)
	if err := os.WriteFile(filepath.Join(wrappers, "own", "metadata.json"), meta, 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // root's wrappers must be open to others
		for dir := wrappers; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for want, change := range map[string]func(*settings){
		"":                               func(*settings) {},
		"SANDBOX_OUTER_NAMESPACE is off": func(s *settings) { s.OuterNamespace = "off" },
		"SANDBOX_BACKEND is docker":      func(s *settings) { s.Backend = backendDocker },
		"NIX_SANDBOX_ENVS names":         func(s *settings) { s.NixEnvs = []string{"github:me/envs#x"} },
		"the environment own isolates":   func(s *settings) { s.WrapperDir = wrappers },
	} {
		s := settings{Root: t.TempDir(), Backend: backendJail, OuterNamespace: "auto"}
		change(&s)
		why, fix := s.whyNoOuterNamespace(nil)
		if !strings.HasPrefix(why, want) || (why == "") != (want == "") || (fix == "") != (want == "") {
			t.Errorf("got %q, fix %q; want %q", why, fix, want)
		}
	}
}

// TestWhyNoRange: code must be able to read its runners and the project.
func TestWhyNoRange(t *testing.T) {
	root, project := t.TempDir(), t.TempDir()
	runner := filepath.Join(root, "runners", "python")
	if err := os.MkdirAll(runner, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{project, runner} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := settings{Root: root, ProjectDir: project}
	if err := s.whyNoRange(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{project, runner} {
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := s.whyNoRange(); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s is private: %v", dir, err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckFiles: doctor reports sessions whose files belong to ids that the server lacks, although
// everybody can open their directories, and says why it lacks them.
func TestCheckFiles(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"a/files", "b/files", "closed/c/time/files", "keys"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "a/files"), 0); err != nil { // code did, and the server undoes it
		t.Fatal(err)
	}
	off := userns.Status{Problem: errors.New("SANDBOX_OUTER_NAMESPACE is off")}
	if got := checkFiles(root, off, userns.MayChown); got != nil {
		t.Errorf("own files: %+v", got)
	}
	chown := fmt.Sprintf("sudo chown -hR %d:%d %s", userns.UID(), userns.GID(), root)
	for _, tc := range []struct {
		outer     userns.Status
		why, want string
	}{
		{off, "OUTER_NAMESPACE is off", `"outer namespace"`},
		{userns.Status{Inside: true, HasRange: true}, "/etc/subuid or /etc/subgid gives", "restore the earlier range"},
		{userns.Status{Inside: true, Problem: errors.New("no newuidmap")}, "no newuidmap", `"jail: uids"`},
	} {
		got := checkFiles(root, tc.outer, func(fs.FileInfo) bool { return false })
		if len(got) != 1 || !strings.HasPrefix(got[0].Detail, "3 sessions") || !strings.Contains(got[0].Detail, tc.why) ||
			!strings.Contains(got[0].Fix, tc.want) || !strings.HasSuffix(got[0].Fix, chown) {
			t.Errorf("%+v: %+v", tc.outer, got)
		}
	}
}
