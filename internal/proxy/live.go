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
	errYielded = errors.New("the call was ended to make room for another caller's")
)

// errCalls says that as many calls of a token are going as may be.
var errCalls = errors.New("too many calls of the execution token at a time")

// liveTokens knows, of the tokens in use in this process, their rate and the calls that are going.
type liveTokens struct {
	mu     sync.Mutex
	tokens map[string]*liveToken
	runs   map[string][]string // the tokens of each run that is going
	swept  time.Time
}

type liveToken struct {
	expires time.Time
	limiter *rate.Limiter
	calls   map[*context.CancelCauseFunc]struct{}
	dead    bool // revoked here, whether or not the stored row could be changed
}

func newLiveTokens() *liveTokens {
	return &liveTokens{tokens: map[string]*liveToken{}, runs: map[string][]string{}}
}

// begin notes a token of a run, until end.
func (l *liveTokens) begin(run, jti string, expires, now time.Time, r Rate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.get(jti, expires, now, r)
	l.runs[run] = append(l.runs[run], jti)
}

// end cuts the tokens of a run.
func (l *liveTokens) end(run string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutLocked(l.runs[run], errRevoked)
	delete(l.runs, run)
}

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
		t = &liveToken{expires: expires, limiter: r.or(DefaultTokenRate).limiter(), calls: map[*context.CancelCauseFunc]struct{}{}}
		l.tokens[jti] = t
	}
	return t
}

// enter notes that a call is going, so that cut ends it, until leave is called. It fails with errCalls when too many are, and with errRevoked
// when the token has been cut. What a revocation has to see must come after enter: whoever revokes first changes the stored row and then cuts.
func (l *liveTokens) enter(jti string, cancel context.CancelCauseFunc) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tokens[jti]
	switch {
	case t == nil || len(t.calls) >= maxCalls:
		return nil, errCalls
	case t.dead:
		return nil, errRevoked
	}
	t.calls[&cancel] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(t.calls, &cancel)
	}, nil
}

// cut ends the calls of tokens, and lets no more begin.
func (l *liveTokens) cut(jtis []string, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutLocked(jtis, cause)
}

func (l *liveTokens) cutLocked(jtis []string, cause error) {
	for _, jti := range jtis {
		if t := l.tokens[jti]; t != nil {
			t.dead = true
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
