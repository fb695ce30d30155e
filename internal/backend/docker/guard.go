package docker

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/netguard"
	"mcp-code-sandbox/internal/sandbox"
)

// guarded is a container whose network is closed toward everything that is not the internet.
type guarded struct {
	img image
	e   *engine

	mu     sync.Mutex
	config string // that was applied last
}

// guardNetwork closes the network of a started container, now and, until unguard, after each change of what is to be closed.
func (b *Backend) guardNetwork(ctx context.Context, id string, img image, e *engine) error {
	c := &guarded{img: img, e: e}
	g := &b.guard
	g.mu.Lock()
	g.live[id] = c // before the list is read: a change after that is seen
	follow := !g.following
	g.following = true
	g.mu.Unlock()
	if follow {
		b.work.Go(b.followClosed)
	}
	return b.closeNetwork(ctx, id, c)
}

func (b *Backend) unguard(id string) {
	b.guard.mu.Lock()
	defer b.guard.mu.Unlock()
	delete(b.guard.live, id)
}

// closeNetwork applies what is to be closed now, unless it is what was applied last.
func (b *Backend) closeNetwork(ctx context.Context, id string, c *guarded) error {
	const op = "close the sandbox's network toward private addresses"
	c.mu.Lock()
	defer c.mu.Unlock()
	host, err := b.hostNetwork(ctx, c.img, c.e)
	if err != nil {
		return err
	}
	cfg, err := b.guardConfig(host)
	if err != nil {
		return &sandbox.Error{Op: op, Err: err, Fix: "run without network: true"}
	}
	config, err := json.Marshal(cfg)
	if err != nil || string(config) == c.config {
		return err
	}
	out, err := b.help(ctx, c.img, c.e, "container:"+id, true, "guard", string(config))
	if err != nil {
		return b.explain(ctx, op, err)
	}
	if strings.TrimSpace(string(out)) != netguard.Done {
		return &sandbox.Error{Op: op, Err: errors.New("it was not confirmed"), Fix: "run without network: true"}
	}
	c.config = string(config)
	return nil
}

// followClosed closes to live containers what has been added to the list. The engine's machine, which may be another one, tells
// of no change; it is asked every now and then.
func (b *Backend) followClosed() {
	g := &b.guard
	tick := time.NewTicker(addressesFor)
	defer tick.Stop()
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-g.wake:
		case <-tick.C:
		}
		g.mu.Lock()
		g.asked = time.Time{}
		live := maps.Clone(g.live)
		g.mu.Unlock()
		for id, c := range live {
			ctx, cancel := timeout(b.ctx, startTimeout)
			err := b.closeNetwork(ctx, id, c)
			cancel()
			g.mu.Lock()
			_, lives := g.live[id]
			g.mu.Unlock()
			if err != nil && lives && b.ctx.Err() == nil {
				b.log.Warn("cannot close new addresses to a container; trying again", "container", id, "error", err)
			}
		}
	}
}

// guardConfig closes what the list has, with the addresses of the engine's host.
func (b *Backend) guardConfig(host netguard.HostNetwork) (cfg netguard.Config, err error) {
	var engine []netip.Addr
	for _, text := range host.Addresses {
		if addr, err := netip.ParseAddr(text); err == nil {
			engine = append(engine, addr)
		}
	}
	closed, err := b.cfg.Closed.ForSandbox(engine...)
	if err != nil {
		return cfg, err
	}
	cfg.Resolvers = host.Resolvers
	for _, p := range closed {
		cfg.Unreachable = append(cfg.Unreachable, p.String())
	}
	for _, p := range b.cfg.Closed.Allowed() {
		cfg.Open = append(cfg.Open, p.Masked().String())
	}
	return cfg, nil
}
