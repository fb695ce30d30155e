package workspace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A scan finds a change however code hides it. The tree has files of the same size and times, in
// directories with the same names.
func TestScanFindsEveryChange(t *testing.T) {
	long := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	deep := strings.Repeat("d/", 100)
	for _, tt := range []struct {
		name   string
		change func(in func(string) string) error
		want   string
	}{
		{"nothing", func(func(string) string) error { return nil }, ""},
		{"read", func(in func(string) string) error { _, err := os.ReadFile(in("a/same")); return err }, ""},
		{"grown", func(in func(string) string) error {
			return os.WriteFile(in("a/same"), []byte("longer than it was"), 0o600)
		}, "a/same"},
		{"same size", func(in func(string) string) error { return os.WriteFile(in("a/same"), []byte("SAME"), 0o600) }, "a/same"},
		{"same size and times", func(in func(string) string) error {
			if err := os.WriteFile(in("a/same"), []byte("SAME"), 0o600); err != nil {
				return err
			}
			return os.Chtimes(in("a/same"), long, long)
		}, "a/same"},
		{"written through a mapping, times set back", func(in func(string) string) error {
			f, err := os.OpenFile(in("a/same"), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			m, err := unix.Mmap(int(f.Fd()), 0, 4, unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			m[0] = 'S'
			if err := unix.Munmap(m); err != nil {
				return err
			}
			return os.Chtimes(in("a/same"), long, long)
		}, "a/same"},
		{"replaced by its twin", func(in func(string) string) error { return os.Rename(in("b/same"), in("a/same")) }, "a/same"},
		{"directories swapped", func(in func(string) string) error {
			return unix.Renameat2(unix.AT_FDCWD, in("a"), unix.AT_FDCWD, in("b"), unix.RENAME_EXCHANGE)
		}, "a/same b/same"},
		{"directory renamed", func(in func(string) string) error { return os.Rename(in("a"), in("c")) }, "c/same"},
		{"renamed", func(in func(string) string) error { return os.Rename(in("a/same"), in("a/other")) }, "a/other"},
		{"another link", func(in func(string) string) error { return os.Link(in("a/same"), in("a/other")) }, "a/other a/same"},
		{"deep below", func(in func(string) string) error { return os.WriteFile(in(deep+"same"), []byte("SAME"), 0o600) }, deep + "same"},
		{"a strange name", func(in func(string) string) error { return os.WriteFile(in("a/\xff\n"), nil, 0o600) }, "a/\xff\n"},
		{"a file becomes a directory", func(in func(string) string) error {
			if err := os.Remove(in("a/same")); err != nil {
				return err
			}
			if err := os.Mkdir(in("a/same"), 0o700); err != nil {
				return err
			}
			return os.WriteFile(in("a/same/same"), []byte("same"), 0o600)
		}, "a/same/same"},
		{"a directory becomes a link to its twin", func(in func(string) string) error {
			if err := os.Rename(in("a"), in("b/a")); err != nil {
				return err
			}
			return os.Symlink("b/a", in("a"))
		}, "b/a/same"},
		{"only removed", func(in func(string) string) error { return os.Remove(in("a/same")) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, root := open(t)
			in := func(name string) string { return filepath.Join(root, name) }
			for _, dir := range []string{"a/", "b/", deep} {
				if err := os.MkdirAll(in(dir), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(in(dir+"same"), []byte("same"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(in(dir+"same"), long, long); err != nil {
					t.Fatal(err)
				}
			}
			before, err := w.Scan(t.Context(), ScanOptions{Index: true})
			if err != nil || before.Indexed() != 3 {
				t.Fatalf("%d files, %v", before.Indexed(), err)
			}
			before.Settle(t.Context())
			if err := tt.change(in); err != nil {
				t.Fatal(err)
			}
			after, err := w.Scan(t.Context(), ScanOptions{Since: before, Index: true, Files: 10})
			if err != nil {
				t.Fatal(err)
			}
			if files, truncated := after.Files(); sorted(files) != tt.want || truncated {
				t.Errorf("changed: %q, truncated %t, want %q", sorted(files), truncated, tt.want)
			}
			again, err := w.Scan(t.Context(), ScanOptions{Since: after, Files: 10})
			if err != nil {
				t.Fatal(err)
			}
			if files, _ := again.Files(); len(files) > 0 {
				t.Errorf("changed again: %q", sorted(files))
			}
		})
	}
}

// A scan of a tree beyond the bounds reports that it is incomplete.
func TestScanOfTooMuch(t *testing.T) {
	w, root := open(t)
	small, err := w.Scan(t.Context(), ScanOptions{Index: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, strings.Repeat("d/", maxDepth+2)), 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(root, "seen"), "")
	deep, err := w.Scan(t.Context(), ScanOptions{Since: small, Index: true, Files: 10})
	if err != nil {
		t.Fatal(err)
	}
	if files, truncated := deep.Files(); names(files) != "seen" || !truncated || deep.Usage() != unmeasured(tooDeep) {
		t.Errorf("too deep: %s, truncated %t, %+v", names(files), truncated, deep.Usage())
	}
	if err := os.RemoveAll(filepath.Join(root, "d")); err != nil {
		t.Fatal(err)
	}
	after, err := w.Scan(t.Context(), ScanOptions{Since: deep, Files: 10})
	if err != nil {
		t.Fatal(err)
	}
	if files, truncated := after.Files(); len(files) > 0 || !truncated {
		t.Errorf("since a scan that did not see all: %s, truncated %t", names(files), truncated)
	}
}

// Long names, deep down, cost the server little.
func TestScanOfLongNames(t *testing.T) {
	w, root := open(t)
	long := strings.Repeat("n", 250)
	dir, err := os.OpenRoot(root)
	for depth := range maxDepth - 2 {
		if depth == 14 { // what can be opened by its name, and would be told of
			for i := range 200 {
				if err := dir.WriteFile(fmt.Sprint(i), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err == nil {
			err = dir.Mkdir(long, 0o700)
		}
		if err == nil {
			dir, err = dir.OpenRoot(long)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
	}
	for i := range 200 {
		name := fmt.Sprint(i)
		if err := errors.Join(dir.Mkdir(name, 0o700), dir.WriteFile(name+"/file", nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s, err := w.Scan(t.Context(), ScanOptions{Index: true, Files: 400})
	if err != nil || s.Indexed() != 400 {
		t.Fatalf("%d files, %v", s.Indexed(), err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("%d bytes for %d files", grown, s.Indexed())
	}
	files, truncated := s.Files()
	total := 0
	for _, f := range files {
		total += len(f.Name)
	}
	if len(files) == 0 || total > maxPaths || !truncated {
		t.Errorf("told of %d files, in %d bytes, truncated %t", len(files), total, truncated)
	}
}

func sorted(files []File) string {
	all := make([]string, 0, len(files))
	for _, f := range files {
		all = append(all, f.Name)
	}
	slices.Sort(all) // newest first is not what these tests are about
	return strings.Join(all, " ")
}

// Benchmark of what a run pays for files that it does not touch.
func BenchmarkScan(b *testing.B) {
	for _, n := range []int{0, 100, 10_000} {
		root := filepath.Join(b.TempDir(), "files")
		for i := range max(1, n/100) {
			dir := filepath.Join(root, fmt.Sprintf("d%d", i))
			if err := os.MkdirAll(dir, 0o700); err != nil {
				b.Fatal(err)
			}
			for j := range min(n, 100) {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%d.csv", j)), nil, 0o600); err != nil {
					b.Fatal(err)
				}
			}
		}
		w, err := Open(root, Owner{UID: -1, GID: -1})
		if err != nil {
			b.Fatal(err)
		}
		defer w.Close()
		before, err := w.Scan(b.Context(), ScanOptions{Index: true})
		if err != nil {
			b.Fatal(err)
		}
		for _, kind := range []struct {
			name string
			opt  ScanOptions
		}{{"newest", ScanOptions{Files: 200}}, {"changes", ScanOptions{Files: 200, Since: before, Index: true}}} {
			b.Run(fmt.Sprintf("%s/%d", kind.name, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := w.Scan(b.Context(), kind.opt); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
