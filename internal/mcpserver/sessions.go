package mcpserver

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/share"
)

// sessions bounds the SDK's sessions over HTTP: many clients, such as n8n, initialize and never
// return. It ends idle ones and, when a new one needs the room, one of the caller with the most. A
// client that has lost its session gets status 404 and initializes again.
type sessions struct {
	pool *share.Pool
	idle time.Duration

	mu   sync.Mutex
	byID map[string]*sessionEntry
}

type sessionEntry struct {
	session *mcp.ServerSession
	user    string
	ctx     context.Context // of every call of the session; ends with it
	cancel  context.CancelCauseFunc
	calls   calls

	// sessions.mu guards the fields below. The lease's methods may be called with it held: the pool
	// has no waiters, so they evict nobody. TryAcquire evicts, so it must not be called with mu
	// held.
	lease    *share.Lease
	inUse    int // current requests and streams
	lastUsed time.Time
	timer    *time.Timer // runs while inUse is 0
}

func newSessions(max int, operator string, idle time.Duration) *sessions {
	return &sessions{
		pool: share.New(share.Config{Capacity: int64(max), Exempt: operator}),
		idle: idle, byID: make(map[string]*sessionEntry),
	}
}

// add records a session that user has initialized.
func (s *sessions) add(ss *mcp.ServerSession, user string, lease *share.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &sessionEntry{session: ss, user: user, lease: lease, lastUsed: time.Now()}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	s.byID[ss.ID()] = e
	e.timer = time.AfterFunc(s.idle, func() { s.expire(e) })
	s.offerLocked(e)
}

// offerLocked lets the pool end the session: an idle one for any caller, one in use only for a
// caller with fewer sessions. That caller does not wait for its calls to return.
func (s *sessions) offerLocked(e *sessionEntry) {
	remove := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.removeLocked(e)
	}
	if e.inUse == 0 {
		e.lease.Idle(func() { remove(); e.end() })
	} else {
		e.lease.Yield(func() { remove(); go e.end() })
	}
}

// expire ends a session that has been idle for too long.
func (s *sessions) expire(e *sessionEntry) {
	s.mu.Lock()
	expired := e.inUse == 0 && s.byID[e.session.ID()] == e && time.Since(e.lastUsed) >= s.idle
	if expired {
		s.removeLocked(e)
	}
	s.mu.Unlock()
	if expired {
		e.end()
	}
}

func (s *sessions) removeLocked(e *sessionEntry) {
	if s.byID[e.session.ID()] == e {
		delete(s.byID, e.session.ID())
	}
	e.lease.Release()
	e.timer.Stop()
}

// end cancels the session's calls and closes it.
func (e *sessionEntry) end() {
	e.cancel(errSessionEnded)
	e.session.Close()
}

// use marks user's session as in use until release is called, and returns its open calls. If the
// session does not exist or belongs to another user, it returns nil calls: the SDK refuses the
// request.
func (s *sessions) use(id, user string) (open *calls, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if e == nil || e.user != user {
		return nil, func() {}
	}
	if e.inUse++; e.inUse == 1 {
		s.offerLocked(e)
		e.timer.Stop()
	}
	return &e.calls, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.inUse--
		e.lastUsed = time.Now()
		if e.inUse == 0 && s.byID[id] == e {
			s.offerLocked(e)
			e.timer.Reset(s.idle)
		}
	}
}

// get returns nil if the session does not exist.
func (s *sessions) get(id string) *sessionEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// cancelCalls removes user's session and cancels its calls, so that the SDK, which waits for them
// before it ends the session, does not wait long.
func (s *sessions) cancelCalls(id, user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byID[id]; e != nil && e.user == user {
		s.removeLocked(e)
		e.cancel(errSessionEnded)
	}
}

// cancelAll removes every session and cancels its calls. The caller closes the sessions.
func (s *sessions) cancelAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byID {
		s.removeLocked(e)
		e.cancel(errShutdown)
	}
}
