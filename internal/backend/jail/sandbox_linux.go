package jail

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/cgroup"
	"mcp-code-sandbox/internal/sandbox"
)

// jailed is a started sandbox.
type jailed struct {
	id       string
	backend  *Backend
	identity *identity
	ns       *os.File // the identity's, in which bubblewrap and slirp4netns start; nil if there is none
	place    *place   // set before the workspace is mounted; nil if it is mapped
	proc     *bubblewrap
	conn     *os.File // to the agent
	attach   *os.File // to the agent, for its workspace; nil if the sandbox was started with one
	group    *cgroup.Group

	mu      sync.Mutex
	net     *userNet
	netLost string // why the sandbox was ended, if its network ended first
	killed  bool
	over    bool // bubblewrap has ended

	closing sync.Once
	ended   chan struct{} // closed when nothing is left
	exit    sandbox.Exit  // set before ended is closed
}

var (
	_ sandbox.Prepared = (*jailed)(nil)
	_ sandbox.Meter    = (*jailed)(nil)
	_ sandbox.Weigher  = (*jailed)(nil)
)

func (s *jailed) ID() string               { return s.id }
func (s *jailed) Conn() io.ReadWriteCloser { return s.conn }

func (s *jailed) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.ended:
		return s.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (s *jailed) Close(ctx context.Context) error {
	s.closing.Do(s.kill)
	_, err := s.Wait(ctx)
	return err
}

// kill kills every process of the sandbox.
func (s *jailed) kill() {
	s.mu.Lock()
	s.killed = true
	s.mu.Unlock()
	s.end()
}

func (s *jailed) end() {
	s.proc.kill()
	// Kill the others directly: the kernel does so only when process 1 is scheduled, which takes
	// too long among hundreds of forking processes. bubblewrap ends last.
	s.group.Kill(s.proc.cmd.Process.Pid)
}

// wait cleans up when the sandbox has ended. bubblewrap ends after process 1, and process 1 after
// all others.
func (s *jailed) wait() {
	err := s.proc.wait()
	s.mu.Lock()
	s.over = true
	net, netLost, killed := s.net, s.netLost, s.killed
	s.mu.Unlock()
	net.close()
	_ = s.conn.Close()
	_ = s.attach.Close()
	used, _ := s.group.Usage()
	hog := s.group.SocketsExceeded() // Close may have been called after WatchSockets killed it
	s.group.Remove()
	s.release()
	switch {
	case hog:
		s.exit.Cause = sandbox.CauseOutOfMemory
	case killed:
		s.exit.Cause = sandbox.CauseKilled
	case used.OOMKills > 0:
		s.exit.Cause = sandbox.CauseOutOfMemory
	default:
		s.exit.Cause = sandbox.CauseLost
	}
	s.exit.Detail = cmp.Or(netLost, strings.TrimSpace(s.proc.output.String()))
	if s.exit.Detail == "" && err != nil {
		s.exit.Detail = err.Error()
	}
	close(s.ended)
}

// Usage implements sandbox.Meter.
func (s *jailed) Usage() (sandbox.Usage, error) { return s.group.Usage() }

// The methods of sandbox.Weigher.
func (s *jailed) CPUTime() (time.Duration, error) { return s.group.CPUTime() }
func (s *jailed) Weigh(share float64) error       { return s.group.Weigh(share) }
func (s *jailed) Forking() (int, error)           { return s.group.Forking() }

// Held implements sandbox.Meter. The server can inspect processes that the agent cannot.
func (s *jailed) Held() (sandbox.Held, error) {
	if s.isOver() {
		return sandbox.Held{}, nil
	}
	root := fmt.Sprintf("/proc/%d/root", s.proc.pid)
	held, err := agent.HeldFiles(root, func(pid int) bool { return pid == 1 })
	if s.isOver() { // the pid may belong to another process by now
		return sandbox.Held{}, nil
	}
	return held, err
}

func (s *jailed) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}
