package session

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/workspace"
)

// The directory of a closed session is retained, for its links, as
// <root>/closed/<key>/<time of closing>-<random>. An id may be used and closed many times.
const (
	closedDir    = "closed"
	closedLayout = "20060102T150405.000000000Z" // sorts by time
)

// closedSession is the directory of a closed session.
type closedSession struct {
	dir string
	at  time.Time
}

// retain moves the session's directory to the closed ones. The session has ended: nothing saves it.
func (s *Session) retain(now time.Time) error {
	lock := s.m.metaLock(s.key)
	lock.Lock()
	defer lock.Unlock()
	now = now.UTC()
	md, err := readMeta(s.dir)
	if err != nil {
		md = s.newMeta(now)
	}
	md.LastUsed, md.ClosedAt = now, &now
	s.putSize(&md)
	s.writeMeta(md)
	s.disclaim()
	var b [4]byte
	rand.Read(b[:]) // never fails
	parent := filepath.Join(s.m.cfg.Root, closedDir, s.key)
	target := filepath.Join(parent, now.Format(closedLayout)+"-"+hex.EncodeToString(b[:]))
	for try := 0; ; try++ {
		if err := os.MkdirAll(parent, 0o700); err != nil {
			return err
		}
		err := os.Rename(s.dir, target)
		if err == nil {
			s.m.stored.Close(s.dir, target, now)
		}
		if try < 3 && errors.Is(err, fs.ErrNotExist) {
			if _, gone := os.Lstat(s.dir); gone == nil {
				continue // a purge deleted the empty parent
			}
			return ErrNotFound // another server closed the session first
		}
		return err
	}
}

// closedSessions returns the closed sessions with that key, last closed first.
func (m *Manager) closedSessions(key string) (sessions []closedSession) {
	parent := filepath.Join(m.cfg.Root, closedDir, key)
	entries, err := os.ReadDir(parent) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("cannot list closed sessions", "error", err)
	}
	for _, e := range slices.Backward(entries) {
		text, _, _ := strings.Cut(e.Name(), "-")
		at, err := time.Parse(closedLayout, text)
		if err != nil || !e.IsDir() {
			continue // not ours
		}
		sessions = append(sessions, closedSession{filepath.Join(parent, e.Name()), at})
	}
	return sessions
}

// retained returns the directories of the closed sessions with that key that are still retained,
// last closed first.
func (m *Manager) retained(key string) (dirs []string) {
	now := time.Now()
	for _, c := range m.closedSessions(key) {
		if !m.isRetentionOver(c, now) {
			dirs = append(dirs, c.dir)
		}
	}
	return dirs
}

func (m *Manager) isRetentionOver(c closedSession, now time.Time) bool {
	return now.Sub(c.at) >= m.cfg.ClosedRetention
}

// OpenRetained opens a file of the last closed session with that id that has such a file, while
// closed sessions are retained. The error is an *IDError, or matches fs.ErrNotExist.
func (m *Manager) OpenRetained(caller Caller, id, name string) (*os.File, fs.FileInfo, error) {
	if err := CheckID(id); err != nil {
		return nil, nil, err
	}
	for _, dir := range m.retained(m.Key(caller, id)) {
		ws, err := workspace.Open(filepath.Join(dir, filesDir), m.cfg.Owner)
		if err != nil {
			continue // another server deletes it
		}
		f, fi, err := ws.Open(name)
		_ = ws.Close()
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return f, fi, err
		}
	}
	return nil, nil, notExist(name)
}

func notExist(name string) error {
	return &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// removeFiles deletes the directory of a closed session. It logs the first failure of each: files
// that belong to ids which this server lacks fail at every clean-up.
func (m *Manager) removeFiles(dir string) bool {
	err := workspace.RemoveAll(m.ctx, dir)
	if err == nil {
		m.undeleted.Delete(dir)
		return true
	}
	if m.ctx.Err() == nil {
		if _, warned := m.undeleted.LoadOrStore(dir, nil); !warned {
			m.log.Warn("cannot delete the files of a closed session; trying again later", "error", err)
		}
	}
	return false
}

// purge deletes closed sessions after their retention.
func (m *Manager) purge(now time.Time) {
	keys, err := os.ReadDir(filepath.Join(m.cfg.Root, closedDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("cannot list closed sessions", "error", err)
	}
	for _, key := range keys {
		for _, c := range m.closedSessions(key.Name()) {
			if !m.isRetentionOver(c, now) {
				continue
			}
			if m.removeFiles(c.dir) {
				m.stored.Drop(c.dir)
			}
			if m.ctx.Err() != nil {
				return
			}
		}
		_ = os.Remove(filepath.Join(m.cfg.Root, closedDir, key.Name())) // if it is empty
	}
}
