package mcpserver

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/share"
)

var (
	errSessionEnded = errors.New("the session was ended")
	errShutdown     = errors.New("the server is shutting down")
	errGone         = errors.New("the client closed the connection")
)

// sessions bounds the transport sessions that "initialize" makes over HTTP. The SDK keeps them; this ends idle ones, and
// when a new one needs the room, one of the caller who has the most: many clients, n8n among them, initialize and never
// come back. A client whose session is gone gets 404 and initializes again.
type sessions struct {
	pool *share.Pool
	idle time.Duration // 0: never

	mu       sync.Mutex
	reserved map[string][]*share.Lease // by user, for initializes under way
	byID     map[string]*sessionEntry
}

type sessionEntry struct {
	session *mcp.ServerSession
	user    string
	ctx     context.Context // ends with the session; every call of it hangs on it
	cancel  context.CancelCauseFunc
	calls   calls

	// The rest is guarded by sessions.mu. The pool never has waiters, so that its methods may be called with mu held: they
	// evict nobody. TryAcquire does, and must not.
	lease    *share.Lease
	inUse    int // requests and streams going on
	lastUsed time.Time
	timer    *time.Timer // runs while inUse is 0
}

func newSessions(max int, operator string, idle time.Duration) *sessions {
	return &sessions{
		pool: share.New(share.Config{Capacity: int64(max), Exempt: operator}), idle: idle,
		reserved: make(map[string][]*share.Lease), byID: make(map[string]*sessionEntry),
	}
}

// reserve makes room for one more session of user and reports whether there is any. release ends the reservation; by
// then the session, if it came to be, has been added.
func (s *sessions) reserve(user string) (release func(), ok bool) {
	lease, err := s.pool.TryAcquire(user, 1)
	if err != nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved[user] = append(s.reserved[user], lease)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forgetLocked(user, lease)
	}, true
}

// forgetLocked releases a reservation that no session has taken.
func (s *sessions) forgetLocked(user string, lease *share.Lease) {
	leases := s.reserved[user]
	i := slices.Index(leases, lease)
	if i < 0 {
		return
	}
	lease.Release()
	s.setReservedLocked(user, slices.Delete(leases, i, i+1))
}

func (s *sessions) setReservedLocked(user string, leases []*share.Lease) {
	if s.reserved[user] = leases; len(leases) == 0 {
		delete(s.reserved, user)
	}
}

// add records a session that user has just initialized, and gives it one of the user's reservations. It reports false if
// there is none, because the client has left meanwhile.
func (s *sessions) add(ss *mcp.ServerSession, user string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID[ss.ID()] != nil {
		return true
	}
	leases := s.reserved[user]
	if len(leases) == 0 {
		return false
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	e := &sessionEntry{session: ss, user: user, ctx: ctx, cancel: cancel, lastUsed: time.Now(), lease: leases[0]}
	s.setReservedLocked(user, leases[1:])
	s.byID[ss.ID()] = e
	s.offerLocked(e)
	s.startTimerLocked(e)
	return true
}

// offerLocked lets the pool end the session: for anybody when it is idle, else for a caller who has fewer. Who needs the
// room does not wait for the calls of a session in use to return.
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

func (s *sessions) startTimerLocked(e *sessionEntry) {
	if s.idle <= 0 {
		return
	}
	e.timer = time.AfterFunc(s.idle, func() {
		s.mu.Lock()
		expired := e.inUse == 0 && s.byID[e.session.ID()] == e && time.Since(e.lastUsed) >= s.idle
		if expired {
			s.removeLocked(e)
		}
		s.mu.Unlock()
		if expired {
			e.end()
		}
	})
}

func (s *sessions) removeLocked(e *sessionEntry) {
	if s.byID[e.session.ID()] == e {
		delete(s.byID, e.session.ID())
	}
	e.lease.Release()
	if e.timer != nil {
		e.timer.Stop()
	}
}

// use marks user's session as in use until the returned function is called. A session that does not exist or is
// somebody else's is left alone: the SDK refuses the request.
func (s *sessions) use(id, user string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.byID[id]
	if !ok || e.user != user {
		return func() {}
	}
	e.inUse++
	if e.inUse == 1 {
		s.offerLocked(e)
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.inUse--
		e.lastUsed = time.Now()
		if e.inUse == 0 && s.byID[id] == e {
			s.offerLocked(e)
			s.startTimerLocked(e)
		}
	}
}

// get returns the session's entry, nil when there is none.
func (s *sessions) get(id string) *sessionEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// callsOf returns the open calls of user's session, nil when there is no such session.
func (s *sessions) callsOf(id, user string) *calls {
	if e := s.get(id); e != nil && e.user == user {
		return &e.calls
	}
	return nil
}

// cancelCalls forgets user's session and cancels its calls, so that the SDK, which waits for them before it ends
// a session, does not wait long.
func (s *sessions) cancelCalls(id, user string) {
	s.mu.Lock()
	e, ok := s.byID[id]
	ok = ok && e.user == user
	if ok {
		s.removeLocked(e)
	}
	s.mu.Unlock()
	if ok {
		e.cancel(errSessionEnded)
	}
}

// end cancels the session's calls and closes it.
func (e *sessionEntry) end() {
	e.cancel(errSessionEnded)
	e.session.Close()
}

// drain forgets every session. The caller closes them.
func (s *sessions) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.byID {
		s.removeLocked(e)
		e.cancel(errShutdown)
	}
}

func (s *sessions) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}
