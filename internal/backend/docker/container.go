package docker

import (
	"context"
	"errors"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// abandonTimeout bounds how long a start that was cancelled waits until its container is gone.
const abandonTimeout = 3 * time.Second

// create creates a container. If ctx is done before the engine has answered, it removes what the
// engine creates.
func (b *Backend) create(ctx context.Context, opt client.ContainerCreateOptions) (id string, err error) {
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	b.mu.Lock()
	b.used = true
	b.live[opt.Name] = struct{}{}
	b.mu.Unlock()
	type answer struct {
		id  string
		err error
	}
	created := make(chan answer, 1)
	b.work.Go(func() {
		// Not under ctx: after a cancelled request, it is unknown whether the container exists.
		cctx, cancel := timeout(b.ctx, createTimeout)
		defer cancel()
		res, err := b.client.ContainerCreate(cctx, opt)
		created <- answer{res.ID, b.explain(cctx, "create a container", err)}
	})
	select {
	case a := <-created:
		if a.err != nil {
			b.disown(opt.Name)
		}
		return a.id, a.err
	case <-ctx.Done():
		gone := make(chan struct{})
		b.work.Go(func() {
			defer close(gone)
			if a := <-created; a.err == nil {
				b.remove(a.id, opt.Name)
			} else {
				b.disown(opt.Name) // Reap finds what a hung engine creates later
			}
		})
		select {
		case <-gone:
		case <-time.After(abandonTimeout):
		}
		return "", context.Cause(ctx)
	}
}

// disown lets Reap remove a container of that name.
func (b *Backend) disown(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.live, name)
}

// remove kills and removes a container. It retries until the engine reports that it is gone or the
// backend ends.
func (b *Backend) remove(id, name string) {
	b.unguard(id)
	defer b.disown(name)
	wait := 10 * time.Millisecond
	for warned := false; ; {
		err := b.removeOnce(b.ctx, id)
		if err == nil || b.ctx.Err() != nil {
			return
		}
		if wait >= time.Second && !warned {
			warned = true
			b.log.Warn("cannot remove a container yet; trying again", "container", name, "error", err)
		}
		select {
		case <-time.After(wait):
		case <-b.ctx.Done():
			return
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// removeOnce returns nil if the container is gone.
func (b *Backend) removeOnce(ctx context.Context, id string) error {
	ctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	_, err := b.client.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	return err // also if the removal is in progress: the container is not gone yet
}

// removeContainers removes the installation's containers that match.
func (b *Backend) removeContainers(ctx context.Context, match func(instance, name string) bool) error {
	lctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.ContainerList(lctx, client.ContainerListOptions{All: true, Filters: b.ownLabel()})
	if err != nil {
		return b.explain(lctx, "list containers", err)
	}
	var last error
	for _, c := range list.Items {
		name := ""
		if len(c.Names) > 0 {
			name = strings.TrimPrefix(c.Names[0], "/")
		}
		if c.Labels[labelInstallation] != b.cfg.Installation || !match(c.Labels[labelInstance], name) {
			continue
		}
		if err := b.removeOnce(ctx, c.ID); err != nil && !cerrdefs.IsConflict(err) {
			last = err
			continue
		}
		b.log.Info("removed an unused container", "container", name, "instance", c.Labels[labelInstance])
	}
	return last
}

// Reap implements sandbox.Reaper: it removes the containers and networks of dead instances, and
// unused containers of this one, such as those of a failed start.
func (b *Backend) Reap(ctx context.Context, alive func(instance string) bool) error {
	dead := func(instance string) bool { return instance != b.cfg.Instance && !alive(instance) }
	err := b.removeContainers(ctx, func(instance, name string) bool {
		// Checked after the engine has listed them: a container that was started meanwhile is in
		// use.
		b.mu.Lock()
		_, used := b.live[name]
		b.mu.Unlock()
		return dead(instance) || instance == b.cfg.Instance && !used
	})
	return errors.Join(err, b.removeNetworks(ctx, dead))
}
