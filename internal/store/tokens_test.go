package store

import (
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcp-code-sandbox/internal/store/storetest"
)

func executionToken(jti string, change func(*ExecutionToken)) ExecutionToken {
	t := ExecutionToken{JTI: jti, Caller: "ann", Service: "datadog", Execution: "e", Paths: []string{"/a/**"}, Methods: []string{"GET"},
		Issued: now, Expires: now.Add(time.Minute), Max: 5}
	if change != nil {
		change(&t)
	}
	return t
}

// Two stores, as of two processes: 200 uses at once, five of them allowed.
func TestExecutionTokenUsesAreCountedAtomically(t *testing.T) {
	storetest.Each(t, testExecutionTokenUsesAreCountedAtomically)
}

func testExecutionTokenUsesAreCountedAtomically(t *testing.T, where string) {
	ctx := t.Context()
	stores := []*Store{open(t, where), open(t, where)}
	if err := stores[0].AddExecutionTokens(ctx, executionToken("j", nil)); err != nil {
		t.Fatal(err)
	}
	var ok, exhausted atomic.Int64
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			switch _, err := stores[i%2].UseExecutionToken(ctx, "j", now); err {
			case nil:
				ok.Add(1)
			case ErrExhausted:
				exhausted.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ok.Load() != 5 || exhausted.Load() != 195 {
		t.Errorf("%d uses, %d refused", ok.Load(), exhausted.Load())
	}
}

func TestExecutionTokens(t *testing.T) { storetest.Each(t, testExecutionTokens) }

func testExecutionTokens(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	all := []ExecutionToken{
		executionToken("net", nil),
		executionToken("linear", func(t *ExecutionToken) { t.Service = "linear"; t.Paths, t.Methods = []string{}, nil }),
		executionToken("run", func(t *ExecutionToken) { t.Sandbox, t.Instance = "sb", "i1" }),
		executionToken("other run", func(t *ExecutionToken) { t.Sandbox, t.Instance, t.Execution = "sb", "i2", "f" }),
		executionToken("bob's", func(t *ExecutionToken) { t.Caller = "bob" }),
		executionToken("expired", func(t *ExecutionToken) { t.Expires = now }),
	}
	if err := s.AddExecutionTokens(ctx, all...); err != nil {
		t.Fatal(err)
	}
	if err := s.AddExecutionTokens(ctx, executionToken("new", nil), executionToken("net", nil)); err == nil {
		t.Error("a token was added twice")
	}
	live := func(want ...string) {
		t.Helper()
		var got []string
		for _, tok := range append(all, executionToken("new", nil)) {
			if _, err := s.ExecutionToken(ctx, tok.JTI, now); err == nil {
				got = append(got, tok.JTI)
			} else if _, useErr := s.UseExecutionToken(ctx, tok.JTI, now); err != ErrNotFound || useErr != ErrNotFound {
				t.Errorf("%s: %v, %v", tok.JTI, err, useErr)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("live: %q, want %q", got, want)
		}
	}
	live("net", "linear", "run", "other run", "bob's")
	for _, want := range all[:3] {
		got, err := s.ExecutionToken(ctx, want.JTI, now)
		if err != nil || !got.Issued.Equal(want.Issued) || !got.Expires.Equal(want.Expires) {
			t.Errorf("%+v, %v", got, err)
		}
		if got.Issued, got.Expires = want.Issued, want.Expires; !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	list, err := s.ExecutionTokens(ctx, "ann", now)
	if err != nil || len(list) != 4 {
		t.Errorf("ann's: %+v, %v", list, err)
	}
	if n, err := s.CountExecutionTokens(ctx, "ann", now); err != nil || n != 4 {
		t.Errorf("ann has %d, %v", n, err)
	}
	for _, other := range [][2]string{{"bob", "net"}, {"ann", "unknown"}, {"ann", "expired"}, {"ann", "%"}} {
		if _, err := s.RevokeExecutionToken(ctx, other[0], other[1], now); err != ErrNotFound {
			t.Errorf("revoked %q: %v", other, err)
		}
	}
	revoked := func(got []string, err error, want ...string) {
		t.Helper()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("revoked %q, %v, want %q", got, err, want)
		}
	}
	got, err := s.RevokeRunTokens(ctx, "e", now) // and not those that only call themselves so
	revoked(got, err, "run")
	instances, err := s.ExecutionTokenInstances(ctx, now)
	if err != nil || !slices.Equal(instances, []string{"i2"}) {
		t.Errorf("instances %q, %v", instances, err)
	}
	got, err = s.RevokeInstanceTokens(ctx, "", now) // those for use anywhere stay
	revoked(got, err)
	got, err = s.RevokeInstanceTokens(ctx, "i2", now)
	revoked(got, err, "other run")
	got, err = s.RevokeServiceTokens(ctx, "ann", "datadog", now)
	revoked(got, err, "net")
	if tok, err := s.RevokeExecutionToken(ctx, "ann", "linear", now); err != nil || tok.Service != "linear" {
		t.Errorf("%+v, %v", tok, err)
	}
	live("bob's")

	// A row is deleted a day after its token has expired.
	if err := s.AddExecutionTokens(ctx, executionToken("later", func(t *ExecutionToken) {
		t.Issued = now.Add(keepTokens + time.Second)
		t.Expires = t.Issued.Add(time.Minute)
	})); err != nil {
		t.Fatal(err)
	}
	left, err := queryAll(ctx, s.db, value[string], `SELECT jti FROM execution_tokens ORDER BY jti`)
	if err != nil || slices.Contains(left, "expired") || !slices.Contains(left, "net") {
		t.Errorf("left: %q, %v", left, err)
	}
}
