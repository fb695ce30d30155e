package agent

import (
	"sync"
	"time"

	"mcp-code-sandbox/internal/proc"
)

const (
	// reservedThreads is how many threads the agent has while user code may be alive.
	reservedThreads = 12
	// idleThreads is how many it has otherwise.
	idleThreads = 4
	// threadsLife is how long it keeps them after that.
	threadsLife = 2 * time.Second
)

// threads reserves threads while user code may be alive and could fill the pid limit. An idle agent
// has few: every session has an agent.
type threads struct {
	mu       sync.Mutex
	users    int // runs and interpreters
	reserved bool
	expiry   *time.Timer
	ended    int // since the last user
}

// reserve returns when the threads exist. The caller calls release when its code has ended.
func (t *threads) reserve() (release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users++
	if t.expiry != nil {
		t.expiry.Stop()
	}
	if !t.reserved {
		t.reserved = true
		proc.ReserveThreads(reservedThreads)
	}
	return t.release
}

func (t *threads) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users--; t.users == 0 {
		t.ended, t.expiry = 0, time.AfterFunc(threadsLife, t.end)
	}
}

// end ends one thread at a time, if there is still no user.
func (t *threads) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users > 0 {
		return
	}
	t.reserved = false
	if t.ended++; t.ended < 2*reservedThreads && proc.EndThread(idleThreads) {
		t.expiry = time.AfterFunc(time.Millisecond, t.end)
	}
}
