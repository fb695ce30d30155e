package session

import (
	"cmp"
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/workspace"
)

// Config is what a Manager needs. Zero durations, counts and limits mean: none.
type Config struct {
	Root            string // holds one directory per session
	InstallationKey []byte // turns (caller, id) into a directory name
	Backend         sandbox.Backend
	Owner           workspace.Owner // of workspace files; {-1, -1}: the server's own user
	Limits          sandbox.Limits
	Quota           workspace.Usage // of one workspace
	CallerBytes     int64           // of all sessions of one caller, closed and retained ones included; not of Local's
	CallerFiles     int             // of all of them together, likewise
	CallerSessions  int             // their number, likewise

	MaxSessions       int           // sessions that have a live sandbox at one time
	EvictIdle         time.Duration // an interpreter that has been idle for so long may be ended to make room for another session
	MaxRunsPerSession int           // overlapping runs of one session
	IdleTTL           time.Duration
	MaxLifetime       time.Duration // of a sandbox; then it gets no new run and ends with its last one
	CleanupInterval   time.Duration
	ClosedRetention   time.Duration // how long the files of a closed session can be downloaded; then they are deleted
	OutputLimit       int64         // bytes a run may print before it is ended

	// MakeWorkspace makes the workspace of a new session at path, empty and with the right owner, and reports
	// whether it did. If it is nil or does not, the session makes the directory itself.
	MakeWorkspace func(path string) bool

	// Dial serves a connection that a process inside a sandbox opened to the server, and returns
	// when it is done. If Dial is nil, every such connection is closed at once.
	Dial func(ctx context.Context, sandboxID string, conn io.ReadWriteCloser)

	Logger *slog.Logger // nil: silent
}

// Manager holds the sessions of one server. Its methods are safe for concurrent use.
type Manager struct {
	cfg  Config
	log  *slog.Logger
	name string // of this manager among those on the same root

	ctx    context.Context // ends with the manager; sandboxes are started under it, never under a caller's
	cancel context.CancelFunc
	wg     sync.WaitGroup // the clean-up loop and one goroutine per sandbox

	starts *share.Pool // turns to start a sandbox

	mu       sync.Mutex
	closed   bool
	sessions map[string]*Session // by key; only those in use or with a sandbox
	boxes    map[*box]struct{}   // every sandbox that is starting, live or ending
	ending   []*box              // retired ones of all sessions, in that order
	live     int                 // sessions with at least one sandbox
	held     map[Caller]int      // those of each caller
	running  map[Caller]int      // sandboxes of each caller that run code and have a weight
	evicted  map[string][]string // by key, the interpreters whose eviction meta.json does not tell yet
	waiting  []*roomWaiter       // for room, in the order of arrival
	kinds    [2]kind             // see kindLocked
	kept     int                 // files that sessions remember
	idle     list.List           // of *Session with a sandbox and without runs, least recently used first

	metaLocks [256]sync.Mutex // see metaLock

	stored    accounts
	accounted chan struct{} // closed when stored knows every session

	choosing sync.Mutex // see stopWriter
	spared   struct {   // see mustSpare
		shortage shortage
		free     int64
		at       time.Time
	}
	watchMu sync.Mutex
	watches map[*diskWatch]struct{}
	stopped *Session // that stopWriter has stopped last
}

// New returns a Manager. Close ends it.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg, log: cfg.Logger, name: rand.Text(), sessions: map[string]*Session{}, boxes: map[*box]struct{}{},
		starts: newStarts(), held: map[Caller]int{}, running: map[Caller]int{}, evicted: map[string][]string{},
		stored: accounts{byDir: map[string]*entry{}, callers: map[Caller]*account{}}, accounted: make(chan struct{}),
		watches: map[*diskWatch]struct{}{}}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.wg.Go(m.cleanupLoop)
	m.wg.Go(m.purgeLoop)
	m.wg.Go(m.idleLoop)
	return m
}

// Close ends every sandbox, and with it every run, and returns when nothing is left of them or ctx is done.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.cancel() // before the sandboxes end, so that their runs know why
	var forgotten []*Session
	for b := range m.boxes {
		forgotten = append(forgotten, m.retireLocked(b)...)
		b.close()
	}
	m.mu.Unlock()
	m.forget(forgotten)
	done := make(chan struct{})
	go func() {
		m.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Limits are those of every sandbox.
func (m *Manager) Limits() sandbox.Limits { return m.cfg.Limits }

// MaxSessions is how many sessions may have a live sandbox at one time.
func (m *Manager) MaxSessions() int { return m.cfg.MaxSessions }

// MaxRunsPerSession is how many runs of one session may overlap; zero: any number.
func (m *Manager) MaxRunsPerSession() int { return m.cfg.MaxRunsPerSession }

// Open returns the caller's session of that id and makes it, with its directory and meta.json, on first use.
// The session must be released. Errors are *IDError, *CallerError, ErrClosed, or the file system's.
func (m *Manager) Open(caller Caller, id string) (*Session, error) {
	return m.get(caller, id, true)
}

// Lookup is Open for a session that must exist: it returns ErrNotFound otherwise, and never makes anything.
func (m *Manager) Lookup(caller Caller, id string) (*Session, error) {
	return m.get(caller, id, false)
}

func (m *Manager) get(caller Caller, id string, create bool) (*Session, error) {
	if err := CheckID(id); err != nil {
		return nil, err
	}
	key := m.key(caller, id)
	for try := 0; ; try++ {
		s, err := m.hold(caller, id, key, create)
		if err != nil {
			return nil, err
		}
		if err = m.admit(s, create); err == nil {
			err = s.load(create)
		}
		if err == nil && s.current() {
			if create {
				s.claim()
				s.save() // at most once a minute
			}
			return s, nil
		}
		if err == nil {
			m.abandon(s)
		}
		s.Release()
		// Another server can close the session at any point.
		moved := err == nil || create && errors.Is(err, fs.ErrNotExist)
		if !moved || try == maxTries {
			return nil, cmp.Or(err, ErrNotFound)
		}
	}
}

// maxTries is how often a session that other servers keep closing is opened anew.
const maxTries = 3

// hold returns the session of that key with a reference for the caller. It waits for one that is being closed.
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
		<-s.ended // in bounded time
		m.mu.Lock()
	}
	s := m.sessions[key]
	if s == nil {
		s = &Session{m: m, caller: caller, id: id, key: key, dir: filepath.Join(m.cfg.Root, key),
			boxes: map[boxKey]*box{}}
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

// key is the session's directory name. The lengths keep ("ab", "c") and ("a", "bc") apart.
func (m *Manager) key(caller Caller, id string) string {
	mac := hmac.New(sha256.New, m.cfg.InstallationKey)
	for _, s := range []string{"session", caller.ID, id} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		mac.Write(n[:])
		_, _ = io.WriteString(mac, s)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// Key names a session in place of caller and id: the name of its directory, which tells neither.
func (m *Manager) Key(caller Caller, id string) string { return m.key(caller, id) }

// cleanupLoop ends what has been idle, or has lived, for too long.
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
	var forgotten []*Session
	m.mu.Lock()
	if ttl := m.cfg.IdleTTL; ttl > 0 {
		for e := m.idle.Front(); e != nil; e = m.idle.Front() {
			s := e.Value.(*Session)
			if now.Sub(s.lastUsed) < ttl {
				break // the others have been used later
			}
			m.log.Debug("session idle, ending its sandboxes", "session_id", s.id)
			_, gone := m.evictLocked(s)
			forgotten = append(forgotten, gone...)
		}
	}
	for b := range m.boxes {
		if !b.retired && b.expired(now, m.cfg.MaxLifetime) {
			forgotten = append(forgotten, m.retireLocked(b)...)
		}
	}
	held := slices.Collect(maps.Values(m.sessions))
	for _, s := range held {
		s.refs++ // it must not be forgotten meanwhile
	}
	m.mu.Unlock()
	m.forget(forgotten)
	for _, s := range held {
		if s.current() {
			s.save()
		} else {
			m.abandon(s)
		}
		s.Release()
	}
}

// minCleanup keeps the loop from spinning under tiny settings.
const minCleanup = 100 * time.Millisecond

// nextCleanup says how long the loop may sleep. Whatever becomes idle during the sleep expires after it.
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
		for b := range m.boxes {
			if !b.retired {
				next = min(next, b.created.Add(m.cfg.MaxLifetime).Sub(now))
			}
		}
	}
	return max(next, minCleanup)
}
