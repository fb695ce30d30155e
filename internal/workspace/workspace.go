// Package workspace gives the server safe access to the files of one session.
//
// Hostile code shares the directory. It may plant links, FIFOs, sockets and devices, hide
// directories from their owner, and swap any of them at any moment. So every access goes through an
// [os.Root], which never leaves the directory. It follows no link, not even inside, opens nothing
// that could block, and reads regular files only.
//
// The package knows files. It knows no sessions, callers, links or tools.
package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/filelock"
	"mcp-code-sandbox/internal/untrusted"
)

// File is a regular file of a workspace.
type File struct {
	Name    string // slash-separated, relative; chosen by hostile code unless it passed [CleanName]
	Size    int64
	ModTime time.Time
}

// Owner owns the files and directories that the server makes. The zero value is root; a negative id
// leaves the owner as it is. If a workspace's directory belongs to an id from First to before End,
// that is its owner: a backend has given it to a sandbox.
type Owner struct {
	UID, GID   int
	First, End int
}

func (o Owner) chown(f *os.File) error {
	if o.UID < 0 && o.GID < 0 {
		return nil
	}
	return f.Chown(o.UID, o.GID)
}

// Workspace is the directory of one session. Its methods are safe for concurrent use.
type Workspace struct {
	root  *os.Root
	self  *os.File // the directory itself, see regain
	owner Owner

	writes atomic.Uint64 // see Writes
}

// Open opens the workspace in dir. The sandbox must not be able to reach the parent of dir. It
// removes unfinished uploads of a server that died.
func Open(dir string, owner Owner) (*Workspace, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrPermission) && os.Chmod(dir, 0o700) == nil { // see regain
		root, err = os.OpenRoot(dir)
	}
	if err != nil {
		return nil, err
	}
	self, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	w := &Workspace{root: root, self: self, owner: owner}
	w.sweep(time.Now().Add(-staleAfter))
	return w, nil
}

// Adopt gives everything in the workspace to its owner, if another backend or another mapping of
// users has made it. No code may run in the workspace meanwhile.
func (w *Workspace) Adopt(ctx context.Context) error {
	if w.owner.UID < 0 && w.owner.GID < 0 {
		return nil
	}
	err := w.walk(ctx, math.MaxInt, func(dir string, fi fs.FileInfo) error {
		if w.owner.owns(fi) {
			return nil
		}
		return w.root.Lchown(dir+fi.Name(), w.owner.UID, w.owner.GID)
	})
	if err != nil && !isIncomplete(err) { // entries too deep for a walk keep their owner
		return err
	}
	return w.owner.chown(w.self) // last, so that Owned implies that the rest is done
}

// Owned reports whether the workspace's directory belongs to its owner.
func (w *Workspace) Owned() (bool, error) {
	fi, err := w.self.Stat()
	if err != nil {
		return false, err
	}
	owner := w.owner.of(fi)
	return owner.UID < 0 && owner.GID < 0 || owner.owns(fi), nil
}

// HasNewOwner reports whether the workspace was given to another owner after a scan has begun.
// Then every file differs from what the scan has seen, although nobody has written to it.
func (w *Workspace) HasNewOwner(since *Scan) bool {
	fi, err := w.self.Stat()
	return err == nil && uidOf(fi) != since.uid
}

// give gives a file or directory that the server has made to the owner. If that is or may become a
// sandbox, the server's user must be able to read it: the directory above is closed to all others.
func (w *Workspace) give(f *os.File) error {
	fi, err := w.self.Stat()
	if err != nil {
		return err
	}
	owner := w.owner.of(fi)
	if err := owner.chown(f); err != nil || w.owner.End == 0 {
		return err
	}
	return publish(f)
}

// Publish lets everybody list the workspace who can reach it.
func (w *Workspace) Publish() error { return publish(w.self) }

func publish(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	mode := fi.Mode().Perm() | 0o044
	if fi.IsDir() {
		mode |= 0o011
	}
	return f.Chmod(mode)
}

// Writes returns how many calls of Write and Remove have ended. A Scan that begins afterwards sees
// what they did.
func (w *Workspace) Writes() uint64 { return w.writes.Load() }

// Close closes the workspace. Files that were opened stay open.
func (w *Workspace) Close() error {
	return errors.Join(w.self.Close(), w.root.Close())
}

// Open opens a regular file for reading, without blocking and without following links. Anything
// else is [fs.ErrNotExist]; a file that code keeps leased for another second is [ErrLeased]. Hard
// links are safe: a sandbox can only link what it has inside.
func (w *Workspace) Open(name string) (*os.File, fs.FileInfo, error) {
	f, fi, err := w.open(name)
	if err != nil {
		if !serverFault(err) && err != ErrLeased {
			err = fs.ErrNotExist
		}
		return nil, nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f, fi, nil
}

// ErrLeased says that code holds a lease on a file (F_SETLEASE) and does not give it up. The kernel
// ends the lease within its lease-break-time, so that a later attempt succeeds.
var ErrLeased = errors.New("is held by a program in the sandbox; try again in a minute")

const (
	leaseWait = time.Second // how long an open waits for a lease to be given up
	leasePoll = 10 * time.Millisecond
)

// openLeased opens a file. The first attempt makes the kernel ask the holder of a lease to give it
// up.
func openLeased(dir *os.Root, base string) (*os.File, error) {
	for deadline := time.Now().Add(leaseWait); ; time.Sleep(leasePoll) {
		f, err := dir.OpenFile(base, os.O_RDONLY|openFlags, 0)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return f, err
		}
		if time.Now().After(deadline) {
			return nil, ErrLeased
		}
	}
}

func (w *Workspace) open(name string) (*os.File, fs.FileInfo, error) {
	dir, base, err := w.parent(name)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	// Check before opening: opening a device can have effects. Whatever replaces the file
	// afterwards is opened without blocking and inside the workspace, and used only if it is a
	// regular file.
	fi, err := dir.Lstat(base)
	if err != nil {
		return nil, nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, nil, fs.ErrNotExist
	}
	f, err := openLeased(dir, base)
	if err != nil {
		return nil, nil, err
	}
	fi, err = f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

// Remove removes a file, or a link, FIFO, socket or device in its place; the target of a link
// stays. A directory is a [*NameError]. A missing file, or one behind a link, is [fs.ErrNotExist].
func (w *Workspace) Remove(name string) error {
	defer w.writes.Add(1)
	dir, base, err := w.parent(name)
	if err == nil {
		defer dir.Close()
		var fi fs.FileInfo
		if fi, err = dir.Lstat(base); err == nil && fi.IsDir() {
			return &NameError{Name: name, Problem: "it is a directory; delete the files in it one by one, or remove it with code"}
		}
		if err == nil {
			// If it has become a directory since, this removes it only if it is empty.
			err = dir.Remove(base)
		}
		if errors.Is(err, fs.ErrPermission) && dir.Chmod(".", 0o700) == nil { // see regain
			err = dir.Remove(base)
		}
	}
	if errors.Is(err, errNotDir) {
		err = &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	return err
}

// maxPruned bounds the entries that Prune looks at.
const maxPruned = 10_000

// Prune deletes files in a directory, but not below it: those older than age, and the oldest until
// the others have at most limit bytes. It returns how many it has deleted.
func (w *Workspace) Prune(dir string, limit int64, age time.Duration) (deleted int, err error) {
	defer w.writes.Add(1)
	root, _, err := w.parent(dir + "/file")
	if err != nil {
		return 0, err
	}
	defer root.Close()
	d, err := root.Open(".")
	if err != nil {
		return 0, err
	}
	defer d.Close()
	entries, err := d.Readdir(maxPruned)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	files := slices.DeleteFunc(entries, func(fi fs.FileInfo) bool { return !fi.Mode().IsRegular() })
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, fi := range files {
		if limit -= fi.Size(); limit >= 0 && time.Since(fi.ModTime()) <= age {
			continue
		}
		if err := root.Remove(fi.Name()); err != nil {
			return deleted, err
		}
		deleted++
	}
	return deleted, nil
}

// RemoveStale removes the directories in dir whose names match, unless a process holds the lock of
// one. Code may fill them meanwhile: ctx bounds the time.
func (w *Workspace) RemoveStale(ctx context.Context, dir string, match func(name string) bool) error {
	defer w.writes.Add(1)
	names, err := w.Names(dir, maxPruned)
	if err != nil {
		return err
	}
	root, _, err := w.parent(dir + "/entry")
	if err != nil {
		return err
	}
	defer root.Close()
	var errs []error
	for _, name := range names {
		if match(name) {
			errs = append(errs, removeUnlocked(ctx, root, name))
		}
	}
	return errors.Join(errs...)
}

func removeUnlocked(ctx context.Context, root *os.Root, name string) error {
	dir, err := openDir(root, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := filelock.TryLock(f); err != nil {
		return nil // in use
	}
	if err := emptyTree(ctx, dir); err != nil {
		return err
	}
	return root.Remove(name)
}

// parent opens the directory that holds name, one segment at a time, and returns the last segment.
func (w *Workspace) parent(name string) (dir *os.Root, base string, err error) {
	if strings.ContainsRune(name, 0) {
		return nil, "", fs.ErrNotExist
	}
	segments := strings.Split(name, "/")
	for _, s := range segments {
		if s == "" || s == "." || s == ".." {
			return nil, "", fs.ErrNotExist
		}
	}
	w.regain()
	dir, err = w.root.OpenRoot(".")
	if err != nil {
		return nil, "", err
	}
	last := len(segments) - 1
	for _, s := range segments[:last] {
		sub, err := openDir(dir, s)
		dir.Close()
		if err != nil {
			return nil, "", err
		}
		dir = sub
	}
	return dir, segments[last], nil
}

// errNotDir says that a directory was expected.
var errNotDir = errors.New("not a directory")

// openDir opens the directory segment in dir. A link, even one swapped in meanwhile, is errNotDir.
func openDir(dir *os.Root, segment string) (*os.Root, error) {
	want, err := dir.Lstat(segment)
	if err != nil {
		return nil, err
	}
	if !want.IsDir() {
		return nil, errNotDir
	}
	// "/." makes os.Root open the segment with O_DIRECTORY. Without it, OpenRoot would block on a
	// FIFO that replaced the directory.
	sub, err := dir.OpenRoot(segment + "/.")
	if errors.Is(err, fs.ErrPermission) && dir.Chmod(segment, want.Mode().Perm()|0o700) == nil { // see regain
		sub, err = dir.OpenRoot(segment + "/.")
	}
	if err != nil {
		return nil, err
	}
	if got, err := sub.Stat("."); err != nil || !os.SameFile(want, got) {
		sub.Close()
		return nil, errNotDir
	}
	return sub, nil
}

// regain restores the server's access to the workspace. If server and sandbox share a uid, code can
// hide a directory from both by its mode, and fill it unseen by any quota.
func (w *Workspace) regain() {
	if fi, err := w.self.Stat(); err == nil && fi.Mode().Perm()&0o700 != 0o700 {
		// A failure shows in the access that follows.
		_ = w.self.Chmod(fi.Mode().Perm() | 0o700)
	}
}

// serverFault reports whether an error is the server's own, not one that hostile content can
// provoke.
func serverFault(err error) bool {
	for _, fault := range []error{fs.ErrClosed, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// Uploads in progress are at the top of the workspace, which the sandbox cannot move, under names
// that are not listed.
const (
	tempPrefix = ".upload-"
	tempLen    = len(tempPrefix) + 26 // of rand.Text
	staleAfter = time.Hour            // an upload without a write for this long has lost its connection
)

func tempName() string { return tempPrefix + rand.Text() }

func isTemp(name string) bool { return len(name) == tempLen && strings.HasPrefix(name, tempPrefix) }

// sweep removes temporary files last written before a time. It ignores errors: nobody sees such a
// file.
func (w *Workspace) sweep(before time.Time) {
	w.regain()
	seen := 0
	for fi, err := range entries(w.root) {
		if seen++; err != nil || seen > maxEntries {
			return
		}
		if isTemp(fi.Name()) && !fi.IsDir() && fi.ModTime().Before(before) {
			_ = w.root.Remove(fi.Name())
		}
	}
}

// describe returns an error about name that wraps a sentinel and says what to do.
func describe(name string, sentinel error, rest string, args ...any) error {
	return fmt.Errorf("%s %w"+rest, append([]any{untrusted.Clip(name, maxQuoted), sentinel}, args...)...)
}
