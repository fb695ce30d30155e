package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/backend/agentless"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// startTimeout bounds the whole of a start.
const startTimeout = 25 * time.Second

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	ctx, cancel := timeout(ctx, startTimeout)
	defer cancel()
	e, err := b.facts(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.usable(e); err != nil {
		return nil, err
	}
	img, err := b.image(ctx, spec.Image)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(spec.Workspace); err != nil {
		return nil, fmt.Errorf("the workspace: %w", err)
	}
	for retried := false; ; retried = true {
		if spec.Network {
			if err := b.ensureNetwork(ctx, e); err != nil {
				return nil, err
			}
		}
		if !img.agent {
			if spec.Moves { // each run makes a container on it
				return nil, errors.ErrUnsupported
			}
			return agentless.Start(b.ctx, spec.ID, &plain{b: b, spec: spec, img: img, e: e}), nil
		}
		sb, err := b.startAgent(ctx, spec, img, e)
		if err == nil || retried || !spec.Network || b.networkMade() {
			return sb, err
		}
		// The bridge was gone: an engine is asked to prune networks that nothing is on, now and then.
	}
}

// zygoteMemory is the least limit under which a sandbox spares a quarter for a zygote, whose libraries count against it.
const zygoteMemory = 512 << 20

// startAgent makes the container, attaches to it, starts it and waits for the agent's hello.
func (b *Backend) startAgent(ctx context.Context, spec sandbox.Spec, img image, e *engine) (_ sandbox.Sandbox, err error) {
	binary, err := b.agents.path(b, img.goarch)
	if err != nil {
		return nil, err
	}
	if spec.Limits.PIDs > 0 {
		spec.Limits.PIDs += agent.OwnThreads
	}
	data, processes := b.processLimits(e, spec.Limits)
	config, err := json.Marshal(agent.Config{
		Forward: spec.Forward, DataBytes: uint64(data), Processes: uint64(processes),
		NoZygote: spec.Limits.MemoryBytes > 0 && spec.Limits.MemoryBytes < zygoteMemory,
	})
	if err != nil {
		return nil, err
	}
	spec.Mounts = append([]sandbox.Mount{{Source: binary, Target: agentPath}}, spec.Mounts...)
	opt := b.options(spec, img, e)
	opt.Config.Entrypoint = []string{agentPath, "landlock", string(config)}
	opt.Config.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	opt.HostConfig.Tmpfs[confine.RunsDir] = opt.HostConfig.Tmpfs["/tmp"]

	if e.podman { // with any given it adds others of its own, which not every machine grants; the agent sets them for each run, too
		opt.HostConfig.Ulimits = nil
	}

	s := &box{b: b, id: spec.ID, name: opt.Name, ended: make(chan struct{})}
	if s.container, err = b.create(ctx, opt); err != nil {
		return nil, b.forgetMissing(ctx, img, err)
	}
	defer func() {
		if err != nil {
			cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonAfter)
			defer cancel()
			_ = s.Close(cctx)
		}
	}()
	streams, err := b.attach(ctx, s.container)
	if err != nil {
		return nil, err
	}
	s.conn = &agentConn{Conn: streams.Conn, r: bufio.NewReaderSize(streams.Conn, connBuffer), over: s.hungUp}
	if _, err := b.client.ContainerStart(ctx, s.container, client.ContainerStartOptions{}); err != nil {
		return nil, b.forgetMissing(ctx, img, b.explain(ctx, "start the container", err))
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Conn.Close() })
	defer stop()
	hello, err := wire.ReadHello(s.conn)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, b.explain(ctx, "start the container", cause)
		}
		return nil, s.diagnose(err)
	}
	if b.ownKernel() && strings.HasPrefix(hello.Isolation, noIsolation) { // who asks for more must not get less
		return nil, &sandbox.Error{
			Op: "keep the runs of a session apart", Err: fmt.Errorf("with the runtime %s there is %s, and no namespaces", b.cfg.Runtime, hello.Isolation),
			Fix: "update the runtime, or unset SANDBOX_DOCKER_RUNTIME",
		}
	}
	if spec.Network { // before any code can come
		if err := b.guardNetwork(ctx, s.container, img, e); err != nil {
			return nil, err
		}
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	s.ready.Store(true)
	b.noteIsolation(hello.Isolation)
	return s, nil
}

// noIsolation begins what an agent says that cannot keep the runs of one container apart.
const noIsolation = "none"

// noteIsolation keeps, for doctor, what keeps the runs of one container apart, and says once when it is little.
func (b *Backend) noteIsolation(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isolation == "" && strings.HasPrefix(what, noIsolation) {
		b.log.Warn("runs of one session are not kept apart from each other on this engine; sessions are", "isolation", what)
	}
	b.isolation = what
}

// forgetMissing is called with the error of a failed start. If somebody removed the image or the bridge, the
// next start looks for it again. It returns err.
func (b *Backend) forgetMissing(ctx context.Context, img image, err error) error {
	if b.unreachable(err) || ctx.Err() != nil {
		return err
	}
	if _, ierr := b.inspect(ctx, img.ID); cerrdefs.IsNotFound(ierr) {
		b.mu.Lock()
		delete(b.images, img.ID)
		b.mu.Unlock()
	}
	if b.networkMade() {
		if _, nerr := b.client.NetworkInspect(ctx, b.networkName(), client.NetworkInspectOptions{}); cerrdefs.IsNotFound(nerr) {
			b.networkLost()
		}
	}
	return err
}

// box is a started container with the agent.
type box struct {
	b         *Backend
	id, name  string
	container string
	conn      *agentConn

	ready atomic.Bool // Start has returned it
	asked atomic.Bool // Close was called
	once  sync.Once
	ended chan struct{}
	exit  sandbox.Exit // set before ended is closed
}

var _ sandbox.Sandbox = (*box)(nil)

func (s *box) ID() string               { return s.id }
func (s *box) Conn() io.ReadWriteCloser { return s.conn }

func (s *box) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.ended:
		return s.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close waits for a hung engine no longer than ctx; the removal goes on.
func (s *box) Close(ctx context.Context) error {
	s.asked.Store(true)
	s.end()
	_, err := s.Wait(ctx)
	return err
}

// end removes the container, once. It does not wait.
func (s *box) end() {
	s.once.Do(func() {
		asked := s.asked.Load() // now: who sees that it has ended closes it
		s.b.work.Go(func() {
			s.exit.Cause = sandbox.CauseKilled
			if !asked {
				s.exit = s.autopsy()
			}
			if s.conn != nil {
				_ = s.conn.Conn.Close()
				s.exit.Detail = strings.TrimSpace(s.exit.Detail + " " + s.conn.said.String())
			}
			s.b.remove(s.container, s.name)
			close(s.ended)
		})
	})
}

// autopsyTime bounds the question why a container has ended: its engine may have ended, too. endTime is how long one may take to end
// that has hung up; a kernel that dies under hundreds of processes takes longer.
const (
	autopsyTime   = 2 * time.Second
	endTime       = autopsyTime / 4
	kernelEndTime = 5 * time.Second
)

// autopsy says why a container ended that nobody had asked to.
func (s *box) autopsy() sandbox.Exit {
	lost := sandbox.Exit{Cause: sandbox.CauseLost}
	patience := endTime
	if s.b.ownKernel() {
		patience = kernelEndTime
	}
	ctx, cancel := timeout(s.b.ctx, autopsyTime+patience-endTime)
	defer cancel()
	state, err := s.b.endState(ctx, s.container, patience)
	switch {
	case err != nil:
		lost.Detail = err.Error()
	case state.OOMKilled && state.ExitCode == 137: // the flag alone may be an earlier run's
		lost.Cause = sandbox.CauseOutOfMemory
	case state.Running:
		lost.Detail = "the connection to the container was lost"
	default:
		lost.Detail = fmt.Sprintf("the container ended with exit code %d", state.ExitCode)
	}
	return lost
}

// endState is the state of a container that is about to end. One that does not end is running.
func (b *Backend) endState(ctx context.Context, id string, patience time.Duration) (container.State, error) {
	wctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	wait := b.client.ContainerWait(wctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-wait.Result:
	case <-wait.Error:
	}
	res, err := b.client.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return container.State{}, b.explain(ctx, "look at the container", err)
	}
	if res.Container.State == nil {
		return container.State{}, errors.New("the engine does not tell the container's state")
	}
	return *res.Container.State, nil
}

// diagnose says why there was no hello.
func (s *box) diagnose(err error) error {
	said := strings.TrimSpace(s.conn.said.String())
	if errors.Is(err, wire.ErrProtocol) && said == "" {
		return &sandbox.Error{Op: "start the agent", Err: err, Fix: "rebuild the server: make build"}
	}
	if said == "" {
		if exit := s.autopsy(); exit.Detail != "" {
			said = exit.Detail
		} else {
			said = err.Error()
		}
	}
	return &sandbox.Error{Op: "start the agent", Err: errors.New(said), Fix: "run mcp-code-sandbox doctor"}
}

// attach opens the streams of a container that has not been started yet.
func (b *Backend) attach(ctx context.Context, id string) (client.HijackedResponse, error) {
	res, err := b.client.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return client.HijackedResponse{}, b.explain(ctx, "attach to the container", b.attachError(ctx, id, err))
	}
	return res.HijackedResponse, nil
}

// attachError finds words for a refused attachment, of which the client keeps the status alone. Podman prepares the container
// then, as others do at the start; so what is wrong with the container is what a start says.
func (b *Backend) attachError(ctx context.Context, id string, err error) error {
	if b.unreachable(err) || ctx.Err() != nil {
		return err
	}
	if _, serr := b.client.ContainerStart(ctx, id, client.ContainerStartOptions{}); serr != nil {
		return serr
	}
	return err
}

// hungUp is called when the connection has ended, by either side. Before Start has returned, Start sees to it.
func (s *box) hungUp() {
	if s.ready.Load() {
		s.end()
	}
}

// connBuffer is what is read ahead of each connection.
const connBuffer = 16 << 10

// agentConn is the agent's stdin and stdout, as the engine carries them: its output comes in pieces, each after 8 bytes that
// tell its stream and length. What the agent prints to stderr is kept aside.
type agentConn struct {
	net.Conn // to the engine; writing to it is writing to the agent's stdin
	said     sandbox.Tail
	over     func()

	mu   sync.Mutex // of those who read
	r    *bufio.Reader
	left int64 // of the piece of stdout that is being read
}

// The streams of the engine's multiplexed format.
const (
	streamStdout = 1
	streamStderr = 2
	streamError  = 3 // the engine's own words
)

func (c *agentConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.left == 0 {
		if err := c.next(); err != nil {
			c.over()
			return 0, err
		}
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err != nil {
		c.over()
	}
	return n, err
}

// next reads up to the next piece of stdout.
func (c *agentConn) next() error {
	stream, n, err := readHead(c.r)
	switch {
	case err != nil:
		return err
	case stream == streamStdout:
		c.left = n
	case stream == streamError:
		_, _ = io.CopyN(&c.said, c.r, n)
		return errors.New("the engine: " + c.said.String())
	default:
		_, err = io.CopyN(&c.said, c.r, n)
	}
	return err
}

// readHead reads the 8 bytes before a piece of output.
func readHead(r io.Reader) (stream byte, n int64, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, err
	}
	if head[0] < streamStdout || head[0] > streamError || head[1]|head[2]|head[3] != 0 {
		return 0, 0, fmt.Errorf("the engine's stream is out of step: % x", head)
	}
	return head[0], int64(binary.BigEndian.Uint32(head[4:])), nil
}

func (c *agentConn) Close() error {
	err := c.Conn.Close()
	c.over()
	return err
}

// agents are the agent's binaries, as files that containers mount.
type agents struct {
	mu    sync.Mutex
	paths map[string]string // by architecture
}

func (a *agents) path(b *Backend, goarch string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if path, ok := a.paths[goarch]; ok {
		return path, nil
	}
	text, err := b.cfg.Agent(goarch)
	if err != nil {
		return "", &sandbox.Error{Op: "unpack the agent", Err: err, Fix: "make build"}
	}
	if err := os.MkdirAll(b.files, 0o755); err != nil {
		return "", fmt.Errorf("unpack the agent: %w", err)
	}
	path := filepath.Join(b.files, "agent-"+goarch)
	if err := os.WriteFile(path, text, 0o755); err != nil {
		return "", fmt.Errorf("unpack the agent: %w", err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // whatever the umask
		return "", fmt.Errorf("unpack the agent: %w", err)
	}
	if a.paths == nil {
		a.paths = map[string]string{}
	}
	a.paths[goarch] = path
	return path, nil
}
