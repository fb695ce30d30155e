package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
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

// TestCheckFiles: doctor reports sessions whose files belong to somebody else.
func TestCheckFiles(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can open all files; see the integration tests")
	}
	root := t.TempDir()
	dir := filepath.Join(root, "session", "files")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := checkFiles(&settings{Root: root}); got != nil {
		t.Errorf("%+v", got)
	}
	if err := os.Chmod(dir, 0); err != nil {
		t.Fatal(err)
	}
	if got := checkFiles(&settings{Root: root}); len(got) != 1 || got[0].Fix == "" {
		t.Errorf("%+v", got)
	}
}
