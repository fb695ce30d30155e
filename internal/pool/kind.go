package pool

import (
	"math"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

const (
	// halfLife is how fast demand decays.
	halfLife = 5 * time.Minute
	// After a failed start of a kind, the pause before the next one doubles.
	minRetry, maxRetry = time.Second, time.Minute
)

// kind is a set of sandboxes that can replace each other.
type kind struct {
	spec  sandbox.Spec // without ID, Session, SessionID, Workspace
	floor int          // sandboxes to keep ready without demand
	tried bool         // a start has been tried
	ready []*member    // oldest first

	demand   float64 // starts; halves every halfLife
	decayed  time.Time
	failures int       // failed starts since the last success
	retryAt  time.Time // no start before this time
}

// kindOf returns what identifies a spec's kind. It reports false for sandboxes that are never
// pooled: those with network, which hold more than memory, and environments that isolate
// themselves.
func kindOf(spec sandbox.Spec) (sandbox.Spec, bool) {
	spec.ID, spec.Session, spec.SessionID, spec.Workspace = "", "", "", ""
	return spec, !spec.Network && spec.Wrapper == ""
}

// takeOldest takes the oldest ready sandbox, or returns nil.
func (k *kind) takeOldest() *member {
	if len(k.ready) == 0 {
		return nil
	}
	m := k.ready[0]
	k.ready = k.ready[1:]
	return m
}

func (k *kind) takeAll() []*member {
	all := k.ready
	k.ready = nil
	return all
}

func (k *kind) recordDemand(now time.Time) {
	k.decay(now)
	k.demand++
}

func (k *kind) decay(now time.Time) {
	if !k.decayed.IsZero() {
		k.demand *= math.Exp2(-float64(now.Sub(k.decayed)) / float64(halfLife))
	}
	k.decayed = now
}

func (k *kind) fail(now time.Time) {
	k.retryAt = now.Add(min(minRetry<<min(k.failures, 10), maxRetry))
	k.failures++
}

// target returns how many sandboxes should be ready.
func (k *kind) target(size int) int {
	return min(max(k.floor, int(math.Round(min(k.demand, float64(size))))), size)
}
