package store

import (
	"context"
	"encoding/json"
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

// keepTokens is how long the row of a token outlives it, for those who look into what happened.
const keepTokens = 24 * time.Hour

// ErrExhausted says that a token has been used as often as it may be.
var ErrExhausted = errors.New("used up")

// ExecutionToken is the row of a token. Of its fields only Used and Revoked ever change.
type ExecutionToken struct {
	JTI, Caller, Service string
	Execution            string // the run, or what the one who asked for it calls it
	Sandbox              string // where alone it may be used; empty: anywhere
	Instance             string // the process that made it
	Paths, Methods       []string
	Issued, Expires      time.Time
	Max, Used            int64
	Revoked              bool
}

// AddExecutionTokens stores tokens, all or none, and forgets those that ended long before the first of them was issued.
func (s *Store) AddExecutionTokens(ctx context.Context, tokens ...ExecutionToken) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for i, t := range tokens {
		if i == 0 {
			if _, err := tx.ExecContext(ctx, `DELETE FROM execution_tokens WHERE expires < ?`, t.Issued.Add(-keepTokens).UnixNano()); err != nil {
				return err
			}
		}
		paths, err := json.Marshal(t.Paths)
		if err != nil {
			return err
		}
		methods, err := json.Marshal(t.Methods)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx,
			`INSERT INTO execution_tokens (jti, caller, service, execution, sandbox, instance, paths, methods, issued, expires, max)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			t.JTI, t.Caller, t.Service, t.Execution, t.Sandbox, t.Instance, string(paths), string(methods),
			t.Issued.UnixNano(), t.Expires.UnixNano(), t.Max); err != nil {
			return err
		}
	}
	return tx.Commit()
}

const tokenColumns = `jti, caller, service, execution, sandbox, instance, paths, methods, issued, expires, max, used, revoked`

// ExecutionToken returns a token that may be used now as far as time and revocation go, or [ErrNotFound].
func (s *Store) ExecutionToken(ctx context.Context, jti string, now time.Time) (ExecutionToken, error) {
	t, err := scanToken(s.db.QueryRowContext(ctx,
		`SELECT `+tokenColumns+` FROM execution_tokens WHERE jti = ? AND revoked = 0 AND expires > ?`, jti, now.UnixNano()))
	return t, notFound(err)
}

// UseExecutionToken counts one use and returns the token. Looking and counting are one step: however many try at once, in
// whatever process, no more than Max succeed. Its errors are [ErrNotFound], also for a token that was revoked or has expired, and
// [ErrExhausted].
func (s *Store) UseExecutionToken(ctx context.Context, jti string, now time.Time) (ExecutionToken, error) {
	stmt, err := s.statement(ctx,
		`UPDATE execution_tokens SET used = used + 1 WHERE jti = ? AND used < max AND revoked = 0 AND expires > ? RETURNING `+tokenColumns)
	if err != nil {
		return ExecutionToken{}, err
	}
	t, err := scanToken(stmt.QueryRowContext(ctx, jti, now.UnixNano()))
	if err = notFound(err); err != ErrNotFound {
		return t, err
	}
	if _, err := s.ExecutionToken(ctx, jti, now); err != nil {
		return ExecutionToken{}, err
	}
	return ExecutionToken{}, ErrExhausted
}

// ExecutionTokens returns a caller's tokens that may be used now, oldest first.
func (s *Store) ExecutionTokens(ctx context.Context, caller string, now time.Time) (tokens []ExecutionToken, err error) {
	rows, err := s.db.QueryContext(ctx,
		`SELECT `+tokenColumns+` FROM execution_tokens WHERE caller = ? AND revoked = 0 AND expires > ? ORDER BY issued, jti`, caller, now.UnixNano())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		t, err := scanToken(rows)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, t)
	}
	return tokens, rows.Err()
}

// CountExecutionTokens returns how many tokens of a caller may be used now.
func (s *Store) CountExecutionTokens(ctx context.Context, caller string, now time.Time) (n int, err error) {
	err = s.db.QueryRowContext(ctx,
		`SELECT COUNT(*) FROM execution_tokens WHERE caller = ? AND revoked = 0 AND expires > ?`, caller, now.UnixNano()).Scan(&n)
	return n, err
}

// RevokeExecutionToken ends a caller's token. One that is another caller's, unknown, revoked or expired is [ErrNotFound].
func (s *Store) RevokeExecutionToken(ctx context.Context, caller, jti string, now time.Time) (ExecutionToken, error) {
	t, err := scanToken(s.db.QueryRowContext(ctx,
		`UPDATE execution_tokens SET revoked = ? WHERE jti = ? AND caller = ? AND revoked = 0 AND expires > ? RETURNING `+tokenColumns,
		now.UnixNano(), jti, caller, now.UnixNano()))
	return t, notFound(err)
}

// RevokeRunTokens ends the tokens that were made for a run, and returns their ids. Those for use anywhere are left alone: their
// execution is a name that somebody chose.
func (s *Store) RevokeRunTokens(ctx context.Context, run string, now time.Time) ([]string, error) {
	return s.revoke(ctx, now, `execution = ? AND sandbox <> ''`, run)
}

// RevokeServiceTokens ends a caller's tokens for a service, and returns their ids.
func (s *Store) RevokeServiceTokens(ctx context.Context, caller, service string, now time.Time) ([]string, error) {
	return s.revoke(ctx, now, `caller = ? AND service = ?`, caller, service)
}

// RevokeInstanceTokens ends the tokens that were made for runs of a process, and returns their ids.
func (s *Store) RevokeInstanceTokens(ctx context.Context, instance string, now time.Time) ([]string, error) {
	return s.revoke(ctx, now, `instance = ? AND sandbox <> ''`, instance)
}

func (s *Store) revoke(ctx context.Context, now time.Time, where string, args ...any) ([]string, error) {
	return s.texts(ctx, `UPDATE execution_tokens SET revoked = ? WHERE revoked = 0 AND expires > ? AND `+where+` RETURNING jti`,
		append([]any{now.UnixNano(), now.UnixNano()}, args...)...)
}

// ExecutionTokenInstances returns the processes that have made tokens for runs which may be used now.
func (s *Store) ExecutionTokenInstances(ctx context.Context, now time.Time) ([]string, error) {
	return s.texts(ctx,
		`SELECT DISTINCT instance FROM execution_tokens WHERE sandbox <> '' AND revoked = 0 AND expires > ?`, now.UnixNano())
}

// texts returns the only column of a statement's rows.
func (s *Store) texts(ctx context.Context, stmt string, args ...any) (texts []string, err error) {
	rows, err := s.db.QueryContext(ctx, stmt, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, rows.Err()
}

func scanToken(row interface{ Scan(...any) error }) (ExecutionToken, error) {
	var t ExecutionToken
	var paths, methods string
	var issued, expires, revoked int64
	if err := row.Scan(&t.JTI, &t.Caller, &t.Service, &t.Execution, &t.Sandbox, &t.Instance, &paths, &methods,
		&issued, &expires, &t.Max, &t.Used, &revoked); err != nil {
		return ExecutionToken{}, err
	}
	if err := errors.Join(json.Unmarshal([]byte(paths), &t.Paths), json.Unmarshal([]byte(methods), &t.Methods)); err != nil {
		return ExecutionToken{}, err
	}
	t.Issued, t.Expires, t.Revoked = time.Unix(0, issued), time.Unix(0, expires), revoked != 0
	return t, nil
}
