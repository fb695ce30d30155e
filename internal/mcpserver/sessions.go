package mcpserver

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var (
	errSessionEnded = errors.New("the session was ended")
	errShutdown     = errors.New("the server is shutting down")
	errGone         = errors.New("the client closed the connection")
)

// sessions bounds the transport sessions that "initialize" makes over HTTP. The SDK keeps them; this keeps count of
// them, ends idle ones, and ends the least recently used when a new one needs the room: many clients, n8n among
// them, initialize and never come back. A client whose session is gone gets 404 and initializes again.
type sessions struct {
	max  int           // 0: no limit
	idle time.Duration // 0: never

	mu      sync.Mutex
	pending int // initializes under way
	byID    map[string]*sessionEntry
}

type sessionEntry struct {
	session *mcp.ServerSession
	user    string
	ctx     context.Context // ends with the session; every call of it hangs on it
	cancel  context.CancelCauseFunc
	calls   calls

	// The rest is guarded by sessions.mu.
	inUse    int // requests and streams going on
	lastUsed time.Time
	timer    *time.Timer // runs while inUse is 0
}

func newSessions(max int, idle time.Duration) *sessions {
	return &sessions{max: max, idle: idle, byID: make(map[string]*sessionEntry)}
}

// reserve makes room for one more session and reports whether there is any. release ends the reservation; by then
// the session, if it came to be, has been added.
func (s *sessions) reserve() (release func(), ok bool) {
	s.mu.Lock()
	var victim *sessionEntry
	if s.max > 0 && len(s.byID)+s.pending >= s.max {
		for _, e := range s.byID {
			if e.inUse == 0 && (victim == nil || e.lastUsed.Before(victim.lastUsed)) {
				victim = e
			}
		}
		if victim == nil {
			s.mu.Unlock()
			return nil, false
		}
		s.removeLocked(victim)
	}
	s.pending++
	s.mu.Unlock()
	if victim != nil {
		victim.end()
	}
	return func() {
		s.mu.Lock()
		s.pending--
		s.mu.Unlock()
	}, true
}

// add records a session that user has just initialized.
func (s *sessions) add(ss *mcp.ServerSession, user string) {
	ctx, cancel := context.WithCancelCause(context.Background())
	e := &sessionEntry{session: ss, user: user, ctx: ctx, cancel: cancel, lastUsed: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[ss.ID()] = e
	s.startTimerLocked(e)
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
	delete(s.byID, e.session.ID())
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
	if e.timer != nil {
		e.timer.Stop()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.inUse--
		e.lastUsed = time.Now()
		if e.inUse == 0 && s.byID[id] == e {
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
