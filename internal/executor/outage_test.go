package executor

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/store/storetest"
)

// newPostgresRig is newRig with a Postgres, which storetest.Stop stops.
func newPostgresRig(t *testing.T) (*rig, *store.Store) {
	t.Helper()
	db, err := store.Open(t.Context(), storetest.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return newRig(t, nil, func(c *Config) { c.Store, c.Instance = db, "one" }), db
}

// ran runs code twice, in the foreground and in the background, and returns the ids.
func (r *rig) ran(t *testing.T) []string {
	t.Helper()
	foreground := r.mustRun(t, ann, Request{Session: "x", Runner: "python", Code: "hello"})
	background := r.mustRun(t, ann, Request{Session: "x", Runner: "python", Code: "hello", Background: true})
	ids := []string{foreground.RunID, background.RunID}
	for _, id := range ids {
		if res := r.mustWait(t, ann, id, WaitRequest{Timeout: time.Minute}); res.Running || string(res.Stdout) != "hello" {
			t.Errorf("%s: %+v", id, res)
		}
	}
	return ids
}

// TestOutage: without its database, the server runs code and lists sessions, and says what it
// cannot read. Results wait until the database is back.
func TestOutage(t *testing.T) {
	r, db := newPostgresRig(t)
	if err := db.EndResult(t.Context(), store.Result{ID: "old", Caller: "ann", Ended: time.Now(), Data: []byte(`{}`)}, 1); err != nil {
		t.Fatal(err)
	}
	start := storetest.Stop(t)
	ids := r.ran(t)
	_, waited := r.WaitRun(t.Context(), ann, "old", WaitRequest{Timeout: time.Minute})
	_, cancelled := r.CancelRun(t.Context(), ann, "old")
	for _, err := range []error{waited, cancelled} {
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != CodeBackendUnavailable || e.RetryAfter != 10*time.Second || !strings.Contains(e.Message, "The run is not affected") {
			t.Errorf("an earlier run: %v", err)
		}
	}
	if list, _, err := r.ListSessions(t.Context(), ann, 10); err != nil || len(list) != 1 || list[0].ID != "x" {
		t.Errorf("sessions: %+v, %v", list, err)
	}
	start()
	stored := func(id string) bool {
		row, err := db.GetResult(t.Context(), "ann", id)
		_, missing := db.GetRun(t.Context(), id)
		return err == nil && !row.Running() && missing == nil
	}
	for late := time.After(time.Minute); !stored(ids[0]) || !stored(ids[1]); {
		select {
		case <-late:
			t.Fatal("the results are not stored")
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, once := range []string{"does not answer; results of runs wait", "answers again"} {
		if n := strings.Count(r.log.String(), once); n != 1 {
			t.Errorf("%q is %d times in the log:\n%s", once, n, r.log)
		}
	}
}

// TestCloseInOutage: at its end, the server tries once more to store the results that wait, and
// says how many are lost.
func TestCloseInOutage(t *testing.T) {
	for _, back := range []bool{true, false} {
		r, db := newPostgresRig(t)
		start := storetest.Stop(t)
		ids := r.ran(t)
		if back {
			start()
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		start()
		for _, id := range ids {
			if _, err := db.GetResult(t.Context(), "ann", id); (err == nil) != back {
				t.Errorf("Postgres is back: %t; %s: %v", back, id, err)
			}
		}
		if got := bytes.Contains(r.log.Bytes(), []byte(`results of runs are lost","runs":2`)); got == back {
			t.Errorf("Postgres is back: %t; the log:\n%s", back, r.log)
		}
	}
}

// TestUnknownEnd: the hint about a run without a stored end does not blame a server that is alive.
func TestUnknownEnd(t *testing.T) {
	r := newRig(t, nil, func(c *Config) { c.Instance = "one" })
	row := store.Result{ID: "r", Caller: session.Local.ID, Instance: "one", Started: time.Now(), Data: []byte(`{}`)}
	if err := r.store.BeginResult(context.Background(), row); err != nil {
		t.Fatal(err)
	}
	res := r.mustWait(t, session.Local, "r", WaitRequest{})
	if !strings.HasPrefix(res.Hint, "The end of this run is not known: the server ended, or could not store it. Some of it may") {
		t.Errorf("%+v", res)
	}
}
