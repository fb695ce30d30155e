package executor

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// A caller can delete only files that it can list or create, and none of other callers.
func TestDeleteFile(t *testing.T) {
	r := newRig(t, nil, nil)
	for _, name := range []string{"a.txt", "sub/b.txt", "kept.txt"} {
		r.put(t, session.Local, "x", name)
	}
	r.put(t, ann, "x", "ann.txt")
	files := filepath.Join(r.root, r.key(t, session.Local, "x"), "files")
	secret := filepath.Join(filepath.Dir(files), "meta.json")
	for name, target := range map[string]string{"link": "../meta.json", "up": "..", "around": "sub"} {
		if err := os.Symlink(target, filepath.Join(files, name)); err != nil {
			t.Fatal(err)
		}
	}
	changes := 0
	r.Watch(func(session.Caller) { changes++ })
	for _, tt := range []struct {
		caller   session.Caller
		id, path string
		want     Code
	}{
		{session.Local, "x", "../meta.json", CodeInvalidPath},
		{session.Local, "x", "/mnt/data/../../x", CodeInvalidPath},
		{session.Local, "x", "/etc/passwd", CodeInvalidPath},
		{session.Local, "x", ".", CodeInvalidPath},
		{session.Local, "x", "/data/", CodeInvalidPath},
		{session.Local, "x", "sub", CodeInvalidPath},
		{session.Local, "x", "up/meta.json", CodeNotFound},
		{session.Local, "x", "around/b.txt", CodeNotFound},
		{session.Local, "x", "none", CodeNotFound},
		{session.Local, "x", "ann.txt", CodeNotFound},
		{ann, "x", "kept.txt", CodeNotFound},
		{ann, "y", "kept.txt", CodeSessionNotFound},
		{bob, "x", "kept.txt", CodeSessionNotFound},
		{session.Local, "../x", "kept.txt", CodeInvalidID},
		{session.Local, "x", "link", ""},
		{session.Local, "x", "up", ""},
		{session.Local, "x", "a.txt", ""},
		{session.Local, "x", "a.txt", CodeNotFound},
		{session.Local, "x", "/mnt/data/sub/b.txt", ""},
	} {
		if err := r.DeleteFile(t.Context(), tt.caller, tt.id, tt.path); codeOf(err) != tt.want || (err == nil) != (tt.want == "") {
			t.Errorf("%s deletes %s of %s: %v; want %q", tt.caller.ID, tt.path, tt.id, err, tt.want)
		}
	}
	if _, err := os.Stat(secret); err != nil {
		t.Errorf("the target of a link: %v", err)
	}
	if got := r.recent(t, session.Local, 10); len(got) != 1 || got[0] != "x/kept.txt" {
		t.Errorf("left: %q", got)
	}
	if got := r.recent(t, ann, 10); len(got) != 1 {
		t.Errorf("left to ann: %q", got)
	}
	if changes != 4 {
		t.Errorf("%d changes were told, want 4", changes)
	}
}

// A file can be deleted while a run uses it.
func TestDeleteFileInUse(t *testing.T) {
	opened, deleted := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		name := filepath.Join(p.Spec.Workspace, "busy.txt")
		if err := os.WriteFile(name, []byte("content"), 0o600); err != nil {
			t.Error(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Error(err)
		}
		defer f.Close()
		close(opened)
		<-deleted
		b := make([]byte, 7)
		if n, err := f.Read(b); n != 7 || err != nil {
			t.Errorf("the run reads %d, %v", n, err)
		}
		return wire.Exit{}
	}, nil)
	done := make(chan error, 1)
	go func() {
		_, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python"})
		done <- err
	}()
	<-opened
	if err := r.DeleteFile(t.Context(), session.Local, "x", "busy.txt"); err != nil {
		t.Error(err)
	}
	close(deleted)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// sessionsOf lists sessions as "id:files:bytes", with "+" after an incomplete number of files and
// "*" if live.
func (r *rig) sessionsOf(t *testing.T, caller session.Caller, limit int) (string, bool) {
	t.Helper()
	list, more, err := r.ListSessions(t.Context(), caller, limit)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range list {
		text := fmt.Sprintf("%s:%d", s.ID, s.Files)
		if s.MoreFiles {
			text += "+"
		}
		if text += fmt.Sprintf(":%d", s.Bytes); s.Live {
			text += "*"
		}
		if s.LastUsed.IsZero() || time.Since(s.LastUsed) > time.Hour {
			t.Errorf("%s was last used %v", s.ID, s.LastUsed)
		}
		out = append(out, text)
	}
	return strings.Join(out, " "), more
}

// A caller's own sessions, last used first, bounded, without closed ones and those of single runs;
// also after a restart.
func TestListSessions(t *testing.T) {
	r := newRig(t, nil, nil)
	run := func(caller session.Caller, id string, once bool) {
		t.Helper()
		if _, err := r.Run(t.Context(), caller, Request{Session: id, Runner: "python", Once: once}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, caller session.Caller, limit int, list string, truncated bool) {
		t.Helper()
		if got, more := r.sessionsOf(t, caller, limit); got != list || more != truncated {
			t.Errorf("%s: %q, %v; want %q, %v", what, got, more, list, truncated)
		}
	}
	want("none", session.Local, 10, "", false)
	r.put(t, session.Local, "old", "a.txt")
	r.put(t, session.Local, "old", "sub/b.txt")
	run(session.Local, "ran", false)
	r.put(t, ann, "old", "ann.txt")
	run(session.Local, "single", true)
	run(session.Local, "closed", false)
	if err := r.CloseSession(t.Context(), session.Local, "closed"); err != nil {
		t.Fatal(err)
	}
	want("local's", session.Local, 10, "ran:0:0* old:2:10", false)
	want("ann's", ann, 10, "old:1:3", false)
	want("bob's", bob, 10, "", false)
	want("one", session.Local, 1, "ran:0:0*", true)
	r.put(t, session.Local, "old", "c.txt")
	want("after use", session.Local, 10, "old:3:15 ran:0:0*", false)
	if _, err := r.ListArtifacts(t.Context(), session.Local, "ran", ListOptions{}); err != nil {
		t.Fatal(err)
	}
	want("looking is no use", session.Local, 10, "old:3:15 ran:0:0*", false)

	files := filepath.Join(r.root, r.key(t, session.Local, "old"), "files")
	for i := range countedEntries {
		if err := os.WriteFile(filepath.Join(files, fmt.Sprint("many", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := r.sessionsOf(t, session.Local, 1); !strings.HasPrefix(got, "old:") || !strings.Contains(got, "+") {
		t.Errorf("a full session: %q", got)
	}

	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.activity.byID, r.activity.order = nil, list.List{}
	if got, _ := r.sessionsOf(t, session.Local, 10); !strings.HasPrefix(got, "ran:0:0* old:") {
		t.Errorf("after a restart: %q", got)
	}
	r.recorder = nil // it is closed
}

// A session that only has an upload link is listed, also after a restart. A refused call creates no
// session.
func TestListSessionsOfLinks(t *testing.T) {
	r := newRig(t, nil, nil)
	if _, _, err := r.UploadURL(t.Context(), ann, "link", "a.txt", false); err != nil {
		t.Fatal(err)
	}
	_, err := r.Upload(t.Context(), ann, UploadRequest{Session: "refused", Name: "a.txt", Content: strings.NewReader(strings.Repeat("x", 1001))})
	if codeOf(err) != CodeFileTooLarge {
		t.Fatal(err)
	}
	for range 2 {
		if got, _ := r.sessionsOf(t, ann, 10); got != "link:0:0" || r.Storage(ann).Sessions != 1 {
			t.Errorf("%q, %+v", got, r.Storage(ann))
		}
		r.activity.byID, r.activity.order = nil, list.List{} // as a restart does
	}
}

// A refusal does not count as an error of the server. A sandbox that cannot start does.
func TestRefusalsAreCounted(t *testing.T) {
	r := newRig(t, nil, nil)
	r.backend.OnStart = func(context.Context, sandbox.Spec) error { return errors.New("broken") }
	if _, err := r.Run(t.Context(), ann, Request{Session: "x", Runner: "python"}); err == nil {
		t.Fatal("it ran")
	}
	if err := r.cfg.Sessions.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := r.Run(t.Context(), ann, Request{Session: "x", Runner: "python"})
	if codeOf(err) != CodeBackendUnavailable {
		t.Fatal(err)
	}
	full := r.failed(t.Context(), &run{caller: ann, runner: "python"}, Result{Started: time.Now()}, &session.MaxSessionsError{})
	if codeOf(full) != CodeMaxSessions {
		t.Fatal(full)
	}
	got := counters(t, r.reg)
	if got["sandbox_runs_total python error others"] != 2 || got["sandbox_runs_total python refused others"] != 1 ||
		got["sandbox_refusals_total max_sessions others"] != 1 || got["sandbox_refusals_total backend_unavailable others"] != 0 {
		t.Errorf("%v", got)
	}
}
