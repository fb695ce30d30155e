package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/workspace"
)

// choice is one way to isolate that this build has.
type choice struct {
	name string
	make func(s *settings, i *instance.Instance, log *slog.Logger) (b sandbox.Backend, owner workspace.Owner, close func(), err error)
}

// newBackend makes the backend that the settings ask for: "auto" is the first of this build's list. One that
// cannot be made is not replaced by another: the result then refuses every run, with the reason and the fix.
func newBackend(s *settings, i *instance.Instance, log *slog.Logger) (sandbox.Backend, workspace.Owner, func()) {
	err := error(&sandbox.Error{Op: "choose a backend", Err: fmt.Errorf("this build has no backend for %s", runtime.GOOS), Fix: "run it on Linux"})
	for _, c := range backends() {
		if s.Backend != "auto" && s.Backend != c.name {
			continue
		}
		var b sandbox.Backend
		var owner workspace.Owner
		var closeBackend func()
		if b, owner, closeBackend, err = c.make(s, i, log); err == nil {
			b, closeWrappers := withWrappers(s, b, log)
			return b, owner, func() { closeWrappers(); closeBackend() }
		}
		break
	}
	b, closeWrappers := withWrappers(s, refusing{err}, log)
	return b, workspace.Owner{UID: -1, GID: -1}, closeWrappers
}

// routed starts environments that isolate themselves by one backend, and all else by the other.
type routed struct {
	sandbox.Backend
	wrappers sandbox.Backend
}

var (
	_ sandbox.Prober = routed{}
	_ sandbox.Reaper = routed{}
)

func (r routed) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Wrapper != "" {
		return r.wrappers.Start(ctx, spec)
	}
	return r.Backend.Start(ctx, spec)
}

func (r routed) Probe(ctx context.Context) []sandbox.Check {
	if p, ok := r.Backend.(sandbox.Prober); ok {
		return p.Probe(ctx)
	}
	return nil
}

func (r routed) Reap(ctx context.Context, instance string) error {
	if p, ok := r.Backend.(sandbox.Reaper); ok {
		return p.Reap(ctx, instance)
	}
	return nil
}

// refusing stands for a backend that cannot be made here. No isolation, no run.
type refusing struct{ err error }

var (
	_ sandbox.Backend = refusing{}
	_ sandbox.Prober  = refusing{}
)

func (r refusing) Start(context.Context, sandbox.Spec) (sandbox.Sandbox, error) { return nil, r.err }

func (r refusing) Probe(context.Context) []sandbox.Check {
	c := sandbox.Check{Name: "backend", Status: sandbox.Fail, Detail: r.err.Error(), Fix: "see above"}
	var known *sandbox.Error
	if errors.As(r.err, &known) {
		c.Detail = known.Op + ": " + known.Err.Error()
		if known.Fix != "" {
			c.Fix = known.Fix
		}
	}
	return []sandbox.Check{c}
}
