package executor

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

// TestUnusableSession: a session whose files cannot be opened is listed, with the reason, and does
// not hide the others.
func TestUnusableSession(t *testing.T) {
	r := newRig(t, nil, nil)
	for _, id := range []string{"first", "bad", "last"} {
		r.put(t, ann, id, "file")
	}
	files := filepath.Join(r.root, r.key(t, ann, "bad"), "files")
	if err := os.RemoveAll(files); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	list, _, err := r.ListSessions(t.Context(), ann, 10)
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, s := range list {
		bad := s.ID == "bad"
		if (s.Problem != "") != bad || s.MoreFiles != bad || s.LastUsed.IsZero() {
			t.Errorf("%+v", s)
		}
	}
	if got := r.recent(t, ann, 10); !slices.Equal(got, []string{"last/file", "first/file"}) {
		t.Errorf("%q", got)
	}
}

// TestForeign: who uses a session with files of other ids reads why, and what to do.
func TestForeign(t *testing.T) {
	r := newRig(t, nil, nil)
	r.backend.OnStart = func(context.Context, sandbox.Spec) error {
		return &sandbox.Error{Op: "use", Err: fmt.Errorf("%w: %w", session.ErrForeign, fs.ErrPermission), Fix: "chown"}
	}
	_, err := r.Run(t.Context(), ann, Request{Session: "s", Runner: "python"})
	if text := fmt.Sprint(err); codeOf(err) != CodeBackendUnavailable || !strings.HasPrefix(text, "This session cannot be used: its files belong to ids") ||
		!strings.Contains(text, "fix: chown") {
		t.Error(err)
	}
}

// TestUnmeasuredSession: a list says which session cannot be measured, and counts what it finds.
func TestUnmeasuredSession(t *testing.T) {
	r := newRig(t, nil, nil)
	r.put(t, ann, "deep", "file")
	r.put(t, ann, "other", "file")
	if err := os.MkdirAll(filepath.Join(r.root, r.key(t, ann, "deep"), "files", strings.Repeat("d/", 130)), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run(t.Context(), ann, Request{Session: "deep", Runner: "python"}); err != nil {
		t.Fatal(err)
	}
	list, _, err := r.ListSessions(t.Context(), ann, 10)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, s := range list {
		deep := s.ID == "deep"
		if strings.Contains(s.Problem, "cannot be measured: directories are nested more than 128 levels deep") != deep || s.MoreFiles != deep || s.Files != 1 {
			t.Errorf("%+v", s)
		}
	}
}
