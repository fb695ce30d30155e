package executor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// Long output is kept whole, in order, for code and for RunOutput; short output needs no file.
func TestRunOutput(t *testing.T) {
	lines := 0
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		for i := range lines {
			p.Stdout(fmt.Appendf(nil, "line %d\n", i))
			if i%100 == 0 {
				p.Stderr(fmt.Appendf(nil, "note %d\n", i))
			}
		}
		return wire.Exit{}
	}, func(c *Config) { keepState(c); c.SpoolAfter, c.MaxOutputBytes = 1000, 500 })
	run := func(n int) Result {
		t.Helper()
		lines = n
		res, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python"})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	read := func(id string, offset, limit int64) (string, int64) {
		t.Helper()
		part, err := r.RunOutput(t.Context(), session.Local, id, offset, limit)
		if err != nil || part.Next != min(offset, part.Size)+int64(len(part.Text)) {
			t.Fatalf("%d of %d, %v", part.Next, part.Size, err)
		}
		return string(part.Text), part.Size
	}
	short := run(3)
	if text, size := read(short.RunID, 0, 100); short.Spooled || text != "line 0\nnote 0\nline 1\nline 2\n" || size != int64(len(text)) {
		t.Errorf("short output: %q, %d of it, %t", text, size, short.Spooled)
	}
	long := run(1000)
	text, size := read(long.RunID, 0, 1<<20)
	if !long.Spooled || size != int64(len(text)) || strings.Count(text, "\n") != 1010 || !strings.HasSuffix(text, "line 998\nline 999\n") {
		t.Errorf("long output: %d bytes of %d, %t", len(text), size, long.Spooled)
	}
	if part, _ := read(long.RunID, 7, 7); part != text[7:14] {
		t.Errorf("a part: %q", part)
	}
	if part, _ := read(long.RunID, size+1, 7); part != "" {
		t.Errorf("beyond the end: %q", part)
	}
	if !strings.Contains(long.OutputURL, "/.outputs/"+long.RunID+".txt") || short.OutputURL != "" {
		t.Errorf("links: %q, %q", long.OutputURL, short.OutputURL)
	}
	if len(long.Files) != 0 {
		t.Errorf("the output is listed: %+v", long.Files)
	}
	for _, id := range []string{long.RunID, short.RunID, "run_x", "../x", ""} {
		if part, err := r.RunOutput(t.Context(), mallory, id, 0, 10); codeOf(err) != CodeRunNotFound {
			t.Errorf("another caller's %q: %+v, %v", id, part, err)
		}
	}
	// It ends with the session's files, not with the session.
	if err := r.CloseSession(t.Context(), session.Local, "x"); err != nil {
		t.Fatal(err)
	}
	if again, _ := read(long.RunID, 0, 1<<20); again != text {
		t.Error("the output of a closed session is gone")
	}
}

// A fresh session that ends with its run keeps the output that the answer names.
func TestOutputOfSingleRun(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		p.Stdout(bytes.Repeat([]byte("x"), 3000))
		return wire.Exit{}
	}, func(c *Config) { c.SpoolAfter = 1000 })
	res := r.mustRun(t, session.Local, Request{Session: "once", Runner: "python", Once: true})
	part, err := r.RunOutput(t.Context(), session.Local, res.RunID, 2990, 100)
	if err != nil || !res.Spooled || string(part.Text) != "xxxxxxxxxx" || part.Size != 3000 {
		t.Errorf("%q of %d, %v", part.Text, part.Size, err)
	}
}

// What is not kept is marked, and a run that has not ended has no whole output.
func TestOutputNotKept(t *testing.T) {
	end := make(chan struct{})
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		if string(p.Code) == "wait" {
			<-end
		}
		p.Stdout([]byte("head " + strings.Repeat("x", 5000) + " tail"))
		return wire.Exit{}
	}, func(c *Config) { c.SpoolAfter, c.Quota.Bytes = 100, 2000 })
	res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python"})
	part, err := r.RunOutput(t.Context(), session.Local, res.RunID, 0, 1<<20)
	if text := string(part.Text); err != nil || res.Spooled || !strings.HasPrefix(text, "head ") || !strings.HasSuffix(text, " tail") || !strings.Contains(text, "bytes omitted] …") {
		t.Errorf("over the quota: %t, %d bytes, %v", res.Spooled, len(text), err)
	}
	if !res.Success() {
		t.Errorf("the run has failed: %+v", res)
	}
	active := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Code: "wait", Background: true})
	if _, err := r.RunOutput(t.Context(), session.Local, active.RunID, 0, 10); codeOf(err) != CodeRunActive {
		t.Errorf("an active run: %v", err)
	}
	close(end)
	if _, err := r.WaitRun(t.Context(), session.Local, active.RunID, WaitRequest{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
}

// Parts contain whole characters, wherever they begin.
func TestOutputParts(t *testing.T) {
	const text = "aä𝄞b\xffc€"
	for limit := 4; limit <= len(text); limit++ {
		all := ""
		for at := 0; at < len(text); {
			part := newOutputPart([]byte(text[at:min(len(text), at+limit)]), int64(at), int64(len(text)))
			all += string(part.Text)
			if at = int(part.Next); len(part.Text) == 0 {
				t.Fatalf("no progress at %d in pieces of %d", at, limit)
			}
		}
		if all != text {
			t.Errorf("in pieces of %d: %q", limit, all)
		}
	}
	if part := newOutputPart([]byte(text[2:6]), 2, int64(len(text))); string(part.Text) != "" || part.Next != 3 {
		t.Errorf("inside of a character: %q, next %d", part.Text, part.Next)
	}
	if part := newOutputPart([]byte(text[2:8]), 2, int64(len(text))); string(part.Text) != "𝄞b" || part.Next != 8 {
		t.Errorf("inside of a character: %q, next %d", part.Text, part.Next)
	}
	if part := newOutputPart(nil, 100, 5); part.Next != 5 || len(part.Text) != 0 {
		t.Errorf("beyond the end: %+v", part)
	}
}

// The output of old runs makes room for that of new ones, and is not kept longer than their
// results.
func TestOutputsArePruned(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		dir := filepath.Join(p.Spec.Workspace, ".outputs")
		if err := os.MkdirAll(filepath.Join(dir, "dir.txt"), 0o700); err != nil {
			t.Error(err)
		}
		for name, age := range map[string]time.Duration{"old.txt": 25 * time.Hour, "new.txt": 23 * time.Hour} {
			at := time.Now().Add(-age)
			if err := errors.Join(os.WriteFile(filepath.Join(dir, name), nil, 0o600), os.Chtimes(filepath.Join(dir, name), at, at)); err != nil {
				t.Error(err)
			}
		}
		p.Stdout(make([]byte, 2000))
		return wire.Exit{}
	}, func(c *Config) { c.SpoolAfter = 1000 })
	res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python"})
	s, err := r.cfg.Sessions.Lookup(session.Local, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	for name, want := range map[string]bool{"old": false, "new": true, res.RunID: true} {
		f, _, err := s.Workspace().Open(".outputs/" + name + ".txt")
		if (err == nil) != want {
			t.Errorf("%s: %v, want it kept: %t", name, err, want)
		}
		if err == nil {
			f.Close()
		}
	}
}

// A spool keeps a bounded amount, and a file that cannot be written does not disturb the run.
func TestSpoolIsBounded(t *testing.T) {
	var file bytes.Buffer
	sp := &spool{after: 10, write: func(r io.Reader) error { _, err := file.ReadFrom(r); return err }}
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	for range 18 {
		sp.add(chunk)
	}
	if !sp.finish(t.Context(), quietRun()) || file.Len() > MaxSpooled+100 || !strings.HasSuffix(file.String(), "… [2097152 bytes omitted: 16 MB of output are kept] …\n") {
		t.Errorf("%d bytes", file.Len())
	}
	broken := &spool{after: 10, write: func(r io.Reader) error { _, _ = r.Read(make([]byte, 5)); return io.ErrShortWrite }}
	for range 3 {
		broken.add(chunk)
	}
	if broken.finish(t.Context(), quietRun()) {
		t.Error("a file that failed is named")
	}
}

func quietRun() *run { return &run{log: slog.New(slog.DiscardHandler)} }

// Code that puts something else in the place of the directories gets nothing else written, deleted
// or read, and its run goes on.
func TestHostileOutputs(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret.txt")
	old := time.Now().Add(-48 * time.Hour)
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Chtimes(secret, old, old)); err != nil {
		t.Fatal(err)
	}
	for name, prepare := range map[string]func(dir string) error{
		"a link":      func(dir string) error { return os.Symlink(outside, dir) },
		"a file":      func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"a dead link": func(dir string) error { return os.Symlink("nowhere", dir) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(p *sessiontest.Process) wire.Exit {
				for _, dir := range []string{".outputs", ".plots"} {
					if err := prepare(filepath.Join(p.Spec.Workspace, dir)); err != nil {
						t.Error(err)
					}
				}
				p.Display("image/png", []byte("plot"))
				p.Stdout(make([]byte, 5000))
				return wire.Exit{}
			}, func(c *Config) { c.SpoolAfter = 1000 })
			res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python"})
			if res.Spooled || !res.Success() || len(res.Stdout) == 0 || res.Displays[0].File != "" || res.OutputURL != "" {
				t.Errorf("%+v", res)
			}
			if _, err := r.RunOutput(t.Context(), session.Local, res.RunID, 0, 100); err != nil {
				t.Error(err)
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
				t.Errorf("outside: %v, %v", entries, err)
			}
		})
	}
	// The file of a run becomes a link.
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		if string(p.Code) != "" {
			name := filepath.Join(p.Spec.Workspace, string(p.Code))
			if err := errors.Join(os.Remove(name), os.Symlink(secret, name)); err != nil {
				t.Error(err)
			}
			return wire.Exit{}
		}
		p.Stdout(make([]byte, 5000))
		return wire.Exit{}
	}, func(c *Config) { c.SpoolAfter = 1000 })
	res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python"})
	r.mustRun(t, session.Local, Request{Session: "x", Runner: "python", Code: outputName(res.RunID)})
	if part, err := r.RunOutput(t.Context(), session.Local, res.RunID, 0, 100); err == nil || strings.Contains(string(part.Text), "secret") {
		t.Errorf("through a link: %q, %v", part.Text, err)
	}
}
