package executor

import (
	"container/list"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// recent lists all pages of RecentFiles, as session/name.
func (r *rig) recent(t *testing.T, caller session.Caller, page int) (names []string) {
	t.Helper()
	for after := (Position{}); ; {
		files, more, err := r.RecentFiles(t.Context(), caller, after, page)
		if err != nil || len(files) > page {
			t.Fatalf("RecentFiles: %d files, %v", len(files), err)
		}
		for _, f := range files {
			names = append(names, f.Session+"/"+f.Name)
			after = positionOf(f)
		}
		if !more {
			return names
		}
	}
}

func (r *rig) put(t *testing.T, caller session.Caller, id, name string) {
	t.Helper()
	if _, err := r.Upload(t.Context(), caller, UploadRequest{Session: id, Name: name, Content: strings.NewReader(caller.ID), Overwrite: true}); err != nil {
		t.Fatal(err)
	}
}

// Callers see and read their own files, even if another caller uses the same id.
func TestRecentFilesOfCallers(t *testing.T) {
	r := newRig(t, nil, nil)
	for _, f := range []struct {
		caller   session.Caller
		id, name string
	}{{ann, "x", "ann.txt"}, {session.Local, "x", "a.txt"}, {session.Local, "y", "dir/b.txt"}} {
		r.put(t, f.caller, f.id, f.name)
	}
	// The order does not depend on the clock's tick.
	key := r.key(t, session.Local, "x")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(r.root, key, "files", "a.txt"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.root, key, "files", "no\nclient can ask"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, page := range []int{1, 2, 100} {
		if got := r.recent(t, session.Local, page); !slices.Equal(got, []string{"y/dir/b.txt", "x/a.txt"}) {
			t.Errorf("local, %d a page: %q", page, got)
		}
	}
	if got := r.recent(t, ann, 100); !slices.Equal(got, []string{"x/ann.txt"}) {
		t.Errorf("ann: %q", got)
	}
	if got := r.recent(t, bob, 100); got != nil {
		t.Errorf("bob: %q", got)
	}
	for _, tt := range []struct {
		caller   session.Caller
		id, path string
		want     Code
	}{
		{session.Local, "x", "a.txt", ""}, {session.Local, "x", "/mnt/data/a.txt", ""},
		{session.Local, "x", "ann.txt", CodeNotFound}, {ann, "x", "a.txt", CodeNotFound}, {ann, "y", "dir/b.txt", CodeNotFound},
		{session.Local, "x", "../meta.json", CodeInvalidPath}, {session.Local, "x", "/etc/passwd", CodeInvalidPath},
		{session.Local, "..", "a.txt", CodeInvalidID}, {session.Local, "y", "dir", CodeNotFound},
	} {
		got, err := r.ReadFile(t.Context(), tt.caller, tt.id, tt.path)
		if codeOf(err) != tt.want || (err == nil) != (tt.want == "") || err == nil && string(got.Content) != tt.caller.ID {
			t.Errorf("%s reads %s of %s: %q, %v; want %q", tt.caller.ID, tt.path, tt.id, got.Content, err, tt.want)
		}
	}
}

// key returns the directory of a session.
func (r *rig) key(t *testing.T, caller session.Caller, id string) string {
	t.Helper()
	s, err := r.cfg.Sessions.Lookup(caller, id)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	return s.Key()
}

// The list looks at a bounded number of sessions and remembers a bounded number.
func TestRecentFilesBounds(t *testing.T) {
	r := newRig(t, nil, nil)
	for i := range recentSessions + 5 {
		r.put(t, session.Local, fmt.Sprint("s", i), "f")
	}
	got := r.recent(t, session.Local, 100)
	if len(got) != recentSessions || slices.Contains(got, "s4/f") || !slices.Contains(got, "s5/f") {
		t.Errorf("%d files: %q", len(got), got)
	}
	for i := range rememberedSessions {
		r.noteUsed(ann, fmt.Sprint(i), false)
	}
	if n := r.activity.order.Len(); n != rememberedSessions || len(r.activity.byID) != n {
		t.Errorf("%d sessions remembered", n)
	}
	if got := r.recent(t, session.Local, 100); got != nil {
		t.Errorf("without memory or runs: %q", got)
	}
}

// Watchers hear about the caller whose files changed, and not about a run without changes.
func TestWatch(t *testing.T) {
	var write string
	exit := 0
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		if write != "" {
			if err := os.WriteFile(filepath.Join(p.Spec.Workspace, write), []byte("x"), 0o600); err != nil {
				t.Error(err)
			}
		}
		return wire.Exit{Code: exit}
	}, nil)
	var heard []string
	r.Watch(func(c session.Caller) { heard = append(heard, c.ID) })
	run := func(caller session.Caller, artifacts bool) {
		t.Helper()
		if _, err := r.Run(t.Context(), caller, Request{Session: "w", Runner: "python", Artifacts: artifacts}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		do   func()
		want []string
	}{
		{"a run without files", func() { run(ann, false) }, nil},
		{"a file", func() { write = "a"; run(ann, false) }, []string{"ann"}},
		{"a file of a failing run", func() { write = "b"; exit = 1; run(session.Local, true) }, []string{"local"}},
		{"a failing run", func() { write = ""; run(session.Local, true) }, nil},
		{"an upload", func() { r.put(t, ann, "u", "c") }, []string{"ann"}},
		{"the end of a session", func() { _ = r.CloseSession(t.Context(), ann, "u") }, []string{"ann"}},
		{"no session", func() { _ = r.CloseSession(t.Context(), ann, "u") }, nil},
	} {
		heard = nil
		if tt.do(); !slices.Equal(heard, tt.want) {
			t.Errorf("%s: heard %q, want %q", tt.name, heard, tt.want)
		}
	}

	// After a restart, the server knows the sessions in which code ran.
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.activity.byID, r.activity.order = nil, list.List{}
	if got := r.recent(t, ann, 10); !slices.Equal(got, []string{"w/a"}) {
		t.Errorf("after a restart: %q", got)
	}
	r.recorder = nil // it is closed
}
