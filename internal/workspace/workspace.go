// Package workspace gives the server safe access to the files of one session.
//
// The directory is shared with hostile code that may plant links, FIFOs, sockets and devices, hide
// directories from their owner, and swap any of them at any moment. So every access goes through
// an [os.Root], which never leaves the directory; no link is ever followed, not even one that stays inside; nothing
// that could block is opened; only regular files are read; and owners are changed without following anything.
//
// The package knows files. It knows no sessions, callers, links or tools.
package workspace

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/untrusted"
)

// File is a regular file of a workspace.
type File struct {
	Name    string // slash-separated, relative to the workspace; chosen by hostile code unless it passed [CleanName]
	Size    int64
	ModTime time.Time
}

// Owner is who owns the files and directories that the server makes. The zero value means root;
// a negative id means: leave it as it is.
type Owner struct {
	UID, GID int
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

// Open opens the workspace in dir, which must exist and whose parent must be out of the sandbox's reach.
// It removes what uploads of a server that died left behind.
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

// Adopt gives everything in the workspace to its owner. It is for one that was another's: of another backend, or of an engine
// that maps users otherwise. Nothing may run in it meanwhile. It follows no link.
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
	if err != nil && err != errIncomplete { // what lies too deep to be seen stays as it is
		return err
	}
	return w.owner.chown(w.self) // last: it tells that all the rest is done
}

// Owned reports whether the workspace's directory is its owner's.
func (w *Workspace) Owned() (bool, error) {
	fi, err := w.self.Stat()
	return err == nil && (w.owner.UID < 0 && w.owner.GID < 0 || w.owner.owns(fi)), err
}

// Writes counts what the server has changed in the workspace, or tried to, by Write and Remove. It counts what is done, so that a
// Scan which began after a number was read has seen all that the number counts.
func (w *Workspace) Writes() uint64 { return w.writes.Load() }

// Close releases the workspace's descriptors. Files that were opened stay open.
func (w *Workspace) Close() error {
	return errors.Join(w.self.Close(), w.root.Close())
}

// Open opens a regular file for reading. It never blocks, follows no link, and touches nothing but regular files:
// anything else, and any name that cannot be a file's, is [fs.ErrNotExist]. A file that code keeps under a lease, which every open
// asks it to give up, is [ErrLeased] if it has not within a second.
//
// A file with several hard links is served like any other: the sandbox can only link what it already has inside.
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

// ErrLeased says that code holds a lease on a file (F_SETLEASE) and does not give it up. The kernel ends the lease within its
// lease-break-time, so a later try succeeds.
var ErrLeased = errors.New("is held by a program in the sandbox; try again in a minute")

const (
	leaseWait = time.Second // how long an open waits for a lease to be given up
	leasePoll = 10 * time.Millisecond
)

// openLeased opens a file. The first try makes the kernel ask the holder of a lease to give it up.
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
	// Look before opening: opening a device can have effects. Whatever is swapped in after the look is opened
	// without blocking, inside the workspace, and is served only when the descriptor says it is a regular file.
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

// Remove removes a file, or a link, FIFO, socket or device that stands where a file could; a link's target stays. What
// is open stays readable to who has it open. A directory is a [*NameError]; what is not there, or lies behind a link, is
// [fs.ErrNotExist].
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
			// Should it have become a directory since, it goes only if it is empty.
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

// parent opens the directory that holds name, one segment at a time, and returns name's last segment.
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

// errNotDir says that something other than a directory stands where a directory should.
var errNotDir = errors.New("not a directory")

// openDir opens the directory called segment in dir. A link, also one swapped in meanwhile, is errNotDir.
func openDir(dir *os.Root, segment string) (*os.Root, error) {
	want, err := dir.Lstat(segment)
	if err != nil {
		return nil, err
	}
	if !want.IsDir() {
		return nil, errNotDir
	}
	// "/." makes os.Root open the segment with O_DIRECTORY. Without it OpenRoot opens whatever
	// is there, and blocks for as long as the sandbox likes when that has become a FIFO.
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

// regain takes back the right to look into the workspace. Where the server and the sandbox share a uid, code inside can
// hide a directory from both by its mode, and could go on filling it unseen by any quota.
func (w *Workspace) regain() {
	if fi, err := w.self.Stat(); err == nil && fi.Mode().Perm()&0o700 != 0o700 {
		// A failure shows in the access that follows.
		_ = w.self.Chmod(fi.Mode().Perm() | 0o700)
	}
}

// serverFault tells trouble of the server's own from what hostile content can provoke.
func serverFault(err error) bool {
	for _, fault := range []error{fs.ErrClosed, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// Files that are being uploaded lie at the top of the workspace, which the sandbox cannot move, under names that nothing lists.
const (
	tempPrefix = ".upload-"
	tempLen    = len(tempPrefix) + 26 // of rand.Text
	staleAfter = time.Hour            // without a write; an upload that stalls so long has lost its connection
)

func tempName() string { return tempPrefix + rand.Text() }

func isTemp(name string) bool { return len(name) == tempLen && strings.HasPrefix(name, tempPrefix) }

// sweep removes temporary files last written before the given time. It is best effort: a leftover is invisible anyway.
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

// describe completes a sentence about name with a sentinel in it, so that the message says what to do.
func describe(name string, sentinel error, rest string, args ...any) error {
	return fmt.Errorf("%s %w"+rest, append([]any{untrusted.Clip(name, maxQuoted), sentinel}, args...)...)
}
