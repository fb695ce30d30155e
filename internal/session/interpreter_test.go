package session_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// TestQueue: runs of one interpreter wait for each other in order. They know which run they wait
// for, and since when it runs.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
			select {
			case <-end:
				return wire.Exit{}
			case <-p.Done():
				return sessiontest.SIGKILL
			}
		}}
		m := newManager(t, b, nil)
		s := open(t, m, ann, "x")
		defer s.Release()
		var mu sync.Mutex
		told := map[string][]string{}
		var order []string
		var wg sync.WaitGroup
		start := time.Now()
		begin := func(ctx context.Context, id string, limit time.Duration, keep bool, check func(session.RunResult, error)) {
			wg.Go(func() {
				res, err := s.Run(ctx, notebook, session.RunRequest{
					ID: id, Persistent: true, Timeout: limit, KeepWaiting: func() bool { return keep },
					Queued: func(b *session.Behind) {
						mu.Lock()
						defer mu.Unlock()
						if b == nil {
							told[id] = append(told[id], "go")
						} else {
							told[id] = append(told[id], fmt.Sprintf("%d: %s since %v", b.Ahead, b.RunID, b.Since.Sub(start)))
						}
					},
					Started: func() { mu.Lock(); order = append(order, id); mu.Unlock() },
				})
				check(res, err)
			})
			synctest.Wait()
		}
		fine := func(res session.RunResult, err error) {
			if err != nil || res.Cause != "" || !res.Started {
				t.Errorf("%+v, %v", res, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		begin(t.Context(), "first", 0, false, fine)
		begin(t.Context(), "patient", time.Minute, true, fine)
		begin(ctx, "cancelled", time.Minute, true, func(res session.RunResult, err error) {
			if err != nil || res.Cause != sandbox.CauseCancelled || res.Started {
				t.Errorf("cancelled in the queue: %+v, %v", res, err)
			}
		})
		begin(t.Context(), "last", time.Minute, true, fine)
		begin(t.Context(), "impatient", 0, false, func(_ session.RunResult, err error) {
			if !errors.Is(err, session.ErrBusy) || time.Since(start) != time.Minute {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
		time.Sleep(time.Second)
		cancel()
		time.Sleep(3*time.Hour - time.Second) // the wait does not count towards their limit of a minute
		end <- struct{}{}
		time.Sleep(time.Second)
		end <- struct{}{}
		end <- struct{}{}
		wg.Wait()
		want := map[string][]string{
			"patient":   {"1: first since 0s", "go"},
			"cancelled": {"2: first since 0s"},
			"last":      {"3: first since 0s", "2: first since 0s", "1: patient since 3h0m0s", "go"},
			"impatient": {"4: first since 0s", "3: first since 0s"},
		}
		if !reflect.DeepEqual(told, want) {
			t.Errorf("told %v\nwant %v", told, want)
		}
		if want := []string{"first", "patient", "last"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	})
}

// TestRestart: a restart ends the runs of the interpreter, the running and the waiting ones.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := newNotebooks(t, func(*session.Config) {})
		mustCell(t, m, ann, "x")
		s := open(t, m, ann, "x")
		defer s.Release()
		run := func(code string, restart, network bool) session.RunResult {
			t.Helper()
			res, err := s.Run(t.Context(), notebook, session.RunRequest{
				Code: code, Persistent: true, Restart: restart, Network: network, KeepWaiting: func() bool { return true },
			})
			if err != nil {
				t.Error(err)
			}
			return res
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if res := run("forever", false, false); res.Cause != sandbox.CauseCancelled || res.StateLost != res.Started {
					t.Errorf("%+v", res)
				}
			})
			synctest.Wait()
		}
		other := make(chan session.RunResult, 1) // of another interpreter
		wg.Go(func() { other <- run("forever", false, true) })
		synctest.Wait()
		if res := run("", true, false); res.Cause != "" || !res.Started || res.Forgotten || res.Evicted {
			t.Errorf("the restart: %+v", res)
		}
		if len(other) > 0 {
			t.Errorf("a run of the interpreter with network has ended: %+v", <-other)
		}
		for _, sb := range b.Live() {
			_ = sb.Close(t.Context())
		}
		wg.Wait()
	})
}
