// Package ratelimit limits requests by the address they come from. It reads
// http.Request.RemoteAddr, so a handler behind a trusted proxy must first set that to the client's
// address.
package ratelimit

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter limits each address, and all addresses together. It is safe for concurrent use.
type Limiter struct {
	now   func() time.Time
	all   *rate.Limiter
	every rate.Limit
	burst int

	mu   sync.Mutex
	each map[netip.Addr]*rate.Limiter
}

// maxAddresses bounds the addresses with their own limiter. When it is reached, all of them start
// over; the limit for all addresses together still holds.
const maxAddresses = 4096

// New returns a Limiter. now is the clock; nil means [time.Now].
func New(each rate.Limit, eachBurst int, all rate.Limit, allBurst int, now func() time.Time) *Limiter {
	if now == nil {
		now = time.Now
	}
	return &Limiter{now: now, all: rate.NewLimiter(all, allBurst), every: each, burst: eachBurst, each: map[netip.Addr]*rate.Limiter{}}
}

// Allow reports whether the request may proceed, and counts it.
func (l *Limiter) Allow(r *http.Request) bool {
	now := l.now()
	return l.limiter(remote(r)).AllowN(now, 1) && l.all.AllowN(now, 1)
}

func (l *Limiter) limiter(addr netip.Addr) *rate.Limiter {
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

// remote returns the address of a client. All addresses of an IPv6 /64 network count as one.
func remote(r *http.Request) netip.Addr {
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	addr := client.Addr().Unmap().WithZone("")
	if addr.Is6() {
		return netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return addr
}
