//go:build linux

package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestManySessions opens 200 sessions, uses them in both ways and lets them idle out. No process,
// descriptor, goroutine, cgroup or mount remains.
func TestManySessions(t *testing.T) {
	sessions := 200
	if onDocker() { // a container each: the same leaks would show
		sessions = 24
	}
	s := serveHostile(t, fmt.Sprintf("SANDBOX_MAX_SESSIONS=%d", sessions+10), "SESSION_IDLE_TIMEOUT=3")
	defer s.sweep(t)
	descriptors := s.metric(t, "process_open_fds")
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for i := client; i < sessions; i += 4 {
				id := fmt.Sprintf("many-%d", i)
				if i%2 == 0 {
					if r := s.cell(t, id, "shell", fmt.Sprintf("x=%d", i)); r.ExitCode != 0 {
						t.Errorf("%s: %+v", id, r)
					}
					if r := s.cell(t, id, "shell", "echo $x"); r.Stdout != fmt.Sprintf("%d\n", i) {
						t.Errorf("%s: %+v", id, r)
					}
				} else if r := s.run(t, id, "shell", "echo $$ > pid; cat pid"); !r.Success || len(r.Files) != 1 {
					t.Errorf("%s: %+v", id, r)
				}
			}
		})
	}
	clients.Wait()
	if most := s.metric(t, "sandbox_live_sandboxes"); most < float64(sessions)/10 {
		t.Errorf("only %v sandboxes were alive at the end: they did not idle, they were thrown out", most)
	}
	s.settle(t)
	eventually(t, 10*time.Second, fmt.Sprintf("the descriptors to be about %v again", descriptors), func() bool {
		ready := s.metric(t, "sandbox_ready_sandboxes") // includes separate ones for each
		return s.metric(t, "process_open_fds") <= descriptors+5+8*ready
	})
}
