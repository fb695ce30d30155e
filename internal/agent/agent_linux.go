// Package agent is the inside of a sandbox: process 1, which speaks the wire protocol with the server,
// and run-init, process 1 of each run's own namespaces.
//
// The agent knows no language: a run frame says which program to start on which code. No user process ever
// shares a descriptor or a capability with it.
//
// There are two ways to keep a run apart, and the backend says which. [Main] holds capabilities in the sandbox's
// own user namespace and starts each run in namespaces of its own. [MainShared] holds none, as in a
// container: runs share its pid namespace, and it keeps them apart by Landlock and ends them by killing.
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

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// ConnFD is the descriptor on which the agent finds its connection to the server.
const ConnFD = 3

// ZygoteFD is the descriptor on which the agent hears from the first zygote that its Config announces.
const ZygoteFD = 7

// Main runs the agent until the server closes the connection. It is process 1 of the sandbox, so its end
// is the end of everything inside.
func Main(configJSON, version string) error {
	cfg, err := parseConfig(configJSON)
	if err != nil {
		return err
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
	if err := separateMounts(); err != nil {
		return err
	}
	empty, err := emptyNamespace()
	if err != nil {
		return err
	}
	if err := blockNetworks(cfg.Unreachable); err != nil {
		return err
	}
	if err := keepDescriptors(); err != nil {
		return err
	}
	if err := unix.SetNonblock(ConnFD, true); err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	a := &agent{cfg: cfg, empty: empty, starting: make(chan struct{}, maxStarting), leaving: make(chan struct{}, 1)}
	for i, z := range cfg.Zygotes {
		fd := ZygoteFD + i
		if err := unix.SetNonblock(fd, true); err != nil {
			return fmt.Errorf("zygote: %w", err)
		}
		a.zygotes.add(z.Name, &zygote{start: startEnv{z.Env, z.Reads, z.PerRun}, soon: z.Soon, conn: os.NewFile(uintptr(fd), "zygote")})
	}
	if cfg.Expect != nil {
		if err := expectWorkspace(); err != nil {
			return err
		}
		if err := unix.SetNonblock(WorkspaceFD, true); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
		a.spare.life = expectedLife
		next := initSpec{TmpBytes: cfg.Expect.TmpBytes}
		if len(cfg.Zygotes) > 0 { // the first one takes longest to fork
			next.zygote = &wire.Zygote{Name: cfg.Zygotes[0].Name}
		}
		go a.spare.prepare(nil, func() (*initProcess, error) { return a.newSpare(next, nil) })
		go awaitWorkspace(os.NewFile(WorkspaceFD, "workspace"))
	}
	return a.serve(os.NewFile(ConnFD, "server"), wire.Hello{Agent: version})
}

func parseConfig(text string) (cfg Config, err error) {
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return Config{}, fmt.Errorf("parse configuration: %w", err)
	}
	return cfg, nil
}

// serve says hello and serves the server until it closes the connection.
func (a *agent) serve(conn io.ReadWriteCloser, hello wire.Hello) error {
	var forward net.Listener
	if a.cfg.Forward {
		var err error
		if forward, err = net.Listen("tcp", sandbox.ForwardAddr); err != nil {
			return err
		}
	}
	if err := wire.SendHello(conn, hello); err != nil {
		return err
	}
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
	shared   *shared  // nil where each run has namespaces of its own
	empty    *os.File // a mount namespace in which runs hide their mounts; nil where they do not
	conn     *wire.Conn
	starting chan struct{} // holds one for each run that is being started
	leaving  chan struct{} // holds one for a run-init that is about to end, and for which nobody waits
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

// forward carries each connection to sandbox.ForwardAddr as a dial stream.
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
