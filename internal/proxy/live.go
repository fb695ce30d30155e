package proxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/store"
)

// maxCalls bounds the concurrent calls of one token.
const maxCalls = 256

// Causes of a canceled call.
var (
	errRevoked = errors.New("the execution token was revoked")
	errExpired = errors.New("the execution token has expired")
	errYielded = errors.New("the call was ended to make room for another caller's")
)

// errTooManyCalls is returned when maxCalls calls of a token are in progress.
var errTooManyCalls = errors.New("too many concurrent calls with the execution token")

// liveTokens tracks the rate and the calls in progress of each token used in this process.
type liveTokens struct {
	mu     sync.Mutex
	tokens map[string]*liveToken
	runs   map[string][]string // the tokens of each run in progress
	swept  time.Time
}

type liveToken struct {
	expires time.Time
	limiter *rate.Limiter
	calls   map[*context.CancelCauseFunc]struct{}
	revoked bool // in this process, even if the store could not be changed
}

func newLiveTokens() *liveTokens {
	return &liveTokens{tokens: map[string]*liveToken{}, runs: map[string][]string{}}
}

// addRun adds the token of a run; endRun revokes it.
func (l *liveTokens) addRun(row store.ExecutionToken, now time.Time, r Rate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.get(row, now, r)
	l.runs[row.Execution] = append(l.runs[row.Execution], row.JTI)
}

// endRun revokes the tokens of a run.
func (l *liveTokens) endRun(run string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revokeLocked(l.runs[run])
	delete(l.runs, run)
}

// take takes one request from the token's rate.
func (l *liveTokens) take(row store.ExecutionToken, now time.Time, r Rate) (ok bool, retry time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return allow(l.get(row, now, r).limiter)
}

func (l *liveTokens) get(row store.ExecutionToken, now time.Time, r Rate) *liveToken {
	if now.Sub(l.swept) > time.Minute {
		l.swept = now
		for id, t := range l.tokens {
			if len(t.calls) == 0 && !t.expires.After(now) {
				delete(l.tokens, id)
			}
		}
	}
	t := l.tokens[row.JTI]
	if t == nil {
		t = &liveToken{expires: row.Expires, limiter: r.or(defaultTokenRate).limiter(), calls: map[*context.CancelCauseFunc]struct{}{}}
		l.tokens[row.JTI] = t
	}
	return t
}

// enter registers a call, so that revoke cancels it, until leave is called. It returns
// errTooManyCalls or errRevoked. Read the stored row after enter: a revocation changes the row
// first and then cancels.
func (l *liveTokens) enter(jti string, cancel context.CancelCauseFunc) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tokens[jti]
	switch {
	case t == nil || len(t.calls) >= maxCalls:
		return nil, errTooManyCalls
	case t.revoked:
		return nil, errRevoked
	}
	t.calls[&cancel] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(t.calls, &cancel)
	}, nil
}

// revoke cancels the calls of tokens and refuses new ones.
func (l *liveTokens) revoke(jtis []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revokeLocked(jtis)
}

func (l *liveTokens) revokeLocked(jtis []string) {
	for _, jti := range jtis {
		if t := l.tokens[jti]; t != nil {
			t.revoked = true
			for cancel := range t.calls {
				(*cancel)(errRevoked)
			}
		}
	}
}
