package executor

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/signedurl"
)

// TestAbortedUploadKeepsItsTicket: a client that loses its connection during a PUT can send the
// file again, once.
func TestAbortedUploadKeepsItsTicket(t *testing.T) {
	r := newRig(t, nil, nil)
	for _, caller := range []session.Caller{session.Local, {ID: "user:ann"}} {
		ticket := func() (ticket, id string) {
			t.Helper()
			link, _, err := r.UploadURL(t.Context(), caller, "x", "a.csv", true)
			if err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse(link)
			if err != nil {
				t.Fatal(err)
			}
			id, _, err = signedurl.ParsePath(u.EscapedPath())
			if err != nil {
				t.Fatal(err)
			}
			return u.Query().Get("upload"), id
		}
		broken := func() io.Reader {
			return io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF))
		}
		one, id := ticket()
		if _, err := r.ReceiveUpload(t.Context(), one, id, "a.csv", broken()); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a body that breaks off: %v", err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.ReceiveUpload(gone, one, id, "a.csv", strings.NewReader("x")); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that is gone: %v", err)
		}
		if f, err := r.ReceiveUpload(t.Context(), one, id, "a.csv", strings.NewReader("whole")); err != nil || f.Size != 5 {
			t.Errorf("the second try: %+v, %v", f, err)
		}
		if _, err := r.ReceiveUpload(t.Context(), one, id, "a.csv", strings.NewReader("again")); codeOf(err) != CodeLinkExpired {
			t.Errorf("after a success: %v", err)
		}
		// Closing the session ends its tickets, even while they are in use.
		two, id := ticket()
		closing := io.MultiReader(readerFunc(func([]byte) (int, error) {
			return 0, errors.Join(r.CloseSession(t.Context(), caller, "x"), io.ErrUnexpectedEOF)
		}))
		if _, err := r.ReceiveUpload(t.Context(), two, id, "a.csv", closing); err == nil {
			t.Error("an upload into a session that was closed has succeeded")
		}
		if _, err := r.Upload(t.Context(), caller, UploadRequest{Session: "x", Name: "b", Content: strings.NewReader("")}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReceiveUpload(t.Context(), two, id, "a.csv", strings.NewReader("late")); codeOf(err) != CodeLinkExpired {
			t.Errorf("after the session was closed: %v", err)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestUsersLinksEndWithTheSession: an attacker keeps a user's link until the user reuses the
// session id. The link opens the old file or none, never the new one.
func TestUsersLinksEndWithTheSession(t *testing.T) {
	r := newRig(t, nil, nil)
	ann := session.Caller{ID: "user:ann"}
	upload := func(content string) string {
		t.Helper()
		f, err := r.Upload(t.Context(), ann, UploadRequest{Session: "report", Name: "q3.csv", Content: strings.NewReader(content)})
		if err != nil {
			t.Fatal(err)
		}
		return f.URL
	}
	read := func(link string) string {
		t.Helper()
		content, err := r.follow(t, link)
		if errors.Is(err, fs.ErrNotExist) {
			return "nothing"
		}
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	old := upload("published")
	if err := r.CloseSession(t.Context(), ann, "report"); err != nil {
		t.Fatal(err)
	}
	current := upload("confidential")
	if a, b := read(old), read(current); a != "published" || b != "confidential" {
		t.Errorf("the link of the closed session leads to %q, the new one to %q", a, b)
	}

	// After revocation, no link of the session works.
	if err := r.CloseAndRevoke(t.Context(), ann, "report"); err != nil {
		t.Fatal(err)
	}
	third := upload("third")
	if a, b, c := read(old), read(current), read(third); a != "nothing" || b != "nothing" || c != "third" {
		t.Errorf("after the revocation: %q, %q, %q", a, b, c)
	}
	// Links of a closed session can also be revoked.
	if err := errors.Join(r.CloseSession(t.Context(), ann, "report"), r.CloseAndRevoke(t.Context(), ann, "report")); err != nil {
		t.Fatal(err)
	}
	if got := read(third); got != "nothing" {
		t.Errorf("closed, then revoked: %q", got)
	}
	for what, tt := range map[string]struct {
		caller session.Caller
		id     string
		want   Code
	}{
		"no session":       {ann, "none", CodeSessionNotFound},
		"a bad id":         {ann, "..", CodeInvalidID},
		"the API token's":  {session.Local, "report", CodeLinksPermanent},
		"somebody else's":  {session.Caller{ID: "user:bob"}, "report", CodeSessionNotFound},
		"a link as the id": {ann, r.linkID(ann, "report"), CodeInvalidID},
	} {
		if err := r.CloseAndRevoke(t.Context(), tt.caller, tt.id); codeOf(err) != tt.want {
			t.Errorf("%s: %v, want %s", what, err, tt.want)
		}
	}
}
