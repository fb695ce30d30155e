package session_test

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// TestAhead: an agent may prepare for the next run during a run if each run has two processors.
func TestAhead(t *testing.T) {
	ahead, end := make(chan bool), make(chan struct{})
	b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
		ahead <- p.Run.Ahead
		<-end
		return wire.Exit{}
	}}
	s := open(t, newManager(t, b, func(*session.Config) {}), session.Local, "x")
	defer s.Release()
	var runs sync.WaitGroup
	start := func() bool {
		runs.Go(func() {
			if _, err := s.Run(context.Background(), python, session.RunRequest{}); err != nil {
				t.Error(err)
			}
		})
		return <-ahead
	}
	for n := 1; n <= runtime.GOMAXPROCS(0)/2+1; n++ {
		if got, want := start(), 2*n <= runtime.GOMAXPROCS(0); got != want {
			t.Errorf("run %d on %d processors: %v", n, runtime.GOMAXPROCS(0), got)
		}
	}
	close(end)
	runs.Wait()
	if !start() && runtime.GOMAXPROCS(0) > 1 {
		t.Error("ended runs count")
	}
	runs.Wait()
}
