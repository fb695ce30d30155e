package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/pool"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/workspace"
)

// isolation is the chosen backend with its pool and wrappers.
type isolation struct {
	backend
	opened
	why       string          // why the backend was chosen
	sessions  sandbox.Backend // starts the sandboxes of sessions, through the pool or a wrapper
	pool      *pool.Pool      // nil if no sandboxes are kept ready
	wrappers  wrappers
	refused   error           // why the backend could not be opened
	engineErr error           // why "auto" cannot use an engine; nil if it can or did not try
	closed    *closednet.List // networks that sandboxes and services cannot reach
}

// newIsolation opens the backend that the settings ask for. If it cannot be opened, nothing
// replaces it: the result refuses every run, with the reason and the fix.
func newIsolation(ctx context.Context, s *settings, i *instance.Instance, key secret.Value, log *slog.Logger) isolation {
	iso := isolation{closed: s.closedNetworks(ctx, log)}
	iso.choose(ctx, s)
	iso.opened, iso.refused = iso.backend.open(ctx, backendConfig{settings: s, instance: i, key: key, closed: iso.closed, log: log})
	if iso.refused != nil {
		iso.opened = opened{driver: refusing{iso.refused}, owner: workspace.Owner{UID: -1, GID: -1}}
	}
	iso.wrappers = newWrappers(s, iso.driver, log)
	iso.sessions = router{iso.driver, iso.wrappers}
	return iso
}

// check reports why a server must not start with this backend and these settings.
func (i *isolation) check(ctx context.Context, s *settings) error {
	if err := i.checkSettings(s); err != nil {
		return err
	}
	if s.Backend == backendDocker {
		if err := i.reachEngine(ctx); err != nil {
			return err
		}
	}
	if i.opened.check != nil {
		return i.opened.check(ctx)
	}
	return nil
}

// choose picks the backend.
func (i *isolation) choose(ctx context.Context, s *settings) {
	var name string
	name, i.why = choose(ctx, s.Backend, runtime.GOOS, func(ctx context.Context) (o offer, err error) {
		o, i.engineErr = askEngine(ctx, s)
		return o, i.engineErr
	})
	if name == backendJail && isLocalEngine(s) && errors.Is(i.engineErr, fs.ErrNotExist) {
		i.why = "no container engine found at " + s.DockerHost
	}
	i.backend = backendNamed(name)
}

// wrappers starts environments that isolate themselves.
type wrappers interface {
	sandbox.Backend
	Close()
}

// close closes the backend. Every sandbox must be closed before.
func (i *isolation) close() {
	if i.wrappers != nil {
		i.wrappers.Close()
	}
	if i.driver != nil {
		i.driver.Close()
	}
}

// keepReady puts a pool in front of the backend.
func (i *isolation) keepReady(s *settings, dir string, log *slog.Logger) {
	size := s.poolSize(i.name)
	if i.refused != nil || size == 0 {
		return
	}
	total := 0
	if s.MaxSessions > 0 { // ready sandboxes belong to no session yet
		total = s.MaxSessions + size
	}
	owner := i.owner
	i.pool = pool.New(pool.Config{
		Backend: i.driver, Size: size, Total: total, Dir: filepath.Join(dir, "pool"), Budget: pool.Machine(), Logger: log,
		Own: func(dir string) error {
			if owner.UID < 0 && owner.GID < 0 {
				return nil
			}
			return os.Lchown(dir, owner.UID, owner.GID)
		},
	})
	i.sessions = router{i.pool, i.wrappers}
}

// makeWorkspace returns session.Config's MakeWorkspace.
func (i *isolation) makeWorkspace() func(path string) bool {
	if i.pool == nil {
		return nil
	}
	return i.pool.MakeWorkspace
}

// warm prepares what sandboxes like spec share, such as shared zygotes, before the first run.
func (i *isolation) warm(ctx context.Context, spec sandbox.Spec) {
	if i.pool != nil {
		i.pool.KeepReady(spec)
		return
	}
	if p, ok := i.driver.(sandbox.Preparer); ok {
		if sb, err := p.Prepare(ctx, spec); err == nil {
			_ = sb.Close(ctx)
		}
	}
}

// ready returns the number of sandboxes that wait for a session.
func (i *isolation) ready() float64 {
	if i.pool == nil {
		return 0
	}
	return float64(i.pool.Ready())
}
