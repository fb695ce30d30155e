package workspace

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// plants are what hostile code can leave in its workspace, each made at path. The file "secret" is
// beside the workspace.
var plants = []struct {
	name  string
	plant func(path string) error
}{
	{"link out", func(p string) error { return os.Symlink("../secret", p) }},
	{"absolute link out", func(p string) error { return os.Symlink("/etc/passwd", p) }},
	{"link to a directory out", func(p string) error { return os.Symlink("..", p) }},
	{"link inside", func(p string) error { return os.Symlink("innocent", p) }},
	{"dangling link", func(p string) error { return os.Symlink("missing", p) }},
	{"link to itself", func(p string) error { return os.Symlink(filepath.Base(p), p) }},
	{"FIFO", func(p string) error { return unix.Mkfifo(p, 0o666) }},
	{"socket", func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o666, 0) }},
	{"character device", func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) }}, // zero
	{"block device", func(p string) error { return unix.Mknod(p, unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))) }},
}

func TestPlants(t *testing.T) {
	for _, tt := range plants {
		t.Run(tt.name, func(t *testing.T) {
			w, dir := open(t)
			secret := filepath.Join(filepath.Dir(dir), "secret")
			put(t, secret, "secret")
			put(t, filepath.Join(dir, "innocent"), "innocent")
			trap := filepath.Join(dir, "trap")
			if err := tt.plant(trap); errors.Is(err, unix.EPERM) {
				t.Skipf("making a %s needs root", tt.name)
			} else if err != nil {
				t.Fatal(err)
			}

			for _, name := range []string{"trap", "trap/secret", "trap/files/innocent"} {
				if s, err := read(w, name); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("reading %s gave %q, %v", name, s, err)
				}
			}
			if files, truncated, err := w.List(10); names(files) != "innocent" || truncated || err != nil {
				t.Errorf("listed: %s, %v, %v", names(files), truncated, err)
			}
			if u, err := w.Usage(t.Context(), Usage{}); u.Files != 2 || err != nil {
				t.Errorf("Usage = %+v, %v", u, err)
			}

			if _, err := w.Write("trap", strings.NewReader("new"), WriteOptions{}); !errors.Is(err, ErrExists) {
				t.Errorf("writing over it: %v", err)
			}
			var ne *NameError
			if _, err := w.Write("trap/secret", strings.NewReader("new"), WriteOptions{Overwrite: true}); !errors.As(err, &ne) {
				t.Errorf("writing under it: %v", err)
			}
			if _, err := w.Write("trap", strings.NewReader("new"), WriteOptions{Overwrite: true}); err != nil {
				t.Errorf("overwriting it: %v", err)
			}
			if s, err := read(w, "trap"); s != "new" || err != nil {
				t.Errorf("after overwriting: %q, %v", s, err)
			}

			if err := errors.Join(os.Remove(trap), tt.plant(trap)); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"trap/secret", "trap/files/innocent"} {
				if err := w.Remove(name); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("removing %s: %v", name, err)
				}
			}
			if err := w.Remove("trap"); err != nil {
				t.Errorf("removing it: %v", err)
			}
			if got := onHost(t, filepath.Dir(dir)); got != "files files/innocent secret" {
				t.Errorf("left: %s", got)
			}
			if b, _ := os.ReadFile(secret); string(b) != "secret" {
				t.Errorf("the file outside is now %q", b)
			}
		})
	}
}

// TestHiddenFromServer: what a server without the files' ids cannot read is not measured, and it
// says why.
func TestHiddenFromServer(t *testing.T) {
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "only root can give files away")
	}
	w, dir := open(t)
	closed := filepath.Join(dir, "closed")
	if err := errors.Join(os.Mkdir(closed, 0o700), os.Chown(closed, 70000, 70000)); err != nil {
		t.Fatal(err)
	}
	var u Usage
	var err error
	proc.OnNewThread(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err = unix.Capset(&header, &none[0]); err == nil { // of this thread only
			u, err = w.Usage(t.Context(), Usage{})
		}
	})
	if err != nil || u.Unmeasured != string(hidden) {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestHardLinks(t *testing.T) {
	w, dir := open(t)
	put(t, filepath.Join(dir, "a"), strings.Repeat("x", 100_000))
	one, err := w.Usage(t.Context(), Usage{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if two, err := w.Usage(t.Context(), Usage{}); two != (Usage{Bytes: one.Bytes, Files: 2}) || err != nil {
		t.Errorf("Usage = %+v, %v; a file with two links occupies %d bytes", two, err, one.Bytes)
	}
	if s, err := read(w, "b"); len(s) != 100_000 || err != nil {
		t.Errorf("read %d bytes, %v", len(s), err)
	}
	// Overwriting one name must not write through to the other.
	if _, err := w.Write("b", strings.NewReader("new"), WriteOptions{Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	if s, _ := read(w, "a"); len(s) != 100_000 {
		t.Errorf("the other name has %d bytes now", len(s))
	}
}

func TestSparseFileCountsWhatItOccupies(t *testing.T) {
	w, dir := open(t)
	put(t, filepath.Join(dir, "sparse"), "x")
	if err := os.Truncate(filepath.Join(dir, "sparse"), 1<<40); err != nil {
		t.Skip(err)
	}
	if u, err := w.Usage(t.Context(), Usage{}); u.Bytes > 1<<20 || err != nil {
		t.Errorf("Usage = %+v, %v", u, err)
	}
}

// While a name flips between a good and an evil file, nothing outside is read or written, and
// nothing blocks.
func TestSwapRaces(t *testing.T) {
	const rounds = 3000
	for _, tt := range []struct {
		desc string
		name string // of the file accessed; its first segment flips
		evil func(path string) error
	}{
		{"file and link out", "x", func(p string) error { return os.Symlink("../out/f", p) }},
		{"file and FIFO", "x", func(p string) error { return unix.Mkfifo(p, 0o666) }},
		{"directory and link out", "x/f", func(p string) error { return os.Symlink("../out", p) }},
		{"directory and link inside", "x/f", func(p string) error { return os.Symlink("inner", p) }},
		{"directory and FIFO", "x/f", func(p string) error { return unix.Mkfifo(p, 0o666) }},
	} {
		t.Run(tt.desc, func(t *testing.T) {
			w, dir := open(t)
			base := filepath.Dir(dir)
			put(t, filepath.Join(base, "out/f"), "secret")
			put(t, filepath.Join(dir, "inner/f"), "secret")
			x, other := filepath.Join(dir, "x"), filepath.Join(dir, "other")
			put(t, filepath.Join(dir, tt.name), "good")
			if err := tt.evil(other); err != nil {
				t.Fatal(err)
			}

			var stop atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				for !stop.Load() {
					_ = unix.Renameat2(unix.AT_FDCWD, x, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
				}
			})
			reads := 0
			for i := range rounds {
				s, err := read(w, tt.name)
				if err == nil && s != "good" && s != "new" || err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatalf("read %q, %v", s, err)
				}
				if err == nil {
					reads++
				}
				if i%10 != 0 {
					continue
				}
				if _, _, err := w.List(10); err != nil {
					t.Fatalf("List: %v", err)
				}
				if _, err := w.Usage(t.Context(), Usage{}); err != nil {
					t.Fatalf("Usage: %v", err)
				}
				_, _ = w.Write(tt.name, strings.NewReader("new"), WriteOptions{Overwrite: true})
				// The write may have replaced the evil one: plant it again.
				if err := tt.evil(other + "2"); err != nil {
					t.Fatal(err)
				}
				if os.Rename(other+"2", other) != nil {
					_ = os.Remove(other + "2")
				}
			}
			if reads == 0 || reads == rounds {
				t.Errorf("%d of %d reads succeeded: there was no race", reads, rounds)
			}
			stop.Store(true)
			wg.Wait()
			if b, err := os.ReadFile(filepath.Join(base, "out/f")); string(b) != "secret" {
				t.Errorf("the file outside is now %q, %v", b, err)
			}
			if entries, _ := os.ReadDir(filepath.Join(base, "out")); len(entries) != 1 {
				t.Errorf("outside there is now %v", entries)
			}
			if got := onHost(t, dir); strings.Contains(got, tempPrefix) {
				t.Errorf("left behind: %s", got)
			}
		})
	}
}

// A root server gives what it makes to the sandbox's user, and leaves the owner of everything else.
func TestOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	_, dir := open(t)
	put(t, filepath.Join(dir, "kept/file"), "")
	w, err := Open(dir, Owner{UID: 54321, GID: 54322})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Write("kept/a/b/f", strings.NewReader("x"), WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for path, uid := range map[string]uint32{"kept": 0, "kept/file": 0, "kept/a": 54321, "kept/a/b": 54321, "kept/a/b/f": 54321} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, path), &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != uid || uid != 0 && st.Gid != uid+1 {
			t.Errorf("%s belongs to %d:%d, want %d", path, st.Uid, st.Gid, uid)
		}
		if st.Mode&0o077 != 0 && uid != 0 {
			t.Errorf("%s has mode %o", path, st.Mode)
		}
	}
}

// If server and sandbox share a uid, a directory without permissions hides nothing from the quota.
func TestHiddenDirectories(t *testing.T) {
	w, dir := open(t)
	put(t, filepath.Join(dir, "a/b/big"), strings.Repeat("x", 1<<20))
	asOrdinaryUser(t, dir, func(t *testing.T) {
		hide := func() {
			for _, path := range []string{"a/b", "a", ""} {
				if err := os.Chmod(filepath.Join(dir, path), 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		hide()
		if u, err := w.Usage(t.Context(), Usage{}); u.Bytes < 1<<20 || u.Files != 3 || err != nil {
			t.Errorf("Usage = %+v, %v", u, err)
		}
		hide()
		if files, truncated, err := w.List(10); names(files) != "a/b/big" || truncated || err != nil {
			t.Errorf("List = %s, %v, %v", names(files), truncated, err)
		}
		hide()
		if s, err := read(w, "a/b/big"); len(s) != 1<<20 || err != nil {
			t.Errorf("read %d bytes, %v", len(s), err)
		}
		hide()
		if _, err := w.Write("a/b/c/d", strings.NewReader("x"), WriteOptions{}); err != nil {
			t.Error(err)
		}
		hide()
		if err := w.Remove("a/b/c/d"); err != nil {
			t.Error(err)
		}
		hide()
		if again, err := Open(dir, asIs); err != nil {
			t.Error(err)
		} else {
			again.Close()
		}
	})
}

// asOrdinaryUser runs a subtest as an ordinary user, who owns everything in dir, to the file
// system.
func asOrdinaryUser(t *testing.T, dir string, test func(t *testing.T)) {
	const nobody = 65534
	guard := filepath.Join(filepath.Dir(dir), "guard")
	if os.Getuid() == 0 {
		if err := os.WriteFile(guard, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Chown(path, nobody, nobody))
		})
		for up := filepath.Dir(dir); up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
			err = errors.Join(err, os.Chmod(up, 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Run("as an ordinary user", func(t *testing.T) {
		if os.Getuid() == 0 {
			runtime.LockOSThread() // for good: the thread ends with this goroutine
			if _, err := unix.SetfsuidRetUid(nobody); err != nil {
				t.Fatal(err)
			}
			if _, err := os.ReadFile(guard); !errors.Is(err, fs.ErrPermission) {
				t.Fatalf("still privileged: %v", err)
			}
		}
		test(t)
	})
}

// TestAdopt: a workspace of another owner goes to the new one, whatever was planted in it, and
// nothing outside does.
func TestAdopt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	for _, f := range []string{outside, filepath.Join(dir, "plain"), filepath.Join(dir, "sub", "deep")} {
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"link": outside, "up": filepath.Dir(outside), "sub/dangling": filepath.Join(t.TempDir(), "missing")} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := Open(dir, Owner{UID: 61000, GID: 61001})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if owned, err := w.Owned(); owned || err != nil {
		t.Fatalf("owned before: %v, %v", owned, err)
	}
	if err := w.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if owned, err := w.Owned(); !owned || err != nil {
		t.Errorf("owned after: %v, %v", owned, err)
	}
	for _, name := range []string{".", "plain", "sub", "sub/deep", "link", "up", "sub/dangling", "fifo"} {
		fi, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != 61000 || st.Gid != 61001 {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
	for _, path := range []string{outside, filepath.Dir(outside)} {
		fi, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != 0 {
			t.Errorf("what a link leads to was given away to %d", st.Uid)
		}
	}
}

// A leased file does not vanish: an open asks for the lease and gets the file, or ErrLeased.
func TestLeasedFile(t *testing.T) {
	w, dir := open(t)
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	holder, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGIO)
	defer signal.Stop(asked)
	lease := func() {
		t.Helper()
		if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
			t.Fatal(err)
		}
	}

	lease()
	if _, _, err := w.Open("f"); !errors.Is(err, ErrLeased) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a lease that is held: %v", err)
	}
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	select {
	case <-asked:
	default:
	}
	lease()
	released := make(chan struct{})
	go func() {
		defer close(released)
		<-asked
		_, _ = unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}()
	f, fi, err := w.Open("f")
	if err != nil || fi.Size() != 7 {
		t.Fatalf("a lease that is given up: %v", err)
	}
	f.Close()
	<-released
}

// RemoveStale does not block on a FIFO, and needs few descriptors however deep a tree is.
func TestRemoveStaleHostile(t *testing.T) {
	w, dir := open(t)
	isTemp := func(name string) bool { return strings.HasPrefix(name, ".tmp-") }
	trap := filepath.Join(dir, "p", ".tmp-a")
	if err := os.MkdirAll(trap, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "p", ".tmp-fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(trap)
	for range 3000 {
		if err != nil {
			t.Fatal(err)
		}
		above := root
		if err = above.Mkdir("d", 0o700); err == nil {
			root, err = above.OpenRoot("d")
		}
		above.Close()
	}
	root.Close()
	limitDescriptors(t, 100)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.RemoveStale(ended, "p", isTemp); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	_ = w.RemoveStale(t.Context(), "p", isTemp) // says that a FIFO is not a directory
	if list, err := w.Names("p", 10); err != nil || len(list) != 1 || list[0] != ".tmp-fifo" {
		t.Errorf("left: %v, %v", list, err)
	}

	// A directory becomes a FIFO while it is being emptied.
	for range 60 {
		x, y := filepath.Join(trap, "x"), filepath.Join(trap, "y")
		if err := errors.Join(os.MkdirAll(x, 0o700), unix.Mkfifo(y, 0o600)); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for unix.Renameat2(unix.AT_FDCWD, x, unix.AT_FDCWD, y, unix.RENAME_EXCHANGE) == nil {
			}
		})
		for err := error(nil); !errors.Is(err, fs.ErrNotExist); _, err = os.Lstat(trap) {
			_ = w.RemoveStale(t.Context(), "p", isTemp)
		}
		wg.Wait()
	}
}

// limitDescriptors limits this process to n open files during a test.
func limitDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) })
}
