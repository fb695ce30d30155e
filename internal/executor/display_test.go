package executor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

// holdEnded waits for a channel when a run has ended.
type holdEnded struct {
	silent
	next <-chan struct{}
}

func (h holdEnded) Ended(Result) { <-h.next }

// An image belongs to the run that showed it, even if the next cell begins before that run's result
// is complete.
func TestImageIsItsRuns(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	write := func(p *sessiontest.Process, name string) {
		if err := os.WriteFile(filepath.Join(p.Spec.Workspace, name), []byte("x"), 0o600); err != nil {
			t.Error(err)
		}
	}
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		if string(p.Code) == "first" {
			p.Display("image/png", []byte("plot"))
			write(p, "first.csv")
			return wire.Exit{}
		}
		close(begun)
		write(p, "second.csv")
		<-end
		return wire.Exit{}
	}, keepState)
	first, second := notebookRequest("first"), notebookRequest("second")
	first.Background, second.Background = true, true
	first.Observer = holdEnded{next: begun}
	one := r.mustRun(t, session.Local, first)
	two := r.mustRun(t, session.Local, second)
	files := func(runID string) []string {
		t.Helper()
		res, err := r.WaitRun(t.Context(), session.Local, runID, WaitRequest{Timeout: time.Minute})
		if err != nil || res.Running {
			t.Fatalf("%+v, %v", res, err)
		}
		var names []string
		for _, f := range res.Files {
			names = append(names, f.Name)
		}
		return names
	}
	if got, want := files(one.RunID), []string{"first.csv"}; !slices.Equal(got, want) {
		t.Errorf("the first run's files: %v, want %v", got, want)
	}
	close(end)
	if got, want := files(two.RunID), []string{"second.csv"}; !slices.Equal(got, want) {
		t.Errorf("the second run's files: %v, want %v", got, want)
	}
}

// A figure that the code did not save is kept in .plots: no list contains it, its link works, and
// it counts towards the quota. One that the code saved is that file; a claim to have saved it is
// checked.
func TestFigures(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		for _, name := range []string{"a.png", "notes.txt"} {
			if err := os.WriteFile(filepath.Join(p.Spec.Workspace, name), []byte("saved"), 0o600); err != nil {
				t.Error(err)
			}
		}
		p.Display("image/png", []byte("plot"))
		for _, claim := range []string{"a.png", "missing.png", "../meta.json", "/data/a.png", "notes.txt", ".", "a.png/b.png"} {
			p.DisplaySaved("image/png", claim, []byte(claim))
		}
		p.DisplaySaved("text/plain", "a.png", []byte("text"))
		return wire.Exit{}
	}, keepState)
	res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python"})
	plot := func(n int) string { return fmt.Sprintf(".plots/%s-%d.png", res.RunID, n) }
	want := []string{plot(1), "a.png", plot(3), plot(4), plot(5), plot(6), plot(7), plot(8), ""}
	check := func(what string, res Result) {
		t.Helper()
		var got []string
		for _, d := range res.Displays {
			if got = append(got, d.File); (d.URL != "") != (d.File != "") {
				t.Errorf("%s: %q has the link %q", what, d.File, d.URL)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the displays' files are %q, want %q", what, got, want)
		}
		var names []string
		for _, f := range res.Files {
			names = append(names, f.Name)
		}
		if slices.Sort(names); !slices.Equal(names, []string{"a.png", "notes.txt"}) || res.FilesTotal != 2 {
			t.Errorf("%s: files %q of %d", what, names, res.FilesTotal)
		}
	}
	check("the result", res)
	stored, err := r.WaitRun(t.Context(), session.Local, res.RunID, WaitRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check("the stored result", stored)
	for what, opt := range map[string]ListOptions{"all": {}, "by name": {Prefix: ".plots/"}} {
		list, err := r.ListArtifacts(t.Context(), session.Local, "x", opt)
		if want := map[string]int{"all": 2}[what]; err != nil || list.Total != want || len(list.Files) != want {
			t.Errorf("%s: %+v, %v", what, list, err)
		}
	}
	recent, _, err := r.RecentFiles(t.Context(), session.Local, Position{}, 100)
	if err != nil || len(recent) != 2 {
		t.Errorf("resources: %+v, %v", recent, err)
	}
	sessions, _, err := r.ListSessions(t.Context(), session.Local, 10)
	if err != nil || len(sessions) != 1 || sessions[0].Files != 2 || sessions[0].Bytes <= 10 {
		t.Errorf("sessions: %+v, %v", sessions, err)
	}
	f, _, err := r.OpenLink("x", plot(1))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, err := io.ReadAll(f); string(data) != "plot" {
		t.Errorf("the link gives %q, %v", data, err)
	}
	if a, err := r.ReadArtifact(t.Context(), session.Local, "x", "/mnt/data/"+plot(4)); err != nil || string(a.Content) != "../meta.json" {
		t.Errorf("by name: %q, %v", a.Content, err)
	}
	s, err := r.cfg.Sessions.Lookup(session.Local, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	if u, err := s.Workspace().Usage(t.Context(), workspace.Usage{}); err != nil || u.Files < 10 { // 2 + 7 files, 1 directory
		t.Errorf("counted: %+v, %v", u, err)
	}
}

// An image that does not fit is not saved, and the result of the successful code has a hint.
func TestImageWithoutRoom(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		for range 3 {
			p.Display("image/png", []byte("plot"))
		}
		return wire.Exit{}
	}, func(c *Config) { c.Quota.Files = 2 })
	res, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python"})
	if err != nil || res.Hint != "2 images that the code showed were not saved as files: /data may hold 1 MB in 2 files. Delete files in it." {
		t.Errorf("hint %q, %v", res.Hint, err)
	}
	if len(res.Displays) != 3 || res.Displays[0].File == "" || res.Displays[1].File != "" || !res.Success() {
		t.Errorf("%+v", res)
	}
}

// A run of the server itself is neither listed nor stored, and long output of it is not kept.
func TestInternalRun(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		p.Stdout(make([]byte, 5000))
		return wire.Exit{}
	}, func(c *Config) { c.SpoolAfter = 100 })
	changes := 0
	r.WatchRuns(func(session.Caller) { changes++ })
	res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Internal: true})
	if list := r.RecentRuns(session.Local, "x"); len(list) != 0 || changes != 0 || res.Spooled {
		t.Errorf("%+v, %d changes, spooled %t", list, changes, res.Spooled)
	}
	if _, err := r.WaitRun(t.Context(), session.Local, res.RunID, WaitRequest{}); codeOf(err) != CodeRunNotFound {
		t.Errorf("it is stored: %v", err)
	}
}

func TestUnbundle(t *testing.T) {
	for _, c := range []struct{ data, mime, markup, plain string }{
		{`{"text/html": "<b>", "text/plain": "b\n"}`, "text/html", "<b>", "b\n"},
		{`{"text/markdown": "# h", "text/plain": ""}`, "text/markdown", "# h", ""},
		{`{"text/latex": "$x$", "text/plain": "x\n"}`, "text/latex", "$x$", "x\n"},
		{`{"text/plain": "x"}`, bundleMIME, `{"text/plain": "x"}`, ""},
		{`[]`, bundleMIME, `[]`, ""},
	} {
		if mime, markup, plain := unbundle([]byte(c.data)); mime != c.mime || string(markup) != c.markup || string(plain) != c.plain {
			t.Errorf("%s: %s, %s, %q", c.data, mime, markup, plain)
		}
	}
}
