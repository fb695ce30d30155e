package store

import (
	"errors"
	"testing"
	"time"

	"mcp-code-sandbox/internal/store/storetest"
)

// TestClockOfServerDoesNotMatter: servers whose clocks are five minutes off, in either direction,
// agree with the others on what has expired.
func TestClockOfServerDoesNotMatter(t *testing.T) {
	ctx := t.Context()
	where := storetest.Postgres(t)
	var servers []*Store
	for _, off := range []time.Duration{0, 5 * time.Minute, -5 * time.Minute} {
		s, err := OpenWithClock(ctx, where, func() time.Time { return time.Now().Round(0).Add(off) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		servers = append(servers, s)
	}
	const ttl = 2 * time.Minute // less than a clock is off
	n := 0
	for _, a := range servers {
		for _, b := range servers {
			n++
			id := string(rune('a' + n))
			at, moment := a.Now(), a.process()
			if d := a.At(moment).Sub(b.Now()).Abs(); d > ttl/2 {
				t.Errorf("the servers disagree by %v", d)
			}
			if err := errors.Join(
				a.AddTicket(ctx, Ticket{ID: "live" + id, Expires: at.Add(ttl)}),
				a.AddTicket(ctx, Ticket{ID: "dead" + id, Expires: at.Add(-ttl)}),
				a.AddExecutionTokens(ctx, ExecutionToken{JTI: "live" + id, Issued: at, Expires: at.Add(ttl), Max: 1},
					ExecutionToken{JTI: "dead" + id, Issued: at, Expires: at.Add(-ttl), Max: 1}),
				a.PutUser(ctx, User{ID: "ann"}),
				a.AddCode(ctx, Code{ID: "live" + id, Grant: "live" + id, Caller: "ann", Client: "c", Expires: at.Add(ttl)}, at),
				a.AddCode(ctx, Code{ID: "dead" + id, Grant: "dead" + id, Expires: at.Add(-ttl)}, at),
				a.PutConnection(ctx, Connection{Caller: id, Service: "s", Wrapped: []byte{}, Sealed: []byte{}}),
			); err != nil {
				t.Fatal(err)
			}
			for state, want := range map[string]error{"live": nil, "dead": ErrNotFound} {
				_, ticket := b.TakeTicket(ctx, state+id, b.Now())
				_, token := b.UseExecutionToken(ctx, state+id, b.Now())
				next := RefreshToken{ID: state + id, Expires: b.Now().Add(ttl)}
				_, code := b.RedeemCode(ctx, state+id, b.Now(), b.Now().Add(ttl), next, allow)
				if ticket != want || token != want || code != want {
					t.Errorf("%s: ticket %v, token %v, code %v; want %v", state, ticket, token, code, want)
				}
			}
			if _, err := a.RotateRefreshToken(ctx, "live"+id, "c", RefreshToken{ID: "next" + id}, a.Now()); err != nil {
				t.Errorf("refresh token: %v", err)
			}
			if _, err := a.LeaseConnection(ctx, id, "s", "a", a.Now(), a.Now().Add(ttl)); err != nil {
				t.Error(err)
			}
			if _, err := b.LeaseConnection(ctx, id, "s", "b", b.Now(), b.Now().Add(ttl)); err != ErrNotFound {
				t.Errorf("a lease was taken before its end: %v", err)
			}
		}
	}
}

func TestClockOfSQLiteIsTheProcess(t *testing.T) {
	s, err := OpenWithClock(t.Context(), storetest.SQLite(t), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Now().Equal(now) || !s.At(now.Add(1)).Equal(now.Add(1)) {
		t.Errorf("%v, want %v", s.Now(), now)
	}
}
