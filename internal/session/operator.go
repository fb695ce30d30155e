package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Info is what the operator sees of a session.
type Info struct {
	Key          string    `json:"key"`
	Caller       string    `json:"caller"`
	ID           string    `json:"session"`
	Runs         int       `json:"runs"`
	Sandboxes    int       `json:"sandboxes"`
	Interpreters []string  `json:"interpreters,omitempty"`
	Bytes        *int64    `json:"bytes,omitempty"` // as last measured, where it was
	LastUsed     time.Time `json:"last_used"`
}

// Infos returns all callers' sessions that this server has in use or with a sandbox.
func (m *Manager) Infos() []Info {
	m.mu.Lock()
	infos := make([]Info, 0, len(m.sessions))
	held := make([]*Session, 0, len(m.sessions))
	for _, s := range m.sessions {
		used := s.lastUsed
		if s.saved.After(used) {
			used = s.saved
		}
		infos = append(infos, Info{Key: s.key, Caller: s.caller.ID, ID: s.id, Runs: s.runs, Sandboxes: len(s.boxes),
			Interpreters: s.interpretersLocked(), LastUsed: used.UTC()})
		held = append(held, s)
	}
	m.mu.Unlock()
	for i, s := range held {
		s.usageMu.Lock()
		if s.usage != nil {
			bytes := s.usage.Bytes
			infos[i].Bytes = &bytes
		}
		s.usageMu.Unlock()
	}
	return infos
}

// Stopped is what StopSession ended.
type Stopped struct {
	Runs      int `json:"runs"`
	Sandboxes int `json:"sandboxes"`
}

// StopSession ends the runs, those that wait included, and the sandboxes of the session with that
// key, whoever's it is, and returns when they are gone or ctx is done. Its files stay, and the next
// run starts a sandbox again. It returns ErrNotFound if this server does not have the session.
func (m *Manager) StopSession(ctx context.Context, key string) (Stopped, error) {
	m.mu.Lock()
	s := m.sessions[key]
	if s == nil {
		m.mu.Unlock()
		return Stopped{}, ErrNotFound
	}
	s.refs++ // until it is done
	s.stops++
	stopped := Stopped{Runs: s.runs}
	m.evictLocked(s)
	var boxes []*box
	for b := range s.ending {
		b.stopped = true
		b.close()
		boxes = append(boxes, b)
	}
	m.mu.Unlock()
	defer s.Release()
	stopped.Sandboxes = len(boxes)
	m.log.Info("the operator ended a session's sandboxes", "caller", s.caller.ID, "session_id", s.id, "runs", stopped.Runs)
	for _, b := range boxes {
		select {
		case <-b.gone:
		case <-ctx.Done():
			return stopped, context.Cause(ctx)
		}
	}
	return stopped, nil
}

func (s *Session) stopCount() uint64 {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.stops
}

// maxMeta is more than any meta.json has.
const maxMeta = 64 << 10

// Stored returns the sessions on root that have not been closed, as their meta.json tells of them.
func Stored(root string) ([]Info, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var infos []Info
	for _, e := range entries {
		key := e.Name()
		if len(key) != 64 || strings.Trim(key, "0123456789abcdef") != "" {
			continue
		}
		md, err := storedMeta(filepath.Join(root, key, metaFile))
		if err != nil {
			continue // closed meanwhile, or about to be made
		}
		infos = append(infos, Info{Key: key, Caller: md.Caller, ID: md.ID, Bytes: md.Bytes, LastUsed: md.LastUsed.UTC()})
	}
	slices.SortFunc(infos, func(a, b Info) int { return b.LastUsed.Compare(a.LastUsed) })
	return infos, err
}

func storedMeta(name string) (md meta, err error) {
	f, err := os.Open(name)
	if err != nil {
		return md, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMeta))
	if err == nil {
		err = json.Unmarshal(b, &md)
	}
	if err != nil {
		return md, fmt.Errorf("%s: %w", name, err)
	}
	return md, nil
}
