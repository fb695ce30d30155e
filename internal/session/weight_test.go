package session_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// TestWeightFallsWithUse: a sandbox loses weight the longer it computes, and regains it with the
// next run.
func TestWeightFallsWithUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
			last := p.Sandbox.Weight()
			if last != 1 {
				t.Errorf("a new run starts with a weight of %v", last)
			}
			for range 20 { // two seconds of computing
				time.Sleep(100 * time.Millisecond)
				p.Sandbox.CPU.Add(int64(100 * time.Millisecond))
				if w := p.Sandbox.Weight(); w > last {
					t.Errorf("the weight rises from %v to %v", last, w)
				} else {
					last = w
				}
			}
			time.Sleep(time.Second)
			if w := p.Sandbox.Weight(); w != 1.0/16 {
				t.Errorf("the weight after two seconds of computing is %v", w)
			}
			return wire.Exit{}
		}}
		m := newManager(t, b, nil)
		run(t, m, "a", "x")
		run(t, m, "a", "x")
	})
}

// TestWeightFallsSoon: code that computes for a third of a second has the smallest weight, so that
// endless loops delay nobody for long.
func TestWeightFallsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
			for ms, want := range map[int64]float64{99: 1, 150: 1.0 / 8, 350: 1.0 / 16} {
				p.Sandbox.CPU.Store(ms * int64(time.Millisecond))
				time.Sleep(3 * time.Second) // longer than the longest time between two measurements
				if w := p.Sandbox.Weight(); w != want {
					t.Errorf("the weight after %d ms of computing is %v, want %v", ms, w, want)
				}
			}
			return wire.Exit{}
		}}
		run(t, newManager(t, b, nil), "a", "x")
	})
}

// TestCallersHaveEqualWeights: one sandbox of a caller weighs as much as all of another caller's. A
// lone caller's sandboxes, and the operator's, keep their full weight.
func TestCallersHaveEqualWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit { <-end; return wire.Exit{} }}
		m := newManager(t, b, nil)
		var wg sync.WaitGroup
		begin := func(caller session.Caller, n int) {
			for i := range n {
				wg.Go(func() { _ = runAs(m, caller, fmt.Sprint(caller.ID, i)) })
			}
			time.Sleep(3 * time.Second) // longer than the longest time between two looks
		}
		weights := func() map[byte]float64 {
			sum := map[byte]float64{}
			for _, sb := range b.Live() {
				sum[sb.Spec().SessionID[0]] += sb.Weight()
			}
			return sum
		}
		begin(ann, 10)
		if w := weights(); w['a'] != 10 {
			t.Errorf("a lone caller's weights: %v", w)
		}
		begin(bob, 1)
		if w := weights(); w['a'] > 1.001 || w['a'] < 0.999 || w['b'] != 1 {
			t.Errorf("two callers' weights: %v", w)
		}
		begin(session.Local, 4)
		if w := weights(); w['l'] != 4 {
			t.Errorf("with the operator: %v", w)
		}
		close(end)
		wg.Wait()
	})
}

// TestForkBombIsEnded: code that keeps forking at its limit is ended even if its agent does not
// answer.
func TestForkBombIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &sessiontest.Backend{IgnoreKill: true, Program: func(p *sessiontest.Process) wire.Exit {
			for p.Err() == nil {
				p.Sandbox.PIDsRefused.Add(1)
				time.Sleep(time.Millisecond)
			}
			return wire.Exit{Signal: 9}
		}}
		m := newManager(t, b, nil)
		s := open(t, m, ann, "a")
		defer s.Release()
		began := time.Now()
		res, err := s.Run(context.Background(), python, session.RunRequest{Code: "x", Timeout: time.Minute})
		if err != nil || res.Cause != sandbox.CausePIDsLimit || res.ExitCode != -1 {
			t.Errorf("%+v, %v", res, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it was ended after %v", took)
		}
	})
}

// TestForkBombIsEndedEarly: code whose processes all fork is ended long before its limit; code with
// many processes is not.
func TestForkBombIsEndedEarly(t *testing.T) {
	for _, tt := range []struct {
		name         string
		grown, forks int64
		cause        sandbox.Cause
	}{
		{"bomb", 32, 12, sandbox.CausePIDsLimit},
		{"few of many fork", 200, 11, ""},
		{"few processes", 31, 31, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &sessiontest.Backend{IgnoreKill: true, Program: func(p *sessiontest.Process) wire.Exit {
					p.Sandbox.PIDs.Add(tt.grown)
					p.Sandbox.Forks.Store(tt.forks)
					select {
					case <-p.Done():
						return wire.Exit{Signal: 9}
					case <-time.After(10 * time.Second):
						return wire.Exit{}
					}
				}}
				m := newManager(t, b, func(c *session.Config) { c.Limits.PIDs = 256 })
				s := open(t, m, ann, "a")
				defer s.Release()
				began := time.Now()
				res, err := s.Run(context.Background(), python, session.RunRequest{Code: "x", Timeout: time.Minute})
				if err != nil || res.Cause != tt.cause {
					t.Errorf("%+v, %v; want the cause %q", res, err, tt.cause)
				}
				if took := time.Since(began); tt.cause != "" && took > 500*time.Millisecond {
					t.Errorf("it was ended after %v", took)
				}
			})
		})
	}
}
