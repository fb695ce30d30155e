package session

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/wire"
)

const (
	// startTimeout bounds one start, from the moment that it is its turn.
	startTimeout = 30 * time.Second
	// startWait bounds the wait for that turn.
	startWait = time.Minute
	// startAttempts is how often a start is tried that took too long. Nothing has been executed then.
	startAttempts = 2
	// retryAfter is when a client that is told that the server is busy should try again.
	retryAfter = 5 * time.Second
)

// OverloadError says that the server has more to do than it can do in time. No code was executed.
type OverloadError struct {
	RetryAfter time.Duration
	Err        error // what took too long
}

func (e *OverloadError) Error() string { return "the server is busy: " + e.Err.Error() }

func (e *OverloadError) Unwrap() error { return e.Err }

// newStarts makes the pool of turns to start a sandbox. More starts at a time than processors would all take longer.
func newStarts() *share.Pool {
	return share.New(share.Config{Capacity: int64(max(2, runtime.GOMAXPROCS(0))), Exempt: Local.ID})
}

// Starts has the turns to start a sandbox.
func (m *Manager) Starts() *share.Pool { return m.starts }

// start starts the box's sandbox when those that make way are gone and it is the caller's turn. A wait does not count as start time.
func (m *Manager) start(b *box, spec sandbox.Spec, way makeWay) error {
	if err := m.awaitWay(b, way); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.ctx, startWait)
	defer cancel()
	go func() {
		select {
		case <-b.closing: // nobody wants it any more
			cancel()
		case <-ctx.Done():
		}
	}()
	for attempt := 1; ; attempt++ {
		turn, err := m.starts.Acquire(ctx, b.s.caller.ID, 1)
		if err == nil {
			err = m.startOnce(b, spec)
			turn.Release()
		} else {
			err = &OverloadError{retryAfter, fmt.Errorf("others wait for a sandbox, too: %w", err)}
		}
		var overload *OverloadError
		switch {
		case err == nil:
			return nil
		case m.ctx.Err() != nil:
			return ErrClosed
		case turn == nil && b.isClosing() && !m.isPreempted(b):
			return errEnded
		case errors.As(err, &overload) && attempt < startAttempts && ctx.Err() == nil:
			m.log.Warn("a sandbox took too long to start; trying again", "session_id", b.s.id, "runner", spec.Runner, "err", err)
		default:
			m.log.Error("cannot start a sandbox", "session_id", b.s.id, "runner", spec.Runner, "err", err)
			return err
		}
	}
}

func (b *box) isClosing() bool {
	select {
	case <-b.closing:
		return true
	default:
		return false
	}
}

func (m *Manager) isPreempted(b *box) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return b.preempted != nil
}

// startOnce starts the box's sandbox. Its error is an *OverloadError if that took too long.
func (m *Manager) startOnce(b *box, spec sandbox.Spec) error {
	ctx, cancel := context.WithTimeoutCause(m.ctx, startTimeout,
		fmt.Errorf("the sandbox was not ready within %v: %w", startTimeout, context.DeadlineExceeded))
	defer cancel()
	began := time.Now()
	sb, err := m.cfg.Backend.Start(ctx, spec)
	switch {
	case err != nil && ctx.Err() != nil:
		return &OverloadError{retryAfter, context.Cause(ctx)}
	case errors.Is(err, context.DeadlineExceeded):
		return &OverloadError{retryAfter, err}
	case err != nil:
		return err
	}
	b.sb, b.id = sb, sb.ID() // which a sandbox that was ready has had before
	b.conn = wire.NewConn(sb.Conn(), wire.ServerSide, m.dialer(b.id))
	m.log.Debug("sandbox started", "session_id", b.s.id, "sandbox", b.id, "runner", spec.Runner,
		"network", spec.Network, "duration_ms", time.Since(began).Milliseconds())
	return nil
}
