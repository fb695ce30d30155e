package docker

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// plain is a session's place in an image of contract 1, which takes code on its stdin: a container per run. No agent is
// inside, so the backend answers for it, over a pipe within the server.
type plain struct {
	b    *Backend
	spec sandbox.Spec
	img  image
	e    *engine
	conn *wire.Conn // the agent's side
	far  net.Conn   // the server's

	ctx    context.Context // ends with it
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	n      int
	used   sandbox.Usage
	work   sync.WaitGroup

	once  sync.Once
	ended chan struct{}
	exit  sandbox.Exit
}

var (
	_ sandbox.Sandbox = (*plain)(nil)
	_ sandbox.Meter   = (*plain)(nil)
)

// startPlain starts no container: a run does.
func (b *Backend) startPlain(spec sandbox.Spec, img image, e *engine) *plain {
	near, far := net.Pipe()
	p := &plain{b: b, spec: spec, img: img, e: e, far: far, ended: make(chan struct{}), exit: sandbox.Exit{Cause: sandbox.CauseKilled}}
	p.ctx, p.cancel = context.WithCancel(b.ctx)
	p.mu.Lock() // until conn is set
	p.conn = wire.NewConn(near, wire.AgentSide, p.serve)
	p.mu.Unlock()
	go func() {
		<-p.conn.Done()
		p.end()
	}()
	return p
}

func (p *plain) ID() string               { return p.spec.ID }
func (p *plain) Conn() io.ReadWriteCloser { return p.far }

func (p *plain) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-p.ended:
		return p.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (p *plain) Close(ctx context.Context) error {
	go p.end()
	_, err := p.Wait(ctx)
	return err
}

// end removes every container and returns when none is left.
func (p *plain) end() {
	p.once.Do(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.cancel()
		_ = p.conn.Close()
		_ = p.far.Close()
		p.work.Wait()
		close(p.ended)
	})
	<-p.ended
}

// lose ends the sandbox because its engine has gone: whether the code was executed, nobody knows.
func (p *plain) lose(err error) {
	p.mu.Lock()
	p.exit = sandbox.Exit{Cause: sandbox.CauseLost, Detail: err.Error()}
	p.mu.Unlock()
	go p.end()
}

// Usage implements sandbox.Meter.
func (p *plain) Usage() (sandbox.Usage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, nil
}

// Held implements sandbox.Meter. What a run holds goes with its container.
func (p *plain) Held() (sandbox.Held, error) { return sandbox.Held{}, nil }

// begin counts a run and names it, unless the end has begun.
func (p *plain) begin() (name string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return "", false
	}
	p.work.Add(1)
	p.n++
	return p.spec.ID + "-" + strconv.Itoa(p.n), true
}

// serve is one run.
func (p *plain) serve(s *wire.Stream, f wire.Frame) {
	defer s.Close()
	id, ok := p.begin()
	if !ok {
		return
	}
	defer p.work.Done()
	if f.Run.Interpreter != "" {
		exit := wire.Exit{Code: 126, Error: "this image keeps no state", Lost: true}
		_ = s.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
		return
	}
	exit, err := p.run(s, id, f.Run)
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		exit = wire.Exit{Code: 126, Error: refused.Error()}
	case err != nil:
		p.lose(err)
		return
	}
	_ = s.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
}

// refusal is the error of a run whose code has certainly not been executed.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// run is one container, from its making to its removal.
func (p *plain) run(s *wire.Stream, id string, r *wire.Run) (exit wire.Exit, err error) {
	b := p.b
	spec := p.spec
	spec.ID = id
	opt := b.options(spec, p.img, p.e)
	opt.Config.WorkingDir = sandbox.WorkspaceDir
	opt.Config.Env = []string{"HOME=/tmp"}
	for name, value := range r.Env {
		opt.Config.Env = append(opt.Config.Env, name+"="+value)
	}
	slices.Sort(opt.Config.Env[1:])
	data, processes := b.carried(p.e, spec.Limits)
	for name, n := range map[string]int64{"fsize": r.Limits.FileBytes, "data": data, "nproc": processes} {
		if n > 0 {
			opt.HostConfig.Ulimits = append(opt.HostConfig.Ulimits, &container.Ulimit{Name: name, Soft: n, Hard: n})
		}
	}
	container, err := b.create(p.ctx, opt)
	if err != nil {
		return exit, &refusal{b.gone(p.img, err)}
	}
	// The result does not wait for it: the container has ended by then, and with it every process.
	defer p.work.Go(func() { b.remove(container, opt.Name) })
	j, err := p.start(container)
	if err != nil {
		return exit, err
	}
	defer j.stop()
	go j.obey(s)
	j.writing.Go(func() { j.write(r.Code) })
	if err := j.pump(s); err != nil {
		j.kill() // nobody listens any more, or the engine has gone: then this does nothing
	}
	return j.reap()
}

// job is a started container of one run.
type job struct {
	p         *plain
	container string
	conn      client.HijackedResponse
	wait      client.ContainerWaitResult
	cancel    context.CancelFunc
	writing   sync.WaitGroup

	mu     sync.Mutex
	killed bool
}

// start attaches to the container and starts it. No code has been sent when it returns.
func (p *plain) start(id string) (_ *job, err error) {
	b := p.b
	ctx, cancel := context.WithCancel(p.ctx)
	j := &job{p: p, container: id, cancel: cancel}
	defer func() {
		if err != nil {
			cancel()
			err = &refusal{err}
		}
	}()
	sctx, done := timeout(ctx, startTimeout)
	defer done()
	res, err := b.client.ContainerAttach(sctx, id, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, b.explain(sctx, "attach to the container", b.attachError(sctx, id, err))
	}
	j.conn = res.HijackedResponse
	context.AfterFunc(ctx, j.conn.Close)
	j.wait = b.client.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err = b.client.ContainerStart(sctx, id, client.ContainerStartOptions{}); err != nil {
		return nil, b.gone(p.img, b.explain(sctx, "start the container", err))
	}
	if p.spec.Network {
		err = b.guardNetwork(sctx, id, p.img, p.e)
	}
	return j, err
}

// stop lets go of the engine's streams.
func (j *job) stop() {
	j.cancel()
	j.conn.Close()
	j.writing.Wait()
}

// write hands the code to the program. It ends with the container at the latest.
func (j *job) write(code []byte) {
	_, _ = j.conn.Conn.Write(code)
	_ = j.conn.CloseWrite()
}

// obey ends the container when the server asks. Nobody knows what its program makes of a signal but this one.
func (j *job) obey(s *wire.Stream) {
	for {
		f, err := s.Recv(context.Background())
		if err != nil {
			return
		}
		if f.Type == wire.TypeKill || f.Type == wire.TypeInterrupt {
			j.kill()
		}
	}
}

func (j *job) kill() {
	j.mu.Lock()
	j.killed = true
	j.mu.Unlock()
	ctx, cancel := timeout(j.p.ctx, callTimeout)
	defer cancel()
	_, _ = j.p.b.client.ContainerKill(ctx, j.container, client.ContainerKillOptions{Signal: "KILL"}) // it may have ended
}

// pump carries the output until its end.
func (j *job) pump(s *wire.Stream) error {
	r := bufio.NewReaderSize(j.conn.Conn, connBuffer)
	buf := make([]byte, wire.MaxData)
	for {
		stream, left, err := readHead(r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		typ := wire.TypeStdout
		if stream != streamStdout {
			typ = wire.TypeStderr
		}
		for left > 0 {
			n, err := r.Read(buf[:min(int64(len(buf)), left)])
			left -= int64(n)
			if n > 0 {
				if err := s.Send(context.Background(), wire.Frame{Type: typ, Data: buf[:n]}); err != nil {
					return err
				}
			}
			if err != nil {
				return err
			}
		}
	}
}

// reap says how the program ended.
func (j *job) reap() (wire.Exit, error) {
	b := j.p.b
	var code int64
	select {
	case err := <-j.wait.Error:
		return wire.Exit{}, b.explain(j.p.ctx, "wait for the container", err)
	case res := <-j.wait.Result:
		code = res.StatusCode
	}
	exit := wire.Exit{Code: int(code) & 0xff}
	j.mu.Lock()
	killed := j.killed
	j.mu.Unlock()
	if killed && exit.Code == 137 {
		exit.Signal = 9
	}
	ctx, cancel := timeout(j.p.ctx, callTimeout)
	defer cancel()
	res, err := b.client.ContainerInspect(ctx, j.container, client.ContainerInspectOptions{})
	if err == nil && res.Container.State != nil && res.Container.State.OOMKilled {
		exit.OOMKills = 1
		j.p.mu.Lock()
		j.p.used.OOMKills++
		j.p.mu.Unlock()
	}
	return exit, nil
}
