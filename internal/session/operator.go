package session

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Info describes a session to the operator.
type Info struct {
	Key          string    `json:"key"`
	Caller       string    `json:"caller"`
	ID           string    `json:"session"`
	Runs         int       `json:"runs"`
	Sandboxes    int       `json:"sandboxes"`
	Interpreters []string  `json:"interpreters,omitempty"`
	Bytes        *int64    `json:"bytes,omitempty"` // as last measured; nil: unknown
	LastUsed     time.Time `json:"last_used"`
}

// Infos returns the sessions of all callers that this server uses or that have a sandbox.
func (m *Manager) Infos() []Info {
	m.mu.Lock()
	sessions := slices.Collect(maps.Values(m.sessions))
	infos := make([]Info, len(sessions))
	for i, s := range sessions {
		infos[i] = Info{Key: s.key, Caller: s.caller.ID, ID: s.id, Runs: s.runs, Sandboxes: len(s.sandboxes),
			Interpreters: s.interpretersLocked(), LastUsed: s.lastUsedLocked().UTC()}
	}
	m.mu.Unlock()
	for i, s := range sessions {
		if u, ok := s.knownUsage(); ok && u.Unmeasured == "" {
			infos[i].Bytes = &u.Bytes
		}
	}
	return infos
}

// Stopped says what StopSession ended.
type Stopped struct {
	Runs      int `json:"runs"`
	Sandboxes int `json:"sandboxes"`
}

// StopSession ends the runs, including waiting ones, and the sandboxes of any caller's session, and
// returns when they are gone or ctx is done. The files stay, and the next run starts a sandbox
// again. It returns ErrNotFound if this server does not have the session.
func (m *Manager) StopSession(ctx context.Context, key string) (Stopped, error) {
	m.mu.Lock()
	s := m.sessions[key]
	if s == nil {
		m.mu.Unlock()
		return Stopped{}, ErrNotFound
	}
	s.refs++ // keeps it until this function returns
	s.stops++
	m.retireAllLocked(s)
	sandboxes := slices.Collect(maps.Keys(s.ending))
	for _, sb := range sandboxes {
		sb.stopped = true
		sb.close()
	}
	stopped := Stopped{Runs: s.runs, Sandboxes: len(sandboxes)}
	m.mu.Unlock()
	defer s.Release()
	m.log.Info("the operator ended a session's sandboxes",
		"caller", s.caller.ID, "session_id", s.id, "runs", stopped.Runs)
	for _, sb := range sandboxes {
		select {
		case <-sb.gone:
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

// Stored returns the open sessions on root, as their meta.json describes them, last used first.
func Stored(root string) ([]Info, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var infos []Info
	for _, e := range entries {
		if !isKey(e.Name()) {
			continue
		}
		md, err := readMeta(filepath.Join(root, e.Name()))
		if err != nil {
			continue // just closed, or not made yet
		}
		infos = append(infos, md.info(e.Name()))
	}
	slices.SortFunc(infos, func(a, b Info) int { return b.LastUsed.Compare(a.LastUsed) })
	return infos, err
}

// Stored returns what meta.json says of the caller's session, for one that cannot be opened. ok is
// false if there is no such session.
func (m *Manager) Stored(caller Caller, id string) (info Info, ok bool) {
	key := m.Key(caller, id)
	md, ok := m.metaOf(filepath.Join(m.cfg.Root, key), key)
	return md.info(key), ok
}

func (md meta) info(key string) Info {
	info := Info{Key: key, Caller: md.Caller, ID: md.ID, Bytes: md.Bytes, LastUsed: md.LastUsed.UTC()}
	if md.Unmeasured != "" {
		info.Bytes = nil // it is what counts, not what there is
	}
	return info
}
