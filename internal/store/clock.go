package store

import (
	"context"
	"time"
)

// clockInterval is how often a Store reads the clock of Postgres.
const clockInterval = 5 * time.Second

// reading is what the database's clock said at a moment of the process's clock.
type reading struct{ process, database time.Time }

// Now returns the time by the clock that all processes with this database share: that of Postgres,
// or of the machine. Everything that expires uses it.
func (s *Store) Now() time.Time { return s.At(s.process()) }

// At returns what Now was, or will be, when the process's clock says t.
func (s *Store) At(t time.Time) time.Time {
	r := s.reading.Load()
	if r == nil || t.IsZero() {
		return t
	}
	// t and r.process have monotonic readings, so that setting the process's clock changes nothing.
	return r.database.Add(t.Sub(r.process))
}

// readClock reads the database's clock. It errs by at most half of the round trip.
func (s *Store) readClock(ctx context.Context) error {
	sent := s.process()
	now, err := queryOne(ctx, s.db, func(n *nanos) []any { return []any{n} },
		`SELECT (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint`)
	if err != nil {
		return err
	}
	s.reading.Store(&reading{sent.Add(s.process().Sub(sent) / 2), time.Time(now)})
	return nil
}

// followClock reads the database's clock now and at every interval, until Close. Between readings,
// or if the database does not answer, time goes on by the process's clock.
func (s *Store) followClock(ctx context.Context) error {
	if err := s.readClock(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	s.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		tick := time.NewTicker(clockInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			// A slow answer says little about the present.
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			_ = s.readClock(ctx)
			cancel()
		}
	}()
	return nil
}
