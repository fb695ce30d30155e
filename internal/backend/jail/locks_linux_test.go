package jail

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
)

// TestReserve: no two servers use a uid at the same time, and a server that ends gives up its own.
func TestReserve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ids")
	server := func() *identities {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return &identities{locks: f, known: map[int]bool{}}
	}
	const uid = 2147480000
	a, b := server(), server()
	for _, c := range []struct {
		who  *identities
		uid  int
		want bool
	}{{a, uid, true}, {a, uid, false}, {b, uid, false}, {b, uid + 2, true}, {a, uid + 2, false}, {a, os.Getuid(), false}} {
		if got := c.who.reserve(c.uid); got != c.want {
			t.Errorf("reserve %d: %v", c.uid, got)
		}
	}
	a.forget(uid)
	if !b.reserve(uid) {
		t.Error("a forgotten uid stays reserved")
	}
	b.close()
	if !a.reserve(uid) || !a.reserve(uid+2) {
		t.Error("a server that has ended keeps its uids")
	}
}

// TestNoLocks: servers without a place for locks say so, and name what works.
func TestNoLocks(t *testing.T) {
	const linger = "loginctl enable-linger"
	ids := &identities{}
	if c := ids.check(); c.Status != sandbox.OK || !strings.Contains(c.Detail, linger) {
		t.Errorf("%+v", c)
	}
	ids.locks = os.Stdin
	if c := ids.check(); c.Status != sandbox.OK || strings.Contains(c.Detail, linger) {
		t.Errorf("with locks: %+v", c)
	}
	for _, err := range []*sandbox.Error{errInUse, errNoAgreement} {
		if !strings.Contains(err.Fix, "mcp-code-sandbox sessions stop KEY") || !strings.Contains(err.Fix, "stop that server") {
			t.Error(err)
		}
	}
	if !strings.Contains(errNoAgreement.Fix, linger) {
		t.Error(errNoAgreement)
	}
}
