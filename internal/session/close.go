package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/workspace"
)

// A closed session's directory is kept, for links that were handed out, as
//
//	<root>/closed/<key>/<time of closing>-<random>
//
// An id may be used and closed many times, by several servers on one root, so there may be many of them for one key.
const (
	closedDir    = "closed"
	closedLayout = "20060102T150405.000000000Z" // sorts by time
)

// CloseSession ends the caller's session of that id: its runs, with the cause cancelled, its sandboxes, and the session itself.
// When it returns, the id is ErrNotFound to Lookup, and Open makes an empty session. Files stay reachable by OpenRetained
// for as long as closed sessions are retained. It returns ErrNotFound when there is no such session.
func (m *Manager) CloseSession(ctx context.Context, caller Caller, id string) error {
	s, err := m.Lookup(caller, id)
	if err != nil {
		return err
	}
	defer s.Release()
	m.mu.Lock()
	if s.ended != nil { // between Lookup and here
		m.mu.Unlock()
		return ErrNotFound
	}
	boxes := m.endLocked(s)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.dropLocked(s)
		m.mu.Unlock()
		close(s.ended)
	}()

	// Once begun it is finished, also when the one who asked is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	for _, b := range boxes {
		select {
		case <-b.gone:
		case <-ctx.Done():
			// Its code is being killed, no run gets what is left of it, and its own goroutine waits for it.
			m.log.Info("a sandbox of a closed session takes long to end", "session_id", id)
		}
	}
	s.settle(context.WithoutCancel(ctx), len(boxes) > 0)
	if err := s.retain(time.Now()); err != nil {
		return fmt.Errorf("close the session: %w", err)
	}
	m.log.Info("session closed", "session_id", id)
	return nil
}

// endLocked ends the session's runs and sandboxes, which it returns, and refuses new ones. Whoever asks for the session
// waits until s.ended is closed.
func (m *Manager) endLocked(s *Session) (boxes []*box) {
	s.ended = make(chan struct{})
	m.evictLocked(s)          // the caller holds s: it is not forgotten
	for b := range s.ending { // also those that were retired with a run still going
		boxes = append(boxes, b)
		b.close()
	}
	return boxes
}

// dropLocked makes room for another session of the same name. What holds s still can use its files.
func (m *Manager) dropLocked(s *Session) {
	if m.sessions[s.key] == s {
		delete(m.sessions, s.key)
	}
}

// abandon lets go of a session that another server on the same root has closed.
func (m *Manager) abandon(s *Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.ended == nil {
		m.endLocked(s)
		m.dropLocked(s)
		close(s.ended)
		m.log.Info("session was closed by another server", "session_id", s.id)
	}
}

// current reports whether the session's directory is still the one that was opened.
func (s *Session) current() bool {
	s.loadMu.Lock()
	info := s.info
	s.loadMu.Unlock()
	if info == nil {
		return true // nothing has been opened yet
	}
	now, err := os.Lstat(filepath.Join(s.dir, filesDir))
	return err == nil && os.SameFile(info, now)
}

// retain moves the session's directory to the closed ones.
func (s *Session) retain(now time.Time) error {
	lock := s.m.metaLock(s.key) // no save is under way, and none will be: the session has ended
	lock.Lock()
	defer lock.Unlock()
	now = now.UTC()
	md, err := s.readMeta()
	if err != nil {
		md = s.newMeta(now)
	}
	md.LastUsed, md.ClosedAt = now, &now
	s.measured(&md)
	if err := s.writeMeta(md); err != nil {
		s.m.log.Warn("cannot write a session's meta.json", "session_id", s.id, "err", err)
	}
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
			s.m.stored.retain(s.dir, target, now)
		}
		if try < 3 && errors.Is(err, fs.ErrNotExist) {
			if _, gone := os.Lstat(s.dir); gone == nil {
				continue // a purge took the empty parent away
			}
			return ErrNotFound // another server was faster
		}
		return err
	}
}

// retained lists the directories of the closed sessions under a key of closedDir, last closed first.
func (m *Manager) retained(key string) (dirs []string, closed []time.Time) {
	parent := filepath.Join(m.cfg.Root, closedDir, key)
	entries, err := os.ReadDir(parent) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("cannot look for closed sessions", "err", err)
	}
	for _, e := range slices.Backward(entries) {
		text, _, _ := strings.Cut(e.Name(), "-")
		at, err := time.Parse(closedLayout, text)
		if err != nil || !e.IsDir() {
			continue // not ours
		}
		dirs, closed = append(dirs, filepath.Join(parent, e.Name())), append(closed, at)
	}
	return dirs, closed
}

// OpenRetained opens a file of a session of that id that has been closed: the last one that has such a file, while closed
// sessions are retained. The error is an *IDError, or matches fs.ErrNotExist.
func (m *Manager) OpenRetained(caller Caller, id, name string) (*os.File, fs.FileInfo, error) {
	if err := CheckID(id); err != nil {
		return nil, nil, err
	}
	dirs, closed := m.retained(m.key(caller, id))
	for i, dir := range dirs {
		if m.retentionOver(closed[i], time.Now()) {
			break // those that follow were closed before
		}
		ws, err := workspace.Open(filepath.Join(dir, filesDir), m.cfg.Owner)
		if err != nil {
			continue // being deleted by another server
		}
		f, fi, err := ws.Open(name)
		_ = ws.Close()
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return f, fi, err
		}
	}
	return nil, nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func (m *Manager) retentionOver(closed, now time.Time) bool {
	return now.Sub(closed) >= m.cfg.ClosedRetention
}

// purgeLoop deletes closed sessions whose retention is over: now, and at every clean-up interval.
func (m *Manager) purgeLoop() {
	interval := m.cfg.CleanupInterval
	if interval <= 0 {
		interval = time.Hour
	}
	tick := time.NewTicker(max(interval, minCleanup))
	defer tick.Stop()
	for first := true; ; first = false {
		m.scanStored()
		if first {
			close(m.accounted)
		}
		m.purge(time.Now())
		m.measureStored()
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *Manager) purge(now time.Time) {
	keys, err := os.ReadDir(filepath.Join(m.cfg.Root, closedDir))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("cannot look for closed sessions", "err", err)
		}
		return
	}
	for _, key := range keys {
		dirs, closed := m.retained(key.Name())
		for i, dir := range dirs {
			if !m.retentionOver(closed[i], now) {
				continue
			}
			if err := removeTree(m.ctx, dir); err != nil {
				if m.ctx.Err() != nil {
					return
				}
				m.log.Warn("cannot delete the files of a closed session; trying again later", "err", err)
				continue
			}
			m.stored.drop(dir)
		}
		_ = os.Remove(filepath.Join(m.cfg.Root, closedDir, key.Name())) // if it is empty
	}
}
