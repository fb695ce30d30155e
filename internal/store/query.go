package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrNotFound says that the row does not exist, or may no longer be used.
var ErrNotFound = errors.New("not found")

// querier is what *sql.DB, *sql.Tx and hot have in common.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// queryOne returns the only row of a query, or [ErrNotFound]. columns returns where to scan it to.
func queryOne[T any](ctx context.Context, q querier, columns func(*T) []any, query string, args ...any) (v T, err error) {
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

// rowsQuerier is what *sql.DB and *sql.Tx have in common.
type rowsQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// queryAll returns all rows of a query.
func queryAll[T any](ctx context.Context, q rowsQuerier, columns func(*T) []any, query string, args ...any) (all []T, err error) {
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

// exec executes a statement.
func (s *Store) exec(ctx context.Context, query string, args ...any) error {
	_, err := s.db.ExecContext(ctx, query, args...)
	return err
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
type tx struct{ *sql.Tx }

func (t tx) exec(ctx context.Context, query string, args ...any) error {
	_, err := t.ExecContext(ctx, query, args...)
	return err
}

// transact commits what do has done, unless it returns an error.
func (s *Store) transact(ctx context.Context, do func(tx) error) error {
	t, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer t.Rollback()
	if err := do(tx{t}); err != nil {
		return err
	}
	return t.Commit()
}

// hotQueries are executed for every run or call. Open prepares them.
var hotQueries = []string{insertRun, endResult, trimResults, selectGrant, useToken}

// hot is a querier for hotQueries.
type hot struct{ *Store }

func (h hot) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return h.Store.hot[query].QueryRowContext(ctx, args...)
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
