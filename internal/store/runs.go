package store

import (
	"context"
	"time"
)

// Run is the record of one execution.
type Run struct {
	ID, Caller, Session, Runner string
	Started                     time.Time
	Duration                    time.Duration
	ExitCode                    int
	Cause                       string
}

// Result is the outcome of a run, for later requests. While the run is in progress, Ended is zero.
type Result struct {
	ID, Caller, Session string
	Instance            string // the process that executes it
	Started, Ended      time.Time
	Data                []byte // the store does not interpret it
}

// Running reports whether the end of the run has not been stored.
func (r Result) Running() bool { return r.Ended.IsZero() }

const (
	// If two processes happen to use the same id, the later run is dropped, not its whole batch.
	insertRun = `INSERT INTO runs (id, caller, session, runner, started, duration, exit_code, cause)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`

	endResult = `INSERT INTO results (id, caller, session, instance, started, ended, data)
		VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (id) DO UPDATE SET ended = excluded.ended, data = excluded.data
		WHERE results.caller = excluded.caller AND results.instance = excluded.instance`

	trimResults = `DELETE FROM results WHERE id IN
		(SELECT id FROM results WHERE caller = ? AND ended > 0 ORDER BY ended DESC LIMIT 1000000000 OFFSET ?)`
)

// EndResult stores how a run ended, and deletes the caller's oldest results beyond keep. It does
// not change a row of another caller or process.
func (s *Store) EndResult(ctx context.Context, r Result, keep int) error {
	return s.Record(ctx, nil, []Result{r}, keep, []string{r.Caller})
}

// Record stores runs and how they ended, all or none; see EndResult. It deletes old results of the
// callers in trim only.
func (s *Store) Record(ctx context.Context, runs []Run, results []Result, keep int, trim []string) error {
	return s.transact(ctx, func(t tx) error {
		exec := func(query string, args ...any) error { return t.execHot(ctx, s, query, args...) }
		for _, r := range runs {
			if err := exec(insertRun, r.ID, r.Caller, r.Session, r.Runner, nanos(r.Started), r.Duration,
				r.ExitCode, r.Cause); err != nil {
				return err
			}
		}
		for _, r := range results {
			if err := exec(endResult, r.ID, r.Caller, r.Session, r.Instance, nanos(r.Started), nanos(r.Ended),
				r.Data); err != nil {
				return err
			}
		}
		for _, caller := range trim {
			if err := exec(trimResults, caller, keep); err != nil {
				return err
			}
		}
		return nil
	})
}

// GetRun returns the record of a run, or [ErrNotFound]. It does not check the owner.
func (s *Store) GetRun(ctx context.Context, id string) (Run, error) {
	return queryOne(ctx, s.db, func(r *Run) []any {
		return []any{&r.ID, &r.Caller, &r.Session, &r.Runner, (*nanos)(&r.Started), &r.Duration, &r.ExitCode, &r.Cause}
	}, `SELECT id, caller, session, runner, started, duration, exit_code, cause FROM runs WHERE id = ?`, id)
}

// recentRuns is how many of the last runs, of all callers, RecentSessions reads.
const recentRuns = 1000

// RecentSessions returns the sessions in which a caller has recently run code, last used first and
// at most limit of them. They may have been closed since.
func (s *Store) RecentSessions(ctx context.Context, caller string, limit int) ([]string, error) {
	return queryAll(ctx, s.db, value[string],
		`SELECT session FROM (SELECT session, caller, started FROM runs ORDER BY started DESC LIMIT ?) AS recent
		WHERE caller = ? GROUP BY session ORDER BY MAX(started) DESC LIMIT ?`, recentRuns, caller, limit)
}

// BeginResult stores that a run is in progress, unless the run is already stored.
func (s *Store) BeginResult(ctx context.Context, r Result) error {
	return s.exec(ctx,
		`INSERT INTO results (id, caller, session, instance, started, ended, data) VALUES (?, ?, ?, ?, ?, 0, ?)
		ON CONFLICT DO NOTHING`,
		r.ID, r.Caller, r.Session, r.Instance, nanos(r.Started), r.Data)
}

// GetResult returns the stored result of a caller's run, or [ErrNotFound].
func (s *Store) GetResult(ctx context.Context, caller, id string) (Result, error) {
	return queryOne(ctx, s.db, func(r *Result) []any {
		return []any{&r.ID, &r.Caller, &r.Session, &r.Instance, (*nanos)(&r.Started), (*nanos)(&r.Ended), &r.Data}
	}, `SELECT id, caller, session, instance, started, ended, data FROM results WHERE id = ? AND caller = ?`, id, caller)
}

// PurgeResults deletes the results of runs that started before a time, except those that may still
// be in progress in the instance.
func (s *Store) PurgeResults(ctx context.Context, before time.Time, instance string) error {
	return s.exec(ctx, `DELETE FROM results WHERE started < ? AND (ended > 0 OR instance <> ?)`, nanos(before), instance)
}
