package store

import (
	"context"
	"errors"
	"time"
)

const tokensTables = `CREATE TABLE execution_tokens (
		jti       TEXT PRIMARY KEY,
		caller    TEXT NOT NULL,
		service   TEXT NOT NULL,
		execution TEXT NOT NULL,
		sandbox   TEXT NOT NULL,
		instance  TEXT NOT NULL,
		paths     TEXT NOT NULL,
		methods   TEXT NOT NULL,
		issued    INTEGER NOT NULL,
		expires   INTEGER NOT NULL,
		max       INTEGER NOT NULL,
		used      INTEGER NOT NULL DEFAULT 0,
		revoked   INTEGER NOT NULL DEFAULT 0
	) STRICT, WITHOUT ROWID;
	CREATE INDEX execution_tokens_caller ON execution_tokens (caller, expires);
	CREATE INDEX execution_tokens_execution ON execution_tokens (execution);
	CREATE INDEX execution_tokens_expires ON execution_tokens (expires);`

// keepTokens is how long the row of a token stays after the token has expired, for investigations.
const keepTokens = 24 * time.Hour

// ErrExhausted says that a token has been used as often as it may be.
var ErrExhausted = errors.New("used up")

// ExecutionToken is the row of a token. Only Used and Revoked change.
type ExecutionToken struct {
	JTI, Caller, Service string
	Execution            string // the run, or a name that the caller chose
	Sandbox              string // the only sandbox that may use it; empty: any
	Instance             string // the process that issued it
	Paths, Methods       []string
	Issued, Expires      time.Time
	Max, Used            int64
	Revoked              bool
}

const (
	tokenColumns = `jti, caller, service, execution, sandbox, instance, paths, methods, issued, expires, max, used, revoked`
	useToken     = `UPDATE execution_tokens SET used = used + 1
		WHERE jti = ? AND used < max AND revoked = 0 AND expires > ? RETURNING ` + tokenColumns
)

func (t *ExecutionToken) columns() []any {
	return []any{&t.JTI, &t.Caller, &t.Service, &t.Execution, &t.Sandbox, &t.Instance, jsonText{&t.Paths},
		jsonText{&t.Methods}, (*nanos)(&t.Issued), (*nanos)(&t.Expires), &t.Max, &t.Used, (*isSet)(&t.Revoked)}
}

// AddExecutionTokens stores tokens, all or none. It deletes tokens that expired long before the
// first of them was issued.
func (s *Store) AddExecutionTokens(ctx context.Context, tokens ...ExecutionToken) error {
	if len(tokens) == 0 {
		return nil
	}
	return s.transact(ctx, func(tx tx) error {
		old := tokens[0].Issued.Add(-keepTokens)
		if err := tx.exec(ctx, `DELETE FROM execution_tokens WHERE expires < ?`, nanos(old)); err != nil {
			return err
		}
		for _, t := range tokens {
			if err := tx.exec(ctx,
				`INSERT INTO execution_tokens (`+tokenColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0)`,
				t.JTI, t.Caller, t.Service, t.Execution, t.Sandbox, t.Instance, jsonText{t.Paths}, jsonText{t.Methods},
				nanos(t.Issued), nanos(t.Expires), t.Max); err != nil {
				return err
			}
		}
		return nil
	})
}

// ExecutionToken returns a token that is neither revoked nor expired, or [ErrNotFound].
func (s *Store) ExecutionToken(ctx context.Context, jti string, now time.Time) (ExecutionToken, error) {
	return queryOne(ctx, s.db, (*ExecutionToken).columns,
		`SELECT `+tokenColumns+` FROM execution_tokens WHERE jti = ? AND revoked = 0 AND expires > ?`, jti, nanos(now))
}

// UseExecutionToken counts one use, atomically, and returns the token: of any number of attempts,
// in any process, at most Max succeed. Its errors are [ErrNotFound], also for a token that is
// revoked or expired, and [ErrExhausted].
func (s *Store) UseExecutionToken(ctx context.Context, jti string, now time.Time) (ExecutionToken, error) {
	t, err := queryOne(ctx, hot{s}, (*ExecutionToken).columns, useToken, jti, nanos(now))
	if !errors.Is(err, ErrNotFound) {
		return t, err
	}
	if _, err := s.ExecutionToken(ctx, jti, now); err != nil {
		return ExecutionToken{}, err
	}
	return ExecutionToken{}, ErrExhausted
}

// ExecutionTokens returns a caller's tokens that are neither revoked nor expired, oldest first.
func (s *Store) ExecutionTokens(ctx context.Context, caller string, now time.Time) ([]ExecutionToken, error) {
	return queryAll(ctx, s.db, (*ExecutionToken).columns,
		`SELECT `+tokenColumns+` FROM execution_tokens
		WHERE caller = ? AND revoked = 0 AND expires > ? ORDER BY issued, jti`, caller, nanos(now))
}

// CountExecutionTokens returns how many tokens of a caller are neither revoked nor expired.
func (s *Store) CountExecutionTokens(ctx context.Context, caller string, now time.Time) (int, error) {
	return queryOne(ctx, s.db, value[int],
		`SELECT COUNT(*) FROM execution_tokens WHERE caller = ? AND revoked = 0 AND expires > ?`, caller, nanos(now))
}

// RevokeExecutionToken revokes a caller's token. A token that is another caller's, unknown, revoked
// or expired is [ErrNotFound].
func (s *Store) RevokeExecutionToken(ctx context.Context, caller, jti string, now time.Time) (ExecutionToken, error) {
	return queryOne(ctx, s.db, (*ExecutionToken).columns,
		`UPDATE execution_tokens SET revoked = ?
		WHERE jti = ? AND caller = ? AND revoked = 0 AND expires > ? RETURNING `+tokenColumns,
		nanos(now), jti, caller, nanos(now))
}

// RevokeRunTokens revokes the tokens that were issued for a run and returns their ids. It leaves
// out tokens for use anywhere, since callers choose the name of their execution.
func (s *Store) RevokeRunTokens(ctx context.Context, run string, now time.Time) ([]string, error) {
	return s.revoke(ctx, now, `execution = ? AND sandbox <> ''`, run)
}

// RevokeServiceTokens revokes a caller's tokens for a service and returns their ids.
func (s *Store) RevokeServiceTokens(ctx context.Context, caller, service string, now time.Time) ([]string, error) {
	return s.revoke(ctx, now, `caller = ? AND service = ?`, caller, service)
}

// RevokeInstanceTokens revokes the tokens that were issued for runs of a process and returns their
// ids.
func (s *Store) RevokeInstanceTokens(ctx context.Context, instance string, now time.Time) ([]string, error) {
	return s.revoke(ctx, now, `instance = ? AND sandbox <> ''`, instance)
}

func (s *Store) revoke(ctx context.Context, now time.Time, where string, args ...any) (revoked []string, err error) {
	err = s.repeat(func() error {
		revoked, err = queryAll(ctx, s.db, value[string],
			`UPDATE execution_tokens SET revoked = ? WHERE revoked = 0 AND expires > ? AND `+where+` RETURNING jti`,
			append([]any{nanos(now), nanos(now)}, args...)...)
		return err
	})
	return revoked, err
}

// ExecutionTokenInstances returns the processes that have issued tokens for runs which are neither
// revoked nor expired.
func (s *Store) ExecutionTokenInstances(ctx context.Context, now time.Time) ([]string, error) {
	return queryAll(ctx, s.db, value[string],
		`SELECT DISTINCT instance FROM execution_tokens WHERE sandbox <> '' AND revoked = 0 AND expires > ?`, nanos(now))
}
