package session

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
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
		st.MaxSessions, st.MaxBytes, st.MaxFiles = m.cfg.CallerSessions, m.cfg.CallerBytes, m.cfg.CallerFiles
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
	return caller != Local && (m.cfg.CallerBytes > 0 || m.cfg.CallerFiles > 0 || m.cfg.CallerSessions > 0)
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

// excess is by how much the caller's open sessions and uploads exceed its share, or, where it is negative, how much is left.
// It deletes the caller's closed sessions, oldest first, while they and the open ones together exceed it.
func (m *Manager) excess(caller Caller) workspace.Usage {
	for {
		st, uploading := m.stored.use(caller)
		over := workspace.Usage{Bytes: math.MinInt64 / 2, Files: math.MinInt / 2}
		if m.cfg.CallerBytes > 0 {
			over.Bytes = st.Bytes + uploading.Bytes - m.cfg.CallerBytes
		}
		if m.cfg.CallerFiles > 0 {
			over.Files = st.Files + uploading.Files - m.cfg.CallerFiles
		}
		if over.Bytes+st.ClosedBytes <= 0 && over.Files+st.ClosedFiles <= 0 {
			return over
		}
		dir := m.stored.oldestClosed(caller, true)
		if dir == "" {
			return over
		}
		m.deleteClosed(dir)
	}
}

// limitsUsage reports whether the session's caller has a share of bytes or files, once it is known what it holds.
func (s *Session) limitsUsage() bool {
	if s.caller == Local || s.m.cfg.CallerBytes <= 0 && s.m.cfg.CallerFiles <= 0 {
		return false
	}
	s.m.awaitAccounts()
	return true
}

// checkCaller returns a *CallerError when the caller's share is used up, except where code may run to delete files.
func (s *Session) checkCaller() error {
	over := s.m.excess(s.caller)
	if over.Bytes < 0 && over.Files < 0 {
		return nil
	}
	s.usageMu.Lock()
	hasFiles := s.usage != nil && s.usage.Files > 0
	s.usageMu.Unlock()
	if hasFiles && over.Bytes <= overshootBytes && over.Files <= overshootFiles {
		return nil
	}
	return s.callerError(over)
}

// callerError says what of the caller's share is used up.
func (s *Session) callerError(over workspace.Usage) error {
	return &CallerError{Storage: s.m.Storage(s.caller), TooManyFiles: over.Bytes < 0 && over.Files >= 0}
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
	use := md.usage()
	if used && closed.IsZero() {
		use = nil // this server knows better
	} else if _, err := os.Readlink(filepath.Join(dir, userLink)); err == nil && !m.isAccounted() {
		use = nil // in use when its server died
	}
	m.stored.put(dir, Caller{md.Caller}, md.ID, closed, use)
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
		m.noteUsage(dir, m.countable(u))
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

// noteUsage writes to a session's meta.json what it holds.
func (m *Manager) noteUsage(dir string, use workspace.Usage) {
	key := filepath.Base(dir)
	if !isKey(key) {
		key = filepath.Base(filepath.Dir(dir))
	}
	lock := m.metaLock(key)
	lock.Lock()
	defer lock.Unlock()
	if md, ok := m.metaOf(dir, key); ok {
		md.Bytes, md.Files = &use.Bytes, &use.Files
		_ = (&Session{dir: dir}).writeMeta(md) // the next start measures again
	}
}

// countable is what a usage counts for. A tree that cannot be measured counts for the most that one is let grow to.
func (m *Manager) countable(u workspace.Usage) workspace.Usage {
	most := workspace.Usage{Bytes: 1 << 50, Files: 1 << 30}
	if q := m.cfg.Quota.Bytes; q > 0 {
		most.Bytes = 2*q + overshootBytes
	}
	if q := m.cfg.Quota.Files; q > 0 {
		most.Files = 2*q + overshootFiles
	}
	return workspace.Usage{Bytes: min(u.Bytes, most.Bytes), Files: min(u.Files, most.Files)}
}

// Write is Workspace.Write within the caller's share and what must stay free of the disk. Besides the errors of that, it returns
// a *CallerError, and one that is syscall.ENOSPC.
func (s *Session) Write(name string, r io.Reader, opt workspace.WriteOptions) (workspace.File, error) {
	up := &upload{s: s, r: r, limited: s.limitsUsage(), reserve: s.reserve()}
	s.m.stored.uploading(s.caller, 0, 1)
	defer func() { s.m.stored.uploading(s.caller, -up.taken, -1) }()
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
	reserve workspace.Usage
	taken   int64
	checked int64 // taken at the last look at the disk
	err     error // why it was refused
}

// uploadStep is how much of an upload is written between two looks at the free disk.
const uploadStep = 1 << 20

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	u.taken += int64(n)
	u.s.m.stored.uploading(u.s.caller, int64(n), 0)
	if u.taken-u.checked >= uploadStep || u.limited && n > 0 {
		if refused := u.check(); refused != nil {
			return 0, refused
		}
	}
	return n, err
}

func (u *upload) check() error {
	if u.limited {
		if over := u.s.m.excess(u.s.caller); over.Files > 0 || over.Bytes > 0 || over.Bytes == 0 && u.taken == 0 {
			u.err = u.s.callerError(over)
			return u.err
		}
	}
	if u.taken == 0 || u.taken-u.checked >= uploadStep {
		u.checked = u.taken
		if disk, err := u.s.ws.Disk(); err == nil && shortageOf(disk, u.reserve) != enough {
			u.err = &fs.PathError{Op: "write", Path: filesDir, Err: syscall.ENOSPC}
			return u.err
		}
	}
	return nil
}
