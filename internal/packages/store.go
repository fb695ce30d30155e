package packages

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/filelock"
)

// errHash says that a file is not the one that the index describes.
var errHash = errors.New("the file does not have the hash that the index gives")

// errCacheSize says that a file is larger than the cache may be.
var errCacheSize = errors.New("the cache is too small")

const (
	maxVerified = 100_000
	copyBuffer  = 256 << 10

	// The cache is scanned after this part of it was stored, for other processes store files, too.
	// When it is full, this part is freed. So the cost of a file does not grow with their number.
	rescanPart, freePart = 16, 10
)

// onDisk approximates the space that a file of n bytes takes, with its inode and name.
func onDisk(n int64) int64 {
	const block, inode = 4 << 10, 512
	return (n+block-1)/block*block + inode
}

// store keeps files under the hash of their content, so no entry can be another file than its name
// says. Processes can share the directory. A crash leaves temporary files only.
type store struct {
	dir      string
	limit    int64
	work     group[struct{}] // downloads by source and hash, verifications by hash
	inFlight quota

	mu       sync.Mutex
	verified map[string]int64 // sizes of the files that this process has hashed
	size     int64            // of all files on disk, as far as this process knows
	stored   int64            // of the files since the last scan
	reading  map[string]*opened
	evicted  []*opened // files that are still read, the first evicted first
}

// opened is a file of the store that is being read. It takes space until it is closed.
type opened struct {
	size    int64
	readers map[*content]bool
}

// content is one reader of a file. It fails with errBusy once evicted files take too much space.
type content struct {
	*os.File
	s      *store
	hash   string
	opened *opened
}

func (c *content) Read(p []byte) (int, error) {
	n, err := c.File.Read(p)
	if errors.Is(err, fs.ErrClosed) {
		err = errBusy
	}
	return n, err
}

func (c *content) Close() error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if delete(c.opened.readers, c); len(c.opened.readers) == 0 {
		if c.s.reading[c.hash] == c.opened {
			delete(c.s.reading, c.hash)
		}
		c.s.forget(c.opened)
	}
	return c.File.Close()
}

func openStore(dir string, limit int64) (*store, error) {
	s := &store{dir: dir, limit: limit, stored: limit, verified: map[string]int64{}, inFlight: quota{limit: limit}, reading: map[string]*opened{}}
	for _, d := range []string{s.path(""), s.temporary()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	s.removeTemporary()
	return s, s.evict(0)
}

func (s *store) path(name string) string { return filepath.Join(s.dir, "files", name) }
func (s *store) temporary() string       { return filepath.Join(s.dir, "tmp") }

// removeTemporary removes what a crashed process left. A living one holds the lock of its files.
func (s *store) removeTemporary() {
	entries, _ := os.ReadDir(s.temporary())
	for _, e := range entries {
		name := filepath.Join(s.temporary(), e.Name())
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if filelock.TryLock(f) == nil {
			_ = os.Remove(name)
		}
		_ = f.Close()
	}
}

// create returns a locked temporary file.
func (s *store) create() (*os.File, error) {
	for range 10 {
		f, err := os.CreateTemp(s.temporary(), "*")
		if err != nil {
			return nil, err
		}
		if err := filelock.Lock(f); err != nil {
			_ = f.Close()
			return nil, err
		}
		// A process that started in between may have removed it.
		opened, err := f.Stat()
		if now, err2 := os.Stat(f.Name()); err == nil && err2 == nil && os.SameFile(opened, now) {
			return f, nil
		}
		_ = f.Close()
	}
	return nil, errors.New("temporary files disappear")
}

// open downloads the file with a hash, once for everybody who wants it from the same source, and
// returns it. Nobody gets the file before all of it has the hash. The download counts against who.
func (s *store) open(ctx context.Context, who *sandbox, source, want string, limit int64, download func(context.Context, func(io.Reader) error) error) (*content, error) {
	_, err := s.work.do(ctx, source+" "+want, fileTimeout, func(ctx context.Context) (struct{}, error) {
		if f, _ := s.cached(ctx, want); f != nil { // stored since
			return struct{}{}, f.Close()
		}
		return struct{}{}, download(ctx, func(body io.Reader) error { return s.put(who, want, min(limit, s.limit), body) })
	})
	if err != nil {
		return nil, err
	}
	f, err := s.cached(ctx, want)
	if f == nil && err == nil {
		err = errCacheSize
	}
	return f, err
}

// cached returns the file with a hash, or nil. The first time in this process, it hashes the file,
// once for everybody.
func (s *store) cached(ctx context.Context, want string) (*content, error) {
	for {
		f, fi, err := s.read(want)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil
		case err != nil:
			return nil, err
		case s.isVerified(want, fi):
			if now := time.Now(); now.Sub(fi.ModTime()) > time.Minute { // the time of the last use, for evict
				_ = os.Chtimes(s.path(want), now, now)
			}
			return f, nil
		}
		_ = f.Close()
		_, err = s.work.do(ctx, want, fileTimeout, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.verify(ctx, want) })
		if err != nil {
			return nil, err
		}
	}
}

func (s *store) isVerified(want string, fi fs.FileInfo) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, known := s.verified[want]
	return known && size == fi.Size() && fi.Mode().IsRegular()
}

// verify hashes a file, and removes it if it is damaged. Another process may have removed it.
func (s *store) verify(ctx context.Context, want string) error {
	f, fi, err := s.read(want)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	h := newHash(want)
	_, err = io.CopyBuffer(h, bound{ctx, f}, make([]byte, copyBuffer))
	switch {
	case ctx.Err() != nil || errors.Is(err, errBusy):
		return err
	case err == nil && fi.Mode().IsRegular() && hex.EncodeToString(h.Sum(nil)) == want:
		s.note(want, fi.Size())
		return nil
	}
	if err := os.Remove(s.path(want)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// bound is a reader that stops with a context.
type bound struct {
	ctx context.Context
	r   io.Reader
}

func (b bound) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.r.Read(p)
}

// read opens a file, under the lock that evict holds.
func (s *store) read(hash string) (*content, fs.FileInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.Open(s.path(hash))
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	o := s.reading[hash]
	if o == nil {
		o = &opened{size: fi.Size(), readers: map[*content]bool{}}
		s.reading[hash] = o
	}
	c := &content{f, s, hash, o}
	o.readers[c] = true
	return c, fi, nil
}

func (s *store) note(want string, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.verified) >= maxVerified {
		clear(s.verified)
	}
	s.verified[want] = size
}

func newHash(want string) hash.Hash {
	if len(want) == 2*sha512.Size {
		return sha512.New()
	}
	return sha256.New()
}

// put stores what r has if its hash is the wanted one.
func (s *store) put(who *sandbox, want string, limit int64, r io.Reader) error {
	f, err := s.create()
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	counted := s.inFlight.reader(r, who)
	defer counted.release()
	h := newHash(want)
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, h)}, io.LimitReader(counted, limit+1), make([]byte, copyBuffer))
	switch {
	case n > limit && limit < s.limit:
		return fmt.Errorf("%w: it has more than %d MB", errTooLarge, limit>>20)
	case n > limit:
		return fmt.Errorf("%w: it has more than %d MB", errCacheSize, limit>>20)
	case err != nil:
		return err
	case hex.EncodeToString(h.Sum(nil)) != want:
		return errHash
	}
	size := onDisk(n)
	if err := s.evict(size); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), s.path(want)); err != nil {
		return err
	}
	s.note(want, n)
	s.mu.Lock()
	s.size += size
	s.stored += size
	s.mu.Unlock()
	return nil
}

// evict makes room for n bytes on disk. If there is none, it removes the files that were not used
// for the longest time until a part of the cache is free besides.
func (s *store) evict(n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size+n <= s.limit && s.stored < s.limit/rescanPart {
		return nil
	}
	files, size, err := s.list()
	if err != nil {
		return err
	}
	if size+n > s.limit {
		slices.SortFunc(files, func(a, b fs.FileInfo) int {
			return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
		})
		for _, fi := range files {
			if size+n <= s.limit-s.limit/freePart {
				break
			}
			if err := os.Remove(s.path(fi.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			delete(s.verified, fi.Name())
			s.detach(fi.Name())
			size -= onDisk(fi.Size())
		}
	}
	s.size, s.stored = size, 0
	return nil
}

// detach counts a file that is removed but still read with those that are on their way. If these
// are too many, it ends the reading of the files that were evicted first. The caller holds s.mu.
func (s *store) detach(hash string) {
	o := s.reading[hash]
	if o == nil {
		return
	}
	delete(s.reading, hash)
	s.evicted = append(s.evicted, o)
	for ok := s.inFlight.add(nil, o.size); !ok && len(s.evicted) > 0; ok = s.inFlight.add(nil, 0) {
		for c := range s.evicted[0].readers {
			_ = c.File.Close()
		}
		s.forget(s.evicted[0])
	}
}

// forget stops counting an evicted file. The caller holds s.mu.
func (s *store) forget(o *opened) {
	if i := slices.Index(s.evicted, o); i >= 0 {
		s.evicted = slices.Delete(s.evicted, i, i+1)
		s.inFlight.add(nil, -o.size)
	}
}

// list returns the files of the store and their size on disk.
func (s *store) list() (files []fs.FileInfo, size int64, err error) {
	entries, err := os.ReadDir(s.path(""))
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && hexHash.MatchString(e.Name()) {
			files = append(files, fi)
			size += onDisk(fi.Size())
		}
	}
	return files, size, err
}

// Usage returns the number of files in a cache directory and their size on disk.
func Usage(dir string) (files int, bytes int64, err error) {
	list, size, err := (&store{dir: dir}).list()
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	return len(list), size, err
}

// Purge removes all files of a cache directory. Servers that use it download files again.
func Purge(dir string) error {
	s := &store{dir: dir, verified: map[string]int64{}} // without room for any
	s.removeTemporary()
	if err := s.evict(0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
