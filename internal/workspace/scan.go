package workspace

import (
	"cmp"
	"context"
	"hash/maphash"
	"io/fs"
	"slices"
	"time"
)

// ScanOptions say what a Scan is for.
type ScanOptions struct {
	// Limit is what the workspace should not exceed. A scan goes on beyond it, but sees more entries where it allows more.
	Limit Usage
	// Files is how many files the scan tells of.
	Files int
	// Since has it tell only of files that are new since that scan, which was made with Index, or that have changed.
	Since *Scan
	// Index has it remember every file, to be the Since of another.
	Index bool
}

// Scan is what one walk over a workspace found. It does not change.
type Scan struct {
	usage     Usage
	files     []File
	truncated bool
	oldest    time.Time // of as many files as were asked for; zero: there are fewer

	partial bool // there is more than was seen
	seed    maphash.Seed
	index   map[uint64]uint64 // the hash of every file's version, by that of its place
	latest  time.Time         // of the changes that index has
}

// place is where a file is. Code chooses the names, of directories as well, and how deep they lie: a path can have 32 KB, and thousands
// of files one of them. So only hashes are remembered.
type place struct {
	dir  uint64 // the hash of its path
	name string
}

// version is what changes when a file does.
//
// Code can set a file's size and its times of access and modification, but not the time of its last change (ctime), which the
// kernel sets to now whenever it sets any of these, the content, the name or the number of links. What it does not touch are the files
// in a directory that is renamed: they are known by their inode.
//
// A directory's times say nothing about the content of its files, and notifications (inotify, fanotify) do not see what is
// written through a mapping. So there is no way around looking at every file.
type version struct {
	size, modified, changed int64
	inode                   uint64
}

// Scan walks the workspace once. A workspace that is larger than any walk goes is told of in part.
func (w *Workspace) Scan(ctx context.Context, opt ScanOptions) (*Scan, error) {
	s := &Scan{}
	var before map[uint64]uint64
	if since := opt.Since; since != nil {
		s.truncated, s.seed, before = since.partial, since.seed, since.index
	} else {
		s.seed = maphash.MakeSeed()
	}
	if opt.Index {
		s.index = make(map[uint64]uint64, len(before))
	}
	var m meter
	dir, at := "/", place{} // the directory that was visited last; none is called so
	err := w.walk(ctx, max(maxEntries, opt.Limit.Files+1), func(in string, fi fs.FileInfo) error {
		m.add(fi)
		if !isFile(in, fi) {
			return nil
		}
		if opt.Index || opt.Since != nil {
			if dir != in {
				dir, at.dir = in, maphash.String(s.seed, in)
			}
			at.name = fi.Name()
			key := maphash.Comparable(s.seed, at)
			v, changed := versionOf(fi)
			sum := maphash.Comparable(s.seed, v)
			if opt.Index {
				s.index[key] = sum
				if changed.After(s.latest) {
					s.latest = changed
				}
			}
			if old, there := before[key]; there && old == sum {
				return nil
			}
		}
		if opt.Files <= 0 || len(in)+len(fi.Name()) > maxPath {
			s.truncated = true
			return nil
		}
		if !s.oldest.IsZero() && fi.ModTime().Before(s.oldest) {
			s.truncated = true // it would be cut
			return nil
		}
		s.files = append(s.files, File{Name: in + fi.Name(), Size: fi.Size(), ModTime: fi.ModTime()})
		if len(s.files) >= 2*opt.Files { // names can be long: do not keep what will be cut
			s.cut(opt.Files)
		}
		return nil
	})
	s.usage = m.Usage
	if err == errIncomplete {
		s.partial, s.truncated, s.usage, err = true, true, infinite, nil
	}
	if err != nil {
		return nil, err
	}
	s.cut(opt.Files)
	return s, nil
}

// Bounds of what a scan tells: code chooses the names, and the answer, the log and the database carry them.
const (
	maxPath  = 4096      // bytes; no program can open more by its name
	maxPaths = 512 << 10 // bytes, of all together
)

// cut keeps the newest files.
func (s *Scan) cut(most int) {
	limit := most
	slices.SortFunc(s.files, func(a, b File) int {
		return cmp.Or(b.ModTime.Compare(a.ModTime), cmp.Compare(a.Name, b.Name))
	})
	total := 0
	for i, f := range s.files {
		if total += len(f.Name); total > maxPaths {
			limit = min(limit, i)
			break
		}
	}
	if len(s.files) > limit {
		clear(s.files[limit:])
		s.files, s.truncated = s.files[:limit], true
	}
	if most > 0 && len(s.files) == most {
		s.oldest = s.files[most-1].ModTime
	}
}

// Usage is what the workspace holds; quotas fail closed, so a tree that cannot be measured counts as infinitely large.
func (s *Scan) Usage() Usage { return s.usage }

// Files are the files that the scan tells of, newest first and then by name. truncated says that there are, or may be, more.
func (s *Scan) Files() (files []File, truncated bool) { return s.files, s.truncated }

// Indexed is how many files the scan remembers.
func (s *Scan) Indexed() int { return len(s.index) }

// Settle waits until a change of any file would be told from those that the scan, which was made with Index, has seen. Kernels tell
// times apart by a tick of a few milliseconds: without it, what is written right after a scan could look as it did before.
func (s *Scan) Settle(ctx context.Context) {
	deadline := time.Now().Add(maxTick)
	for !tick().After(s.latest) && time.Now().Before(deadline) { // a clock that was set back does not count
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// maxTick is longer than a tick of any kernel.
const maxTick = 20 * time.Millisecond
