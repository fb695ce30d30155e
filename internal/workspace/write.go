package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"

	"mcp-code-sandbox/internal/untrusted"
)

// Errors of [Workspace.Write]. The errors that wrap them are messages for the client.
var (
	ErrExists   = errors.New("already exists")
	ErrTooLarge = errors.New("is larger than")
	ErrQuota    = errors.New("workspace is full")
)

// UnmeasuredError says that a workspace cannot be measured. It matches ErrQuota.
type UnmeasuredError struct {
	Why string // and what to do
}

func (e *UnmeasuredError) Error() string { return "the workspace cannot be measured: " + e.Why }

// Is reports whether target is ErrQuota.
func (e *UnmeasuredError) Is(target error) bool { return target == ErrQuota }

// WriteOptions configure a Write.
type WriteOptions struct {
	Overwrite bool
	MaxBytes  int64 // largest file; 0 means no limit
	Quota     Usage // of the workspace, including this file and one that it replaces; zero: no limit
}

// Write stores the content of r as a file and makes its directories. The file appears complete or
// not at all. With Overwrite it replaces anything but a directory. Its errors are [*NameError],
// [ErrExists], [ErrTooLarge], [ErrQuota], those of r, or the file system's.
func (w *Workspace) Write(name string, r io.Reader, opt WriteOptions) (_ File, err error) {
	defer w.writes.Add(1)
	name, err = CleanName(name)
	if err != nil {
		return File{}, err
	}
	// Refuse before reading the body, if possible.
	replaced, err := w.checkTarget(name, opt.Overwrite)
	if err != nil {
		return File{}, err
	}
	room, err := w.room(opt.Quota, 0)
	if err != nil {
		return File{}, err
	}

	temp := tempName()
	f, err := w.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|openFlags, 0o600)
	if err != nil {
		return File{}, err
	}
	defer func() {
		if err != nil {
			f.Close()
			_ = w.root.Remove(temp)
		}
	}()
	limit := room
	if opt.MaxBytes > 0 {
		limit = min(limit, opt.MaxBytes)
	}
	size, err := io.Copy(f, io.LimitReader(r, min(limit, math.MaxInt64-1)+1))
	switch {
	case err != nil:
		return File{}, fmt.Errorf("writing %s: %w", untrusted.Clip(name, maxQuoted), err)
	case size > limit && limit == opt.MaxBytes:
		return File{}, describe(name, ErrTooLarge, " the limit of %d bytes.", opt.MaxBytes)
	case size > limit:
		return File{}, full(opt.Quota)
	}
	if err := w.give(f); err != nil {
		return File{}, err
	}
	fi, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	if err := f.Close(); err != nil {
		return File{}, err
	}

	made, err := w.makeParents(name)
	defer func() {
		if err != nil {
			for i := len(made) - 1; i >= 0; i-- {
				_ = w.root.Remove(made[i])
			}
		}
	}()
	if err != nil {
		return File{}, err
	}
	// Check again, now that the file exists: other uploads and the sandbox may have written
	// meanwhile.
	if _, err := w.room(opt.Quota, replaced); err != nil {
		return File{}, err
	}
	if err := w.commit(temp, name, opt.Overwrite); err != nil {
		return File{}, err
	}
	return File{Name: name, Size: size, ModTime: fi.ModTime()}, nil
}

// checkTarget returns how many files a write to name replaces, or an error if it must not.
func (w *Workspace) checkTarget(name string, overwrite bool) (replaced int, err error) {
	dir, base, err := w.parent(name)
	var fi fs.FileInfo
	if err == nil {
		defer dir.Close()
		fi, err = dir.Lstat(base)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case errors.Is(err, errNotDir):
		return 0, notDir(name)
	case err != nil:
		return 0, err
	case fi.IsDir():
		return 0, isDir(name)
	case !overwrite:
		return 0, exists(name)
	}
	return 1, nil
}

// room returns how many bytes the quota leaves if it allows extra more files.
func (w *Workspace) room(quota Usage, extra int) (int64, error) {
	if quota == (Usage{}) {
		return math.MaxInt64, nil
	}
	allowed := quota
	if allowed.Files > 0 {
		allowed.Files += extra
	}
	u, err := w.Usage(context.Background(), allowed)
	switch {
	case err != nil:
		return 0, err
	case u.Unmeasured != "":
		return 0, &UnmeasuredError{u.Unmeasured}
	case u.Exceeds(allowed):
		return 0, full(quota)
	case quota.Bytes <= 0:
		return math.MaxInt64, nil
	}
	return quota.Bytes - u.Bytes, nil
}

// makeParents makes the directories above name and returns those that were missing, also on error.
func (w *Workspace) makeParents(name string) (made []string, err error) {
	w.regain()
	dir, err := w.root.OpenRoot(".")
	if err != nil {
		return nil, err
	}
	defer func() { dir.Close() }()
	for at, c := range name {
		if c != '/' {
			continue
		}
		segment := name[strings.LastIndexByte(name[:at], '/')+1 : at]
		err := dir.Mkdir(segment, 0o700)
		isNew := err == nil
		if isNew {
			made = append(made, name[:at])
		} else if !errors.Is(err, fs.ErrExist) {
			return made, err
		}
		sub, err := openDir(dir, segment)
		if errors.Is(err, errNotDir) {
			return made, notDir(name)
		}
		if err != nil {
			return made, err
		}
		dir.Close()
		dir = sub
		if isNew {
			if err := w.own(dir); err != nil {
				return made, err
			}
		}
	}
	return made, nil
}

// own gives a directory to the owner, through its descriptor.
func (w *Workspace) own(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return w.give(f)
}

// commit moves the finished file to its name.
func (w *Workspace) commit(temp, name string, overwrite bool) error {
	if !overwrite {
		// A link, unlike a rename, never replaces anything: of two writers, one gets ErrExists.
		err := w.root.Link(temp, name)
		if err == nil {
			_ = w.root.Remove(temp) // otherwise sweep removes it later
			return nil
		}
		if errors.Is(err, fs.ErrExist) {
			return exists(name)
		}
		// The file system has no hard links: check, then rename.
		if _, err := w.checkTarget(name, false); err != nil {
			return err
		}
	}
	err := w.root.Rename(temp, name)
	if fi, statErr := w.root.Lstat(name); err != nil && statErr == nil && fi.IsDir() {
		return isDir(name)
	}
	return err
}

func exists(name string) error {
	return describe(name, ErrExists, ". Set overwrite=true to replace.")
}

func isDir(name string) error {
	return describe(name, ErrExists, " as a directory. Choose another name.")
}

func notDir(name string) error {
	return &NameError{Name: name, Problem: "a part of it before the last is not a directory (links are not followed); choose another name"}
}

func full(quota Usage) error {
	var parts []string
	if quota.Bytes > 0 {
		parts = append(parts, fmt.Sprintf("%d bytes", quota.Bytes))
	}
	if quota.Files > 0 {
		parts = append(parts, fmt.Sprintf("%d files and directories", quota.Files))
	}
	return fmt.Errorf("the %w: it may hold %s. Remove files that are no longer needed", ErrQuota, strings.Join(parts, " in "))
}
