package executor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// holdEnded waits for a channel when a run has ended.
type holdEnded struct {
	silent
	next <-chan struct{}
}

func (h holdEnded) Ended(Result) { <-h.next }

// An image belongs to the run that showed it, even if the next cell begins before that run's result
// is complete.
func TestImageIsItsRuns(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	write := func(p *sessiontest.Process, name string) {
		if err := os.WriteFile(filepath.Join(p.Spec.Workspace, name), []byte("x"), 0o600); err != nil {
			t.Error(err)
		}
	}
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		if string(p.Code) == "first" {
			p.Display("image/png", []byte("plot"))
			write(p, "first.csv")
			return wire.Exit{}
		}
		close(begun)
		write(p, "second.csv")
		<-end
		return wire.Exit{}
	}, keepState)
	first, second := notebookRequest("first"), notebookRequest("second")
	first.Background, second.Background = true, true
	first.Observer = holdEnded{next: begun}
	one := r.mustRun(t, session.Local, first)
	two := r.mustRun(t, session.Local, second)
	files := func(runID string) []string {
		t.Helper()
		res, err := r.WaitRun(t.Context(), session.Local, runID, WaitRequest{Timeout: time.Minute})
		if err != nil || res.Running {
			t.Fatalf("%+v, %v", res, err)
		}
		var names []string
		for _, f := range res.Files {
			names = append(names, f.Name)
		}
		return names
	}
	if got, want := files(one.RunID), []string{one.RunID + "-1.png", "first.csv"}; !slices.Equal(got, want) {
		t.Errorf("the first run's files: %v, want %v", got, want)
	}
	close(end)
	if got, want := files(two.RunID), []string{"second.csv"}; !slices.Equal(got, want) {
		t.Errorf("the second run's files: %v, want %v", got, want)
	}
}

// An image that does not fit is not saved, and the result of the successful code has a hint.
func TestImageWithoutRoom(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		for range 3 {
			p.Display("image/png", []byte("plot"))
		}
		return wire.Exit{}
	}, func(c *Config) { c.Quota.Files = 1 })
	res, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python"})
	if err != nil || len(res.Files) != 1 || res.Hint != "2 images that the code showed were not saved as files: /data may hold 1 MB in 1 files. Delete files in it." {
		t.Errorf("%d files, hint %q, %v", len(res.Files), res.Hint, err)
	}
	if len(res.Displays) != 3 || !res.Success() {
		t.Errorf("%+v", res)
	}
}
