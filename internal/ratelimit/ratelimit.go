// Package ratelimit bounds what strangers can make the server do, by the address they come from. It reads the address from
// http.Request.RemoteAddr: whoever stands behind a trusted proxy must have been put there before.
package ratelimit

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter allows so much to each address, and so much to all together. It is safe for concurrent use.
type Limiter struct {
	now   func() time.Time
	all   *rate.Limiter
	every rate.Limit
	burst int

	mu   sync.Mutex
	each map[netip.Addr]*rate.Limiter
}

// maxAddresses are remembered apart. When there are more, everybody begins anew; the limit for all still holds.
const maxAddresses = 4096

// New returns a Limiter. now is the clock; nil means [time.Now].
func New(each rate.Limit, eachBurst int, all rate.Limit, allBurst int, now func() time.Time) *Limiter {
	if now == nil {
		now = time.Now
	}
	return &Limiter{now: now, all: rate.NewLimiter(all, allBurst), every: each, burst: eachBurst, each: map[netip.Addr]*rate.Limiter{}}
}

// Allow reports whether the request may go on, and counts it.
func (l *Limiter) Allow(r *http.Request) bool {
	now := l.now()
	return l.of(remote(r)).AllowN(now, 1) && l.all.AllowN(now, 1)
}

func (l *Limiter) of(addr netip.Addr) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	own, ok := l.each[addr]
	if !ok {
		if len(l.each) >= maxAddresses {
			clear(l.each)
		}
		own = rate.NewLimiter(l.every, l.burst)
		l.each[addr] = own
	}
	return own
}

// remote is who sent a request; all of an IPv6 network's addresses are one.
func remote(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		if p, err := addr.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return addr
}
