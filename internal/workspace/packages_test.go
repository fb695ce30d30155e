package workspace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/filelock"
)

// The packages of a session count as its usage, but no list has them.
func TestPackagesAreHidden(t *testing.T) {
	w, root := open(t)
	put(t, filepath.Join(root, "mine.txt"), "x")
	site := filepath.Join(root, PackagesDir, "python/lib")
	if err := os.MkdirAll(site, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(site, "x.py"), "x")
	s, err := w.Scan(t.Context(), ScanOptions{Files: 10})
	if err != nil {
		t.Fatal(err)
	}
	if files, _ := s.Files(); names(files) != "mine.txt" || s.Total() != 1 || s.Usage().Files != 5 {
		t.Errorf("%s, %d files, usage %+v", names(files), s.Total(), s.Usage())
	}
	put(t, filepath.Join(root, PackagesDir+"-of-mine"), "x") // another name
	if files, _, err := w.List(10); err != nil || len(files) != 2 {
		t.Errorf("%v, %v", files, err)
	}
}

// What the tools of a project keep for themselves is in no list.
func TestFilesOfToolsAreHidden(t *testing.T) {
	w, root := open(t)
	for _, name := range []string{"app/index.js", "app/node_modules/a/index.js", "v/lib/python3.11/site-packages/a.py", "app/.venv/pyvenv.cfg", "venv/bin/pip",
		"app/__pycache__/a.pyc", "node_modules/b.js", "my_node_modules/c.js"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(root, name), "x")
	}
	if files, _, err := w.List(10); err != nil || len(files) != 2 {
		t.Errorf("%v, %v", files, err)
	}
	if _, _, err := w.Open("app/node_modules/a/index.js"); err != nil {
		t.Error(err)
	}
	dir := strings.Repeat("a directory of the user/", 10)
	if n := testing.AllocsPerRun(10, func() { isHidden(dir) }); n > 0 {
		t.Errorf("a scan allocates %g times per file", n)
	}
}

// RemoveStale leaves what is locked, and what is behind a link.
func TestRemoveStale(t *testing.T) {
	w, root := open(t)
	outside := t.TempDir()
	for _, dir := range []string{"p/.tmp-old/deep", "p/.tmp-live", "p/other"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(outside, "kept"), "")
	put(t, filepath.Join(root, "p/.tmp-file"), "")
	if err := os.Symlink(outside, filepath.Join(root, "p/.tmp-link")); err != nil {
		t.Fatal(err)
	}
	live, err := os.Open(filepath.Join(root, "p/.tmp-live"))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if err := filelock.TryLock(live); err != nil {
		t.Fatal(err)
	}
	_ = w.RemoveStale(t.Context(), "p", func(name string) bool { return strings.HasPrefix(name, ".tmp-") }) // says that a link is not a directory
	list, _ := w.Names("p", 10)
	if slices.Sort(list); !slices.Equal(list, []string{".tmp-file", ".tmp-link", ".tmp-live", "other"}) {
		t.Errorf("%v", list)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
}

// Stat and Names follow no link.
func TestDirectoriesBehindLinks(t *testing.T) {
	w, root := open(t)
	outside := t.TempDir()
	put(t, filepath.Join(outside, "secret"), "x")
	if err := os.MkdirAll(filepath.Join(root, "a/b"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(root, "a/b/1"), "")
	put(t, filepath.Join(root, "a/b/2"), "")
	for _, link := range [][2]string{{outside, "out"}, {"a", "in"}, {"../..", "up"}} {
		if err := os.Symlink(link[0], filepath.Join(root, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"out", "in/b", "up", "missing", "a/b/1/2", "..", "a/../..", ""} {
		if _, err := w.Stat(dir); err == nil || errors.Is(err, fs.ErrNotExist) != slices.Contains([]string{"missing", "..", "a/../..", ""}, dir) {
			t.Errorf("Stat(%q): %v", dir, err)
		}
		if list, err := w.Names(dir, 10); err == nil {
			t.Errorf("Names(%q): %v", dir, list)
		}
	}
	for name, isDir := range map[string]bool{"a/b": true, "a/b/1": false} {
		if fi, err := w.Stat(name); err != nil || fi.IsDir() != isDir {
			t.Errorf("Stat(%q): %v, %v", name, fi, err)
		}
	}
	list, err := w.Names("a/b", 10)
	if slices.Sort(list); err != nil || !slices.Equal(list, []string{"1", "2"}) {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := w.Names("a/b", 1); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}
