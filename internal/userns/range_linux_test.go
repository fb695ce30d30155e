package userns

import (
	"errors"
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

// TestFixRange: the ids that doctor suggests belong to no account, neither as uids nor as gids.
func TestFixRange(t *testing.T) {
	for _, tc := range []struct{ uids, gids, want string }{
		{"", "", "100000-165535"},
		{"bob:100000:65536\n", "", "165536-231071"},
		{"bob:100000:65536\n", "bob:100000:65536\neve:300000:10\n", "300010-365545"},
		{"bob:1:9\nlow:500:1000\nada:150000:1", "", "150001-215536"},
		{"bob\n:::\nbob:x:y\nbob:-5:3\nbob:5:-3\nbob:4294967290:65536\nbob:9223372036854775807:9223372036854775807\n", "", "100000-165535"},
	} {
		dir := t.TempDir()
		uids, gids := filepath.Join(dir, "subuid"), filepath.Join(dir, "subgid")
		if err := errors.Join(os.WriteFile(uids, []byte(tc.uids), 0o600), os.WriteFile(gids, []byte(tc.gids), 0o600)); err != nil {
			t.Fatal(err)
		}
		want := "sudo usermod --add-subuids " + tc.want + " --add-subgids " + tc.want + " ada"
		if got := fixRange("ada", uids, gids, filepath.Join(dir, "missing")); got != want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

// TestMayChown: the root of an outer namespace may give away files of the ids in it.
func TestMayChown(t *testing.T) {
	for _, tc := range []struct {
		name     string
		euid     int
		inside   bool
		uid, gid int
		want     bool
	}{
		{"root, of anybody", 0, false, overflowID, overflowID, true},
		{"inside, of the user", 0, true, 0, 0, true},
		{"inside, of a sandbox", 0, true, 20000, 20000, true},
		{"inside, of another range", 0, true, overflowID, overflowID, false},
		{"inside, of another range of gids", 0, true, 20000, overflowID, false},
		{"outside, of the user", 1000, false, 1000, 100, true},
		{"outside, of a sandbox", 1000, false, 120000, 120000, false},
	} {
		if got := mayChown(tc.euid, tc.inside, tc.uid, tc.gid); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	if fi, err := os.Stat(t.TempDir()); err != nil || !MayChown(fi) {
		t.Error("an own directory", err)
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
