//go:build linux

package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestTurns checks that contenders take turns, that rarer ones are spread over the rounds, and that
// a wrong answer stops the measurement.
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
	if got, want := order.String(), "a.a.b.b."+"a."+"a.b."+"a."+"a.b."; got != want {
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
