package store

import (
	"context"
	"time"
)

// Result is what a run ended with, for those who ask later. While the run is going, Ended is zero.
type Result struct {
	ID, Caller, Session string
	Instance            string // the process that runs it, or ran it
	Started, Ended      time.Time
	Data                []byte // for the one who stored it to understand
}

// Running reports whether nobody has stored the run's end.
func (r Result) Running() bool { return r.Ended.IsZero() }

// BeginResult notes that a run is going. It leaves alone what is stored of it already.
func (s *Store) BeginResult(ctx context.Context, r Result) error {
	_, err := s.db.ExecContext(ctx,
		`INSERT INTO results (id, caller, session, instance, started, ended, data) VALUES (?, ?, ?, ?, ?, 0, ?)
		ON CONFLICT DO NOTHING`,
		r.ID, r.Caller, r.Session, r.Instance, r.Started.UnixNano(), r.Data)
	return err
}

// EndResult stores how a run ended, and forgets the caller's oldest results beyond keep. A row of another caller or process is not
// changed.
func (s *Store) EndResult(ctx context.Context, r Result, keep int) error {
	return s.Record(ctx, nil, []Result{r}, keep, []string{r.Caller})
}

// GetResult returns what is stored of a caller's run, or [ErrNotFound].
func (s *Store) GetResult(ctx context.Context, caller, id string) (Result, error) {
	var r Result
	var started, ended int64
	err := s.db.QueryRowContext(ctx,
		`SELECT id, caller, session, instance, started, ended, data FROM results WHERE id = ? AND caller = ?`, id, caller).
		Scan(&r.ID, &r.Caller, &r.Session, &r.Instance, &started, &ended, &r.Data)
	if err != nil {
		return Result{}, notFound(err)
	}
	r.Started = time.Unix(0, started)
	if ended > 0 {
		r.Ended = time.Unix(0, ended)
	}
	return r, nil
}

// PurgeResults forgets the results of runs that started before the given time and are not going any more as far as anybody knows:
// those without an end as well, unless they are of the instance.
func (s *Store) PurgeResults(ctx context.Context, before time.Time, instance string) error {
	_, err := s.db.ExecContext(ctx,
		`DELETE FROM results WHERE started < ? AND (ended > 0 OR instance <> ?)`, before.UnixNano(), instance)
	return err
}
