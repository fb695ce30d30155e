package session_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

// TestChanges: a run reports its own changes only, whatever was written after the run before it.
func TestChanges(t *testing.T) {
	// The program makes the files that the code names. A run of "wait" lasts until the test ends
	// it.
	var waiting, goOn chan struct{}
	program := func(p *sessiontest.Process) wire.Exit {
		if string(p.Code) == "wait" {
			close(waiting)
			<-goOn
			return wire.Exit{Fresh: true}
		}
		for _, name := range strings.Fields(string(p.Code)) {
			if err := os.WriteFile(filepath.Join(p.Spec.Workspace, name), p.Code, 0o600); err != nil {
				t.Error(err)
			}
		}
		return wire.Exit{}
	}
	persistent := python
	persistent.Persistent = []string{"driver"}
	type rig struct {
		b        *sessiontest.Backend // of m
		m, other *session.Manager     // on one root
		files    string
	}
	// beside makes a run of m last from before until after the next run.
	beside := func(t *testing.T, r rig, m *session.Manager) {
		waiting, goOn = make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { run(t, m, "x", "wait") })
		<-waiting
		changes(t, r.m, "old")
		if err := os.WriteFile(filepath.Join(r.files, "theirs"), nil, 0o600); err != nil { // by the one that waits
			t.Fatal(err)
		}
		close(goOn)
		wg.Wait()
	}
	for _, tt := range []struct {
		name    string
		between func(t *testing.T, r rig)
		want    string
	}{
		{"nobody", func(*testing.T, rig) {}, "mine"},
		{"a run", func(t *testing.T, r rig) { run(t, r.m, "x", "theirs old") }, "mine"},
		{"an upload", func(t *testing.T, r rig) { put(t, r.m, "x", "theirs", "") }, "mine"},
		{"another server", func(t *testing.T, r rig) { run(t, r.other, "x", "theirs old") }, "mine"},
		{"another server's upload", func(t *testing.T, r rig) { put(t, r.other, "x", "theirs", "") }, "mine"},
		{"what an interpreter left running", func(t *testing.T, r rig) {
			s := open(t, r.m, session.Local, "x")
			defer s.Release()
			// It is idle, but a thread of it writes.
			if _, err := s.Run(t.Context(), persistent, session.RunRequest{Persistent: true, Files: 10, Changes: true}); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(r.files, "theirs"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "mine"},
		{"what an interpreter left before it ended", func(t *testing.T, r rig) {
			s := open(t, r.m, session.Local, "x")
			defer s.Release()
			req := session.RunRequest{Persistent: true, Network: true, Files: 10, Changes: true}
			if _, err := s.Run(t.Context(), persistent, req); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(r.files, "theirs"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, sb := range r.b.Live() {
				if sb.Spec().Network {
					sb.Die()
				}
			}
			for total(r.m).LiveSandboxes > 1 {
				runtime.Gosched()
			}
		}, "mine"},
		{"another server's run beside the one before", func(t *testing.T, r rig) { beside(t, r, r.other) }, "mine"},
		{"a run beside the one before", func(t *testing.T, r rig) { beside(t, r, r.m) }, "mine"},
		{"a closed session of that name", func(t *testing.T, r rig) { closeSession(t, r.m, "x") }, "mine"},
		// Only servers write during runs, so this shows that the session walks once.
		{"somebody who must not", func(t *testing.T, r rig) {
			if err := os.WriteFile(filepath.Join(r.files, "unseen"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "mine unseen"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			on := func(c *session.Config) { c.Root, c.Quota = root, workspace.Usage{Bytes: 1 << 30, Files: 1000} }
			r := rig{b: &sessiontest.Backend{Program: program}}
			r.m, r.other = newManager(t, r.b, on), newManager(t, &sessiontest.Backend{Program: program}, on)
			r.files = filepath.Join(root, r.m.Key(session.Local, "x"), "files")
			if got := changes(t, r.m, "old older"); got != "old older" {
				t.Errorf("at first: %q", got)
			}
			if got := changes(t, r.m, "old"); got != "old" {
				t.Errorf("the run before: %q", got)
			}
			tt.between(t, r)
			if got := changes(t, r.m, "mine"); got != tt.want {
				t.Errorf("changed %q, want %q", got, tt.want)
			}
		})
	}
}

// TestCancelledBeforeItsTurn: a run that is cancelled while the session scans its files is
// cancelled, not failed.
func TestCancelledBeforeItsTurn(t *testing.T) {
	m := newManager(t, &sessiontest.Backend{}, nil)
	put(t, m, "x", "file", "")
	s := open(t, m, session.Local, "x")
	defer s.Release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := s.Run(ctx, python, session.RunRequest{Files: 10, Changes: true})
	if err != nil || res != (session.RunResult{ExitCode: -1, Cause: sandbox.CauseCancelled}) {
		t.Errorf("%+v, %v", res, err)
	}
}

// changes runs code and returns the names of the files that the run reports as new or changed.
func changes(t *testing.T, m *session.Manager, code string) string {
	t.Helper()
	s := open(t, m, session.Local, "x")
	defer s.Release()
	res, err := s.Run(t.Context(), python, session.RunRequest{Code: code, Files: 10, Changes: true})
	if err != nil || res.Scan == nil {
		t.Fatalf("%+v, %v", res, err)
	}
	files, truncated := res.Scan.Files()
	if truncated {
		t.Error("truncated")
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
