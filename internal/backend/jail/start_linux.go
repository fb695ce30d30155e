package jail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Workspace == "" {
		return nil, errors.New("start a sandbox: it has no workspace")
	}
	s := &jailed{id: spec.ID, backend: b, ended: make(chan struct{})}
	if err := s.start(ctx, spec); err != nil {
		return nil, err
	}
	return s, nil
}

// jailed is a started sandbox.
type jailed struct {
	id      string
	backend *Backend

	cmd    *exec.Cmd
	conn   *os.File     // to the agent
	output sandbox.Tail // what bubblewrap and the agent printed
	group  *cgroup
	attach *os.File // to the agent, for its workspace; nil if that was there from the start

	mu    sync.Mutex
	first *os.File // pidfd of the agent: process 1, whose end is the end of all inside
	net   *userNet
	asked bool // kill was called
	over  bool // bubblewrap has ended
	pid   int  // of the agent; zero until it is ready

	killed sync.Once
	ended  chan struct{} // closed when nothing is left
	exit   sandbox.Exit  // set before ended is closed
}

var (
	_ sandbox.Sandbox = (*jailed)(nil)
	_ sandbox.Meter   = (*jailed)(nil)
	_ sandbox.Weigher = (*jailed)(nil)
)

// start leaves nothing behind when it fails.
func (s *jailed) start(ctx context.Context, spec sandbox.Spec) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout,
		fmt.Errorf("the agent did not answer within %v: %w", startTimeout, context.DeadlineExceeded))
	defer cancel()
	b := s.backend
	if spec.Limits.PIDs > 0 {
		spec.Limits.PIDs += agent.OwnThreads
	}
	cfg := agent.Config{Forward: spec.Forward}
	templates := b.templatesFor(spec)
	adopted := false
	defer func() {
		for _, t := range templates {
			if !adopted {
				t.release()
			}
		}
	}()
	for _, t := range templates {
		cfg.Zygotes = append(cfg.Zygotes, agent.Adopted{
			Name: t.zygote.Name, Env: t.zygote.Env, Reads: t.zygote.Reads, PerRun: t.zygote.PerRun, Soon: t.isReady(),
		})
	}
	if spec.Workspace == "" {
		cfg.Expect = &agent.Expected{TmpBytes: spec.Limits.TmpBytes}
	}
	if !b.cgroups.available() { // the limits that a process can carry itself
		cfg.DataBytes = uint64(spec.Limits.MemoryBytes)
		cfg.Processes = uint64(spec.Limits.PIDs)
	}
	if spec.Network {
		blocked, err := b.cfg.Closed.ForSandbox()
		if err != nil {
			return err
		}
		for _, n := range blocked {
			cfg.Unreachable = append(cfg.Unreachable, n.String())
		}
	}
	config, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	if s.group, err = b.cgroups.create(spec.ID, spec.Limits); err != nil {
		return &sandbox.Error{Op: "make a cgroup", Err: err, Fix: "run mcp-code-sandbox doctor"}
	}
	giveBack := func() {}
	zygotes := make([]*os.File, len(templates))
	info, err := s.spawn(spec, string(config), zygotes, &giveBack)
	if err != nil {
		_ = s.attach.Close()
		s.group.remove()
		return &sandbox.Error{Op: "start bubblewrap", Err: err, Fix: "run mcp-code-sandbox doctor"}
	}
	// From here on the sandbox's end cleans up.
	go s.wait()
	defer func() {
		_ = b.launch.do(func() error { giveBack(); return nil })
		if err != nil {
			_ = s.Close(context.WithoutCancel(ctx))
		}
	}()
	stop := context.AfterFunc(ctx, s.kill)
	defer stop()
	pid, err := s.ready(info, spec.Network)
	adopted = err == nil
	for i, z := range zygotes {
		if err == nil {
			go s.adopt(templates[i], z, pid)
		} else {
			z.Close()
		}
	}
	if err != nil {
		s.kill()
		<-s.ended
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return s.explain(err)
	}
	return context.Cause(ctx)
}

// spawn starts bubblewrap on the launcher's thread. zygotes become the ends of the sockets over which the agent hears from them, and
// giveBack what must be called on that thread when the sandbox has made its mounts.
func (s *jailed) spawn(spec sandbox.Spec, config string, zygotes []*os.File, giveBack *func()) (info *os.File, err error) {
	b := s.backend
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	s.conn = os.NewFile(uintptr(fds[0]), "agent")
	theirs := os.NewFile(uintptr(fds[1]), "server")
	defer theirs.Close()
	info, infoW, err := os.Pipe()
	if err != nil {
		s.conn.Close()
		return nil, err
	}
	defer infoW.Close()
	extra := []*os.File{theirs, infoW, info, nil}
	if spec.Workspace == "" {
		agents, err := s.expectAttach()
		if err != nil {
			s.conn.Close()
			info.Close()
			return nil, err
		}
		defer agents.Close()
		extra[agent.WorkspaceFD-agent.ConnFD] = agents
	}
	defer func() {
		for _, z := range zygotes {
			if err != nil {
				_ = z.Close() // a nil file says so and does nothing
			}
		}
	}()
	for i := range zygotes {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			s.conn.Close()
			info.Close()
			return nil, err
		}
		zygotes[i] = os.NewFile(uintptr(pair[0]), "zygote")
		agents := os.NewFile(uintptr(pair[1]), "agent's")
		defer agents.Close()
		extra = append(extra, agents)
	}

	err = b.launch.do(func() error {
		place := b.launch.onStage
		if spec.Workspace != "" {
			ws, back, err := b.launch.lend(spec.Workspace, "w-"+spec.ID)
			if err != nil {
				return err
			}
			*giveBack = back
			place = func(source string) (string, error) {
				if source == spec.Workspace {
					return ws, nil
				}
				return b.launch.onStage(source)
			}
		}
		args, err := b.bwrapArgs(spec, config, place)
		if err != nil {
			return err
		}
		s.cmd = exec.Command(b.bwrap, append([]string{"--info-fd", "4"}, args...)...)
		s.cmd.Dir = "/"
		s.cmd.Env = []string{}
		s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
		// 3: agent.ConnFD, 4: --info-fd, 5: its other end, 6: agent.WorkspaceFD, from 7 on: agent.ZygoteFD. A server that dies now must not take bubblewrap along
		// before its child has been let go, or that child waits for ever: so no death signal from here, only
		// bubblewrap's own, and an info-fd that can be written to though nobody reads.
		s.cmd.ExtraFiles = extra
		s.cmd.WaitDelay = killDelay
		s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.credential()}
		return s.group.start(s.cmd.SysProcAttr, s.cmd.Start)
	})
	if err != nil {
		_ = b.launch.do(func() error { (*giveBack)(); return nil })
		if s.cmd != nil && s.cmd.Process != nil { // started, but the launcher could not go home
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
		s.conn.Close()
		info.Close()
		return nil, err
	}
	return info, nil
}

// childPID reads from bubblewrap's --info-fd which process its child is. Bubblewrap has not reaped it while it runs, so until then
// the number names that child.
func childPID(info io.Reader) (int, error) {
	var about struct {
		ChildPID int `json:"child-pid"`
	}
	if err := json.NewDecoder(io.LimitReader(info, 4096)).Decode(&about); err != nil {
		return 0, fmt.Errorf("bubblewrap did not start: %w", err)
	}
	return about.ChildPID, nil
}

// ready waits until the agent has said hello, and returns its pid.
func (s *jailed) ready(info *os.File, network bool) (int, error) {
	defer info.Close()
	pid, err := childPID(info)
	if err != nil {
		return 0, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	s.first, s.pid = os.NewFile(uintptr(fd), "agent process"), pid
	asked := s.asked
	s.mu.Unlock()
	if asked {
		s.signalFirst()
		return 0, context.Canceled
	}
	if _, err := wire.ReadHello(s.conn); err != nil || !network {
		return pid, err
	}
	// Not before the hello: bubblewrap sets up loopback itself and trips over one that is already up.
	net, err := s.backend.attachNetwork(pid)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	over := s.over
	s.net = net
	s.mu.Unlock()
	if over {
		net.close()
	}
	return pid, nil
}

// Held implements sandbox.Meter. The server may look into processes that hide from the agent.
func (s *jailed) Held() (sandbox.Held, error) {
	s.mu.Lock()
	pid, over := s.pid, s.over
	s.mu.Unlock()
	if pid == 0 || over {
		return sandbox.Held{}, nil
	}
	held, err := agent.HeldFiles(fmt.Sprintf("/proc/%d/root", pid), func(pid int) bool { return pid == 1 })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over { // and the number may be another's
		return sandbox.Held{}, nil
	}
	return held, err
}

// explain turns a failed start into an error that says what to do.
func (s *jailed) explain(err error) error {
	said := strings.TrimSpace(s.output.String())
	if said == "" {
		said = err.Error()
	}
	fix := "run mcp-code-sandbox doctor"
	var known *sandbox.Error
	switch {
	case errors.As(err, &known):
		return err
	case strings.Contains(said, "uid map") || strings.Contains(said, "new namespace") || strings.Contains(said, "Operation not permitted"):
		fix = "allow unprivileged user namespaces; mcp-code-sandbox doctor tells how on this host"
	}
	return &sandbox.Error{Op: "start the sandbox", Err: errors.New(said), Fix: fix}
}

// wait ends when nothing of the sandbox is left.
func (s *jailed) wait() {
	awaitEnd(s.cmd.Process.Pid)
	err := s.cmd.Wait() // bubblewrap ends after process 1, and process 1 after all the others
	s.mu.Lock()
	first, net, asked := s.first, s.net, s.asked
	s.over = true
	s.mu.Unlock()
	if first != nil {
		_ = first.Close()
	}
	net.close()
	_ = s.conn.Close()
	_ = s.attach.Close() // a nil file says so and does nothing
	used, _ := s.group.usage()
	hog := s.group.socketsExceeded() // Close may have been called since it was killed
	s.group.remove()
	switch {
	case hog:
		s.exit.Cause = sandbox.CauseOutOfMemory
	case asked:
		s.exit.Cause = sandbox.CauseKilled
	case used.OOMKills > 0:
		s.exit.Cause = sandbox.CauseOutOfMemory
	default:
		s.exit.Cause = sandbox.CauseLost
	}
	s.exit.Detail = strings.TrimSpace(s.output.String())
	if s.exit.Detail == "" && err != nil {
		s.exit.Detail = err.Error()
	}
	close(s.ended)
}

// kill ends process 1; the kernel does the rest.
func (s *jailed) kill() {
	s.mu.Lock()
	s.asked = true
	first := s.first
	s.mu.Unlock()
	if first == nil {
		// Bubblewrap's child would outlive it now, waiting for a word from it. ready kills the child as soon as
		// its number is known.
		time.AfterFunc(killDelay, func() { _ = s.cmd.Process.Kill() })
		return
	}
	s.signalFirst()
	// Process 1 ends the others when the kernel lets it run, which is late beside hundreds that fork. Bubblewrap ends last.
	s.group.kill(s.cmd.Process.Pid)
}

func (s *jailed) signalFirst() { signalPidfd(s.first, unix.SIGKILL) }

// firstLives reports whether process 1 has not been waited for, so that its number is its own.
func (s *jailed) firstLives() bool {
	s.mu.Lock()
	first := s.first
	s.mu.Unlock()
	return signalPidfd(first, 0)
}

// signalPidfd signals a process, and reports whether there was one.
func signalPidfd(f *os.File, sig unix.Signal) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false // closed: it has ended
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	return err == nil && sent == nil
}

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
	s.killed.Do(s.kill)
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *jailed) Usage() (sandbox.Usage, error) { return s.group.usage() }

func (s *jailed) CPUTime() (time.Duration, error) { return s.group.cpuTime() }
func (s *jailed) Weigh(share float64) error       { return s.group.weigh(share) }
func (s *jailed) Forking() (int, error)           { return s.group.forking() }

// killDelay bounds the wait for a bubblewrap that is slow to say what to kill, and for an output that
// somebody holds open after its end.
const killDelay = 2 * time.Second

// startTimeout bounds the parts of a start that the kernel or a helper could hold up.
const startTimeout = 10 * time.Second
