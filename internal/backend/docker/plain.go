package docker

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/backend/agentless"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// plain is a session's place in an image of contract 1, which takes code on its stdin: each run is
// a container.
type plain struct {
	b    *Backend
	spec sandbox.Spec
	img  image
	e    *engine

	oomKills atomic.Uint64
}

var _ agentless.Environment = (*plain)(nil)

// Usage implements agentless.Environment.
func (p *plain) Usage() sandbox.Usage { return sandbox.Usage{OOMKills: p.oomKills.Load()} }

// Close implements agentless.Environment.
func (p *plain) Close() {}

// Run implements agentless.Environment: one container, from its creation to its removal.
func (p *plain) Run(ctx context.Context, r *agentless.Run) (wire.Exit, error) {
	if r.Interpreter != "" {
		return wire.Exit{Code: 126, Error: "this image keeps no state", Lost: true}, nil
	}
	opt := p.options(r)
	id, err := p.b.create(ctx, opt)
	if err != nil {
		return wire.Exit{}, &agentless.Refused{Err: p.b.forgetMissing(ctx, p.img, err)}
	}
	// The result does not wait for the removal: the container has ended by then, with all its
	// processes.
	defer r.Background(func() { p.b.remove(id, opt.Name) })
	j, err := p.start(ctx, id)
	if err != nil {
		return wire.Exit{}, &agentless.Refused{Err: err}
	}
	defer j.close()
	defer r.OnStop(j.kill)()
	j.writing.Go(func() { // returns when the container ends, at the latest
		_, _ = j.conn.Conn.Write(r.Code)
		_ = j.conn.CloseWrite()
	})
	if _, err := stdcopy.StdCopy(r.Stdout, r.Stderr, j.conn.Conn); err != nil {
		j.kill() // the server no longer listens, or the engine is gone and this does nothing
	}
	return j.wait(ctx)
}

// options is the container of a run.
func (p *plain) options(r *agentless.Run) client.ContainerCreateOptions {
	spec := p.spec
	spec.ID += "-" + strconv.Itoa(r.Number)
	opt := p.b.options(spec, p.img, p.e)
	opt.Config.WorkingDir = sandbox.WorkspaceDir
	opt.Config.Env = []string{"HOME=/tmp"}
	for name, value := range r.Env {
		opt.Config.Env = append(opt.Config.Env, name+"="+value)
	}
	slices.Sort(opt.Config.Env[1:])
	data, processes := p.b.processLimits(p.e, spec.Limits)
	for name, n := range map[string]int64{"fsize": r.Limits.FileBytes, "data": data, "nproc": processes} {
		if n > 0 {
			opt.HostConfig.Ulimits = append(opt.HostConfig.Ulimits, &container.Ulimit{Name: name, Soft: n, Hard: n})
		}
	}
	return opt
}

// job is the started container of a run.
type job struct {
	p         *plain
	ctx       context.Context
	cancel    context.CancelFunc
	container string
	conn      client.HijackedResponse
	result    client.ContainerWaitResult
	writing   sync.WaitGroup
	killed    atomic.Bool
}

// start attaches to the container and starts it. It sends no code.
func (p *plain) start(ctx context.Context, id string) (_ *job, err error) {
	b := p.b
	ctx, cancel := context.WithCancel(ctx)
	j := &job{p: p, ctx: ctx, cancel: cancel, container: id}
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	sctx, done := timeout(ctx, startTimeout)
	defer done()
	if j.conn, err = b.attach(sctx, id); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, j.conn.Close)
	j.result = b.client.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err = b.client.ContainerStart(sctx, id, client.ContainerStartOptions{}); err != nil {
		return nil, b.forgetMissing(sctx, p.img, b.explain(sctx, "start the container", err))
	}
	if p.spec.Network {
		err = b.guardNetwork(sctx, id, p.img, p.e)
	}
	return j, err
}

// close releases the engine's streams.
func (j *job) close() {
	j.cancel()
	j.conn.Close()
	j.writing.Wait()
}

func (j *job) kill() {
	j.killed.Store(true)
	ctx, cancel := timeout(j.ctx, callTimeout)
	defer cancel()
	_, _ = j.p.b.client.ContainerKill(ctx, j.container, client.ContainerKillOptions{Signal: "KILL"}) // it may have ended
}

// wait returns how the program ended.
func (j *job) wait(ctx context.Context) (wire.Exit, error) {
	b := j.p.b
	var exit wire.Exit
	select {
	case err := <-j.result.Error:
		return exit, b.explain(ctx, "wait for the container", err)
	case res := <-j.result.Result:
		exit.Code = int(res.StatusCode) & 0xff
	}
	if j.killed.Load() && exit.Code == 137 {
		exit.Signal = 9
	}
	ctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	res, err := b.client.ContainerInspect(ctx, j.container, client.ContainerInspectOptions{})
	if err == nil && res.Container.State != nil && res.Container.State.OOMKilled {
		exit.OOMKills = 1
		j.p.oomKills.Add(1)
	}
	return exit, nil
}
