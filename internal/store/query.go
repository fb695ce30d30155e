package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// ErrNotFound says that the row does not exist, or may no longer be used.
var ErrNotFound = errors.New("not found")

// querier is what conn, tx and hot have in common.
type querier interface {
	bounded(ctx context.Context) (context.Context, context.CancelFunc)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// queryOne returns the only row of a query, or [ErrNotFound]. columns returns where to scan it to.
func queryOne[T any](ctx context.Context, q querier, columns func(*T) []any, query string, args ...any) (v T, err error) {
	ctx, cancel := q.bounded(ctx)
	defer cancel()
	err = q.QueryRowContext(ctx, query, args...).Scan(columns(&v)...)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		var none T
		return none, err
	}
	return v, nil
}

// rowsQuerier is what conn and tx have in common.
type rowsQuerier interface {
	bounded(ctx context.Context) (context.Context, context.CancelFunc)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// queryAll returns all rows of a query.
func queryAll[T any](ctx context.Context, q rowsQuerier, columns func(*T) []any, query string, args ...any) (all []T, err error) {
	ctx, cancel := q.bounded(ctx)
	defer cancel()
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var v T
		if err := rows.Scan(columns(&v)...); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// value is the columns function of a single value.
func value[T any](v *T) []any { return []any{v} }

// exec executes a statement in a transaction of its own.
func (s *Store) exec(ctx context.Context, query string, args ...any) error {
	return s.repeat(func() error { return s.db.exec(ctx, query, args...) })
}

// execOne executes a statement. It returns [ErrNotFound] if that changed no row.
func (s *Store) execOne(ctx context.Context, query string, args ...any) error {
	res, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); n > 0 || err != nil {
		return err
	}
	return ErrNotFound
}

// tx is a transaction.
type tx struct {
	conn
	raw *sql.Tx
}

// transact commits what do has done, unless it returns an error. Postgres ends one of two
// transactions that wait for each other; transact repeats it, so it may call do again.
func (s *Store) transact(ctx context.Context, do func(tx) error) error {
	return s.transactWithin(ctx, s.db.timeout, do)
}

// transactWithin is transact with a bound of its own, or none if timeout is 0. Each statement is
// bounded as always.
func (s *Store) transactWithin(ctx context.Context, timeout time.Duration, do func(tx) error) error {
	return s.repeat(func() error {
		ctx, cancel := bounded(ctx, timeout)
		defer cancel()
		t, err := s.pool.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer t.Rollback()
		if err := do(tx{conn{t, s.db.dialect, s.db.timeout}, t}); err != nil {
			return err
		}
		return t.Commit()
	})
}

// repeat repeats a transaction that failed because of another one, after a short random time: both
// may have failed, and would meet again.
func (s *Store) repeat(transaction func() error) error {
	const attempts = 5
	for n := 1; ; n++ {
		if err := transaction(); n == attempts || err == nil || !s.db.lost(err) {
			return err
		}
		time.Sleep(rand.N(time.Duration(n) * 20 * time.Millisecond))
	}
}

// hotQueries are executed for every run or call. Open prepares them on SQLite; the Postgres driver
// prepares every statement by itself.
var hotQueries = []string{insertRun, endResult, trimResults, selectGrant, useToken}

// hot is a querier for hotQueries.
type hot struct{ *Store }

func (h hot) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return h.db.bounded(ctx)
}

func (h hot) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if stmt := h.Store.hot[query]; stmt != nil {
		return stmt.QueryRowContext(ctx, args...)
	}
	return h.db.QueryRowContext(ctx, query, args...)
}

// execHot executes one of hotQueries.
func (t tx) execHot(ctx context.Context, s *Store, query string, args ...any) error {
	stmt := s.hot[query]
	if stmt == nil {
		return t.exec(ctx, query, args...)
	}
	_, err := t.raw.StmtContext(ctx, stmt).ExecContext(ctx, args...)
	return err
}

// nanos stores a time in a column of nanoseconds since 1970. The zero time is 0.
type nanos time.Time

// Value implements driver.Valuer.
func (n nanos) Value() (driver.Value, error) {
	if t := time.Time(n); !t.IsZero() {
		return t.UnixNano(), nil
	}
	return int64(0), nil
}

// Scan implements sql.Scanner.
func (n *nanos) Scan(v any) error {
	i, ok := v.(int64)
	if !ok {
		return fmt.Errorf("%T is not a time", v)
	}
	if *n = (nanos{}); i != 0 {
		*n = nanos(time.Unix(0, i))
	}
	return nil
}

// isSet scans whether a column is not 0.
type isSet bool

// Scan implements sql.Scanner.
func (b *isSet) Scan(v any) error {
	*b = isSet(v != int64(0))
	return nil
}

// jsonText stores a value as JSON. To scan, it holds a pointer.
type jsonText struct{ v any }

// Value implements driver.Valuer.
func (j jsonText) Value() (driver.Value, error) {
	b, err := json.Marshal(j.v)
	return string(b), err
}

// Scan implements sql.Scanner.
func (j jsonText) Scan(v any) error {
	text, ok := v.(string)
	if !ok {
		return fmt.Errorf("%T is not JSON text", v)
	}
	return json.Unmarshal([]byte(text), j.v)
}
