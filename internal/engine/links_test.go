package engine

import (
	"errors"
	"io"
	"io/fs"
	"net/url"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/signedurl"
)

// TestUsersLinksEndWithTheSession is the attack: somebody keeps a link of a user's, and waits until the user works under the
// same name again. The link leads to the old file or to none, never to the new one.
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
		u, err := url.Parse(link)
		if err != nil {
			t.Fatal(err)
		}
		id, name, err := signedurl.ParsePath(u.EscapedPath())
		if err == nil {
			err = r.signer.Verify(id, name, u.Query())
		}
		if err != nil {
			t.Fatal(err)
		}
		f, _, err := r.OpenLink(t.Context(), id, name)
		if errors.Is(err, fs.ErrNotExist) {
			return "nothing"
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	old := upload("published")
	if err := r.CloseSession(t.Context(), ann, "report"); err != nil {
		t.Fatal(err)
	}
	current := upload("confidential")
	if a, b := read(old), read(current); a != "published" || b != "confidential" {
		t.Errorf("the link of the closed session leads to %q, the new one to %q", a, b)
	}

	// Revoked, it leads nowhere, and neither does any other that the session had.
	if err := r.CloseAndRevoke(t.Context(), ann, "report"); err != nil {
		t.Fatal(err)
	}
	third := upload("third")
	if a, b, c := read(old), read(current), read(third); a != "nothing" || b != "nothing" || c != "third" {
		t.Errorf("after the revocation: %q, %q, %q", a, b, c)
	}
	// A session that was closed before can have its links revoked, too.
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
