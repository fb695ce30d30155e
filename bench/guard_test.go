//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
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

// TestRulesFor checks that every kind of server has the same rules, and that the ordinary user's is
// compared with root's where both are measured.
func TestRulesFor(t *testing.T) {
	root, ordinary := kind{name: rootKind}, kind{name: ordinaryKind}
	warm := func(k string) rule { return rule{"python warm " + k, "python plain", 1} }
	crowd := func(k string) rule { return rule{"python warm " + k + ", 100 sessions open", "python warm " + k, 1.6} }
	for name, test := range map[string]struct {
		kinds    []kind
		has, not []rule
	}{
		"root's alone":     {[]kind{root}, []rule{warm("root"), crowd("root")}, append(likeRoot, warm("ordinary"), warm("*"))},
		"an ordinary user": {[]kind{ordinary}, []rule{warm("ordinary"), crowd("ordinary")}, append(likeRoot, warm("root"), warm("*"))},
		"both":             {[]kind{root, ordinary}, append(likeRoot, warm("root"), warm("ordinary"), crowd("ordinary")), []rule{warm("*")}},
	} {
		t.Run(name, func(t *testing.T) {
			got := rulesFor(test.kinds)
			for _, r := range test.has {
				if !slices.Contains(got, r) {
					t.Errorf("no rule %v", r)
				}
			}
			for _, r := range test.not {
				if slices.Contains(got, r) {
					t.Errorf("a rule %v", r)
				}
			}
			if n := len(slices.DeleteFunc(got, func(r rule) bool { return r.what != "download by a signed link" })); n != 1 {
				t.Errorf("%d rules of the download", n)
			}
		})
	}
}

// TestGuardable checks what the guard does if something cannot be measured.
func TestGuardable(t *testing.T) {
	broken, noUser := errors.New("no bubblewrap"), errors.New("The ordinary user's server was left out: no bubblewrap")
	for name, test := range map[string]struct {
		err, missing  error
		all           bool
		judged, fails bool
	}{
		"all is there":                    {nil, nil, true, true, false},
		"nothing works":                   {broken, nil, false, false, false},
		"nothing works, in CI":            {broken, nil, true, false, true},
		"a kind is missing":               {nil, noUser, false, true, false},
		"a kind is missing, in CI":        {nil, noUser, true, false, true},
		"interrupted, with nothing to do": {context.Canceled, nil, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			judged, err := guardable(&out, test.err, test.missing, test.all)
			if judged != test.judged || (err != nil) != test.fails {
				t.Errorf("guardable = %v, %v", judged, err)
			}
			if said := out.String(); !judged && err == nil && !strings.Contains(said, "guard: skipped") {
				t.Errorf("it says %q", said)
			}
		})
	}
}

// TestExcess checks what the guard says about idle sessions.
func TestExcess(t *testing.T) {
	for name, test := range map[string]struct {
		use  use
		want string // in the error; none: no error
	}{
		"little":           {use{threads: 10 * maxThreads, pss: 10 * maxMemory}, ""},
		"many threads":     {use{threads: 10*maxThreads + 1}, fmt.Sprintf("an idle session of root's server has %d.1 threads", maxThreads)},
		"much memory":      {use{pss: 10*maxMemory + 1e6}, "15.1 MB; allowed are"},
		"hidden memory":    {use{hidden: true}, ""},
		"hidden, too much": {use{threads: 1000, hidden: true}, "100 threads and not shown"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.use.excess(io.Discard, titles[rootKind], 10)
			if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
