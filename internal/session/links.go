package session

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"mcp-code-sandbox/internal/workspace"
)

// A link to a file of a session contains the session's generation, which begins when the session is
// made and ends when it is closed or its links are revoked. A link of one generation never opens a
// file of another.

// Generation returns the generation of the caller's session with that id, or of the last closed one
// that is retained. It is empty if there is neither.
func (m *Manager) Generation(caller Caller, id string) string {
	for _, md := range m.generations(m.Key(caller, id)) {
		return md.generation()
	}
	return ""
}

// LinkCaller returns the caller of the session with that key, open or retained; empty if there is
// none.
func (m *Manager) LinkCaller(key string) string {
	if isKey(key) {
		for _, md := range m.generations(key) {
			return md.Caller
		}
	}
	return ""
}

// OpenLink opens a file of one generation of the session with that key, open or retained. The error
// matches fs.ErrNotExist if the generation or the file does not exist.
func (m *Manager) OpenLink(key, generation, name string) (*os.File, fs.FileInfo, error) {
	if !isKey(key) {
		return nil, nil, notExist(name)
	}
	for dir, md := range m.generations(key) {
		if md.generation() != generation {
			continue
		}
		ws, err := workspace.Open(filepath.Join(dir, filesDir), m.cfg.Owner)
		if err != nil {
			continue // just closed, or being deleted
		}
		// The session may have been closed and made again before the workspace was opened.
		if md, ok := m.metaOf(dir, key); !ok || md.generation() != generation {
			_ = ws.Close()
			continue
		}
		f, fi, err := ws.Open(name)
		_ = ws.Close()
		return f, fi, err
	}
	return nil, nil, notExist(name)
}

// RevokeLinks revokes every link to files of the caller's sessions with that id, the open one and
// retained ones. It returns ErrNotFound if there are none.
func (m *Manager) RevokeLinks(caller Caller, id string) error {
	if err := CheckID(id); err != nil {
		return err
	}
	key := m.Key(caller, id)
	lock := m.metaLock(key)
	lock.Lock()
	defer lock.Unlock()
	found := false
	var errs []error
	for dir, md := range m.generations(key) {
		md.Generation = rand.Text()
		if err := writeMeta(dir, md); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		found = true
	}
	if !found {
		return ErrNotFound
	}
	return errors.Join(errs...)
}

// generations yields the directory and meta.json of the sessions with that key: of the open one,
// and then, listed only if needed, of retained ones, last closed first.
func (m *Manager) generations(key string) iter.Seq2[string, meta] {
	return func(yield func(string, meta) bool) {
		open := filepath.Join(m.cfg.Root, key)
		if md, ok := m.metaOf(open, key); ok && !yield(open, md) {
			return
		}
		for _, dir := range m.retained(key) {
			if md, ok := m.metaOf(dir, key); ok && !yield(dir, md) {
				return
			}
		}
	}
}
