package executor

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
)

// TestReadsAreShared: calls that read files take turns. The caller that holds less comes first, and
// a call whose turn does not come is refused.
func TestReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, nil)
		for _, caller := range []session.Caller{ann, bob} {
			if _, err := r.Run(t.Context(), caller, Request{Session: "x", Runner: "python"}); err != nil {
				t.Fatal(err)
			}
		}
		reads := r.Shares()["reads"]
		var turns []*share.Lease // as if each looked through a huge workspace
		for range reads.Stats().Capacity {
			turn, err := reads.TryAcquire(ann.ID, 1)
			if err != nil {
				t.Fatal(err)
			}
			turns = append(turns, turn)
		}
		for name, call := range map[string]func(session.Caller) error{
			"list_artifacts": func(c session.Caller) error {
				_, err := r.ListArtifacts(t.Context(), c, "x", ListOptions{})
				return err
			},
			"list_sessions":  func(c session.Caller) error { _, _, err := r.ListSessions(t.Context(), c, 10); return err },
			"resources/list": func(c session.Caller) error { _, _, err := r.RecentFiles(t.Context(), c, Position{}, 10); return err },
		} {
			began := time.Now()
			var busy *Error
			if err := call(bob); !errors.As(err, &busy) || busy.Code != CodeBusy || busy.RetryAfter <= 0 || time.Since(began) != readWait {
				t.Errorf("%s after %v: %v", name, time.Since(began), err)
			}
		}

		rest := make(chan struct{})
		var wg sync.WaitGroup
		for range 8 { // more of ann's, which would keep every turn they get
			wg.Go(func() {
				turn, err := reads.Acquire(t.Context(), ann.ID, 1)
				if err != nil {
					t.Error(err)
					return
				}
				<-rest
				turn.Release()
			})
		}
		synctest.Wait()
		wg.Go(func() {
			if _, err := r.ListArtifacts(t.Context(), bob, "x", ListOptions{}); err != nil {
				t.Errorf("bob, who holds nothing, while ann reads: %v", err)
			}
		})
		synctest.Wait()
		turns[0].Release()
		time.Sleep(2 * readWait)
		close(rest)
		for _, turn := range turns {
			turn.Release()
		}
		wg.Wait()
	})
}
