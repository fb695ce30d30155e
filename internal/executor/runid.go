package executor

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// runIDs makes ids like run_20260206T123456Z_a1b2, each once per process.
type runIDs struct {
	mu     sync.Mutex
	second time.Time
	start  uint16 // the second's first suffix: processes that share a store rarely collide
	used   int    // suffixes of the second that are taken
}

func (g *runIDs) next(now time.Time) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch second := now.UTC().Truncate(time.Second); {
	case second.After(g.second):
		g.second, g.start, g.used = second, uint16(rand.Uint32()), 0
	case g.used > 0xffff: // borrow from the next second
		g.second, g.used = g.second.Add(time.Second), 0
	}
	id := fmt.Sprintf("run_%s_%04x", g.second.Format("20060102T150405Z"), g.start+uint16(g.used))
	g.used++
	return id
}
