package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
)

// environments are the runners of a server. They change with the engine's images, and when nix has
// built more.
type environments struct {
	settings  *settings
	env       map[string]string
	catalogue runner.Catalogue // nil: the runners are directories on this machine
	indexes   []string         // of packages that code may install
	log       *slog.Logger

	mu       sync.Mutex
	set      runner.Set
	problems []runner.Problem
}

func (e *environments) runners() runner.Set {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.set
}

func (e *environments) missing() []runner.Problem {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problems
}

func (e *environments) change(set runner.Set, problems []runner.Problem) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set, e.problems = set.Installing(e.indexes), problems
}

// discover finds the runners and mounts the project into them. built lists directories of wrappers
// in addition to the configured ones.
func (e *environments) discover(ctx context.Context, built ...string) (runner.Set, []runner.Problem) {
	src := e.settings.sources(e.env, built...)
	if e.catalogue == nil {
		set, problems := src.Discover(ctx)
		return set, append(problems, mountProject(e.settings, set)...)
	}
	set, notes, problems, err := e.catalogue.Runners(ctx)
	if err != nil {
		p := runner.Problem{Runner: "images", Problem: err.Error()}
		if known, ok := errors.AsType[*sandbox.Error](err); ok {
			p.Problem, p.Fix = known.Op+": "+known.Err.Error(), known.Fix
		}
		problems = append(problems, p)
	}
	for _, n := range notes {
		e.log.Info("several images for one language: " + n)
	}
	wrappers, more := src.DiscoverWrappers()
	set = append(set, wrappers...)
	return set, slices.Concat(problems, more, mountProject(e.settings, set))
}

// sources returns where runners come from.
func (s *settings) sources(env map[string]string, built ...string) runner.Sources {
	return runner.Sources{
		Env: env, Dir: filepath.Join(s.Root, "runners"), Own: ownRunnersDir(s), Wrappers: append([]string{s.WrapperDir}, built...),
	}
}

func ownRunnersDir(s *settings) string {
	return cmp.Or(s.RunnersDir, filepath.Join(s.Root, "runners.d"))
}

// mountProject mounts the project into every runner. Wrappers mount it themselves.
func mountProject(s *settings, set runner.Set) (problems []runner.Problem) {
	if s.ProjectDir == "" {
		return nil
	}
	for i := range set {
		r := &set[i]
		if r.Wrapper != "" {
			continue
		}
		if j := slices.IndexFunc(r.Mounts, func(m sandbox.Mount) bool { return overlap(m.Target, s.ProjectMount) }); j >= 0 {
			problems = append(problems, runner.Problem{
				Runner: r.Name, Problem: "it has no project: PROJECT_MOUNT would hide " + r.Mounts[j].Target + ", which it needs",
				Fix: "set PROJECT_MOUNT to /project",
			})
			continue
		}
		r.Mounts = append(slices.Clone(r.Mounts), sandbox.Mount{Source: s.ProjectDir, Target: s.ProjectMount})
	}
	return problems
}

// installFix says how to get runners.
func (i isolation) installFix(s *settings) string {
	switch {
	case i.hasImages && len(s.Images) > 0:
		return "make images, or correct SANDBOX_IMAGES (docker images lists them)"
	case i.hasImages:
		return "make images"
	}
	return "mcp-code-sandbox runners install"
}

// followImages updates the runners whenever the engine's images change.
func (a *app) followImages(ctx context.Context) {
	if a.isolation.catalogue == nil {
		return
	}
	a.isolation.catalogue.Watch(ctx, func() {
		set, problems := a.environments.discover(ctx, a.flakes()...)
		if ctx.Err() != nil {
			return
		}
		before := a.environments.runners()
		a.environments.change(set, problems)
		if !slices.EqualFunc(before, set, func(a, b runner.Runner) bool { return a.Name == b.Name && a.ImageID == b.ImageID }) {
			a.log.Info("runners changed with the engine's images", "runners", strings.Join(set.Names(), ", "))
			if a.isolation.pool != nil {
				a.warm(ctx)
			}
		}
	})
}

// flakes returns the directory of the wrappers that NIX_SANDBOX_ENVS names, if any.
func (a *app) flakes() []string {
	if len(a.settings.NixEnvs) == 0 {
		return nil
	}
	return []string{filepath.Join(a.instance.Dir(), "nix")}
}

// nixWait is how long the start waits for nix: clients give up on a server that does not answer.
const nixWait = 20 * time.Second

// addFlakes builds what NIX_SANDBOX_ENVS names and adds it to the runners. After nixWait it returns
// and continues in the background.
func (a *app) addFlakes(ctx context.Context) {
	if len(a.settings.NixEnvs) == 0 {
		return
	}
	done := make(chan struct{})
	a.tasks.start(func(ctx context.Context) {
		defer close(done)
		dir := a.flakes()[0]
		failed := runner.BuildFlakes(ctx, a.env, a.settings.NixEnvs, dir, a.log)
		for _, p := range failed {
			a.log.Warn("an environment was not built", "problem", p.Problem, "fix", p.Fix)
		}
		set, problems := a.environments.discover(ctx, dir)
		if ctx.Err() == nil {
			a.environments.change(set, append(problems, failed...))
		}
	})
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(nixWait):
		a.log.Info("nix is still building environments; they become available when they are ready")
	}
}

// checkCustom reports on the project and on nix, for doctor.
func checkCustom(s *settings, env map[string]string) (checks []sandbox.Check) {
	if s.ProjectDir != "" {
		checks = append(checks, sandbox.Check{Name: "project", Detail: s.ProjectDir + " is " + s.ProjectMount + " inside, read-only"})
	}
	if len(s.NixEnvs) > 0 {
		nix, problem := runner.FindNix(env, s.NixEnvs)
		c := sandbox.Check{Name: "NIX_SANDBOX_ENVS", Detail: fmt.Sprintf("%s builds %s at the start", nix, strings.Join(s.NixEnvs, ", "))}
		if problem != nil {
			c.Status, c.Detail, c.Fix = sandbox.Warn, problem.Problem, problem.Fix
		}
		checks = append(checks, c)
	}
	return checks
}
