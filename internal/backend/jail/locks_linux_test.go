package jail

import (
	"os"
	"path/filepath"
	"testing"
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
