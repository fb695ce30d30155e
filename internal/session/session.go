// Package session maps (caller, id) to a workspace and to the sandboxes that run code in it.
//
// It starts a sandbox on first use, reuses it for many runs, and ends it when it is idle or when
// another session needs the room. It supervises each run from outside: time, output, disk. It knows
// no MCP, no HTTP and no links. session.go holds the life cycle of a session, sandbox.go of a
// sandbox, and run.go and supervise.go of a run. room.go and evict.go decide which session gets a
// sandbox when there are too few. disk.go, watch.go and shortage.go limit disk usage. snapshot.go
// finds the files that a run changed.
package session

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session/storage"
	"mcp-code-sandbox/internal/workspace"
)

// filesDir is the name of the workspace in a session's directory.
const filesDir = "files"

// Session is a caller's long-lived place to work. Its methods are safe for concurrent use.
type Session struct {
	m      *Manager
	caller Caller
	id     string
	key    string
	dir    string // <root>/<key>

	loadMu  sync.Mutex           // guards the next fields, which load sets once
	ws      *workspace.Workspace // nil before load
	info    fs.FileInfo          // of the directory that ws has open
	account *storage.Entry

	usageMu    sync.Mutex
	usage      *workspace.Usage // as of the last complete walk, plus later uploads; nil before it
	savedUsage workspace.Usage  // the usage in meta.json

	// m.mu guards the rest.
	refs      int // of Open, Lookup and runs
	lastUsed  time.Time
	saved     time.Time // last_used in meta.json
	unused    bool      // this server made the directory, which is still empty; see Keep
	discarded bool      // forgotten while unused: closeForgotten deletes the directory
	forgotten bool
	ended     chan struct{} // set when the session begins to close; closed when that is done

	runs      int
	active    map[*activeRun]struct{} // the runs whose code was sent
	begun     uint64                  // runs so far
	stops     uint64                  // calls of StopSession so far
	reserved  bool                    // see Reserve
	kept      kept
	sandboxes map[sandboxKey]*sessionSandbox
	ending    map[*sessionSandbox]struct{} // retired ones
	idle      *list.Element                // in m.idle
	turns     map[interpreterKey][]*turn   // runs that have or wait for an interpreter
	network   map[string]bool              // of each runner's last persistent run
}

// ID returns the id that the caller chose.
func (s *Session) ID() string { return s.id }

// Key returns the name of the session's directory. It reveals neither the caller nor the id.
func (s *Session) Key() string { return s.key }

// Workspace returns the session's files. They are valid until Release.
func (s *Session) Workspace() *workspace.Workspace { return s.ws }

// LastUsed returns when this server last used the session, or the time in meta.json, which may lag
// by a minute.
func (s *Session) LastUsed() time.Time {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.lastUsedLocked()
}

func (s *Session) lastUsedLocked() time.Time {
	if s.saved.After(s.lastUsed) {
		return s.saved
	}
	return s.lastUsed
}

// Unmeasured says why the session's files cannot be measured, and what to do. It is empty if they
// can.
func (s *Session) Unmeasured() string { return s.account.Usage().Unmeasured }

// Live reports whether the session has a sandbox in this server, and so may have interpreters.
func (s *Session) Live() bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return len(s.sandboxes) > 0
}

// Open returns the caller's session with that id. On first use it makes the session's directory and
// meta.json. The session must be released. Errors are *IDError, *CallerError, ErrClosed,
// ErrForeign, or the file system's.
func (m *Manager) Open(caller Caller, id string) (*Session, error) {
	return m.get(caller, id, true)
}

// Lookup is Open for a session that must exist. It returns ErrNotFound otherwise and makes nothing.
func (m *Manager) Lookup(caller Caller, id string) (*Session, error) {
	return m.get(caller, id, false)
}

// maxTries bounds the attempts to open a session while another server closes it.
const maxTries = 3

func (m *Manager) get(caller Caller, id string, create bool) (*Session, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	key := m.Key(caller, id)
	for try := 0; ; try++ {
		s, err := m.hold(caller, id, key, create)
		if err != nil {
			return nil, err
		}
		if err = m.admit(s, create); err == nil {
			err = s.load(create)
		}
		if err == nil && s.isCurrent() {
			if create {
				s.claim()
				s.save(saveInterval)
			}
			return s, nil
		}
		if err == nil {
			m.abandon(s)
		}
		s.Release()
		moved := err == nil || create && errors.Is(err, fs.ErrNotExist)
		if !moved || try == maxTries {
			return nil, cmp.Or(err, ErrNotFound)
		}
	}
}

// hold returns the session with that key and adds a reference. It waits for one that is closing.
func (m *Manager) hold(caller Caller, id, key string, create bool) (*Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		if m.closed {
			return nil, ErrClosed
		}
		s := m.sessions[key]
		if s == nil || s.ended == nil {
			break
		}
		m.mu.Unlock()
		<-s.ended // soon: closing is bounded in time
		m.mu.Lock()
	}
	s := m.sessions[key]
	if s == nil {
		s = &Session{m: m, caller: caller, id: id, key: key, dir: filepath.Join(m.cfg.Root, key),
			sandboxes: map[sandboxKey]*sessionSandbox{}, ending: map[*sessionSandbox]struct{}{},
			active: map[*activeRun]struct{}{}, turns: map[interpreterKey][]*turn{}, network: map[string]bool{}}
		m.sessions[key] = s
	}
	s.refs++
	if create {
		s.lastUsed = time.Now()
		if s.idle != nil {
			m.idle.MoveToBack(s.idle)
		}
	}
	return s, nil
}

// load opens the workspace, once. Without create, a session that is not on disk is ErrNotFound.
func (s *Session) load(create bool) error {
	s.loadMu.Lock()
	defer s.loadMu.Unlock()
	if s.ws != nil {
		return nil
	}
	files := filepath.Join(s.dir, filesDir)
	if create {
		made, err := s.makeDirs(files)
		if err != nil {
			s.m.stored.Drop(s.dir)
			return fmt.Errorf("make the session's directory: %w", err)
		}
		s.m.mu.Lock()
		s.unused = made
		s.m.mu.Unlock()
	}
	info, err := os.Lstat(files)
	var ws *workspace.Workspace
	if err == nil {
		ws, err = workspace.Open(files, s.m.cfg.Owner)
	}
	if !create && errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("open the session's workspace: %w", explainDenied(err))
	}
	// A new workspace, and one that another backend made, has another owner.
	owned, err := ws.Owned()
	if err == nil && !owned {
		err = ws.Adopt(s.m.ctx)
	}
	if err != nil {
		_ = ws.Close()
		return fmt.Errorf("give the session's workspace to the sandbox: %w", explainDenied(err))
	}
	s.ws, s.info = ws, info
	md, err := readMeta(s.dir)
	s.m.mu.Lock()
	s.saved = md.LastUsed
	s.m.mu.Unlock()
	if use := md.usage(); use != nil {
		s.savedUsage = *use
	}
	var use *workspace.Usage
	if create && errors.Is(err, fs.ErrNotExist) {
		use = &workspace.Usage{} // it is new
	}
	s.account = s.m.stored.Put(s.dir, s.caller.ID, s.id, time.Time{}, use)
	if create && err != nil {
		s.save(saveInterval)
	}
	return nil
}

// explainDenied adds ErrForeign and the fix to an error about files that belong to ids which this
// server does not have: subordinate ids, if it ran in an outer namespace.
func explainDenied(err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return &sandbox.Error{Op: "use the session", Err: fmt.Errorf("%w: %w", ErrForeign, err),
		Fix: "start the server as before: as root, or in an outer namespace with subordinate ids; " +
			"or give it the files: mcp-code-sandbox doctor says what is missing, and prints the command"}
}

// makeDirs makes <root>/<key>, which only the server can access, and the workspace in it. It
// reports whether the workspace is new.
func (s *Session) makeDirs(files string) (made bool, err error) {
	err = os.Mkdir(files, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return false, err
		}
		if m := s.m.cfg.MakeWorkspace; m != nil && m(files) {
			return true, nil
		}
		err = os.Mkdir(files, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

// isCurrent reports whether the session's directory is still the one that was opened. Another
// server on the same root may have closed the session.
func (s *Session) isCurrent() bool {
	s.loadMu.Lock()
	info := s.info
	s.loadMu.Unlock()
	if info == nil {
		return true // not opened yet
	}
	now, err := os.Lstat(filepath.Join(s.dir, filesDir))
	return err == nil && os.SameFile(info, now)
}

// Keep makes a new session outlive its release. Without it, Release deletes a session that was made
// for a call that ran no code and stored no file.
func (s *Session) Keep() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.unused = false
}

// Reserve keeps other holders from reserving the session until release is called. It returns
// ErrBusy while another reservation or any run is in progress. A reservation does not keep runs
// from starting.
func (s *Session) Reserve() (release func(), err error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.reserved || s.runs > 0 {
		return nil, ErrBusy
	}
	s.reserved = true
	return func() {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		s.reserved = false
	}, nil
}

// Release drops the reference that Open or Lookup returned. A session without references and
// sandboxes costs nothing.
func (s *Session) Release() {
	s.m.mu.Lock()
	defer s.m.unlock()
	s.refs--
	s.m.forgetLocked(s)
}

// forgetLocked removes s from the manager if nothing needs it. unlock then closes it.
func (m *Manager) forgetLocked(s *Session) {
	if s.refs > 0 || len(s.sandboxes) > 0 || s.forgotten {
		return
	}
	s.forgotten = true
	s.keepLocked(kept{})
	if s.unused && s.ended == nil {
		s.discarded = true
		s.ended = make(chan struct{}) // hold waits until the directory is deleted
	} else {
		m.dropLocked(s)
	}
	m.forgotten = append(m.forgotten, s)
}

// dropLocked makes the key free for another Session. Holders of s can still use its files.
func (m *Manager) dropLocked(s *Session) {
	if m.sessions[s.key] == s {
		delete(m.sessions, s.key)
	}
}

func (m *Manager) closeForgotten(s *Session) {
	if s.discarded {
		s.discard()
	} else if s.ws != nil {
		s.save(minSave)
		s.disclaim()
	}
	if s.ws != nil {
		_ = s.ws.Close()
	}
	if s.discarded {
		m.finishEnd(s)
	}
}

// discard deletes an unused session, unless it has files or another server on the same root uses
// it.
func (s *Session) discard() {
	user, err := os.Readlink(filepath.Join(s.dir, userLink))
	entries, _ := os.ReadDir(filepath.Join(s.dir, filesDir))
	if len(entries) > 0 || err == nil && user != s.m.name || err != nil && s.ws != nil {
		return
	}
	if err := workspace.RemoveAll(context.Background(), s.dir); err != nil {
		s.m.log.Warn("cannot delete the directory of an unused session", "session_id", s.id, "error", err)
		return
	}
	s.m.stored.Drop(s.dir)
}

// cleanupLoop ends sandboxes that have been idle, or have lived, for too long.
func (m *Manager) cleanupLoop() {
	timer := time.NewTimer(m.nextCleanup(time.Now()))
	defer timer.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-timer.C:
		}
		now := time.Now()
		m.cleanup(now)
		timer.Reset(m.nextCleanup(now))
	}
}

func (m *Manager) cleanup(now time.Time) {
	m.mu.Lock()
	if ttl := m.cfg.IdleTTL; ttl > 0 {
		for e := m.idle.Front(); e != nil; e = m.idle.Front() {
			s := e.Value.(*Session)
			if now.Sub(s.lastUsed) < ttl {
				break // the others have been used later
			}
			m.log.Debug("session idle, ending its sandboxes", "session_id", s.id)
			m.retireAllLocked(s)
		}
	}
	for sb := range m.sandboxes {
		if sb.isExpired(now) {
			m.retireLocked(sb)
		}
	}
	held := slices.Collect(maps.Values(m.sessions))
	for _, s := range held {
		s.refs++
	}
	m.unlock()
	for _, s := range held {
		if s.isCurrent() {
			s.save(saveInterval)
		} else {
			m.abandon(s)
		}
		s.Release()
	}
}

// minCleanup keeps the loops from spinning with tiny settings.
const minCleanup = 100 * time.Millisecond

// nextCleanup returns how long the loop may sleep. A sandbox that becomes idle meanwhile expires
// later than that.
func (m *Manager) nextCleanup(now time.Time) time.Duration {
	next := time.Hour
	for _, d := range []time.Duration{m.cfg.CleanupInterval, m.cfg.IdleTTL, m.cfg.MaxLifetime} {
		if d > 0 {
			next = min(next, d)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.idle.Front(); e != nil && m.cfg.IdleTTL > 0 {
		next = min(next, e.Value.(*Session).lastUsed.Add(m.cfg.IdleTTL).Sub(now))
	}
	if m.cfg.MaxLifetime > 0 {
		for sb := range m.sandboxes {
			if !sb.retired {
				next = min(next, sb.created.Add(m.cfg.MaxLifetime).Sub(now))
			}
		}
	}
	return max(next, minCleanup)
}

// CloseSession ends the caller's session with that id, its sandboxes and its runs, which get the
// cause cancelled. Then Lookup returns ErrNotFound, Open makes an empty session, and OpenRetained
// still finds the files for ClosedRetention. It returns ErrNotFound if the session does not exist.
func (m *Manager) CloseSession(ctx context.Context, caller Caller, id string) error {
	s, err := m.Lookup(caller, id)
	if err != nil {
		return err
	}
	defer s.Release()
	m.mu.Lock()
	if s.ended != nil { // closed since Lookup
		m.mu.Unlock()
		return ErrNotFound
	}
	sandboxes := m.endLocked(s)
	m.mu.Unlock()
	defer m.finishEnd(s)

	// Closing continues even if the client is gone.
	ctx = context.WithoutCancel(ctx)
	wait, cancel := context.WithTimeout(ctx, endWait)
	defer cancel()
	for _, sb := range sandboxes {
		select {
		case <-sb.gone:
		case <-wait.Done():
			// Its processes are being killed, it gets no run, and its own goroutine waits for it.
			m.log.Info("a sandbox of a closed session is slow to end", "session_id", id)
		}
	}
	s.settle(ctx, len(sandboxes) > 0)
	if err := s.retain(time.Now()); err != nil {
		return fmt.Errorf("close the session: %w", err)
	}
	m.log.Info("session closed", "session_id", id)
	return nil
}

// endLocked ends the session's runs and sandboxes, which it returns, and refuses new ones. hold
// waits until finishEnd is called. The caller has a reference to s.
func (m *Manager) endLocked(s *Session) []*sessionSandbox {
	s.ended = make(chan struct{})
	m.retireAllLocked(s)
	for sb := range s.ending { // including those retired earlier that still have a run
		sb.close()
	}
	return slices.Collect(maps.Keys(s.ending))
}

// finishEnd lets Open make another session with the same id.
func (m *Manager) finishEnd(s *Session) {
	m.mu.Lock()
	m.dropLocked(s)
	m.mu.Unlock()
	close(s.ended)
}

// abandon ends a session that another server on the same root has closed.
func (m *Manager) abandon(s *Session) {
	m.mu.Lock()
	if s.ended != nil {
		m.mu.Unlock()
		return
	}
	m.endLocked(s)
	m.mu.Unlock()
	m.finishEnd(s)
	m.log.Info("session was closed by another server", "session_id", s.id)
}
