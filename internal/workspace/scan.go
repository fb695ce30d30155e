package workspace

import (
	"cmp"
	"context"
	"hash/maphash"
	"io/fs"
	"slices"
	"time"
)

// ScanOptions configure a Scan.
type ScanOptions struct {
	// Limit is the quota of the workspace. A scan does not stop there, but a larger limit makes it
	// read more entries.
	Limit Usage
	// Files is how many files the scan lists.
	Files int
	// Since lists only files that are new or changed since that scan, which was made with Index.
	Since *Scan
	// Index remembers every file, so that the scan can be the Since of another one.
	Index bool
	// Match lists only files for which it returns true. Nil means all.
	Match func(File) bool
}

// Scan is the result of one walk over a workspace. It does not change.
type Scan struct {
	usage     Usage
	files     []File
	total     int // how many there are to list
	truncated bool
	oldest    time.Time // of the listed files, once the list is full

	uid     int  // of the workspace's owner when the scan began
	partial bool // the walk was incomplete
	seed    maphash.Seed
	index   map[uint64]uint64 // from the hash of a place to that of the file's version
	latest  time.Time         // the last change in index
}

// place is where a file is. It is remembered as a hash: code chooses the names of files and
// directories, and a path can have 32 KB.
type place struct {
	dir  uint64 // the hash of its path
	name string
}

// version changes when a file changes. Code can set a file's size and its other times, but not the
// time of its last change (ctime). See docs/sharing.md.
type version struct {
	size, modified, changed int64
	inode                   uint64
}

// Scan walks the workspace once. If the workspace exceeds the bounds of a walk, the result is
// partial.
func (w *Workspace) Scan(ctx context.Context, opt ScanOptions) (*Scan, error) {
	self, err := w.self.Stat()
	if err != nil {
		return nil, err
	}
	s := &Scan{uid: uidOf(self)}
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
	dir, at := "/", place{} // the directory visited last; initially a name that no directory has
	err = w.walk(ctx, max(maxEntries, opt.Limit.Files+1), func(in string, fi fs.FileInfo) error {
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
		if opt.Match != nil && !opt.Match(fileOf(in, fi)) {
			return nil
		}
		s.total++
		if opt.Files <= 0 || len(in)+len(fi.Name()) > maxPath {
			s.truncated = true
			return nil
		}
		if !s.oldest.IsZero() && fi.ModTime().Before(s.oldest) {
			s.truncated = true // cut would drop it
			return nil
		}
		s.files = append(s.files, fileOf(in, fi))
		if len(s.files) >= 2*opt.Files { // names can be long
			s.cut(opt.Files)
		}
		return nil
	})
	s.usage = m.Usage
	if isIncomplete(err) {
		s.partial, s.truncated, s.usage, err = true, true, unmeasured(err), nil
	}
	if err != nil {
		return nil, err
	}
	s.cut(opt.Files)
	return s, nil
}

// Bounds of a list: code chooses the names, and the answer, the log and the database contain them.
const (
	maxPath  = 4096      // bytes; programs cannot open longer paths
	maxPaths = 512 << 10 // bytes of all paths together
)

// cut keeps the newest files, up to most.
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

// Usage returns what the workspace holds.
func (s *Scan) Usage() Usage { return s.usage }

// Files returns the listed files, newest first and then by name. truncated says that there may be
// more.
func (s *Scan) Files() (files []File, truncated bool) { return s.files, s.truncated }

// Total returns how many files there are to list, at least.
func (s *Scan) Total() int { return s.total }

// Indexed returns how many files the scan remembers.
func (s *Scan) Indexed() int { return len(s.index) }

// Settle waits until any change of a file differs from those that the scan, made with Index, has
// seen. Kernels measure times in ticks of a few milliseconds: a write right after a scan could look
// unchanged.
func (s *Scan) Settle(ctx context.Context) {
	deadline := time.Now().Add(maxTick)
	for !tick().After(s.latest) && time.Now().Before(deadline) { // even if the clock was set back
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// maxTick is longer than a tick of any kernel.
const maxTick = 20 * time.Millisecond
