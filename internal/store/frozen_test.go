//go:build unix

package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/store/storetest"
)

// TestFrozenPostgres: no call waits forever for a Postgres that accepts connections and answers
// nothing, although there are more calls than connections and their callers set no deadline. When
// Postgres goes on, so does the store.
func TestFrozenPostgres(t *testing.T) {
	ctx := context.Background()
	where := storetest.Postgres(t)
	s := open(t, where)
	s.stop() // it reads s.db
	s.db.timeout = time.Second

	frozen := make(chan struct{})
	calls := map[string]func() error{
		"one row":   func() error { _, err := s.GetUser(ctx, "ann"); return err },
		"hot row":   func() error { _, err := s.GetGrant(ctx, "g", now); return err },
		"rows":      func() error { _, err := s.ListGrants(ctx, "ann", now); return err },
		"statement": func() error { return s.PutUser(ctx, User{ID: "ann"}) },
		"changed":   func() error { return s.UpdateConnection(ctx, Connection{}, "o") },
		"begin":     func() error { return s.EndResult(ctx, Result{ID: "r"}, 1) },
	}
	var ready sync.WaitGroup
	transaction := func(end func(tx) error) func() error {
		ready.Add(1)
		return func() error {
			ready := sync.OnceFunc(ready.Done)
			defer ready() // also if a busy machine is too slow
			return s.transact(ctx, func(t tx) error { ready(); <-frozen; return end(t) })
		}
	}
	begun := map[string]func() error{
		"in a transaction": transaction(func(t tx) error { return t.exec(ctx, `SELECT 1`) }),
		"commit":           transaction(func(tx) error { return nil }),
		"rollback":         transaction(func(tx) error { return errors.New("refused") }),
	}
	type answer struct {
		name string
		err  error
	}
	answers := make(chan answer)
	n := 0
	call := func(calls map[string]func() error) {
		for name, f := range calls {
			n++
			go func() { answers <- answer{name, f()} }()
		}
	}
	call(begun)
	ready.Wait()
	thaw := storetest.Freeze(t, where)
	close(frozen)
	for range maxConnections {
		call(calls)
	}
	hangs := time.After(time.Minute)
	for range n {
		select {
		case a := <-answers:
			if a.err == nil || a.err == ErrNotFound || s.IsDown(a.err) == (a.name == "rollback") {
				t.Errorf("%s: %v from a frozen Postgres", a.name, a.err)
			}
		case <-hangs:
			t.Fatal("a call waits for a frozen Postgres")
		}
	}

	thaw()
	s.db.timeout = time.Minute
	for i := range 2 * maxConnections {
		if err := s.PutUser(ctx, User{ID: fmt.Sprint(i)}); err != nil {
			t.Errorf("after the thaw: %v", err)
		}
	}
}
