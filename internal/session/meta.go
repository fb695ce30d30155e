package session

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"mcp-code-sandbox/internal/workspace"
)

const (
	metaFile     = "meta.json"
	maxMeta      = 64 << 10    // bytes; every meta.json is smaller
	saveInterval = time.Minute // how far last_used in meta.json may lag while the session is in use
	minSave      = time.Second // how far it may lag afterwards

	// staleBytes and staleFiles are how far the size in meta.json may be off before it is rewritten
	// for that reason alone.
	staleBytes = 64 << 10
	staleFiles = 100
)

// meta is the content of meta.json. It is for people and for later servers, and authorises nothing
// except the links of its generation.
type meta struct {
	Caller     string     `json:"caller"`
	ID         string     `json:"id"`
	Created    time.Time  `json:"created"`
	LastUsed   time.Time  `json:"last_used"`
	ClosedAt   *time.Time `json:"closed_at"`            // null while the session is open
	Generation string     `json:"generation,omitempty"` // see links.go
	Bytes      *int64     `json:"bytes,omitempty"`      // size of the files as last measured
	Files      *int       `json:"files,omitempty"`      // their number as last measured
	Unmeasured string     `json:"unmeasured,omitempty"` // why they cannot be measured; then they count as the most there can be
	State      []string   `json:"state,omitempty"`      // interpreters that the session has had
	Evicted    []string   `json:"evicted,omitempty"`    // those evicted since their last run
}

// newMeta returns the meta.json of a session created at the given time.
func (s *Session) newMeta(at time.Time) meta {
	return meta{Caller: s.caller.ID, ID: s.id, Created: at, Generation: rand.Text()}
}

// usage returns the session's usage as last measured, or nil if it is unknown.
func (md meta) usage() *workspace.Usage {
	if md.Bytes == nil || md.Files == nil {
		return nil
	}
	return &workspace.Usage{Bytes: *md.Bytes, Files: *md.Files, Unmeasured: md.Unmeasured}
}

func (md *meta) setUsage(u workspace.Usage) {
	md.Bytes, md.Files, md.Unmeasured = &u.Bytes, &u.Files, u.Unmeasured
}

// generation returns the generation of the session's links. Sessions of early releases lack one and
// use their creation time instead.
func (md meta) generation() string {
	if md.Generation != "" {
		return md.Generation
	}
	return "t" + strconv.FormatInt(md.Created.UnixNano(), 36)
}

// metaLock guards the meta.json of a session against writers of this process. It belongs to the
// key: a Session and its successor share it. Do not lock it while holding m.mu.
func (m *Manager) metaLock(key string) *sync.Mutex {
	var i [1]byte
	_, _ = hex.Decode(i[:], []byte(key[:2])) // a key is hex
	return &m.metaLocks[i[0]]
}

// readMeta reads the meta.json in a session's directory.
func readMeta(dir string) (md meta, err error) {
	f, err := os.Open(filepath.Join(dir, metaFile))
	if err != nil {
		return md, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMeta))
	if err == nil {
		err = json.Unmarshal(b, &md)
	}
	return md, err
}

// metaOf reads the meta.json in dir. ok is false if it is not that of the session with the key.
func (m *Manager) metaOf(dir, key string) (md meta, ok bool) {
	md, err := readMeta(dir)
	return md, err == nil && m.Key(Caller{md.Caller}, md.ID) == key
}

// writeMeta replaces meta.json atomically: other servers may read it at any time.
func writeMeta(dir string, md meta) (err error) {
	md.Created, md.LastUsed = md.Created.UTC(), md.LastUsed.UTC()
	b, err := json.MarshalIndent(md, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".meta-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(append(b, '\n')); err != nil {
		_ = f.Close()
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, metaFile))
}

// writeMeta replaces the session's meta.json. A failure only loses a record, so it is logged.
func (s *Session) writeMeta(md meta) bool {
	err := writeMeta(s.dir, md)
	if err != nil {
		s.m.log.Warn("cannot write a session's meta.json", "session_id", s.id, "error", err)
	}
	return err == nil
}

// save writes the last use and the size to meta.json, unless meta.json is at most lag old and its
// size is about right.
func (s *Session) save(lag time.Duration) {
	lock := s.m.metaLock(s.key)
	lock.Lock()
	defer lock.Unlock()
	s.m.mu.Lock()
	used, saved, ended := s.lastUsed, s.saved, s.ended != nil
	s.m.mu.Unlock()
	if ended || used.Sub(saved) < lag && !s.isSizeStale() {
		return
	}
	md, err := readMeta(s.dir)
	if err != nil { // missing or damaged
		md = s.newMeta(used)
	}
	if md.LastUsed.Before(used) {
		md.LastUsed = used
	}
	s.putSize(&md)
	if s.writeMeta(md) {
		s.m.mu.Lock()
		s.saved = used
		s.m.mu.Unlock()
	}
}

// isSizeStale reports whether the size in meta.json is far from what the session holds.
func (s *Session) isSizeStale() bool {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage == nil {
		return false
	}
	now, old := s.m.countable(*s.usage), s.savedUsage
	return now.Unmeasured != old.Unmeasured || max(now.Bytes-old.Bytes, old.Bytes-now.Bytes) > staleBytes ||
		max(now.Files-old.Files, old.Files-now.Files) > staleFiles
}

// putSize sets the size of the session in md, if it is known.
func (s *Session) putSize(md *meta) {
	s.usageMu.Lock()
	defer s.usageMu.Unlock()
	if s.usage != nil {
		s.savedUsage = s.m.countable(*s.usage)
		md.setUsage(s.savedUsage)
	}
}
