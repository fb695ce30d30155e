package session_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/workspace"
)

// TestOpenLink: a link opens files of its own generation, even after the session was closed, and
// nothing else.
func TestOpenLink(t *testing.T) {
	root := t.TempDir()
	m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) { c.Root, c.ClosedRetention = root, time.Hour })
	alice := session.Caller{ID: "user:alice"}
	write := func(caller session.Caller, content string) (generation string) {
		t.Helper()
		s := open(t, m, caller, "chat")
		defer s.Release()
		if _, err := s.Workspace().Write("f", strings.NewReader(content), workspace.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		return m.Generation(caller, "chat")
	}
	read := func(key, generation string) string {
		t.Helper()
		f, _, err := m.OpenLink(key, generation, "f")
		return contentOf(t, f, err)
	}
	key := m.Key(alice, "chat")
	locals := write(session.Local, "the operator's")
	first := write(alice, "first")
	if got := read(key, first); got != "first" {
		t.Errorf("the session's own link: %q", got)
	}
	for _, bad := range []string{"", ".", "..", "keys", "closed", "../" + key, key + "/", strings.ToUpper(key), key[:62], strings.Repeat("0", 64), m.Key(alice, "other")} {
		if got := read(bad, first); got != "" {
			t.Errorf("the key %q: %q", bad, got)
		}
	}
	for _, bad := range []string{"", locals, first + "x", strings.ToLower(first)} {
		if got := read(key, bad); got != "" {
			t.Errorf("the generation %q: %q", bad, got)
		}
	}

	// After the close, the old link opens the old file, whatever the new session has.
	if err := m.CloseSession(t.Context(), alice, "chat"); err != nil {
		t.Fatal(err)
	}
	if got := m.Generation(alice, "chat"); got != first {
		t.Errorf("the closed session's generation is %q, was %q", got, first)
	}
	second := write(alice, "second")
	if a, b := read(key, first), read(key, second); a != "first" || b != "second" {
		t.Errorf("the links of before and after: %q, %q", a, b)
	}
	if err := m.RevokeLinks(alice, "chat"); err != nil {
		t.Fatal(err)
	}
	if a, b, c := read(key, first), read(key, second), read(key, m.Generation(alice, "chat")); a != "" || b != "" || c != "second" {
		t.Errorf("after the revocation: %q, %q, and a new link %q", a, b, c)
	}
	if got := read(m.Key(session.Local, "chat"), locals); got != "the operator's" {
		t.Errorf("another caller's link after it: %q", got)
	}
	if err := m.RevokeLinks(alice, "other"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("revoking nothing: %v", err)
	}

	// A meta.json that does not match its directory is ignored.
	text, err := os.ReadFile(filepath.Join(root, m.Key(session.Local, "chat"), "meta.json"))
	if err != nil {
		t.Fatal(err)
	}
	forged := filepath.Join(root, m.Key(alice, "forged"))
	if err := errors.Join(os.MkdirAll(filepath.Join(forged, "files"), 0o700), os.WriteFile(filepath.Join(forged, "meta.json"), text, 0o600),
		os.WriteFile(filepath.Join(forged, "files", "f"), []byte("forged"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := read(m.Key(alice, "forged"), locals); got != "" {
		t.Errorf("forged: %q", got)
	}
}

// TestGenerationOfOldSessions: sessions of earlier releases, without a generation in meta.json,
// have one each.
func TestGenerationOfOldSessions(t *testing.T) {
	root := t.TempDir()
	m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) { c.Root = root })
	put(t, m, "x", "a.txt", "")
	path := filepath.Join(root, m.Key(session.Local, "x"), "meta.json")
	age := func(created string) string {
		t.Helper()
		var md map[string]any
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &md)
		}
		if err != nil {
			t.Fatal(err)
		}
		delete(md, "generation")
		md["created"] = created
		text, err = json.Marshal(md)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m.Generation(session.Local, "x")
	}
	one, two := age("2026-01-02T03:04:05.6Z"), age("2026-01-02T03:04:05.7Z")
	if one == "" || one == two || age("2026-01-02T03:04:05.6Z") != one {
		t.Errorf("%q and %q", one, two)
	}
	if m.Generation(session.Local, "none") != "" {
		t.Error("a session that is not there has a generation")
	}
}
