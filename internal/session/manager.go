package session

import (
	"container/list"
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session/cpuweight"
	"mcp-code-sandbox/internal/session/storage"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/workspace"
)

// Config configures a Manager. A zero duration, count or limit means: none.
type Config struct {
	Root            string // holds one directory per session
	InstallationKey []byte // turns (caller, id) into a directory name
	Backend         sandbox.Backend
	Owner           workspace.Owner // owner of workspace files; {-1, -1}: the server's own user
	Limits          sandbox.Limits
	Quota           workspace.Usage // of one workspace

	// The limits of all sessions of one caller together, including closed ones that are retained.
	// They do not apply to Local.
	CallerBytes    int64
	CallerFiles    int
	CallerSessions int

	MaxSessions       int           // sessions that have a sandbox at one time
	EvictIdle         time.Duration // an interpreter idle for this long may be ended to make room
	MaxRunsPerSession int           // overlapping runs of one session
	IdleTTL           time.Duration // a session idle for this long loses its sandboxes
	MaxLifetime       time.Duration // a sandbox of this age gets no new run
	CleanupInterval   time.Duration
	ClosedRetention   time.Duration // how long the files of a closed session are kept
	OutputLimit       int64         // bytes that a run may print before it is stopped

	// MakeWorkspace makes the workspace of a new session at path, empty and with the right owner,
	// and reports whether it did. If it is nil or does not, the session makes the directory itself.
	MakeWorkspace func(path string) bool

	// Dial serves a connection that a process inside a sandbox opened to the server, and returns
	// when it is done. host is empty, or the name and port that the process connected to. If Dial
	// is nil, every such connection is closed at once.
	Dial func(ctx context.Context, sandboxID, host string, conn net.Conn)

	Logger *slog.Logger // nil: silent
}

// Manager holds the sessions of one server. Its methods are safe for concurrent use.
type Manager struct {
	cfg  Config
	log  *slog.Logger
	name string // identifies this manager among the managers of the same root

	ctx    context.Context // ends with the manager; sandboxes start under it, never under a caller's
	cancel context.CancelFunc
	wg     sync.WaitGroup // the loops, and one goroutine per sandbox

	starts  *share.Pool // turns to start a sandbox
	weights *cpuweight.Callers
	stored  *storage.Accounts
	counted chan struct{} // closed when stored knows every session

	// mu guards the fields below and most of Session and sessionSandbox. After a call of
	// retireLocked or forgetLocked, release it with unlock.
	mu        sync.Mutex
	closed    bool
	draining  bool                // see Drain
	sessions  map[string]*Session // by key; those in use or with a sandbox
	forgotten []*Session          // closed by unlock
	sandboxes map[*sessionSandbox]struct{}
	ending    []*sessionSandbox   // retired ones, in the order of retirement
	live      int                 // sessions with a sandbox
	running   int                 // runs that were sent to their sandboxes
	held      map[Caller]int      // sessions with a sandbox, by caller
	waiting   []*roomWaiter       // in the order of arrival
	idle      list.List           // of *Session with a sandbox and without runs, least recently used first
	evicted   map[string][]string // by key: evicted interpreters that meta.json does not list yet
	stats     Stats               // counters and active runs only
	kept      int                 // files that sessions remember; see snapshot.go

	metaLocks [256]sync.Mutex // see metaLock
	undeleted sync.Map        // keys: directories of closed sessions that could not be deleted
	disk      diskGuard
}

// New returns a Manager. Close ends it.
func New(cfg Config) *Manager {
	m := &Manager{
		cfg: cfg, log: cfg.Logger, name: rand.Text(), counted: make(chan struct{}),
		sessions: map[string]*Session{}, sandboxes: map[*sessionSandbox]struct{}{},
		held: map[Caller]int{}, evicted: map[string][]string{},
		disk: diskGuard{watches: map[*diskWatch]struct{}{}},
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	// More concurrent starts than processors would only slow each other down.
	m.starts = share.New(share.Config{Capacity: int64(max(2, runtime.GOMAXPROCS(0))), Exempt: Local.ID})
	m.weights = cpuweight.New(cpuweight.Config{Exempt: Local.ID, PIDs: cfg.Limits.PIDs, Go: m.wg.Go})
	m.stored = storage.New(storage.Limits{
		Sessions: cfg.CallerSessions, Bytes: cfg.CallerBytes, Files: cfg.CallerFiles,
	}, Local.ID)
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.wg.Go(m.cleanupLoop)
	m.wg.Go(m.storageLoop)
	m.wg.Go(m.idleLoop)
	return m
}

// Drain refuses runs in sessions that have no sandbox with ErrClosed. Others go on.
func (m *Manager) Drain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = true
}

// Close ends every sandbox and with it every run. It returns when all have ended or ctx is done.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.cancel() // before the sandboxes end, so that their runs know the reason
	for sb := range m.sandboxes {
		m.retireLocked(sb)
		sb.close()
	}
	m.unlock()
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

// unlock releases m.mu, and then closes the sessions that were forgotten under it.
func (m *Manager) unlock() {
	forgotten := m.forgotten
	m.forgotten = nil
	m.mu.Unlock()
	for _, s := range forgotten {
		m.closeForgotten(s)
	}
}

// Limits returns the limits of every sandbox.
func (m *Manager) Limits() sandbox.Limits { return m.cfg.Limits }

// MaxSessions returns how many sessions may have a sandbox at one time.
func (m *Manager) MaxSessions() int { return m.cfg.MaxSessions }

// MaxRunsPerSession returns how many runs of one session may overlap; zero: any number.
func (m *Manager) MaxRunsPerSession() int { return m.cfg.MaxRunsPerSession }

// Starts returns the pool of turns to start a sandbox.
func (m *Manager) Starts() *share.Pool { return m.starts }
