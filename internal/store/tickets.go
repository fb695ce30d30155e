package store

import (
	"context"
	"time"
)

// Ticket is the right to upload one file, once.
type Ticket struct {
	ID, Caller, Session, Name string
	Overwrite                 bool
	Expires                   time.Time
}

// AddTicket stores a ticket.
func (s *Store) AddTicket(ctx context.Context, t Ticket) error {
	return s.exec(ctx,
		`INSERT INTO tickets (id, caller, session, name, overwrite, expires) VALUES (?, ?, ?, ?, ?, ?)`,
		t.ID, t.Caller, t.Session, t.Name, t.Overwrite, nanos(t.Expires))
}

// TakeTicket deletes a ticket and returns it. Only one of those that try, in any process, succeeds.
// A ticket that is unknown, used or expired is [ErrNotFound].
func (s *Store) TakeTicket(ctx context.Context, id string, now time.Time) (Ticket, error) {
	return queryOne(ctx, s.db, func(t *Ticket) []any {
		return []any{&t.ID, &t.Caller, &t.Session, &t.Name, &t.Overwrite, (*nanos)(&t.Expires)}
	}, `DELETE FROM tickets WHERE id = ? AND expires > ?
		RETURNING id, caller, session, name, overwrite, expires`, id, nanos(now))
}

// DropTickets deletes the unused tickets of a caller's session.
func (s *Store) DropTickets(ctx context.Context, caller, session string) error {
	return s.exec(ctx, `DELETE FROM tickets WHERE caller = ? AND session = ?`, caller, session)
}

// Purge deletes tickets that expired, and runs that started, before a time.
func (s *Store) Purge(ctx context.Context, before time.Time) error {
	return s.transact(ctx, func(t tx) error {
		if err := t.exec(ctx, `DELETE FROM tickets WHERE expires < ?`, nanos(before)); err != nil {
			return err
		}
		return t.exec(ctx, `DELETE FROM runs WHERE started < ?`, nanos(before))
	})
}
