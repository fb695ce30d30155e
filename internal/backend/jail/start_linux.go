package jail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// startTimeout bounds the parts of a start that the kernel or a helper could hold up.
const startTimeout = 10 * time.Second

// seeDoctor is the fix where this package cannot name one.
const seeDoctor = "run mcp-code-sandbox doctor"

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Workspace == "" {
		return nil, errors.New("start a sandbox: the spec has no workspace")
	}
	s, err := b.start(ctx, spec)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return s, nil
}

// start starts a sandbox, which awaits its workspace if spec has none. On error it leaves nothing
// behind.
func (b *Backend) start(ctx context.Context, spec sandbox.Spec) (_ *jailed, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout,
		fmt.Errorf("the agent did not answer within %v: %w", startTimeout, context.DeadlineExceeded))
	defer cancel()
	if spec.Limits.PIDs > 0 {
		spec.Limits.PIDs += agent.PIDReserve
	}
	zygotes := b.zygotes.acquire(spec)
	defer func() {
		if err != nil {
			release(zygotes)
		}
	}()
	config, err := b.agentConfig(spec, zygotes)
	if err != nil {
		return nil, err
	}
	s := &jailed{id: spec.ID, backend: b, ended: make(chan struct{})}
	mapping, err := s.identify(ctx, spec)
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return nil, err
	}
	if err != nil {
		return nil, &sandbox.Error{Op: "give the sandbox a uid", Err: err, Fix: seeDoctor}
	}
	if s.group, err = b.cgroups.Create(spec.ID, spec.Limits); err != nil {
		s.release()
		return nil, &sandbox.Error{Op: "make a cgroup", Err: err, Fix: seeDoctor}
	}
	if spec.Workspace != "" {
		defer b.launch.takeBack(spec.ID)
	}
	links, err := s.spawn(spec, mapping, config, len(zygotes))
	if err != nil {
		s.group.Remove()
		s.release()
		return nil, &sandbox.Error{Op: "start bubblewrap", Err: err, Fix: seeDoctor}
	}
	go s.wait() // from here on, the sandbox's end cleans up
	stop := context.AfterFunc(ctx, s.kill)
	defer stop()
	if err = s.awaitAgent(spec.Network); err == nil && ctx.Err() == nil {
		for i, z := range zygotes {
			go s.adopt(z, links[i])
		}
		return s, nil
	}
	closeAll(links)
	s.kill()
	<-s.ended
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, s.explain(ctx, err)
}

// identify gives a new sandbox its identity and returns the mapping for its workspace's mount.
func (s *jailed) identify(ctx context.Context, spec sandbox.Spec) (mapping *os.File, err error) {
	for {
		mapping, err = s.tryIdentify(ctx, spec)
		if err == nil {
			return mapping, nil
		}
		s.release()
		if err != errTaken { // otherwise another sandbox was faster; this one takes its identity
			return nil, err
		}
		select {
		case <-time.After(takenPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errTaken, ctx.Err())
		}
	}
}

// takenPoll is how long a start waits before it looks again who uses the workspace.
const takenPoll = 5 * time.Millisecond

func (s *jailed) tryIdentify(ctx context.Context, spec sandbox.Spec) (mapping *os.File, err error) {
	b := s.backend
	if s.identity, err = b.places.choose(spec.Workspace); err != nil {
		return nil, err
	}
	if s.ns, err = b.ids.namespace(s.identity, spec.Network); err != nil || spec.Workspace == "" {
		return nil, err // one that gets its workspace later takes any identity
	}
	mapping, s.place, err = b.places.hold(ctx, spec.Workspace, s.identity)
	return mapping, err
}

// release gives up the sandbox's identity and workspace. Its processes must have ended.
func (s *jailed) release() {
	s.backend.places.release(s.place)
	s.backend.ids.release(s.identity)
}

// agentConfig is the agent's command line argument.
func (b *Backend) agentConfig(spec sandbox.Spec, zygotes []adoption) (string, error) {
	cfg := agent.Config{Forward: spec.Forward, Names: spec.Forward && !spec.Network}
	if b.ids.why == "" {
		cfg.Close = agent.ZygoteFD + len(zygotes) // the identity's namespace
	}
	for _, z := range zygotes {
		cfg.Zygotes = append(cfg.Zygotes, agent.Adopted{
			Name: z.spec.Name, Env: z.spec.Env, Reads: z.spec.Reads, PerRun: z.spec.PerRun, Soon: z.soon, OnRequest: z.onRequest,
		})
	}
	if spec.Workspace == "" {
		cfg.Expect = &agent.Expected{TmpBytes: spec.Limits.TmpBytes, First: firstRun(spec.Prestart)}
	}
	if !b.cgroups.Available() { // the limits that each process can carry itself
		cfg.DataBytes = uint64(spec.Limits.MemoryBytes)
		cfg.Processes = uint64(spec.Limits.PIDs)
	}
	if spec.Network {
		closed, err := b.cfg.Closed.ForSandbox()
		if err != nil {
			return "", err
		}
		for _, n := range closed {
			cfg.Unreachable = append(cfg.Unreachable, n.String())
		}
	}
	text, err := json.Marshal(cfg)
	return string(text), err
}

// firstRun returns the program to start for the first run, or nil.
func firstRun(p *sandbox.Prestart) *wire.Run {
	if p == nil {
		return nil
	}
	return &wire.Run{Argv: p.Argv, File: p.File, Prestart: &wire.Prestart{Env: p.Env, Reads: p.Reads, Helper: p.Helper}}
}

// spawn starts bubblewrap. links are the server's ends of the sockets over which the agent talks to
// the zygotes that it adopts.
func (s *jailed) spawn(spec sandbox.Spec, mapping *os.File, config string, zygotes int) (links []*os.File, err error) {
	b := s.backend
	var ours, theirs []*os.File
	connect := func(kind int) (mine, its *os.File) {
		if err == nil {
			mine, its, err = proc.SocketPair(kind)
			ours, theirs = append(ours, mine), append(theirs, its)
		}
		return mine, its
	}
	defer func() {
		closeAll(theirs)
		if err != nil {
			closeAll(ours)
		}
	}()
	var conn, workspace *os.File
	s.conn, conn = connect(unix.SOCK_STREAM)
	if spec.Workspace == "" {
		s.attach, workspace = connect(unix.SOCK_SEQPACKET)
	}
	files := []*os.File{workspace} // agent.WorkspaceFD; agent.ZygoteFD and so on follow
	for range zygotes {
		link, end := connect(unix.SOCK_SEQPACKET)
		links, files = append(links, link), append(files, end)
	}
	if err != nil {
		return nil, err
	}
	err = b.launch.Do(func() (err error) {
		workspace := ""
		if spec.Workspace != "" {
			if workspace, err = b.launch.lend(spec.Workspace, spec.ID, mapping); err != nil {
				return err
			}
		}
		args, err := b.sandboxArgs(spec, workspace, config)
		if err != nil {
			return err
		}
		s.proc, err = b.startBubblewrap(args, []string{}, b.ids.credential(), s.ns, s.group, conn, files...)
		return err
	})
	return links, err
}

// closeAll closes the files that are not nil.
func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// awaitAgent returns when the agent has said hello and its network works.
func (s *jailed) awaitAgent(network bool) error {
	<-s.proc.known
	if s.proc.child == nil {
		return errors.New("bubblewrap did not start")
	}
	if _, err := wire.ReadHello(s.conn); err != nil || !network {
		return err
	}
	// Not earlier: bubblewrap sets up loopback itself, and fails if it is up already.
	net, err := s.backend.attachNetwork(s.proc.pid, s.ns)
	if err != nil {
		return err
	}
	s.mu.Lock()
	over := s.over
	s.net = net
	s.mu.Unlock()
	if over {
		net.close()
		return nil
	}
	go s.watchNetwork(net)
	return nil
}

// explain turns a failed start into an error that names the fix.
func (s *jailed) explain(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok {
		return err
	}
	fix := seeDoctor
	if !s.backend.canUnshare(ctx) {
		fix = "allow unprivileged user namespaces; mcp-code-sandbox doctor says how on this host"
	}
	detail := cmp.Or(strings.TrimSpace(s.proc.output.String()), err.Error())
	return &sandbox.Error{Op: "start the sandbox", Err: errors.New(detail), Fix: fix}
}

// canUnshare reports whether bubblewrap can make namespaces and a root here, with nothing in them.
func (b *Backend) canUnshare(ctx context.Context) bool {
	cmd := exec.CommandContext(ctx, b.bwrap, append(append(unshareArgs(), systemArgs()...), "/usr/bin/true")...)
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.ids.credential()}
	return cmd.Run() == nil
}
