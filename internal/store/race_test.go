package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcp-code-sandbox/internal/store/storetest"
)

// atOnce calls try from many goroutines on two stores, as two servers would, and returns how many
// calls succeeded. The others must fail with want.
func atOnce(t *testing.T, where string, want error, try func(s *Store, i int) error) int {
	t.Helper()
	stores := []*Store{open(t, where), open(t, where)}
	var wins atomic.Int32
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range 20 {
		wg.Go(func() {
			<-begin
			switch err := try(stores[i%2], i); {
			case err == nil:
				wins.Add(1)
			case !errors.Is(err, want):
				t.Error(err)
			}
		})
	}
	close(begin)
	wg.Wait()
	return int(wins.Load())
}

// TestRefreshTokenIsUsedOnce: of many attempts at two servers one gets the next token. The others
// revoke the grant, and those that come after that find none.
func TestRefreshTokenIsUsedOnce(t *testing.T) { storetest.Each(t, testRefreshTokenIsUsedOnce) }

func testRefreshTokenIsUsedOnce(t *testing.T, where string) {
	s := open(t, where)
	g := granted(t, s, "a")
	var reused atomic.Int32
	n := atOnce(t, where, ErrNotFound, func(s *Store, i int) error {
		_, err := s.RotateRefreshToken(t.Context(), "rt1-a", "client", RefreshToken{ID: fmt.Sprint("rt", i), Expires: now.Add(time.Hour)}, now)
		if err == ErrReused {
			reused.Add(1)
			return ErrNotFound
		}
		return err
	})
	if n != 1 || reused.Load() != 1 {
		t.Errorf("%d used the token, %d were told that it was used", n, reused.Load())
	}
	if alive(t, s, g.ID) {
		t.Error("the grant of a token that twenty had is alive")
	}
}

func TestLeaseHasOneOwner(t *testing.T) { storetest.Each(t, testLeaseHasOneOwner) }

func testLeaseHasOneOwner(t *testing.T, where string) {
	ctx := t.Context()
	if err := open(t, where).PutConnection(ctx, Connection{Caller: "ann", Service: "s", Wrapped: []byte{}, Sealed: []byte{}}); err != nil {
		t.Fatal(err)
	}
	for round := range 3 { // the lease of the last round has expired
		at := now.Add(time.Duration(round) * time.Minute)
		n := atOnce(t, where, ErrNotFound, func(s *Store, i int) error {
			_, err := s.LeaseConnection(ctx, "ann", "s", fmt.Sprint("owner", i), at, at.Add(time.Minute))
			return err
		})
		if n != 1 {
			t.Errorf("round %d: %d have the lease", round, n)
		}
	}
}

func TestClientsAreBoundedTogether(t *testing.T) { storetest.Each(t, testClientsAreBoundedTogether) }

func testClientsAreBoundedTogether(t *testing.T, where string) {
	ctx, limit := t.Context(), 5
	s := open(t, where)
	atOnce(t, where, ErrFull, func(s *Store, i int) error {
		return s.AddClient(ctx, Client{ID: fmt.Sprint("c", i), Created: now}, limit, now.Add(-time.Hour))
	})
	atOnce(t, where, ErrFull, func(s *Store, i int) error {
		return s.AddRequest(ctx, Request{ID: fmt.Sprint("r", i), Data: []byte{}, Expires: now.Add(time.Hour)}, now, limit)
	})
	for _, table := range []string{"oauth_clients", "oauth_requests"} {
		if n, err := queryOne(ctx, s.db, value[int], `SELECT count(*) FROM `+table); n != limit || err != nil {
			t.Errorf("%d rows in %s, %v; want %d", n, table, err, limit)
		}
	}
}

func TestFirstKeyCheckIsOne(t *testing.T) { storetest.Each(t, testFirstKeyCheckIsOne) }

func testFirstKeyCheckIsOne(t *testing.T, where string) {
	other := errors.New("another one is stored")
	n := atOnce(t, where, other, func(s *Store, i int) error {
		id := fmt.Sprint("key", i)
		stored, err := s.FirstKeyCheck(t.Context(), KeyCheck{KeyID: id, Sealed: []byte(id)})
		if err == nil && stored.KeyID != id {
			return other
		}
		return err
	})
	if n != 1 {
		t.Errorf("%d stored their key check", n)
	}
}

// TestRekeyKeepsUpdates: a server that updates a connection while another one changes its key waits
// for that, and its update is not lost.
func TestRekeyKeepsUpdates(t *testing.T) { storetest.Each(t, testRekeyKeepsUpdates) }

func testRekeyKeepsUpdates(t *testing.T, where string) {
	ctx := t.Context()
	a, b := open(t, where), open(t, where)
	c := Connection{Caller: "ann", Service: "s", ID: "1", KeyID: "old", Wrapped: []byte("w"), Sealed: []byte("first")}
	_, err := a.FirstKeyCheck(ctx, KeyCheck{KeyID: "old", Sealed: []byte("x")})
	if err := errors.Join(err, a.PutConnection(ctx, c)); err != nil {
		t.Fatal(err)
	}
	updated := make(chan error, 1)
	if IsURL(where) {
		// Postgres lists connections that wait for a lock.
		storetest.Exec(t, where, `CREATE VIEW waiting AS SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	}
	err = a.Rekey(ctx, "old", KeyCheck{KeyID: "new", Sealed: []byte("y")}, func(row Connection) (Connection, error) {
		go func() {
			c := c
			c.Sealed = []byte("second")
			updated <- b.UpdateConnection(ctx, c, "")
		}()
		for n := 0; n == 0 && IsURL(where); {
			select {
			case err := <-updated:
				updated <- err
				return row, errors.New("the update did not wait")
			default:
			}
			var err error
			if n, err = queryOne(ctx, a.db, value[int], `SELECT count(*) FROM waiting`); err != nil {
				return row, err
			}
		}
		row.KeyID, row.Sealed = "new", []byte("first, with the new key")
		return row, nil
	})
	if err := errors.Join(err, <-updated); err != nil {
		t.Fatal(err)
	}
	if got, err := a.GetConnection(ctx, "ann", "s"); err != nil || string(got.Sealed) != "second" {
		t.Errorf("the update is lost: %s, %v", got.Sealed, err)
	}
}

// TestDeadlockIsRepeated: two transactions that wait for each other both succeed.
func TestDeadlockIsRepeated(t *testing.T) {
	ctx := t.Context()
	s := open(t, storetest.Postgres(t))
	for _, id := range []string{"a", "b"} {
		if err := s.PutUser(ctx, User{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	var both sync.WaitGroup // each has its first row
	both.Add(2)
	var wg sync.WaitGroup
	var tries atomic.Int32
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		wg.Go(func() {
			first := sync.OnceFunc(func() { both.Done(); both.Wait() })
			err := s.transact(ctx, func(t tx) error {
				tries.Add(1)
				for _, id := range order {
					if err := t.exec(ctx, `UPDATE users SET seen = seen + 1 WHERE id = ?`, id); err != nil {
						return err
					}
					first()
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if tries.Load() < 3 { // Postgres may end both
		t.Errorf("%d tries, want 3 at least", tries.Load())
	}
	if u, err := s.GetUser(ctx, "a"); err != nil || u.Seen.UnixNano() != 2 {
		t.Errorf("%+v, %v", u, err)
	}
}
