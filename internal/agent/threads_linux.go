package agent

import (
	"os"
	"sync"
	"time"

	"mcp-code-sandbox/internal/proc"
)

const (
	// reservedThreads is how many threads the agent has while user code may be alive.
	reservedThreads = 12
	// idleThreads is how many it has otherwise.
	idleThreads = 3
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
	surplus  int // threads to end
	tries    int // that are left to end them
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
		t.expiry = time.AfterFunc(threadsLife, t.end)
	}
}

// end ends one thread at a time, if there is still no user. It counts them before the first: among
// few threads, that would make the Go runtime start another one.
func (t *threads) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users > 0 {
		return
	}
	if t.reserved {
		all, _ := os.ReadDir("/proc/self/task")
		t.reserved, t.surplus, t.tries = false, len(all)-idleThreads, 3*reservedThreads
	}
	if t.surplus <= 0 || t.tries == 0 {
		return
	}
	t.tries--
	pause := time.Millisecond
	if proc.EndThread() {
		t.surplus--
	} else {
		pause = 2 * proc.MainSleep
	}
	t.expiry = time.AfterFunc(pause, t.end)
}
