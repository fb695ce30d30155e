package share

import (
	"context"
	"sync"
)

// Scope is a lifetime beyond the call that began it, such as that of an answer that is still being
// sent. A nil Scope has ended. Its methods are safe for concurrent use.
type Scope struct {
	abort func()

	mu    sync.Mutex
	ended bool
	funcs []func()
}

// NewScope returns a Scope. abort makes it end soon.
func NewScope(abort func()) *Scope { return &Scope{abort: abort} }

// Defer calls f when the scope ends, or at once if it has ended.
func (s *Scope) Defer(f func()) {
	if s != nil {
		s.mu.Lock()
		if !s.ended {
			s.funcs = append(s.funcs, f)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
	f()
}

// Abort makes the scope end soon.
func (s *Scope) Abort() {
	if s != nil {
		s.abort()
	}
}

// End ends the scope. Only the first call has an effect.
func (s *Scope) End() {
	s.mu.Lock()
	funcs := s.funcs
	s.ended, s.funcs = true, nil
	s.mu.Unlock()
	for _, f := range funcs {
		f()
	}
}

type scopeKey struct{}

// WithScope returns a context with a scope.
func WithScope(ctx context.Context, s *Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// ScopeOf returns the scope of a context, or nil.
func ScopeOf(ctx context.Context) *Scope {
	s, _ := ctx.Value(scopeKey{}).(*Scope)
	return s
}
