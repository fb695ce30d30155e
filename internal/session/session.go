package session

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"mcp-code-sandbox/internal/workspace"
)

// Session is a caller's long-lived place to work. Its methods are safe for concurrent use.
type Session struct {
	m      *Manager
	caller Caller
	id     string
	key    string
	dir    string // <root>/<key>

	loadMu sync.Mutex
	ws     *workspace.Workspace // set once, under loadMu
	info   fs.FileInfo          // of the directory that ws has open; likewise
	entry  *entry               // in m.stored; likewise

	usageMu sync.Mutex
	usage   *workspace.Usage // as of the last complete walk, and what was uploaded since; nil before the first
	noted   workspace.Usage  // what of it meta.json holds

	// The rest is guarded by m.mu.
	refs     int // of Open, Lookup and runs
	runs     int
	active   map[*activeRun]struct{} // of runs, those whose code was sent
	unused   bool                    // this server has made its directory, and nothing has come of it; see Keep
	stops    uint64                  // how often StopSession has ended its runs
	begun    uint64                  // how many runs have been begun in it
	kept     kept
	boxes    map[boxKey]*box
	ending   map[*box]struct{} // retired, but there may be something left of them
	idle     *list.Element     // in m.idle
	lastUsed time.Time
	saved    time.Time                  // the last_used that meta.json holds
	reserved bool                       // see Reserve
	turns    map[interpreterKey][]*turn // runs that have or wait for an interpreter; only where there are any
	network  map[string]bool            // of each runner's last persistent run
	ended    chan struct{}              // not nil once the session is being closed; closed when it is
	gone     bool                       // taken out by forgetLocked
}

// ID is the id the caller chose.
func (s *Session) ID() string { return s.id }

// Key is the session's name on disk. It tells nothing about caller or id.
func (s *Session) Key() string { return s.key }

// Workspace is the session's files. It is valid until Release.
func (s *Session) Workspace() *workspace.Workspace { return s.ws }

// LastUsed is when the session was last used through this server, or what meta.json, which may lag behind by a
// minute, said about it when the session was opened.
func (s *Session) LastUsed() time.Time {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.saved.After(s.lastUsed) {
		return s.saved
	}
	return s.lastUsed
}

// Live reports whether the session has a sandbox in this server: what lives on in it has its state.
func (s *Session) Live() bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return len(s.boxes) > 0
}

// Release says that the holder of the session, who got it from Open or Lookup, is done with it.
// A session that nobody holds and that has no sandbox costs nothing.
func (s *Session) Release() {
	s.m.mu.Lock()
	s.refs--
	gone := s.m.forgetLocked(s)
	s.m.mu.Unlock()
	s.m.forget(gone)
}

// Reserve keeps every other holder from reserving the session until release is called. It returns ErrBusy when somebody has, or when
// any run is going. Runs may still begin beside the reservation.
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

// forgetLocked takes s out of the books if nothing needs it, and returns it for forget to finish.
func (m *Manager) forgetLocked(s *Session) []*Session {
	if s.refs > 0 || len(s.boxes) > 0 || s.gone {
		return nil
	}
	s.gone = true
	s.keepLocked(kept{})
	if s.unused && s.ended == nil {
		s.ended = make(chan struct{}) // whoever asks for the session waits for forget
	} else {
		m.dropLocked(s)
	}
	return []*Session{s}
}

// forget closes what forgetLocked took out. It must be called without m.mu.
func (m *Manager) forget(sessions []*Session) {
	for _, s := range sessions {
		m.mu.Lock()
		discard := m.sessions[s.key] == s // see forgetLocked
		m.mu.Unlock()
		if discard {
			s.discard()
		} else if s.ws != nil {
			s.saveAfter(minSave)
			s.disclaim()
		}
		if s.ws != nil {
			_ = s.ws.Close()
		}
		if discard {
			m.mu.Lock()
			m.dropLocked(s)
			m.mu.Unlock()
			close(s.ended)
		}
	}
}

// Keep makes the session stay when it is released. Without it, one that was made for a call that
// ran no code and stored no file is gone then, and does not count.
func (s *Session) Keep() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.unused = false
}

// discard deletes a session that nothing has come of, unless it has files, or another server on the same root uses it.
func (s *Session) discard() {
	user, err := os.Readlink(filepath.Join(s.dir, userLink))
	entries, _ := os.ReadDir(filepath.Join(s.dir, filesDir))
	if len(entries) > 0 || err == nil && user != s.m.name || err != nil && s.ws != nil {
		return
	}
	if err := removeTree(context.Background(), s.dir); err != nil {
		s.m.log.Warn("cannot delete the directory of a session that was not used", "session_id", s.id, "err", err)
		return
	}
	s.m.stored.drop(s.dir)
}

const (
	filesDir     = "files"
	metaFile     = "meta.json"
	saveInterval = time.Minute // how far meta.json's last_used may lag behind the use of a session that this server has
	minSave      = time.Second // how far behind that of others
)

// meta is the content of meta.json. It is for people and for later servers; nothing but a generation's links is authorised by it.
type meta struct {
	Caller     string     `json:"caller"`
	ID         string     `json:"id"`
	Created    time.Time  `json:"created"`
	LastUsed   time.Time  `json:"last_used"`
	ClosedAt   *time.Time `json:"closed_at"`            // null while the session is open
	Generation string     `json:"generation,omitempty"` // see links.go
	Bytes      *int64     `json:"bytes,omitempty"`      // what the files took when they were last measured
	Files      *int       `json:"files,omitempty"`      // their number, likewise
	State      []string   `json:"state,omitempty"`      // the runners that have had an interpreter that lives on
	Evicted    []string   `json:"evicted,omitempty"`    // those whose interpreter was evicted, until a run has said so
}

// usage is what the session held when it was last measured, or nil.
func (md meta) usage() *workspace.Usage {
	if md.Bytes == nil || md.Files == nil {
		return nil // unknown, or written by an earlier release
	}
	return &workspace.Usage{Bytes: *md.Bytes, Files: *md.Files}
}

// load opens the workspace, once. Without create a session that is not on disk is ErrNotFound.
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
			s.m.stored.drop(s.dir) // there is none
			return fmt.Errorf("make the session's directory: %w", err)
		}
		s.m.mu.Lock()
		s.unused = made
		s.m.mu.Unlock()
	} else if _, err := os.Lstat(files); errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	ws, err := workspace.Open(files, s.m.cfg.Owner)
	if !create && errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("open the session's workspace: %w", err)
	}
	// It has another owner when it is new, and when another backend made it.
	owned, err := ws.Owned()
	if err == nil && !owned {
		err = ws.Adopt(s.m.ctx)
	}
	if err != nil {
		_ = ws.Close()
		return fmt.Errorf("give the session's workspace to the sandbox: %w", err)
	}
	info, err := os.Lstat(files)
	if err != nil {
		_ = ws.Close()
		return fmt.Errorf("open the session's workspace: %w", err)
	}
	s.ws, s.info = ws, info
	md, err := s.readMeta()
	s.m.mu.Lock()
	s.saved = md.LastUsed
	s.m.mu.Unlock()
	if use := md.usage(); use != nil {
		s.noted = *use
	}
	var use *workspace.Usage
	if create && errors.Is(err, fs.ErrNotExist) {
		use = &workspace.Usage{} // it is new
	}
	s.entry = s.m.stored.put(s.dir, s.caller, s.id, time.Time{}, use)
	if create && err != nil {
		s.save()
	}
	return nil
}

// makeDirs makes <root>/<key>, which is the server's alone, and in it the directory that the sandbox sees, unless it is there.
// Nothing but the server can write to <key>, so its entries may be handled by path.
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

func (s *Session) readMeta() (meta, error) {
	var md meta
	b, err := os.ReadFile(filepath.Join(s.dir, metaFile))
	if err == nil {
		err = json.Unmarshal(b, &md)
	}
	return md, err
}

// save writes meta.json. A failure costs the record of the last use and nothing else, so it is only logged.
func (s *Session) save() { s.saveAfter(saveInterval) }

// saveAfter is save unless meta.json lags behind by less than that.
func (s *Session) saveAfter(lag time.Duration) {
	lock := s.m.metaLock(s.key)
	lock.Lock()
	defer lock.Unlock()
	s.m.mu.Lock()
	used, saved, ended := s.lastUsed, s.saved, s.ended != nil
	s.m.mu.Unlock()
	if ended || used.Sub(saved) < lag && !s.isStale() {
		return
	}
	md, err := s.readMeta()
	if err != nil { // none yet, or damaged
		md = s.newMeta(used)
	}
	if md.LastUsed.Before(used) {
		md.LastUsed = used
	}
	s.measured(&md)
	if err := s.writeMeta(md); err != nil {
		s.m.log.Warn("cannot write a session's meta.json", "session_id", s.id, "err", err)
		return
	}
	s.m.mu.Lock()
	s.saved = used
	s.m.mu.Unlock()
}

// writeMeta replaces meta.json in one step: other servers may read it at any time.
func (s *Session) writeMeta(md meta) (err error) {
	md.Created, md.LastUsed = md.Created.UTC(), md.LastUsed.UTC()
	b, err := json.MarshalIndent(md, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, ".meta-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(append(b, '\n')); err != nil {
		_ = f.Close()
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(s.dir, metaFile))
}
