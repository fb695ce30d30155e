package session

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/session/storage"
	"mcp-code-sandbox/internal/workspace"
)

// Storage returns what the caller's sessions hold, including closed ones that are retained.
func (m *Manager) Storage(caller Caller) Storage {
	m.awaitCounted()
	return m.stored.Of(caller.ID)
}

// IDs returns the ids of the caller's open sessions, sorted.
func (m *Manager) IDs(caller Caller) []string {
	m.awaitCounted()
	return m.stored.IDs(caller.ID)
}

// awaitCounted waits until storageLoop has read every session's meta.json once.
func (m *Manager) awaitCounted() {
	select {
	case <-m.counted:
	case <-m.ctx.Done():
	}
}

// limitsUsage reports whether the session's caller has a limit of bytes or files.
func (s *Session) limitsUsage() bool {
	if limits := s.m.stored.Limits(s.caller.ID); limits.Bytes <= 0 && limits.Files <= 0 {
		return false
	}
	s.m.awaitCounted()
	return true
}

// admit adds a session that is about to be made to its caller's account. At the limit of sessions,
// the caller's session that was closed first is deleted; without a closed session, admit returns a
// *CallerError.
func (m *Manager) admit(s *Session, create bool) error {
	if !create || m.stored.Limits(s.caller.ID).Sessions <= 0 {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(s.dir, filesDir)); err == nil {
		return nil
	}
	m.awaitCounted()
	closed, ok := m.stored.Admit(s.dir, s.caller.ID, s.id)
	if !ok {
		return &CallerError{Storage: m.Storage(s.caller), TooManySessions: true}
	}
	if closed != "" {
		m.removeClosed(closed) // without a lock: other callers must not wait for it
	}
	return nil
}

// excess returns by how much the caller's open sessions and uploads exceed its limits; a negative
// number is the rest. It deletes the caller's closed sessions, oldest first, while they and the
// open ones together exceed the limits.
func (m *Manager) excess(caller Caller) workspace.Usage {
	for {
		over, closed := m.stored.Excess(caller.ID)
		if closed == "" {
			return over
		}
		m.deleteClosed(closed)
	}
}

func (s *Session) callerError(over workspace.Usage) error {
	return &CallerError{Storage: s.m.Storage(s.caller), TooManyFiles: over.Bytes < 0 && over.Files >= 0}
}

// deleteClosed deletes a closed session before its retention is over.
func (m *Manager) deleteClosed(dir string) {
	if m.stored.Drop(dir) { // otherwise another goroutine deletes it
		m.removeClosed(dir)
	}
}

// removeClosed deletes the files of a closed session that is in no account.
func (m *Manager) removeClosed(dir string) {
	parent := filepath.Dir(dir)
	m.log.Info("deleting a closed session to make room for its caller's others", "dir", filepath.Base(parent))
	m.removeFiles(dir)
	_ = os.Remove(parent) // if it is empty
}

// storageLoop counts what is stored, and deletes closed sessions after their retention: now, and at
// every clean-up interval.
func (m *Manager) storageLoop() {
	interval := m.cfg.CleanupInterval
	if interval <= 0 {
		interval = time.Hour
	}
	tick := time.NewTicker(max(interval, minCleanup))
	defer tick.Stop()
	for first := true; ; first = false {
		m.countStored(first)
		if first {
			close(m.counted)
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

// countStored reads the meta.json of every session, since other servers make, change and delete
// them.
func (m *Manager) countStored(first bool) {
	before := m.stored.Entries(false)
	keys, err := os.ReadDir(m.cfg.Root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("cannot list sessions", "error", err)
	}
	for _, key := range keys {
		if isKey(key.Name()) && m.ctx.Err() == nil {
			dir := filepath.Join(m.cfg.Root, key.Name())
			if m.countDir(dir, key.Name(), time.Time{}, first) {
				delete(before, dir)
			}
		}
	}
	closed, _ := os.ReadDir(filepath.Join(m.cfg.Root, closedDir))
	for _, key := range closed {
		for _, c := range m.closedSessions(key.Name()) {
			if m.countDir(c.dir, key.Name(), c.at, first) {
				delete(before, c.dir)
			}
		}
	}
	for dir := range before {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			m.stored.Drop(dir)
		}
	}
}

func (m *Manager) countDir(dir, key string, closed time.Time, first bool) (ok bool) {
	md, ok := m.metaOf(dir, key)
	if !ok {
		return false // it is being made or moved
	}
	m.mu.Lock()
	_, inUse := m.sessions[key]
	m.mu.Unlock()
	use := md.usage()
	if inUse && closed.IsZero() {
		use = nil // this server knows it better
	} else if _, err := os.Readlink(filepath.Join(dir, userLink)); first && (err == nil || md.Unmeasured != "") {
		use = nil // it was in use when its server died, or perhaps this server can measure it
	}
	m.stored.Put(dir, md.Caller, md.ID, closed, use)
	return true
}

// measureStored walks the sessions that were never measured: those of early releases, and of
// servers that died. It takes at most a tenth of the time for callers without limits.
func (m *Manager) measureStored() {
	for dir, entry := range m.stored.Entries(true) {
		ws, err := workspace.Open(filepath.Join(dir, filesDir), m.cfg.Owner)
		if err != nil {
			continue
		}
		began := time.Now()
		u, err := ws.Usage(m.ctx, workspace.Usage{})
		_ = ws.Close()
		if err != nil {
			continue
		}
		entry.Set(m.countable(u))
		m.saveUsage(dir, m.countable(u))
		wait := walkShare * time.Since(began)
		if m.stored.Limits(entry.Caller()) != (storage.Limits{}) {
			wait = 0
		}
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// saveUsage writes to a session's meta.json what it holds.
func (m *Manager) saveUsage(dir string, use workspace.Usage) {
	key := filepath.Base(dir)
	if !isKey(key) {
		key = filepath.Base(filepath.Dir(dir)) // it is closed
	}
	lock := m.metaLock(key)
	lock.Lock()
	defer lock.Unlock()
	if md, ok := m.metaOf(dir, key); ok {
		md.setUsage(use)
		_ = writeMeta(dir, md) // the next start measures again
	}
}

// Write is Workspace.Write within the caller's limits and the reserve of the disk. It also returns
// *CallerError and syscall.ENOSPC.
func (s *Session) Write(name string, r io.Reader, opt workspace.WriteOptions) (workspace.File, error) {
	up := &upload{s: s, r: r, limited: s.limitsUsage(), reserve: s.reserve()}
	s.m.stored.AddUpload(s.caller.ID, 0, 1)
	defer func() { s.m.stored.AddUpload(s.caller.ID, -up.read, -1) }()
	if err := up.check(); err != nil {
		return workspace.File{}, err
	}
	f, err := s.ws.Write(name, up, opt)
	if up.err != nil {
		return workspace.File{}, up.err
	}
	if err != nil {
		return f, err
	}
	s.Keep()
	if !s.addFile(f.Size) {
		s.walk(context.Background())
	}
	return f, nil
}

// Prune is Workspace.Prune, and measures the session afterwards.
func (s *Session) Prune(ctx context.Context, dir string, limit int64, age time.Duration) error {
	deleted, err := s.ws.Prune(dir, limit, age)
	if deleted > 0 {
		s.walk(ctx)
	}
	return err
}

// RemoveStale is Workspace.RemoveStale, and measures the session afterwards.
func (s *Session) RemoveStale(ctx context.Context, dir string, stale func(name string) bool) {
	if err := s.ws.RemoveStale(ctx, dir, stale); err == nil {
		s.walk(ctx)
	}
}

// Remove is Workspace.Remove, and measures the session afterwards.
func (s *Session) Remove(ctx context.Context, name string) error {
	if err := s.ws.Remove(name); err != nil {
		return err
	}
	s.walk(ctx)
	return nil
}

// uploadStep is how much of an upload is written between two checks of the free disk.
const uploadStep = 1 << 20

// upload reads a body that counts towards its caller's bytes while it arrives.
type upload struct {
	s       *Session
	r       io.Reader
	limited bool
	reserve workspace.Usage
	read    int64
	checked int64 // read at the last check of the free disk
	err     error // why it was refused
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	u.read += int64(n)
	u.s.m.stored.AddUpload(u.s.caller.ID, int64(n), 0)
	if u.read-u.checked >= uploadStep || u.limited && n > 0 {
		if u.check() != nil {
			return 0, u.err
		}
	}
	return n, err
}

func (u *upload) check() error {
	if u.limited {
		over := u.s.m.excess(u.s.caller)
		if over.Files > 0 || over.Bytes > 0 || over.Bytes == 0 && u.read == 0 {
			u.err = u.s.callerError(over)
			return u.err
		}
	}
	if u.read == 0 || u.read-u.checked >= uploadStep {
		u.checked = u.read
		if disk, err := u.s.ws.Disk(); err == nil && storage.ShortageOf(disk, u.reserve) != storage.None {
			u.err = &fs.PathError{Op: "write", Path: filesDir, Err: syscall.ENOSPC}
		}
	}
	return u.err
}
