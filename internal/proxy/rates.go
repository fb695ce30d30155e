package proxy

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rate limits requests.
type Rate struct {
	PerSecond float64
	Burst     int // 0: twice PerSecond, at least 1
}

var (
	defaultTokenRate   = Rate{PerSecond: 100, Burst: 200}
	defaultServiceRate = Rate{PerSecond: 500, Burst: 1000}
)

// or returns r, or standard if r is zero, and sets a missing Burst.
func (r Rate) or(standard Rate) Rate {
	if r.PerSecond <= 0 {
		r = standard
	}
	if r.Burst <= 0 {
		r.Burst = max(1, int(2*r.PerSecond))
	}
	return r
}

func (r Rate) limiter() *rate.Limiter { return rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst) }

// allow takes one request from a limiter without waiting.
func allow(l *rate.Limiter) (ok bool, retry time.Duration) {
	r := l.Reserve()
	if d := r.Delay(); d > 0 {
		r.Cancel()
		return false, d
	}
	return true, 0
}

// activeFor is how long after its last request a caller keeps its share of a service's rate.
const activeFor = 10 * time.Second

// sharedRate divides a service's rate equally among the callers that used it recently. A new caller
// starts with its full share of the burst.
type sharedRate struct {
	total Rate

	mu      sync.Mutex
	callers map[string]*callerRate
}

type callerRate struct {
	limiter *rate.Limiter
	used    time.Time
}

func newSharedRate(total Rate) *sharedRate {
	return &sharedRate{total: total, callers: map[string]*callerRate{}}
}

// take takes one request from the caller's share.
func (s *sharedRate) take(caller string, now time.Time) (ok bool, retry time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.callers)
	for name, c := range s.callers {
		if name != caller && now.Sub(c.used) > activeFor {
			delete(s.callers, name)
		}
	}
	c := s.callers[caller]
	if c == nil {
		c = &callerRate{limiter: s.part(len(s.callers) + 1).limiter()}
		s.callers[caller] = c
		before = 0 // the shares of the others shrink
	}
	c.used = now
	if len(s.callers) != before {
		part := s.part(len(s.callers))
		for _, c := range s.callers {
			c.limiter.SetLimit(rate.Limit(part.PerSecond))
			c.limiter.SetBurst(part.Burst)
		}
	}
	return allow(c.limiter)
}

// part returns the share of each of n callers.
func (s *sharedRate) part(n int) Rate {
	return Rate{PerSecond: s.total.PerSecond / float64(n), Burst: max(1, s.total.Burst/n)}
}
