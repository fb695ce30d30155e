package proxy

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// activeFor is how long a caller counts as one of those that share a service's rate after its last
// request.
const activeFor = 10 * time.Second

// sharedRate is a service's rate, divided equally among the callers that have used it lately. A lone
// caller has all of it. One that begins finds its part of the burst unused.
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

// take takes one request's worth from the caller's part.
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
		before = 0 // the others have to give
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

// part is what each of n callers has.
func (s *sharedRate) part(n int) Rate {
	return Rate{PerSecond: s.total.PerSecond / float64(n), Burst: max(1, s.total.Burst/n)}
}
