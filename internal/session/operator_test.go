package session_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/workspace"
)

// TestStopSession: the operator ends a session's sandboxes and runs, including waiting ones. Other
// sessions go on, and the session's next run starts a sandbox.
func TestStopSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var root string
		m, b := newNotebooks(t, func(c *session.Config) { root = c.Root })
		mustCell(t, m, ann, "x")
		mustCell(t, m, bob, "x")
		results := make(chan session.RunResult, 3)
		s := open(t, m, ann, "x")
		for range 3 {
			go func() {
				res, err := s.Run(t.Context(), notebook, session.RunRequest{Code: "forever", Persistent: true, KeepWaiting: func() bool { return true }})
				if err != nil {
					t.Error(err)
				}
				results <- res
			}()
			synctest.Wait()
		}
		key := s.Key()
		s.Release()
		infos := map[string]session.Info{}
		for _, i := range m.Infos() {
			infos[i.Caller] = i
		}
		if got := infos["ann"]; len(infos) != 2 || got.Key != key || got.ID != "x" || got.Runs != 1 || got.Sandboxes != 1 || len(got.Interpreters) != 1 {
			t.Errorf("%+v", infos)
		}
		stopped, err := m.StopSession(t.Context(), key)
		if err != nil || stopped != (session.Stopped{Runs: 1, Sandboxes: 1}) {
			t.Errorf("%+v, %v", stopped, err)
		}
		for range 3 {
			if res := <-results; res.Cause != sandbox.CauseCancelled || !res.Operator {
				t.Errorf("%+v", res)
			}
		}
		if live := b.Live(); len(live) != 1 {
			t.Errorf("%d sandboxes live, want bob's alone", len(live))
		}
		if res := mustCell(t, m, ann, "x"); !res.Fresh || !res.Forgotten || res.Evicted {
			t.Errorf("the next run: %+v", res)
		}
		for _, key := range []string{"", "x", key[:12], "../x"} {
			if _, err := m.StopSession(t.Context(), key); !errors.Is(err, session.ErrNotFound) {
				t.Errorf("%q: %v", key, err)
			}
		}
		stored, err := session.Stored(root)
		if err != nil || len(stored) != 2 || stored[0].ID != "x" {
			t.Errorf("on disk: %+v, %v", stored, err)
		}
	})
}

// TestStoredInfos: the operator sees the size and last use of stored sessions: to the second if
// idle, otherwise to the minute.
func TestStoredInfos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) { c.Root = root })
		check := func(bytes int64) {
			t.Helper()
			infos, err := session.Stored(root)
			if err != nil || len(infos) != 1 || !infos[0].LastUsed.Equal(time.Now()) || infos[0].Bytes == nil || *infos[0].Bytes < bytes {
				t.Errorf("%+v, %v; now %v", infos, err, time.Now())
			}
		}
		for range 2 {
			s := open(t, m, ann, "x")
			if _, err := s.Write("f", strings.NewReader(strings.Repeat("x", 1<<20)), workspace.WriteOptions{Overwrite: true}); err != nil {
				t.Fatal(err)
			}
			s.Release()
			check(1 << 20)
			time.Sleep(30 * time.Second)
		}
		time.Sleep(time.Minute)
		s := open(t, m, ann, "x")
		defer s.Release()
		check(1 << 20)
	})
}
