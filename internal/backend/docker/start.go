package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
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

const (
	// startTimeout bounds a start.
	startTimeout = 25 * time.Second
	// zygoteMemory is the memory limit below which a sandbox has no zygote: its libraries would
	// count against it.
	zygoteMemory = 512 << 20
	// noIsolation is the prefix of the report of an agent that cannot keep the runs of one
	// container apart.
	noIsolation = "none"
)

// Start implements sandbox.Backend.
func (b *Backend) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	ctx, cancel := timeout(ctx, startTimeout)
	defer cancel()
	e, err := b.facts(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.checkUsable(e); err != nil {
		return nil, err
	}
	img, err := b.image(ctx, spec.Image)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(spec.Workspace); err != nil {
		return nil, fmt.Errorf("the workspace: %w", err)
	}
	if !img.agent && spec.Moves { // each run mounts the workspace again
		return nil, errors.ErrUnsupported
	}
	for retried := false; ; retried = true {
		if spec.Network {
			if err := b.ensureNetwork(ctx, e); err != nil {
				return nil, err
			}
		}
		if !img.agent {
			return agentless.Start(b.ctx, spec.ID, &plain{b: b, spec: spec, img: img, e: e}), nil
		}
		sb, err := b.startAgent(ctx, spec, img, e)
		if err == nil || retried || !spec.Network || b.networkExists() {
			return sb, err
		}
		// Somebody removed the bridge: operators prune unused networks now and then.
	}
}

// startAgent creates the container, attaches to it, starts it and waits for the agent's hello.
func (b *Backend) startAgent(ctx context.Context, spec sandbox.Spec, img image, e *engine) (_ sandbox.Sandbox, err error) {
	opt, err := b.agentOptions(spec, img, e)
	if err != nil {
		return nil, err
	}
	s := &agentSandbox{b: b, id: spec.ID, name: opt.Name, ended: make(chan struct{})}
	if s.container, err = b.create(ctx, opt); err != nil {
		return nil, b.forgetMissing(ctx, img, err)
	}
	defer func() {
		if err != nil {
			cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
			defer cancel()
			_ = s.Close(cctx)
		}
	}()
	streams, err := b.attach(ctx, s.container)
	if err != nil {
		return nil, err
	}
	s.conn = newAgentConn(streams.Conn, s.hungUp)
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
	if b.ownKernel() && strings.HasPrefix(hello.Isolation, noIsolation) { // the operator asked for more, not less
		return nil, &sandbox.Error{
			Op:  "keep the runs of a session apart",
			Err: fmt.Errorf("with the runtime %s the agent has no namespaces (isolation: %s)", b.cfg.Runtime, hello.Isolation),
			Fix: "update the runtime, or unset SANDBOX_DOCKER_RUNTIME",
		}
	}
	if spec.Network { // before any code arrives
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

// agentOptions describes the container of a sandbox with the agent.
func (b *Backend) agentOptions(spec sandbox.Spec, img image, e *engine) (opt client.ContainerCreateOptions, err error) {
	binary, err := b.agents.path(b, img.goarch)
	if err != nil {
		return opt, err
	}
	if spec.Limits.PIDs > 0 {
		spec.Limits.PIDs += agent.PIDReserve
	}
	data, processes := b.processLimits(e, spec.Limits)
	config, err := json.Marshal(agent.Config{
		Forward: spec.Forward, Names: spec.Forward && !spec.Network, DataBytes: uint64(data), Processes: uint64(processes),
		NoZygote: spec.Limits.MemoryBytes > 0 && spec.Limits.MemoryBytes < zygoteMemory,
	})
	if err != nil {
		return opt, err
	}
	spec.Mounts = append([]sandbox.Mount{{Source: binary, Target: agentPath}}, spec.Mounts...)
	opt = b.options(spec, img, e)
	opt.Config.Entrypoint = []string{agentPath, "landlock", string(config)}
	opt.Config.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	opt.HostConfig.Tmpfs[confine.RunsDir] = opt.HostConfig.Tmpfs["/tmp"]
	if !spec.Network { // the agent listens on the ports of names; Docker allows it by default
		opt.HostConfig.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	}
	if e.podman { // its own additional limits would fail on some machines; the agent sets limits for each run
		opt.HostConfig.Ulimits = nil
	}
	return opt, nil
}

// noteIsolation remembers for doctor how runs of one container are kept apart, and logs once if
// they are not.
func (b *Backend) noteIsolation(isolation string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isolation == "" && strings.HasPrefix(isolation, noIsolation) {
		b.log.Warn("this engine does not keep the runs of one session apart; it keeps sessions apart", "isolation", isolation)
	}
	b.isolation = isolation
}

// forgetMissing takes the error of a failed start and returns it. If somebody removed the image or
// the bridge, the next start looks for it again.
func (b *Backend) forgetMissing(ctx context.Context, img image, err error) error {
	if b.unreachable(err) || ctx.Err() != nil {
		return err
	}
	if _, ierr := b.inspect(ctx, img.ID); cerrdefs.IsNotFound(ierr) {
		b.mu.Lock()
		delete(b.images, img.ID)
		b.mu.Unlock()
	}
	if b.networkExists() {
		_, nerr := b.client.NetworkInspect(ctx, b.networkName(), client.NetworkInspectOptions{})
		if cerrdefs.IsNotFound(nerr) {
			b.forgetNetwork()
		}
	}
	return err
}

// attach opens the streams of a container that has not been started yet.
func (b *Backend) attach(ctx context.Context, id string) (client.HijackedResponse, error) {
	res, err := b.client.ContainerAttach(ctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err == nil {
		return res.HijackedResponse, nil
	}
	if !b.unreachable(err) && ctx.Err() == nil {
		// The client returns only the status. Podman prepares the container when it is attached to,
		// others when it is started: so a start reports what is wrong with it.
		if _, serr := b.client.ContainerStart(ctx, id, client.ContainerStartOptions{}); serr != nil {
			err = serr
		}
	}
	return client.HijackedResponse{}, b.explain(ctx, "attach to the container", err)
}

// agentSandbox is a started container with the agent.
type agentSandbox struct {
	b         *Backend
	id, name  string
	container string
	conn      *agentConn

	ready  atomic.Bool // Start has returned it
	closed atomic.Bool // Close was called
	once   sync.Once
	ended  chan struct{}
	exit   sandbox.Exit // set before ended is closed
}

var _ sandbox.Sandbox = (*agentSandbox)(nil)

func (s *agentSandbox) ID() string               { return s.id }
func (s *agentSandbox) Conn() io.ReadWriteCloser { return s.conn }

func (s *agentSandbox) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.ended:
		return s.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close waits for a hung engine no longer than ctx; the removal continues.
func (s *agentSandbox) Close(ctx context.Context) error {
	s.closed.Store(true)
	s.end()
	_, err := s.Wait(ctx)
	return err
}

// hungUp is called when either side has closed the connection. Until Start has returned, Start
// handles that.
func (s *agentSandbox) hungUp() {
	if s.ready.Load() {
		s.end()
	}
}

// end removes the container, once. It does not wait.
func (s *agentSandbox) end() {
	s.once.Do(func() {
		closed := s.closed.Load() // read it now: a session that notices the end also calls Close
		s.b.work.Go(func() {
			s.exit.Cause = sandbox.CauseKilled
			if !closed {
				s.exit = s.findCause()
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

const (
	// causeTimeout bounds the search for the cause of a container's end: its engine may also have
	// ended.
	causeTimeout = 2 * time.Second
	// endTimeout bounds how long a container may take to end after it hung up. A sandbox with its
	// own kernel and hundreds of processes takes longer.
	endTimeout       = causeTimeout / 4
	kernelEndTimeout = 5 * time.Second
)

// findCause returns why a container ended by itself.
func (s *agentSandbox) findCause() sandbox.Exit {
	patience := endTimeout
	if s.b.ownKernel() {
		patience = kernelEndTimeout
	}
	ctx, cancel := timeout(s.b.ctx, causeTimeout+patience-endTimeout)
	defer cancel()
	lost := sandbox.Exit{Cause: sandbox.CauseLost}
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

// endState returns the state of a container that is about to end. If it does not end in time, it is
// running.
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
		return container.State{}, b.explain(ctx, "inspect the container", err)
	}
	if res.Container.State == nil {
		return container.State{}, errors.New("the engine does not report the container's state")
	}
	return *res.Container.State, nil
}

// diagnose explains a missing hello.
func (s *agentSandbox) diagnose(err error) error {
	said := strings.TrimSpace(s.conn.said.String())
	if errors.Is(err, wire.ErrProtocol) && said == "" {
		return &sandbox.Error{Op: "start the agent", Err: err, Fix: "rebuild the server: make build"}
	}
	if said == "" {
		if said = s.findCause().Detail; said == "" {
			said = err.Error()
		}
	}
	return &sandbox.Error{Op: "start the agent", Err: errors.New(said), Fix: "run mcp-code-sandbox doctor"}
}
