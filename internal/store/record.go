package store

import (
	"context"
	"database/sql"
)

const (
	// Two processes may by chance give the same id to a run; the later one must not cost the others of its batch their record.
	insertRun = `INSERT INTO runs (id, caller, session, runner, started, duration, exit_code, cause) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO NOTHING`

	endResult = `INSERT INTO results (id, caller, session, instance, started, ended, data) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET ended = excluded.ended, data = excluded.data
		WHERE caller = excluded.caller AND instance = excluded.instance`

	trimResults = `DELETE FROM results WHERE id IN (SELECT id FROM results WHERE caller = ? AND ended > 0 ORDER BY ended DESC LIMIT -1 OFFSET ?)`
)

func (r Run) values() []any {
	return []any{r.ID, r.Caller, r.Session, r.Runner, r.Started.UnixNano(), r.Duration, r.ExitCode, r.Cause}
}

func (r Result) values() []any {
	return []any{r.ID, r.Caller, r.Session, r.Instance, r.Started.UnixNano(), r.Ended.UnixNano(), r.Data}
}

// Record is AddRun and EndResult for many of them, in one step: all or none. Of a caller's results it keeps what EndResult would, but
// only looks after those of the callers named.
func (s *Store) Record(ctx context.Context, runs []Run, results []Result, keep int, trim []string) error {
	// Outside of the transaction, which has the only connection.
	prepared := map[string]*sql.Stmt{}
	for _, text := range []string{insertRun, endResult, trimResults} {
		stmt, err := s.statement(ctx, text)
		if err != nil {
			return err
		}
		prepared[text] = stmt
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	exec := func(text string, values ...any) error {
		_, err := tx.StmtContext(ctx, prepared[text]).ExecContext(ctx, values...)
		return err
	}
	for _, r := range runs {
		if err := exec(insertRun, r.values()...); err != nil {
			return err
		}
	}
	for _, r := range results {
		if err := exec(endResult, r.values()...); err != nil {
			return err
		}
	}
	for _, caller := range trim {
		if err := exec(trimResults, caller, keep); err != nil {
			return err
		}
	}
	return tx.Commit()
}
