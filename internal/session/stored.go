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

	"mcp-code-sandbox/internal/workspace"
)

// Storage returns what the caller's sessions hold, those included that are closed and retained.
func (m *Manager) Storage(caller Caller) Storage {
	m.awaitAccounts()
	st, _ := m.stored.use(caller)
	if caller != Local {
		st.MaxSessions, st.MaxBytes = m.cfg.CallerSessions, m.cfg.CallerBytes
	}
	return st
}

// IDs returns the ids of the caller's open sessions, in order: those that count.
func (m *Manager) IDs(caller Caller) []string {
	m.awaitAccounts()
	return m.stored.ids(caller)
}

// limited reports whether the caller has a share of the storage. The operator has all of it.
func (m *Manager) limited(caller Caller) bool {
	return caller != Local && (m.cfg.CallerBytes > 0 || m.cfg.CallerSessions > 0)
}

// awaitAccounts waits until every session's meta.json has been read once, which New begins.
func (m *Manager) awaitAccounts() {
	select {
	case <-m.accounted:
	case <-m.ctx.Done():
	}
}

// admit makes an account of a session that is about to be opened. A new one of a caller that has as many as it may makes the one
// that it closed first go, or is refused with a *CallerError.
func (m *Manager) admit(s *Session, create bool) error {
	if !create || !m.limited(s.caller) || m.cfg.CallerSessions <= 0 {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(s.dir, filesDir)); err == nil {
		return nil
	}
	m.awaitAccounts()
	closed, ok := m.stored.admit(s.dir, s.caller, s.id, m.cfg.CallerSessions)
	if !ok {
		return &CallerError{Storage: m.Storage(s.caller), TooManySessions: true}
	}
	if closed != "" {
		m.removeClosed(closed) // without a lock: it can have many files, and other callers must not wait
	}
	return nil
}

// excess is by how many bytes the caller's open sessions and uploads exceed its share, or, if it is negative, how much is left.
// It deletes the caller's closed sessions, oldest first, while they and the open ones together exceed it.
func (m *Manager) excess(caller Caller) int64 {
	for {
		st, uploading := m.stored.use(caller)
		over := st.Bytes + uploading - m.cfg.CallerBytes
		if over+st.ClosedBytes <= 0 {
			return over
		}
		dir := m.stored.oldestClosed(caller, true)
		if dir == "" {
			return over
		}
		m.deleteClosed(dir)
	}
}

// limitsBytes reports whether the session's caller has a share of bytes, once it is known what it holds.
func (s *Session) limitsBytes() bool {
	if s.caller == Local || s.m.cfg.CallerBytes <= 0 {
		return false
	}
	s.m.awaitAccounts()
	return true
}

// checkCaller returns a *CallerError when the caller's bytes are used up, except where code may run to delete files. rest is how much
// the caller may still write.
func (s *Session) checkCaller() (rest int64, err error) {
	over := s.m.excess(s.caller)
	if over < 0 {
		return -over, nil
	}
	s.usageMu.Lock()
	hasFiles := s.usage != nil && s.usage.Files > 0
	s.usageMu.Unlock()
	if hasFiles && over <= overshootBytes {
		return 0, nil
	}
	return 0, &CallerError{Storage: s.m.Storage(s.caller)}
}

// deleteClosed deletes a closed session before its time.
func (m *Manager) deleteClosed(dir string) {
	if m.stored.drop(dir) { // otherwise another one does
		m.removeClosed(dir)
	}
}

// removeClosed deletes the files of a closed session that has no account any more.
func (m *Manager) removeClosed(dir string) {
	m.log.Info("deleting a closed session to make room for its caller's others", "dir", filepath.Base(filepath.Dir(dir)))
	if err := removeTree(m.ctx, dir); err != nil && m.ctx.Err() == nil {
		m.log.Warn("cannot delete the files of a closed session; trying again later", "err", err)
	}
	_ = os.Remove(filepath.Dir(dir)) // if it is empty
}

// scanStored reads the meta.json of every session, to know those that other servers have made, changed or deleted.
func (m *Manager) scanStored() {
	before := m.stored.dirs(false)
	seen := map[string]bool{}
	keys, err := os.ReadDir(m.cfg.Root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("cannot look for sessions", "err", err)
	}
	for _, key := range keys {
		if isKey(key.Name()) && m.ctx.Err() == nil {
			m.scanDir(filepath.Join(m.cfg.Root, key.Name()), key.Name(), time.Time{}, seen)
		}
	}
	closed, _ := os.ReadDir(filepath.Join(m.cfg.Root, closedDir))
	for _, key := range closed {
		dirs, at := m.retained(key.Name())
		for i, dir := range dirs {
			m.scanDir(dir, key.Name(), at[i], seen)
		}
	}
	for dir := range before {
		if _, err := os.Lstat(dir); !seen[dir] && errors.Is(err, fs.ErrNotExist) {
			m.stored.drop(dir)
		}
	}
}

func (m *Manager) scanDir(dir, key string, closed time.Time, seen map[string]bool) {
	md, ok := m.metaOf(dir, key)
	if !ok {
		return // being made, or moved
	}
	seen[dir] = true
	m.mu.Lock()
	_, used := m.sessions[key]
	m.mu.Unlock()
	bytes := md.Bytes
	if used && closed.IsZero() {
		bytes = nil // this server knows better
	} else if _, err := os.Readlink(filepath.Join(dir, userLink)); err == nil && !m.isAccounted() {
		bytes = nil // in use when its server died
	}
	m.stored.put(dir, Caller{md.Caller}, md.ID, closed, bytes)
}

func (m *Manager) isAccounted() bool {
	select {
	case <-m.accounted:
		return true
	default:
		return false
	}
}

// measureStored walks the sessions of which no measurement is known: those of earlier releases, and of servers that died. For those
// whose caller has no share it takes a tenth of the time at most.
func (m *Manager) measureStored() {
	for dir, e := range m.stored.dirs(true) {
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
		m.stored.set(dir, m.countable(u))
		m.noteBytes(dir, m.countable(u))
		wait := walkShare * time.Since(began)
		if m.limited(e.caller) {
			wait = 0
		}
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// noteBytes writes to a session's meta.json what it holds.
func (m *Manager) noteBytes(dir string, bytes int64) {
	key := filepath.Base(dir)
	if !isKey(key) {
		key = filepath.Base(filepath.Dir(dir))
	}
	lock := m.metaLock(key)
	lock.Lock()
	defer lock.Unlock()
	if md, ok := m.metaOf(dir, key); ok {
		md.Bytes = &bytes
		_ = (&Session{dir: dir}).writeMeta(md) // the next start measures again
	}
}

// countable is what a usage counts for. A tree that cannot be measured counts for the most that one is let grow to.
func (m *Manager) countable(u workspace.Usage) int64 {
	if q := m.cfg.Quota.Bytes; q > 0 {
		return min(u.Bytes, 2*q+overshootBytes)
	}
	return min(u.Bytes, 1<<50)
}

// Write is Workspace.Write within the caller's share and what must stay free of the disk. Besides the errors of that, it returns
// a *CallerError, and one that is syscall.ENOSPC.
func (s *Session) Write(name string, r io.Reader, opt workspace.WriteOptions) (workspace.File, error) {
	up := &upload{s: s, r: r, limited: s.limitsBytes(), reserve: s.reserve()}
	if err := up.check(); err != nil {
		return workspace.File{}, err
	}
	defer func() { s.m.stored.uploading(s.caller, -up.taken) }()
	f, err := s.ws.Write(name, up, opt)
	if up.err != nil {
		return workspace.File{}, up.err
	}
	if err != nil {
		return f, err
	}
	s.Keep()
	if !s.grow(f.Size) {
		s.walk(context.Background())
	}
	return f, nil
}

// Remove is Workspace.Remove, and notes what the session holds then.
func (s *Session) Remove(ctx context.Context, name string) error {
	if err := s.ws.Remove(name); err != nil {
		return err
	}
	s.walk(ctx)
	return nil
}

// upload is a body that counts towards its caller's bytes while it comes.
type upload struct {
	s       *Session
	r       io.Reader
	limited bool
	reserve int64
	taken   int64
	checked int64 // taken at the last look at the disk
	err     error // why it was refused
}

// uploadStep is how much of an upload is written between two looks at the free disk.
const uploadStep = 1 << 20

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	u.taken += int64(n)
	u.s.m.stored.uploading(u.s.caller, int64(n))
	if u.taken-u.checked >= uploadStep || u.limited && n > 0 {
		if refused := u.check(); refused != nil {
			return 0, refused
		}
	}
	return n, err
}

func (u *upload) check() error {
	if u.limited {
		if over := u.s.m.excess(u.s.caller); over > 0 || over == 0 && u.taken == 0 {
			u.err = &CallerError{Storage: u.s.m.Storage(u.s.caller)}
			return u.err
		}
	}
	if u.taken == 0 || u.taken-u.checked >= uploadStep {
		u.checked = u.taken
		if free, err := u.s.ws.Free(); err == nil && free < u.reserve {
			u.err = &fs.PathError{Op: "write", Path: filesDir, Err: syscall.ENOSPC}
			return u.err
		}
	}
	return nil
}

// reserve is what the session's runs and uploads must leave free of the disk. The operator may use half of what is left.
func (s *Session) reserve() int64 {
	free, err := s.ws.Free()
	if err != nil {
		return 0
	}
	if s.caller != Local {
		return min(diskReserve, s.diskSize()/16)
	}
	return min(diskReserve, free/2)
}

func (s *Session) diskSize() int64 {
	size, err := s.ws.DiskSize()
	if err != nil {
		return 0
	}
	return size
}
