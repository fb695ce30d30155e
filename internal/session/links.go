package session

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"mcp-code-sandbox/internal/workspace"
)

// Links to the files of a session name its generation: one life of the session, from the day it is
// made until it is closed or its links are revoked. A link of one generation never opens a file of
// another.

// newMeta is the meta.json of a session that begins at a time.
func (s *Session) newMeta(at time.Time) meta {
	return meta{Caller: s.caller.ID, ID: s.id, Created: at, Generation: rand.Text()}
}

// generation is that of the session whose meta.json it is. Those of earlier releases have none, but
// a time of their own.
func (md meta) generation() string {
	if md.Generation != "" {
		return md.Generation
	}
	return "t" + strconv.FormatInt(md.Created.UnixNano(), 36)
}

// Generation returns the generation of the caller's session of that id, or else of the one that was
// closed last and is retained. It is empty when there is neither.
func (m *Manager) Generation(caller Caller, id string) string {
	key := m.key(caller, id)
	for dir := range m.lives(key) {
		if md, ok := m.metaOf(dir, key); ok {
			return md.generation()
		}
	}
	return ""
}

// OpenLink opens a file of one generation of the session that has the key, open or closed and
// retained. The error matches fs.ErrNotExist when there is no such generation or no such file.
func (m *Manager) OpenLink(key, generation, name string) (*os.File, fs.FileInfo, error) {
	missing := &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	if !isKey(key) {
		return nil, nil, missing
	}
	for dir := range m.lives(key) {
		if md, ok := m.metaOf(dir, key); !ok || md.generation() != generation {
			continue
		}
		ws, err := workspace.Open(filepath.Join(dir, filesDir), m.cfg.Owner)
		if err != nil {
			continue // just closed, or being deleted
		}
		// The directory may have been closed and made anew between the two looks.
		if md, ok := m.metaOf(dir, key); !ok || md.generation() != generation {
			_ = ws.Close()
			continue
		}
		f, fi, err := ws.Open(name)
		_ = ws.Close()
		return f, fi, err
	}
	return nil, nil, missing
}

// LinkCaller returns whose session has the key, open or closed and retained; empty if there is none.
func (m *Manager) LinkCaller(key string) string {
	if !isKey(key) {
		return ""
	}
	for dir := range m.lives(key) {
		if md, ok := m.metaOf(dir, key); ok {
			return md.Caller
		}
	}
	return ""
}

// isKey reports whether a name from a link can be a session's directory.
func isKey(name string) bool {
	sum, err := hex.DecodeString(name)
	return err == nil && len(sum) == sha256.Size
}

// RevokeLinks ends every link to the files of the caller's sessions of that id, the open one and
// those that are closed and retained. It returns ErrNotFound when there is none.
func (m *Manager) RevokeLinks(caller Caller, id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	key := m.key(caller, id)
	lock := m.metaLock(key)
	lock.Lock()
	defer lock.Unlock()
	found := false
	var errs []error
	for dir := range m.lives(key) {
		md, ok := m.metaOf(dir, key)
		if !ok {
			continue
		}
		md.Generation = rand.Text()
		if err := (&Session{dir: dir}).writeMeta(md); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		found = true
	}
	if !found {
		return ErrNotFound
	}
	return errors.Join(errs...)
}

// lives yields the directories of the sessions that have the key: the open one's, then, looked for
// only after that, those that are closed and retained, last closed first.
func (m *Manager) lives(key string) func(yield func(dir string) bool) {
	return func(yield func(string) bool) {
		if !yield(filepath.Join(m.cfg.Root, key)) {
			return
		}
		dirs, closed := m.retained(key)
		for i, dir := range dirs {
			if m.retentionOver(closed[i], time.Now()) || !yield(dir) {
				return
			}
		}
	}
}

// metaOf reads a directory's meta.json. That it is the session's own is proven by the key.
func (m *Manager) metaOf(dir, key string) (meta, bool) {
	md, err := (&Session{dir: dir}).readMeta()
	return md, err == nil && m.key(Caller{md.Caller}, md.ID) == key
}
