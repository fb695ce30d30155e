package userns

import (
	"os"
	"os/user"
	"path/filepath"
	"testing"
)

// TestSubordinate: only a range of the user that is large enough counts.
func TestSubordinate(t *testing.T) {
	ada := &user.User{Username: "ada", Uid: "1000"}
	for text, want := range map[string]int64{
		"":                       0,
		"ada:100000:65536\n":     100000,
		"1000:200000:65535\n":    200000,
		"bob:100000:65536\n":     0,
		"adam:100000:65536\n":    0,
		"ada:100000:1000\n":      0,
		"ada:0:65536\n":          0, // root
		"ada:-5:65536\n":         0,
		"ada:x:y\nada\n:::\n":    0,
		"ada:1:9\nada:7:70000\n": 7,
	} {
		file := filepath.Join(t.TempDir(), "subuid")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, ok := subordinate(file, ada); ok != (want != 0) || ok && got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, ok, want)
		}
	}
	if _, ok := subordinate(filepath.Join(t.TempDir(), "missing"), ada); ok {
		t.Error("a missing file has a range")
	}
}

// TestAdoptForged: a marker is believed only in the namespace that it names, and never makes Enter
// try again.
func TestAdoptForged(t *testing.T) {
	defer func(s Status, u, g int) { status, uid, gid = s, u, g }(status, uid, gid)
	for _, marker := range []string{"x", "{}", `{"NS":1,"FD":0,"UID":7,"GID":7}`} {
		status = Status{}
		Adopt(marker)
		if status.Inside || status.Problem == nil || UID() != os.Geteuid() {
			t.Errorf("%s: %+v, uid %d", marker, status, UID())
		}
		before := status
		Enter(nil, nil, nil) // would start this test again
		if status != before {
			t.Errorf("%s: Enter tries again: %+v", marker, status)
		}
	}
}
