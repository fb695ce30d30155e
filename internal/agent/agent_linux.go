// Package agent is the inside of a sandbox: process 1, which speaks the wire protocol with the server,
// and run-init, process 1 of each run's own namespaces.
//
// The agent knows no language: a run frame says which program to start on which code. It holds
// capabilities in the sandbox's user namespace only, and no user process ever shares a pid namespace,
// a descriptor or a capability with it.
package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/wire"
)

// ConnFD is the descriptor on which the agent finds its connection to the server.
const ConnFD = 3

// ForwardAddr is where a process inside reaches the server's proxy.
const ForwardAddr = "127.0.0.1:8099"

// Config is what the backend tells the agent when it starts it, as JSON in its first argument.
type Config struct {
	// Unreachable lists networks (CIDR) to which no packet may go, whatever the default route.
	Unreachable []string `json:"unreachable,omitempty"`
	// Forward makes the agent listen on ForwardAddr and carry connections to the server.
	Forward bool `json:"forward,omitempty"`
	// DataBytes and Processes are rlimits for every process of a run, for where there is no cgroup.
	DataBytes uint64 `json:"data_bytes,omitempty"`
	Processes uint64 `json:"processes,omitempty"`
}

// Main runs the agent until the server closes the connection. It is process 1 of the sandbox, so its end
// is the end of everything inside.
func Main(configJSON, version string) error {
	var cfg Config
	if err := json.Unmarshal([]byte(configJSON), &cfg); err != nil {
		return fmt.Errorf("parse configuration: %w", err)
	}
	spareThreads(agentSpare)
	// Nothing may read the agent's memory or descriptors through /proc.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become unreadable: %w", err)
	}
	// A signal that is caught and dropped cannot end process 1.
	signal.Notify(make(chan os.Signal, 1))
	if err := forbidUserNamespaces(); err != nil {
		return err
	}
	shareInotify()
	if err := addUnreachableRoutes(cfg.Unreachable); err != nil {
		return err
	}
	if err := keepDescriptors(); err != nil {
		return err
	}
	if err := unix.SetNonblock(ConnFD, true); err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	conn := os.NewFile(ConnFD, "server")
	var forward net.Listener
	if cfg.Forward {
		var err error
		if forward, err = net.Listen("tcp", ForwardAddr); err != nil {
			return err
		}
	}
	if err := wire.WriteHello(conn, version); err != nil {
		return err
	}
	a := &agent{cfg: cfg, starting: make(chan struct{}, maxStarting)}
	a.conn = wire.NewConn(conn, wire.AgentSide, a.run)
	if forward != nil {
		go a.forward(forward)
	}
	<-a.conn.Done()
	if err := a.conn.Err(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}

type agent struct {
	cfg      Config
	conn     *wire.Conn
	starting chan struct{} // holds one for each run that is being started
	spare    spare

	mu           sync.Mutex
	interpreters map[string]*interpreter // that live on between runs, by name
	zygotes      zygotes
}

// forbidUserNamespaces sets the limit of this user namespace to none. The seccomp filter says the same;
// this holds even for a process that had found a way around the filter.
func forbidUserNamespaces() error {
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		return fmt.Errorf("forbid user namespaces: %w", err)
	}
	return nil
}

// shareInotify leaves some of what the host grants to the uid of all sandboxes to the other ones. Kernels
// without the setting share by luck.
func shareInotify() {
	_ = os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("16"), 0)
}

// keepDescriptors keeps from runs what the server had inherited itself, from an editor or a shell that left
// descriptors open, beside the agent's own connection.
func keepDescriptors() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= ConnFD {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// forward carries each connection to ForwardAddr as a dial stream.
func (a *agent) forward(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors or memory: runs end and give them back
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go a.carry(c.(*net.TCPConn))
	}
}

func (a *agent) carry(c *net.TCPConn) {
	defer c.Close()
	s, err := a.conn.Open(wire.Frame{Type: wire.TypeDial})
	if err != nil {
		return
	}
	defer s.Close()
	up := make(chan struct{})
	go func() {
		defer close(up)
		_, _ = io.Copy(struct{ io.Writer }{s}, c)
		_ = s.CloseWrite()
	}()
	_, _ = io.Copy(struct{ io.Writer }{c}, s)
	_ = c.CloseWrite()
	<-up
}
