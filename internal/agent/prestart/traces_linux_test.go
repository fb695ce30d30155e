package prestart

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestEmpty: everything in the directory goes, and nothing that a link points at.
func TestEmpty(t *testing.T) {
	outside := t.TempDir()
	keep := filepath.Join(outside, "keep")
	if err := os.WriteFile(keep, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.Symlink(outside, "link"))
	do(os.Symlink("/", "root"))
	do(os.Symlink("link", ".moved-1"))
	do(unix.Mkfifo("pipe", 0))
	do(os.WriteFile("file", nil, 0))
	for i := range 1000 { // longer than a path can be
		name := fmt.Sprint("file", i%2)
		do(os.WriteFile(name, nil, 0))
		do(os.Mkdir("deep", 0o700))
		do(unix.Chdir("deep"))
	}
	do(os.Symlink(outside, "link"))
	do(os.Chmod(".", 0))
	do(unix.Chdir(dir))
	do(os.Chmod("deep", 0))
	do(os.Chmod(".", 0))

	empty(dir)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if fi, err := os.Stat(keep); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("a file that a link pointed at: %v, %v", fi, err)
	}

	do(os.Symlink(outside, filepath.Join(dir, "instead")))
	empty(filepath.Join(dir, "instead"))
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("a link in the directory's place was followed: %v", err)
	}
}
