package session

import (
	"context"
	"errors"
	"slices"
	"time"
)

const (
	// closeTimeout is how long the end of a sandbox may take before it is logged. On a busy machine,
	// one with hundreds of processes takes long to die.
	closeTimeout = time.Minute
	// closeAttempts bounds the wait. The kernel ends no process before its fsync is done.
	closeAttempts = 10
	// endWait is how long others wait for a sandbox to end: for its place, or the session's end.
	endWait = time.Second
)

// makeWay is what a new sandbox waits for.
type makeWay struct {
	victims []*box // that were ended for it: for endWait
	first   []*box // until they are gone
}

// firstLocked returns the ending sandboxes that must be gone before a caller's next one starts. They
// count towards MaxSessions, but only for their own caller: one whose sandboxes end slowly holds up
// nobody else. All callers together may have as many ending ones again.
func (m *Manager) firstLocked(caller Caller) []*box {
	if m.cfg.MaxSessions <= 0 {
		return nil
	}
	var own, all []*box // in the order of their ends
	for _, b := range m.ending {
		if !b.isClosing() {
			continue // a run goes on in it
		}
		if all = append(all, b); b.s.caller == caller {
			own = append(own, b)
		}
	}
	beyond := func(boxes []*box, limit int) []*box {
		return boxes[:min(max(m.live+len(boxes)-limit, 0), len(boxes))]
	}
	first := beyond(own, m.cfg.MaxSessions)
	if caller != Local {
		first = slices.Concat(first, beyond(all, 2*m.cfg.MaxSessions))
	}
	return slices.Clone(first)
}

// errSlowEnd says why a sandbox could not start.
var errSlowEnd = errors.New("earlier sandboxes take long to end")

// awaitWay waits until b may start. Its error is an *OverloadError, ErrClosed, or errEnded.
func (m *Manager) awaitWay(b *box, way makeWay) error {
	err := m.awaitGone(b, way.victims, endWait)
	if err == nil || errors.Is(err, errSlowEnd) {
		err = m.awaitGone(b, way.first, startWait)
	}
	return err
}

func (m *Manager) awaitGone(b *box, boxes []*box, wait time.Duration) error {
	late := time.NewTimer(wait)
	defer late.Stop()
	for _, old := range boxes {
		select {
		case <-old.gone:
		case <-late.C:
			return &OverloadError{retryAfter, errSlowEnd}
		case <-b.closing:
			if m.isPreempted(b) {
				return &OverloadError{retryAfter, errors.New("another caller needed the room")}
			}
			return errEnded
		case <-m.ctx.Done():
			return ErrClosed
		}
	}
	return nil
}

// end ends the box's sandbox, and returns when nothing is left of it or it has taken far too long.
func (m *Manager) end(b *box) {
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		err := b.sb.Close(ctx)
		if err == nil {
			b.exit, _ = b.sb.Wait(ctx)
		}
		cancel()
		if err == nil {
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) || attempt == closeAttempts || m.ctx.Err() != nil {
			m.log.Error("cannot end a sandbox", "session_id", b.s.id, "sandbox", b.id, "err", err)
			return
		}
		m.log.Warn("a sandbox takes long to end", "session_id", b.s.id, "sandbox", b.id)
	}
}
