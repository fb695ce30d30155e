//go:build linux

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRepeat checks that a measurement of repeated work is the mean of it, and that preparation and
// tidying happen once, outside of it.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order strings.Builder
		step := func(name string, takes time.Duration) func(context.Context) error {
			return func(context.Context) error {
				order.WriteString(name)
				time.Sleep(takes)
				return nil
			}
		}
		work := step("x", 20*time.Millisecond)
		c := contender{name: "a", repeat: 3, before: step("(", time.Hour), after: step(")", time.Hour), rest: 1,
			do: func(ctx context.Context) ([]byte, error) { return nil, work(ctx) }}
		took, err := c.once(t.Context())
		if err != nil || took != 20*time.Millisecond || order.String() != "(xxx)" {
			t.Errorf("once = %v, %v, in the order %s", took, err, &order)
		}
		c.before = func(context.Context) error { return errors.New("no window") }
		if _, err := c.once(t.Context()); err == nil || err.Error() != "a: no window" || order.String() != "(xxx)" {
			t.Errorf("without preparation: %v, in the order %s", err, &order)
		}
	})
}

// TestTurns checks that contenders take turns, backwards every other time, that rarer ones are
// spread over the rounds, and that a wrong answer stops the measurement.
func TestTurns(t *testing.T) {
	var order strings.Builder
	fake := func(name string, n int, want string) contender {
		return contender{name: name, n: n, want: want, rest: 1, do: func(context.Context) ([]byte, error) {
			order.WriteString(name)
			return []byte("42"), nil
		}, after: func(context.Context) error {
			order.WriteString(".")
			return nil
		}}
	}
	taken, err := measure(t.Context(), time.Minute, []contender{fake("a", 4, "42"), fake("b", 2, "42")})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := order.String(), "a.a.b.b."+"a."+"b.a."+"a."+"b.a."; got != want {
		t.Errorf("order %s, want %s", got, want)
	}
	for k, want := range []int{4, 2} {
		if got := len(taken[k].times); got != want {
			t.Errorf("%s was measured %d times, want %d", taken[k].name, got, want)
		}
	}
	if _, err := measure(t.Context(), time.Minute, []contender{fake("c", 4, "43")}); err == nil || !strings.Contains(err.Error(), `c: "43" is not in its output: 42`) {
		t.Errorf("a wrong answer: %v", err)
	}
}

func TestAlternate(t *testing.T) {
	var got strings.Builder
	for _, c := range alternate([][]contender{{{name: "a"}, {name: "b"}}, {{name: "A"}, {name: "B"}, {name: "C"}}}) {
		got.WriteString(c.name)
	}
	if got.String() != "aAbBC" {
		t.Errorf("alternate = %s", &got)
	}
}
