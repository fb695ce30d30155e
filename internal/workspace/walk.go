package workspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"slices"
	"strings"
)

// Bounds of a walk: hostile code decides how many entries there are and how deep they are.
const (
	maxEntries = 200_000
	maxDepth   = 128 // also bounds the descriptors that a walk opens
)

// incomplete says why a walk missed entries, and what to do.
type incomplete string

const (
	tooDeep incomplete = "directories are nested more than 128 levels deep. Remove them with shell code (rm -rf)"
	tooMany incomplete = "there are too many files and directories. Remove some with shell code (rm -rf)"
	hidden  incomplete = "the server may not read some directories, because they belong to ids that it lacks. " +
		"mcp-code-sandbox doctor tells the operator what to do"
)

func (why incomplete) Error() string { return string(why) }

// isIncomplete reports whether a walk has ended with err because it missed entries.
func isIncomplete(err error) bool {
	_, ok := err.(incomplete)
	return ok
}

// Usage is what a workspace holds.
type Usage struct {
	Bytes int64 // on disk; a file with several links counts once
	Files int   // files, directories and everything else
	// Unmeasured says why the tree cannot be measured, and what to do. Then it counts as infinitely
	// large, so that quotas hold.
	Unmeasured string
}

// unmeasured returns the usage of a tree that cannot be measured.
func unmeasured(why error) Usage {
	return Usage{Bytes: math.MaxInt64, Files: math.MaxInt, Unmeasured: why.Error()}
}

// Disk is the size and free space of a file system. Files is zero if their number is unlimited
// (btrfs).
type Disk struct {
	Bytes, FreeBytes int64
	Files, FreeFiles int64
}

// Exceeds reports whether u is more than a nonzero field of limit.
func (u Usage) Exceeds(limit Usage) bool {
	return limit.Bytes > 0 && u.Bytes > limit.Bytes || limit.Files > 0 && u.Files > limit.Files
}

// Usage measures the workspace. It stops early when a nonzero field of stopAt is exceeded.
func (w *Workspace) Usage(ctx context.Context, stopAt Usage) (Usage, error) {
	var m meter
	errEnough := errors.New("enough")
	err := w.walk(ctx, max(maxEntries, stopAt.Files+1), func(_ string, fi fs.FileInfo) error {
		m.add(fi)
		if m.Exceeds(stopAt) {
			return errEnough
		}
		return nil
	})
	switch {
	case err == nil || err == errEnough:
		return m.Usage, nil
	case isIncomplete(err):
		return unmeasured(err), nil
	}
	return Usage{}, err
}

// meter sums a Usage.
type meter struct {
	Usage
	seen map[fileID]struct{} // files with several links
}

func (m *meter) add(fi fs.FileInfo) {
	m.Files++
	size, id, links := onDisk(fi)
	if links > 1 && !fi.IsDir() {
		if _, again := m.seen[id]; again {
			size = 0
		}
		if m.seen == nil {
			m.seen = map[fileID]struct{}{}
		}
		m.seen[id] = struct{}{}
	}
	m.Bytes += size
}

// List returns at most limit regular files, newest first and then by name. Without a positive limit
// it returns all that a walk finds, unless their names are too long. truncated says that there may
// be more.
func (w *Workspace) List(limit int) (files []File, truncated bool, err error) {
	if limit <= 0 || limit > maxEntries {
		limit = maxEntries
	}
	s, err := w.Scan(context.Background(), ScanOptions{Files: limit})
	if err != nil {
		return nil, false, err
	}
	files, truncated = s.Files()
	return files, truncated, nil
}

// Count returns how many regular files there are and their total size, which includes that of
// hidden ones. It visits at most most entries; more says that there may be others.
func (w *Workspace) Count(ctx context.Context, most int) (files int, bytes int64, more bool, err error) {
	err = w.walk(ctx, most, func(dir string, fi fs.FileInfo) error {
		if isFile(dir, fi) {
			files++
		}
		if isFile(dir, fi) || isHidden(dir) && fi.Mode().IsRegular() {
			bytes += fi.Size()
		}
		return nil
	})
	if isIncomplete(err) {
		return files, bytes, true, nil
	}
	return files, bytes, false, err
}

// The server saves images that code shows and does not save in PlotsDir, and long output of runs in
// OutputsDir. Code installs packages in PackagesDir. No list contains them, nor what the tools of a
// project keep for themselves.
const (
	PlotsDir    = ".plots"
	OutputsDir  = ".outputs"
	PackagesDir = ".packages"
)

// isFile reports whether an entry is a file to the user of the workspace.
func isFile(dir string, fi fs.FileInfo) bool {
	return fi.Mode().IsRegular() && (dir != "" || !isTemp(fi.Name())) && !isHidden(dir)
}

func isHidden(dir string) bool {
	if dir == "" {
		return false
	}
	if top, _, _ := strings.Cut(dir, "/"); top == PlotsDir || top == OutputsDir || top == PackagesDir {
		return true
	}
	return slices.ContainsFunc(ownedByTools, func(name string) bool {
		return strings.HasPrefix(dir, name[1:]) || strings.Contains(dir, name)
	})
}

var ownedByTools = []string{"/node_modules/", "/site-packages/", "/__pycache__/", "/.venv/", "/venv/", "/.git/", "/.pnpm-store/"}

func fileOf(dir string, fi fs.FileInfo) File {
	return File{Name: dir + fi.Name(), Size: fi.Size(), ModTime: fi.ModTime()}
}

// walk calls visit for everything in the workspace, at most limit times. dir is empty or ends with
// a slash. It follows no link, and may miss entries that come or go meanwhile.
func (w *Workspace) walk(ctx context.Context, limit int, visit func(dir string, fi fs.FileInfo) error) error {
	w.regain()
	wk := walker{ctx: ctx, left: limit, visit: visit}
	return wk.dir(w.root, "", 0)
}

type walker struct {
	ctx   context.Context
	left  int
	visit func(dir string, fi fs.FileInfo) error
}

func (w *walker) dir(dir *os.Root, prefix string, depth int) error {
	var below []string
	for fi, err := range entries(dir) {
		if errors.Is(err, fs.ErrPermission) {
			return hidden
		}
		if err == nil {
			err = w.ctx.Err()
		}
		if err != nil {
			return err
		}
		if w.left--; w.left < 0 {
			return tooMany
		}
		if err := w.visit(prefix, fi); err != nil {
			return err
		}
		if fi.IsDir() {
			below = append(below, fi.Name())
		}
	}
	if len(below) > 0 && depth == maxDepth {
		return tooDeep
	}
	for _, name := range below {
		sub, err := openDir(dir, name)
		switch {
		case err == nil:
			err = w.dir(sub, prefix+name+"/", depth+1)
			sub.Close()
			if err != nil {
				return err
			}
		case serverFault(err):
			return err
		case errors.Is(err, fs.ErrPermission):
			return hidden
		}
		// Otherwise it was removed or replaced after the visit.
	}
	return nil
}

// Stat describes a file or directory. A link, wherever it is in the name, is an error other than
// [fs.ErrNotExist].
func (w *Workspace) Stat(name string) (fs.FileInfo, error) {
	dir, base, err := w.parent(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fi, err := dir.Lstat(base)
	if err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrInvalid}
	}
	return fi, err
}

// OpenDir opens a directory, but follows no link to it. The caller must expect links inside, and
// must open nothing there: a FIFO would block.
func (w *Workspace) OpenDir(dir string) (*os.Root, error) {
	root, _, err := w.parent(dir + "/entry")
	return root, err
}

// Names returns the names of at most most entries of a directory, in any order.
func (w *Workspace) Names(dir string, most int) ([]string, error) {
	root, err := w.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return NamesIn(root, most)
}

// NamesIn returns the names of at most most entries of an open directory, in any order.
func NamesIn(root *os.Root, most int) ([]string, error) {
	f, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(most)
	if err == io.EOF {
		err = nil
	}
	return names, err
}

// entries yields the entries of a directory. It follows no link and reads a batch at a time.
func entries(dir *os.Root) iter.Seq2[fs.FileInfo, error] {
	return func(yield func(fs.FileInfo, error) bool) {
		f, err := dir.Open(".")
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.Close()
		for {
			batch, err := f.Readdir(512)
			for _, fi := range batch {
				if !yield(fi, nil) {
					return
				}
			}
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}
