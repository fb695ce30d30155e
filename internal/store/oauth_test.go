package store

import (
	"errors"
	"fmt"

	"slices"
	"testing"
	"time"

	"mcp-code-sandbox/internal/store/storetest"
)

// granted stores a user and a code, and redeems it for a grant.
func granted(t *testing.T, s *Store, name string) Grant {
	t.Helper()
	ctx := t.Context()
	if err := s.PutUser(ctx, User{ID: "user:ann", Issuer: "https://idp", Subject: "1", Email: "ann@example.com", Seen: now}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddCode(ctx, Code{ID: "code-" + name, Grant: "grant-" + name, Caller: "user:ann", Client: "client", Expires: now.Add(time.Minute)}, now); err != nil {
		t.Fatal(err)
	}
	g, err := s.RedeemCode(ctx, "code-"+name, now, now.Add(time.Hour), RefreshToken{ID: "rt1-" + name, Expires: now.Add(time.Hour)}, allow)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func allow(Code) error { return nil }

func alive(t *testing.T, s *Store, id string) bool {
	t.Helper()
	_, err := s.GetGrant(t.Context(), id, now)
	if err != nil && !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

func TestReusedCodeEndsItsGrant(t *testing.T) { storetest.Each(t, testReusedCodeEndsItsGrant) }

func testReusedCodeEndsItsGrant(t *testing.T, where string) {
	s := open(t, where)
	g := granted(t, s, "a")
	other := granted(t, s, "b")
	if _, err := s.RedeemCode(t.Context(), "code-a", now, now.Add(time.Hour), RefreshToken{ID: "x"}, allow); err != ErrReused {
		t.Errorf("second use: %v", err)
	}
	if alive(t, s, g.ID) || !alive(t, s, other.ID) {
		t.Error("the grant of the reused code, and no other, must end")
	}
	if _, err := s.RotateRefreshToken(t.Context(), "rt1-a", "client", RefreshToken{ID: "rt2", Expires: now.Add(time.Hour)}, now); err != ErrNotFound {
		t.Errorf("refresh of the ended grant: %v", err)
	}
}

func TestCodeIsUsedUpByARefusal(t *testing.T) { storetest.Each(t, testCodeIsUsedUpByARefusal) }

func testCodeIsUsedUpByARefusal(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	wrong := errors.New("wrong verifier")
	for id, c := range map[string]struct {
		now   time.Time
		check func(Code) error
		want  error
	}{
		"refused": {now, func(Code) error { return wrong }, wrong},
		"late":    {now.Add(time.Minute), allow, ErrNotFound},
	} {
		if err := s.AddCode(ctx, Code{ID: id, Grant: "g-" + id, Expires: now.Add(time.Minute)}, now); err != nil {
			t.Fatal(err)
		}
		if _, err := s.RedeemCode(ctx, id, c.now, now.Add(time.Hour), RefreshToken{ID: id}, c.check); err != c.want {
			t.Errorf("%s: %v, want %v", id, err, c.want)
		}
		if _, err := s.RedeemCode(ctx, id, now, now.Add(time.Hour), RefreshToken{ID: id}, allow); err != ErrReused {
			t.Errorf("%s, again: %v", id, err)
		}
	}
	if _, err := s.RedeemCode(ctx, "unknown", now, now, RefreshToken{}, allow); err != ErrNotFound {
		t.Errorf("unknown: %v", err)
	}
}

// TestCodeIsRedeemedOnce: of many concurrent attempts one gets a grant, which the others then
// revoke.
func TestCodeIsRedeemedOnce(t *testing.T) { storetest.Each(t, testCodeIsRedeemedOnce) }

func testCodeIsRedeemedOnce(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	if err := s.AddCode(ctx, Code{ID: "c", Grant: "g", Caller: "user:ann", Expires: now.Add(time.Minute)}, now); err != nil {
		t.Fatal(err)
	}
	n := atOnce(t, where, ErrReused, func(s *Store, i int) error {
		_, err := s.RedeemCode(ctx, "c", now, now.Add(time.Hour), RefreshToken{ID: fmt.Sprint("rt", i)}, allow)
		return err
	})
	if n != 1 {
		t.Errorf("%d redeemed the code", n)
	}
	if alive(t, s, "g") {
		t.Error("the grant of a code that twenty had is alive")
	}
}

func TestRefreshTokenRotates(t *testing.T) { storetest.Each(t, testRefreshTokenRotates) }

func testRefreshTokenRotates(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	rotate := func(from, client, to string) error {
		_, err := s.RotateRefreshToken(ctx, from, client, RefreshToken{ID: to, Expires: now.Add(time.Hour)}, now)
		return err
	}
	g := granted(t, s, "a")
	for i := 1; i < 4; i++ {
		if err := rotate(fmt.Sprintf("rt%d-a", i), "client", fmt.Sprintf("rt%d-a", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := rotate("rt2-a", "client", "stolen"); err != ErrReused {
		t.Errorf("an old token: %v", err)
	}
	if alive(t, s, g.ID) {
		t.Error("the grant outlives the reuse of one of its tokens")
	}
	if err := rotate("rt4-a", "client", "rt5-a"); err != ErrNotFound {
		t.Errorf("the newest token after the reuse: %v", err)
	}

	b := granted(t, s, "b")
	if err := rotate("rt1-b", "other client", "rt2-b"); err != ErrReused || alive(t, s, b.ID) {
		t.Errorf("another client's use: %v, alive %v", err, alive(t, s, b.ID))
	}
	granted(t, s, "c")
	if _, err := s.RotateRefreshToken(ctx, "rt1-c", "client", RefreshToken{ID: "rt2-c"}, now.Add(time.Hour)); err != ErrNotFound {
		t.Errorf("expired: %v", err)
	}
}

func TestGrantsAreTheirUsersAlone(t *testing.T) { storetest.Each(t, testGrantsAreTheirUsersAlone) }

func testGrantsAreTheirUsersAlone(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	a, b := granted(t, s, "a"), granted(t, s, "b")
	if list, err := s.ListGrants(ctx, "user:ann", now); err != nil || len(list) != 2 {
		t.Errorf("list: %v, %v", list, err)
	}
	if list, err := s.ListGrants(ctx, "user:bob", now); err != nil || len(list) != 0 {
		t.Errorf("another's list: %v, %v", list, err)
	}
	if err := s.RevokeGrant(ctx, "user:bob", a.ID, now); err != ErrNotFound || !alive(t, s, a.ID) {
		t.Errorf("revoked by another: %v", err)
	}
	consent := Consent{"user:ann", "client", "https://c/cb", "mcp"}
	if err := s.AddConsent(ctx, consent, now); err != nil {
		t.Fatal(err)
	}
	if err := s.RevokeGrant(ctx, "user:ann", a.ID, now); err != nil || alive(t, s, a.ID) {
		t.Errorf("revoke: %v", err)
	}
	if ok, err := s.HasConsent(ctx, consent, now); ok || err != nil {
		t.Errorf("the consent is still there after the revocation: %v", err)
	}
	if err := s.RevokeGrantByRefreshToken(ctx, "rt1-b", "other client", now); err != ErrNotFound || !alive(t, s, b.ID) {
		t.Errorf("revoked by another client: %v", err)
	}
	if err := s.RevokeGrantByRefreshToken(ctx, "rt1-b", "client", now); err != nil || alive(t, s, b.ID) {
		t.Errorf("revoke by token: %v", err)
	}
}

func TestRequestIsOfOneBrowserAndOneUse(t *testing.T) {
	storetest.Each(t, testRequestIsOfOneBrowserAndOneUse)
}

func testRequestIsOfOneBrowserAndOneUse(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	add := func(id string, expires time.Time) {
		t.Helper()
		if err := s.AddRequest(ctx, Request{ID: id, Kind: "login", Browser: "b1", Data: []byte(id), Expires: expires}, now, 3); err != nil {
			t.Fatal(err)
		}
	}
	add("r1", now.Add(time.Minute))
	for _, c := range []struct {
		kind, id, browser string
		now               time.Time
		want              error
	}{
		{"login", "r1", "b2", now, ErrNotFound},
		{"consent", "r1", "b1", now, ErrNotFound},
		{"login", "r2", "b1", now, ErrNotFound},
		{"login", "r1", "b1", now.Add(time.Minute), ErrNotFound},
		{"login", "r1", "b1", now, nil},
		{"login", "r1", "b1", now, ErrNotFound},
	} {
		r, err := s.TakeRequest(ctx, c.kind, c.id, c.browser, c.now)
		if err != c.want || err == nil && string(r.Data) != "r1" {
			t.Errorf("%+v: %+v, %v", c, r, err)
		}
	}
	for i := range 5 { // a flood pushes out its own oldest
		add(fmt.Sprint("f", i), now.Add(time.Duration(i+1)*time.Minute))
	}
	var left []string
	for i := range 5 {
		if _, err := s.TakeRequest(ctx, "login", fmt.Sprint("f", i), "b1", now); err == nil {
			left = append(left, fmt.Sprint("f", i))
		}
	}
	if !slices.Equal(left, []string{"f2", "f3", "f4"}) {
		t.Errorf("left %v", left)
	}
}

func TestClientsAreBounded(t *testing.T) { storetest.Each(t, testClientsAreBounded) }

func testClientsAreBounded(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	add := func(i int) error {
		return s.AddClient(ctx, Client{ID: fmt.Sprint("c", i), Name: "n", Redirects: []string{"https://c/cb"}, Created: now.Add(time.Duration(i))}, 3, now.Add(-time.Hour))
	}
	use := func(i int) {
		t.Helper()
		if err := s.AddCode(ctx, Code{ID: fmt.Sprint("code", i), Client: fmt.Sprint("c", i)}, now); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		if err := add(i); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			use(0)
		}
	}
	for i, want := range []error{nil, ErrNotFound, ErrNotFound, nil, nil} {
		c, err := s.GetClient(ctx, fmt.Sprint("c", i))
		if err != want || err == nil && !slices.Equal(c.Redirects, []string{"https://c/cb"}) {
			t.Errorf("client %d: %+v, %v; want %v", i, c, err, want)
		}
	}
	use(3)
	use(4)
	if err := add(5); err != ErrFull {
		t.Errorf("more than may be: %v", err)
	}
}

func TestPurgeOAuth(t *testing.T) { storetest.Each(t, testPurgeOAuth) }

func testPurgeOAuth(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	g := granted(t, s, "a")
	if err := s.AddBrowserSession(ctx, BrowserSession{ID: "b", Caller: "user:ann", Expires: now.Add(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	if err := s.PurgeOAuth(ctx, now, now.Add(-time.Hour), now.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetBrowserSession(ctx, "b", now); err != nil || !alive(t, s, g.ID) {
		t.Errorf("purged too early: %v", err)
	}
	later := now.Add(48 * time.Hour)
	if err := s.PurgeOAuth(ctx, later, later.Add(-time.Hour), later.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"browser_sessions", "oauth_codes", "oauth_grants", "oauth_refresh_tokens", "oauth_clients"} {
		var n int
		if err := s.pool.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows are left in %s, %v", n, table, err)
		}
	}
	if u, err := s.GetUser(ctx, "user:ann"); err != nil || u.Email != "ann@example.com" {
		t.Errorf("user: %+v, %v", u, err)
	}
}
