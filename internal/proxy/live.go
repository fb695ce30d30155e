package proxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Why a call that is going was cut.
var (
	errRevoked = errors.New("the execution token was revoked")
	errExpired = errors.New("the execution token has expired")
)

// liveTokens knows, of the tokens in use in this process, their rate and the calls that are going.
type liveTokens struct {
	mu     sync.Mutex
	tokens map[string]*liveToken
	swept  time.Time
}

type liveToken struct {
	expires time.Time
	limiter *rate.Limiter
	calls   map[*context.CancelCauseFunc]struct{}
}

func newLiveTokens() *liveTokens { return &liveTokens{tokens: map[string]*liveToken{}} }

// take takes one request's worth from the token's rate.
func (l *liveTokens) take(jti string, expires, now time.Time, r Rate) (ok bool, retry time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return allow(l.get(jti, expires, now, r).limiter)
}

func (l *liveTokens) get(jti string, expires, now time.Time, r Rate) *liveToken {
	if now.Sub(l.swept) > time.Minute {
		l.swept = now
		for id, t := range l.tokens {
			if len(t.calls) == 0 && !t.expires.After(now) {
				delete(l.tokens, id)
			}
		}
	}
	t := l.tokens[jti]
	if t == nil {
		t = &liveToken{expires: expires, limiter: r.limiter(DefaultTokenRate), calls: map[*context.CancelCauseFunc]struct{}{}}
		l.tokens[jti] = t
	}
	return t
}

// enter notes that a call is going, so that cut ends it, until leave is called. It fails when too many are. What a revocation has to
// see must come after enter: whoever revokes first changes the stored row and then cuts.
func (l *liveTokens) enter(jti string, cancel context.CancelCauseFunc) (leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tokens[jti]
	if t == nil || len(t.calls) >= maxCalls {
		return nil, false
	}
	t.calls[&cancel] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(t.calls, &cancel)
	}, true
}

// cut ends the calls of tokens.
func (l *liveTokens) cut(jtis []string, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, jti := range jtis {
		if t := l.tokens[jti]; t != nil {
			for cancel := range t.calls {
				(*cancel)(cause)
			}
		}
	}
}

// allow takes from a limiter without waiting.
func allow(l *rate.Limiter) (ok bool, retry time.Duration) {
	r := l.Reserve()
	if d := r.Delay(); d > 0 {
		r.Cancel()
		return false, d
	}
	return true, 0
}
