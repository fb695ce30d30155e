package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

var asIs = Owner{UID: -1, GID: -1}

// open returns a workspace and its directory.
func open(t *testing.T) (*Workspace, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "files")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return reopen(t, dir), dir
}

func reopen(t *testing.T, dir string) *Workspace {
	t.Helper()
	w, err := Open(dir, asIs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(w *Workspace, name string) (string, error) {
	f, _, err := w.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return string(b), err
}

func names(files []File) string {
	var s []string
	for _, f := range files {
		s = append(s, f.Name)
	}
	return strings.Join(s, " ")
}

// onHost lists everything in the directory, as the host sees it.
func onHost(t *testing.T, dir string) string {
	t.Helper()
	var s []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir {
			s = append(s, filepath.ToSlash(strings.TrimPrefix(path, dir+string(filepath.Separator))))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(s, " ")
}

func TestWriteReadListRemove(t *testing.T) {
	w, dir := open(t)
	for _, name := range []string{"/data/data.csv", "plots/2024/a.png", "-rf", "图 📈.txt"} {
		f, err := w.Write(name, strings.NewReader("content of "+name), WriteOptions{MaxBytes: 100})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := read(w, f.Name); got != "content of "+name || err != nil || f.Size != int64(len(got)) {
			t.Errorf("%s: read %q, %v; File %+v", name, got, err, f)
		}
	}
	if got := onHost(t, dir); got != "-rf data.csv plots plots/2024 plots/2024/a.png 图 📈.txt" {
		t.Errorf("the directory holds %s", got)
	}

	at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, age := range map[string]int{"-rf": 2, "data.csv": 1, "plots/2024/a.png": 2, "图 📈.txt": 0} {
		mtime := at.Add(-time.Duration(age) * time.Second)
		if err := os.Chtimes(filepath.Join(dir, name), mtime, mtime); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		limit     int
		want      string
		truncated bool
	}{
		{0, "图 📈.txt data.csv -rf plots/2024/a.png", false},
		{4, "图 📈.txt data.csv -rf plots/2024/a.png", false},
		{3, "图 📈.txt data.csv -rf", true},
		{1, "图 📈.txt", true},
	} {
		files, truncated, err := w.List(tt.limit)
		if names(files) != tt.want || truncated != tt.truncated || err != nil {
			t.Errorf("List(%d) = %s, %v, %v", tt.limit, names(files), truncated, err)
		}
	}
	if u, err := w.Usage(t.Context(), Usage{}); u.Files != 6 || u.Bytes <= 0 || err != nil {
		t.Errorf("Usage = %+v, %v", u, err)
	}

	for _, tt := range []struct {
		most, files int
		more        bool
	}{{100, 4, false}, {6, 4, false}, {0, 0, true}} {
		if files, bytes, more, err := w.Count(t.Context(), tt.most); files != tt.files ||
			more != tt.more || (bytes > 0) != (files > 0) || err != nil {
			t.Errorf("Count(%d) = %d, %d, %v, %v", tt.most, files, bytes, more, err)
		}
	}

	var ne *NameError
	if err := w.Remove("plots/2024"); !errors.As(err, &ne) {
		t.Errorf("removing a directory: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "plots/2024"), 0o500); err != nil { // hostile code can do that
		t.Fatal(err)
	}
	held, _, err := w.Open("plots/2024/a.png")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := w.Remove("plots/2024/a.png"); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(held); len(b) == 0 || err != nil {
		t.Errorf("what was open: %q, %v", b, err)
	}
	if err := w.Remove("plots/2024"); !errors.As(err, &ne) {
		t.Errorf("removing an empty directory: %v", err)
	}
	for _, name := range []string{"", ".", "..", "../files/data.csv", "/etc/passwd", "plots//2024", "data.csv/x", "missing/x"} {
		if err := w.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("removing %q: %v", name, err)
		}
	}
	if err := w.Remove("plots/2024/a.png"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removing twice: %v", err)
	}
}

func TestWriteRefusals(t *testing.T) {
	broken := errors.New("connection lost")
	for _, tt := range []struct {
		desc string
		name string
		body io.Reader
		opt  WriteOptions
		want error
		text string
	}{
		{"exists", "old.csv", strings.NewReader("new"), WriteOptions{}, ErrExists, "old.csv already exists. Set overwrite=true to replace."},
		{"directory", "sub", strings.NewReader("new"), WriteOptions{Overwrite: true}, ErrExists, "sub already exists as a directory. Choose another name."},
		{"too large", "x/y/big", strings.NewReader("123456"), WriteOptions{MaxBytes: 5}, ErrTooLarge, "x/y/big is larger than the limit of 5 bytes."},
		{"endless", "big", endless{}, WriteOptions{MaxBytes: 1 << 20}, ErrTooLarge, ""},
		{"endless within quota", "big", endless{}, WriteOptions{Quota: Usage{Bytes: 1 << 20}}, ErrQuota, "the workspace is full: it may hold 1048576 bytes. Remove files that are no longer needed"},
		{"no bytes left", "x/small", strings.NewReader("1"), WriteOptions{Quota: Usage{Bytes: 1}}, ErrQuota, ""},
		{"no files left", "x/y/z", strings.NewReader("1"), WriteOptions{Quota: Usage{Files: 5}}, ErrQuota, ""},
		{"broken body", "x/y/z", io.MultiReader(strings.NewReader("1"), iotest.ErrReader(broken)), WriteOptions{}, broken, ""},
		{"broken overwrite", "old.csv", iotest.ErrReader(broken), WriteOptions{Overwrite: true}, broken, ""},
		{"under a file", "old.csv/x", strings.NewReader("1"), WriteOptions{}, errName, ""},
		{"traversal", "../x", strings.NewReader("1"), WriteOptions{}, errName, ""},
	} {
		t.Run(tt.desc, func(t *testing.T) {
			w, dir := open(t)
			put(t, filepath.Join(dir, "old.csv"), "old")
			put(t, filepath.Join(dir, "sub/file"), "kept")
			before := onHost(t, filepath.Dir(dir))
			_, err := w.Write(tt.name, tt.body, tt.opt)
			var ne *NameError
			if !errors.Is(err, tt.want) && !(tt.want == errName && errors.As(err, &ne)) {
				t.Errorf("error is %v, want %v", err, tt.want)
			}
			if tt.text != "" && (err == nil || err.Error() != tt.text) {
				t.Errorf("message is %q, want %q", err, tt.text)
			}
			if after := onHost(t, filepath.Dir(dir)); after != before {
				t.Errorf("left behind: %s; was %s", after, before)
			}
			if got, err := read(w, "old.csv"); got != "old" {
				t.Errorf("old.csv is %q, %v", got, err)
			}
		})
	}
}

var errName = errors.New("a *NameError")

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// In a workspace that is exactly full, a file can be replaced, and none can be added.
func TestQuotaBoundary(t *testing.T) {
	w, _ := open(t)
	opt := WriteOptions{Overwrite: true, Quota: Usage{Files: 2}}
	for _, tt := range []struct {
		name string
		want error
	}{{"a", nil}, {"b", nil}, {"b", nil}, {"c", ErrQuota}, {"d/e", ErrQuota}} {
		if _, err := w.Write(tt.name, strings.NewReader("x"), opt); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// Of many writers without overwrite exactly one succeeds, and a reader sees a complete file or
// none.
func TestWriteIsAtomic(t *testing.T) {
	w, dir := open(t)
	body := func(i int) string { return strings.Repeat(fmt.Sprint(i%10), 100_000) }
	whole := func(s string) bool { return s != "" && s == strings.Repeat(s[:1], 100_000) }
	var wg sync.WaitGroup
	var mu sync.Mutex
	wins := 0
	for i := range 16 {
		wg.Go(func() {
			_, err := w.Write("a/once", strings.NewReader(body(i)), WriteOptions{})
			if err == nil {
				mu.Lock()
				wins++
				mu.Unlock()
			} else if !errors.Is(err, ErrExists) {
				t.Errorf("writer %d: %v", i, err)
			}
			if _, err := w.Write("many", strings.NewReader(body(i)), WriteOptions{Overwrite: true}); err != nil {
				t.Errorf("overwriter %d: %v", i, err)
			}
			for _, name := range []string{"a/once", "many"} {
				if s, err := read(w, name); err != nil || !whole(s) {
					t.Errorf("%s: read %d bytes, %v", name, len(s), err)
				}
			}
		})
	}
	wg.Wait()
	if wins != 1 {
		t.Errorf("%d writers won, want 1", wins)
	}
	if got := onHost(t, dir); got != "a a/once many" {
		t.Errorf("the directory holds %s", got)
	}
}

func TestUploadsInProgressAreHidden(t *testing.T) {
	w, dir := open(t)
	fresh, stale := tempName(), tempName()
	put(t, filepath.Join(dir, fresh), "being written")
	put(t, filepath.Join(dir, stale), "its server died")
	put(t, filepath.Join(dir, ".upload-mine"), "a user's own")
	old := time.Now().Add(-2 * staleAfter)
	if err := os.Chtimes(filepath.Join(dir, stale), old, old); err != nil {
		t.Fatal(err)
	}
	if files, _, err := w.List(10); names(files) != ".upload-mine" || err != nil {
		t.Errorf("List = %s, %v", names(files), err)
	}
	if u, err := w.Usage(t.Context(), Usage{}); u.Files != 3 || err != nil {
		t.Errorf("they must count: %+v, %v", u, err)
	}
	reopen(t, dir)
	if got := onHost(t, dir); strings.Contains(got, stale) || !strings.Contains(got, fresh) {
		t.Errorf("after opening again: %s", got)
	}
}

func TestUsageBounds(t *testing.T) {
	w, dir := open(t)
	for i := range 20 {
		put(t, filepath.Join(dir, fmt.Sprint("f", i)), strings.Repeat("x", 10_000))
	}
	all, err := w.Usage(t.Context(), Usage{})
	if err != nil || all.Files != 20 {
		t.Fatalf("Usage = %+v, %v", all, err)
	}
	for _, stop := range []Usage{{Files: 5}, {Bytes: all.Bytes / 4}} {
		if u, err := w.Usage(t.Context(), stop); err != nil || !u.Exceeds(stop) || u.Files > 7 {
			t.Errorf("Usage(%+v) = %+v, %v; want an early stop", stop, u, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Usage(ctx, Usage{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}

	// Nested deeper than a walk goes, which must not defeat the quota.
	deep := filepath.Join(dir, strings.Repeat("d/", maxDepth+1))
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if u, err := w.Usage(t.Context(), Usage{}); u != (Usage{Bytes: math.MaxInt64, Files: math.MaxInt, Unmeasured: string(tooDeep)}) || err != nil {
		t.Errorf("too deep: %+v, %v", u, err)
	}
	if files, truncated, err := w.List(100); len(files) != 20 || !truncated || err != nil {
		t.Errorf("too deep: List has %d files, %v, %v", len(files), truncated, err)
	}
	if _, err := w.Write("x", strings.NewReader("x"), WriteOptions{Quota: Usage{Files: 1000}}); !errors.Is(err, ErrQuota) || !strings.Contains(fmt.Sprint(err), "128 levels") {
		t.Errorf("too deep: Write says %v", err)
	}
}

func TestOpenRefusesOddNames(t *testing.T) {
	w, dir := open(t)
	put(t, filepath.Join(dir, "a"), "inside")
	put(t, filepath.Join(filepath.Dir(dir), "outside"), "secret")
	for _, name := range []string{
		"", ".", "..", "/", "../outside", "a/../../outside", "./a", "a/", "/a", "a//b", "a\x00", "a/b", "%2e%2e/outside", "%252e%252e/outside",
		"/etc/passwd", strings.Repeat("a", 4096), strings.Repeat("a/", 4096) + "a", "missing", "mis\nsing", "-missing", "\xff",
	} {
		if s, err := read(w, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open(%.40q) = %q, %v", name, s, err)
		}
		if err := w.Remove(name); err == nil {
			t.Errorf("Remove(%.40q) succeeded", name)
		}
	}
	w.Close()
	if _, _, err := w.Open("a"); errors.Is(err, fs.ErrNotExist) || err == nil {
		t.Errorf("a closed workspace says %v", err)
	}
}

func TestReaderGetsSeekableFile(t *testing.T) {
	w, dir := open(t)
	put(t, filepath.Join(dir, "a"), "0123456789")
	f, fi, err := w.Open("a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var buf bytes.Buffer
	if _, err := f.Seek(5, io.SeekStart); err != nil {
		t.Error(err)
	}
	if _, err := buf.ReadFrom(f); buf.String() != "56789" || fi.Size() != 10 || err != nil {
		t.Errorf("range read %q of %d bytes, %v", &buf, fi.Size(), err)
	}
}
