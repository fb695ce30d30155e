//go:build linux

package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestJudge feeds the guard with measurements, so that no clock is read.
func TestJudge(t *testing.T) {
	rules := []rule{{"warm", "plain", 2}, {"new", "plain", 4}}
	type medians = map[string]time.Duration
	good := medians{"plain": 10, "warm": 20, "new": 40}
	slow := medians{"plain": 10, "warm": 21, "new": 40}
	allSlow := medians{"plain": 10, "warm": 30, "new": 50}
	lost := errors.New("the server has ended")

	for name, test := range map[string]struct {
		measured []medians // one per attempt; nil: lost
		asked    []string  // of the last attempt
		want     []string  // in the error; none: no error
	}{
		"kept":                     {[]medians{good}, []string{"new", "plain", "warm"}, nil},
		"broken once":              {[]medians{slow, good}, []string{"plain", "warm"}, nil},
		"broken twice":             {[]medians{slow, slow, good}, []string{"plain", "warm"}, nil},
		"broken three times":       {[]medians{slow, slow, slow}, []string{"plain", "warm"}, []string{"warm takes", "2.10x of plain", "allowed is 2.00x"}},
		"all broken, one recovers": {[]medians{allSlow, slow, slow}, []string{"plain", "warm"}, []string{"warm takes"}},
		"all broken":               {[]medians{allSlow, allSlow, allSlow}, []string{"new", "plain", "warm"}, []string{"warm takes", "new takes"}},
		"not measured":             {[]medians{slow, nil}, []string{"plain", "warm"}, []string{lost.Error()}},
	} {
		t.Run(name, func(t *testing.T) {
			var attempt int
			var asked []string
			err := judge(io.Discard, rules, func(names []string) (map[string]time.Duration, error) {
				asked = names
				attempt++
				if m := test.measured[attempt-1]; m != nil {
					return m, nil
				}
				return nil, lost
			})
			if attempt != len(test.measured) {
				t.Errorf("measured %d times, want %d", attempt, len(test.measured))
			}
			if !slices.Equal(asked, test.asked) {
				t.Errorf("the last attempt measured %q, want %q", asked, test.asked)
			}
			if (err != nil) != (test.want != nil) {
				t.Fatalf("judge: %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if name == "all broken, one recovers" && strings.Contains(err.Error(), "new takes") {
				t.Errorf("a rule that was kept at last is named: %v", err)
			}
		})
	}
}
