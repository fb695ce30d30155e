package executor

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// TestArtifacts: names, sizes and times show what a run created or changed, and only a successful
// run lists it.
func TestArtifacts(t *testing.T) {
	then := time.Unix(1_700_000_000, 1)
	type change func(in func(name string) string) error
	write := func(name, content string, at time.Time) change {
		return func(in func(string) string) error {
			return errors.Join(os.MkdirAll(filepath.Dir(in(name)), 0o700), os.WriteFile(in(name), []byte(content), 0o600), os.Chtimes(in(name), at, at))
		}
	}
	for _, tt := range []struct {
		name string
		do   change
		exit int
		want string
	}{
		{"nothing", func(func(string) string) error { return nil }, 0, ""},
		{"new", write("new", "", then), 0, "new"},
		{"new in a directory", write("a/b/c.png", "x", then), 0, "a/b/c.png"},
		{"larger", write("old", "more than before", then), 0, "old"},
		{"a nanosecond younger", write("old", "old", then.Add(1)), 0, "old"},
		{"older", write("old", "old", then.Add(-time.Hour)), 0, "old"},
		{"rewritten, its time set back", write("old", "odd", then), 0, "old"},
		{"renamed", func(in func(string) string) error { return os.Rename(in("old"), in("moved")) }, 0, "moved"},
		{"renamed over another", func(in func(string) string) error { return os.Rename(in("sub/other"), in("old")) }, 0, "old"},
		{"deleted", func(in func(string) string) error { return os.Remove(in("old")) }, 0, ""},
		{"a link", func(in func(string) string) error { return os.Symlink("old", in("link")) }, 0, ""},
		{"an empty directory", func(in func(string) string) error { return os.Mkdir(in("dir"), 0o700) }, 0, ""},
		{"after a failure", write("new", "", then), 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var do change
			r := newRig(t, func(p *sessiontest.Process) wire.Exit {
				if err := do(func(name string) string { return filepath.Join(p.Spec.Workspace, name) }); err != nil {
					t.Error(err)
				}
				return wire.Exit{Code: tt.exit}
			}, nil)
			run := func(artifacts bool) Result {
				res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Artifacts: artifacts})
				return res
			}
			do = func(in func(string) string) error {
				return errors.Join(write("old", "old", then)(in), write("sub/other", "other", then)(in))
			}
			if res := run(false); len(res.Files) != 2 {
				t.Fatalf("all files: %+v", res)
			}
			do = tt.do
			res := run(true)
			var names []string
			for _, f := range res.Files {
				names = append(names, f.Name)
				if f.URL != r.signer.FileURL("x", f.Name) {
					t.Errorf("link %q", f.URL)
				}
			}
			if got := strings.Join(names, " "); got != tt.want || res.FilesTruncated || res.ExitCode != tt.exit {
				t.Errorf("artifacts %q, want %q in %+v", got, tt.want, res)
			}
		})
	}
}

// TestArtifactRunsAreAlone: a run that asks for artifacts is refused while another is active. Other
// runs may start meanwhile.
func TestArtifactRunsAreAlone(t *testing.T) {
	started := make(chan struct{}, 2)
	r := newRig(t, func(p *sessiontest.Process) wire.Exit { started <- struct{}{}; <-p.Done(); return sessiontest.SIGKILL }, nil)
	for _, tt := range []struct{ first, second, refused bool }{{true, true, true}, {false, true, true}, {true, false, false}} {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		run := func(artifacts, refused bool) {
			res, err := r.Run(ctx, session.Local, Request{Session: "x", Runner: "python", Artifacts: artifacts})
			switch {
			case !refused && (err != nil || res.Cause != sandbox.CauseCancelled):
				t.Errorf("%+v: %+v, %v", tt, res, err)
			case refused && (codeOf(err) != CodeSessionBusy || err.Error() != "A run is already in progress for this session. Wait for it to complete."):
				t.Errorf("%+v: %v", tt, err)
			}
		}
		wg.Go(func() { run(tt.first, false) })
		<-started
		if tt.refused {
			run(tt.second, true)
		} else {
			wg.Go(func() { run(tt.second, false) })
			<-started
		}
		cancel()
		wg.Wait()
	}
}

func TestReadAndListArtifacts(t *testing.T) {
	r := newRig(t, nil, func(c *Config) { c.MaxReadBytes = 10 })
	ctx := t.Context()
	up := func(id, name, content string) {
		t.Helper()
		if _, err := r.Upload(ctx, session.Local, UploadRequest{Session: id, Name: name, Content: strings.NewReader(content), Overwrite: true}); err != nil {
			t.Fatal(err)
		}
	}
	up("x", "sub/a.csv", "0123456789")
	up("x", "big.png", "0123456789a")
	for _, path := range []string{"sub/a.csv", "/mnt/data/sub/a.csv", "/data/sub/a.csv", "/workspace/sub/a.csv"} {
		a, err := r.ReadArtifact(ctx, session.Local, "x", path)
		if err != nil || a.Name != "sub/a.csv" || a.Size != 10 || string(a.Content) != "0123456789" || a.URL != r.signer.FileURL("x", a.Name) {
			t.Errorf("%s: %+v, %v", path, a, err)
		}
	}
	for _, tt := range []struct {
		caller   session.Caller
		id, path string
		code     Code
		message  string
	}{
		{session.Local, "x", "/mnt/data/none.png", CodeNotFound, "No artifact at /mnt/data/none.png"},
		{session.Local, "x", "sub", CodeNotFound, "No artifact at /mnt/data/sub"},
		{session.Local, "x", "big.png", CodeArtifactTooLarge, "big.png is 11 bytes, exceeds 10 bytes limit. Use download_url instead."},
		{session.Local, "x", "/mnt/data/../../etc/passwd", CodeInvalidPath, ""},
		{session.Local, "x", "..", CodeInvalidPath, ""},
		{session.Local, "x", "/etc/passwd", CodeInvalidPath, ""},
		{session.Local, "x", "/mnt/data/", CodeInvalidPath, ""},
		{session.Local, "sess_123", "a", CodeSessionNotFound, "No active session with id sess_123"},
		{session.Local, "../x", "a", CodeInvalidID, ""},
		{mallory, "x", "sub/a.csv", CodeSessionNotFound, "No active session with id x"},
	} {
		_, err := r.ReadArtifact(ctx, tt.caller, tt.id, tt.path)
		if codeOf(err) != tt.code || tt.message != "" && err.Error() != tt.message {
			t.Errorf("%s of %s: %v, want %s", tt.path, tt.id, err, tt.code)
		}
		var e *Error
		if errors.As(err, &e) && tt.code == CodeArtifactTooLarge && (e.SizeBytes != 11 || e.DownloadURL != r.signer.FileURL("x", "big.png")) {
			t.Errorf("%+v", e)
		}
	}

	all, err := r.ListArtifacts(ctx, session.Local, "x", ListOptions{})
	if err != nil || all.More || all.Total != 2 || len(all.Files) != 2 ||
		!slices.ContainsFunc(all.Files, func(f FileLink) bool { return f.Name == "sub/a.csv" && f.Size == 10 }) {
		t.Errorf("%+v, %v", all, err)
	}
	one, err := r.ListArtifacts(ctx, session.Local, "x", ListOptions{Limit: 1})
	if err != nil || !one.More || one.Total != 2 || len(one.Files) != 1 || one.Files[0].Name != all.Files[0].Name {
		t.Errorf("one of them: %+v, %v", one, err)
	}
	rest, err := r.ListArtifacts(ctx, session.Local, "x", ListOptions{After: positionOf(one.Files[0])})
	if err != nil || rest.More || rest.Total != 1 || len(rest.Files) != 1 || rest.Files[0].Name != all.Files[1].Name {
		t.Errorf("the rest: %+v, %v", rest, err)
	}
	below, err := r.ListArtifacts(ctx, session.Local, "x", ListOptions{Prefix: "sub/"})
	if err != nil || below.More || below.Total != 1 || len(below.Files) != 1 || below.Files[0].Name != "sub/a.csv" {
		t.Errorf("below sub: %+v, %v", below, err)
	}
	if _, err := r.ListArtifacts(ctx, mallory, "x", ListOptions{}); codeOf(err) != CodeSessionNotFound {
		t.Errorf("another caller's list: %v", err)
	}
}

// The contract's own example with its own numbers.
func TestTooLarge(t *testing.T) {
	f := FileLink{URL: "u"}
	f.Name, f.Size = "chart.png", 15_000_000
	if got := tooLarge(f, 10<<20).Message; got != "chart.png is 15MB, exceeds 10MB limit. Use download_url instead." {
		t.Error(got)
	}
	f.Size = 10<<20 + 1
	if got := tooLarge(f, 10<<20).Message; !strings.HasPrefix(got, "chart.png is 11MB, exceeds 10MB") {
		t.Error(got)
	}
}

// TestCloseSession: download links outlive the session, upload links do not, and a file of a new
// session wins.
func TestCloseSession(t *testing.T) {
	r := newRig(t, nil, nil)
	ctx := t.Context()
	up := func(name, content string) {
		t.Helper()
		if _, err := r.Upload(ctx, session.Local, UploadRequest{Session: "x", Name: name, Content: strings.NewReader(content)}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		t.Helper()
		f, _, err := r.openFile(session.Local, "x", name)
		if errors.Is(err, fs.ErrNotExist) {
			return "none"
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b, _ := io.ReadAll(f)
		return string(b)
	}
	if err := r.CloseSession(ctx, session.Local, "sess_123"); codeOf(err) != CodeSessionNotFound || err.Error() != "No active session with id sess_123" {
		t.Errorf("closing nothing: %v", err)
	}
	up("a", "old")
	up("b", "old")
	link, _, err := r.UploadURL(ctx, session.Local, "x", "late", false)
	if err != nil {
		t.Fatal(err)
	}
	ticket, _, _ := strings.Cut(link[strings.Index(link, "upload=")+len("upload="):], "&")
	if err := r.CloseSession(ctx, mallory, "x"); codeOf(err) != CodeSessionNotFound {
		t.Errorf("another caller closes it: %v", err)
	}
	if err := r.CloseSession(ctx, session.Local, "x"); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"close": r.CloseSession(ctx, session.Local, "x"),
		"list":  first(r.ListArtifacts(ctx, session.Local, "x", ListOptions{})),
		"read":  first(r.ReadArtifact(ctx, session.Local, "x", "a")),
	} {
		if codeOf(err) != CodeSessionNotFound {
			t.Errorf("%s after closing: %v", what, err)
		}
	}
	if _, err := r.ReceiveUpload(ctx, ticket, "x", "late", strings.NewReader("")); codeOf(err) != CodeLinkExpired {
		t.Errorf("an upload after closing: %v", err)
	}
	if a := read("a"); a != "old" {
		t.Errorf("a link after closing: %q", a)
	}
	up("a", "new")
	if a, b, c := read("a"), read("b"), read("c"); a != "new" || b != "old" || c != "none" {
		t.Errorf("links after a new use: %q, %q, %q", a, b, c)
	}
}

func first[T any](_ T, err error) error { return err }
