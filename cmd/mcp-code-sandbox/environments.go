package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
)

const (
	// nixTimeout is how long one flake reference may take to build.
	nixTimeout = 15 * time.Minute
	// nixWait is how long a start waits for all of them: clients give up on a server that does not answer. Later ones are
	// there when they are ready.
	nixWait = 20 * time.Second
)

func runnersDir(s *settings) string { return filepath.Join(s.Root, "runners") }

// ownRunnersDir holds the operator's own runners.
func ownRunnersDir(s *settings) string {
	if s.RunnersDir != "" {
		return s.RunnersDir
	}
	return filepath.Join(s.Root, "runners.d")
}

// discover finds the runners that the settings give, and gives them the project. With images, those on the engine are the
// runners, and what lies on this host is not. built are directories of further wrappers.
func discover(ctx context.Context, s *settings, images runner.Catalogue, log *slog.Logger, built ...string) (runner.Set, []runner.Problem) {
	src := runner.Sources{Dir: runnersDir(s), Own: ownRunnersDir(s), Wrappers: append([]string{s.WrapperDir}, built...)}
	var set runner.Set
	var problems []runner.Problem
	if images == nil {
		set, problems = runner.Discover(ctx, src)
	} else {
		var notes []string
		var err error
		if set, notes, problems, err = images.Runners(ctx); err != nil {
			p := runner.Problem{Runner: "images", Problem: err.Error()}
			var known *sandbox.Error
			if errors.As(err, &known) {
				p.Problem, p.Fix = known.Op+": "+known.Err.Error(), known.Fix
			}
			problems = append(problems, p)
		}
		for _, n := range notes {
			log.Info("several images for one language: " + n)
		}
		wrappers, more := runner.Wrappers(src)
		set, problems = append(set, wrappers...), append(problems, more...)
	}
	return set, append(problems, mountProject(s, set)...)
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

func (a *app) discover(ctx context.Context, built ...string) (runner.Set, []runner.Problem) {
	return discover(ctx, a.settings, a.isolation.catalogue, a.log, built...)
}

// installFix is what to do when there is no runner.
func (i isolation) installFix(s *settings) string {
	switch {
	case i.catalogue != nil && len(s.Images) > 0:
		return "make images, or correct SANDBOX_IMAGES (docker images lists what there is)"
	case i.catalogue != nil:
		return "make images"
	}
	return "mcp-code-sandbox runners install"
}

// followImages keeps the runners what the engine's images make them, without a restart.
func (a *app) followImages(ctx context.Context) {
	if a.isolation.catalogue == nil {
		return
	}
	a.isolation.catalogue.Watch(ctx, func() {
		set, problems := a.discover(ctx, a.flakes()...)
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

// flakes are the directories of the wrappers that NIX_SANDBOX_ENVS names.
func (a *app) flakes() []string {
	if len(a.settings.NixEnvs) == 0 {
		return nil
	}
	return []string{filepath.Join(a.instance.Dir(), "nix")}
}

// environments are the runners there are now.
type environments struct {
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
	e.set, e.problems = set, problems
}

// findNix is the problem of flake references on a host without Nix, or nil.
func findNix(s *settings) (path string, problem *runner.Problem) {
	path, err := exec.LookPath("nix")
	if err != nil {
		return "", &runner.Problem{
			Runner: "NIX_SANDBOX_ENVS", Problem: fmt.Sprintf("nix is not installed: %s cannot be built", strings.Join(s.NixEnvs, ", ")),
			Fix: "install Nix (https://nixos.org/download), or build the environments elsewhere and set NIX_SANDBOX_DIR",
		}
	}
	return path, nil
}

// buildFlakes builds each reference of NIX_SANDBOX_ENVS into dir, where wrappers are then found, and says what failed.
func buildFlakes(ctx context.Context, s *settings, dir string, log *slog.Logger) (problems []runner.Problem) {
	nix, problem := findNix(s)
	if problem != nil {
		return []runner.Problem{*problem}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return []runner.Problem{{Runner: "NIX_SANDBOX_ENVS", Problem: err.Error(), Fix: "make SANDBOX_ROOT writable"}}
	}
	for i, ref := range s.NixEnvs {
		ref = strings.TrimSpace(ref)
		log.Info("building an environment with nix", "ref", ref, "number", i+1, "of", len(s.NixEnvs))
		start := time.Now()
		if err := nixBuild(ctx, nix, ref, filepath.Join(dir, "env-"+strconv.Itoa(i)), log); err != nil {
			problems = append(problems, runner.Problem{Runner: "NIX_SANDBOX_ENVS", Problem: fmt.Sprintf("%s: %v", ref, err), Fix: "try: nix build " + ref})
			continue
		}
		log.Info("built an environment with nix", "ref", ref, "duration_ms", time.Since(start).Milliseconds())
	}
	return problems
}

func nixBuild(ctx context.Context, nix, ref, out string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeoutCause(ctx, nixTimeout, fmt.Errorf("it was not built within %v", nixTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, nix, "build", ref, "-o", out)
	cmd.WaitDelay = 5 * time.Second
	said := &lineLog{log: log.With("ref", ref)}
	cmd.Stdout, cmd.Stderr = said, said
	err := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return errors.New(strings.TrimSpace(err.Error() + ": " + said.last))
	}
	return nil
}

// lineLog passes the progress of a build on to the log. os/exec writes to it from one goroutine.
type lineLog struct {
	log     *slog.Logger
	partial []byte
	last    string
}

func (l *lineLog) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		advance, line, _ := bufio.ScanLines(l.partial, len(l.partial) > 4096)
		if advance == 0 {
			return len(p), nil
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			l.last = string(line)
			l.log.Info("nix: " + l.last)
		}
		l.partial = l.partial[advance:]
	}
}

// addFlakes builds what NIX_SANDBOX_ENVS names and adds it to the runners. It waits for a while; then it goes on by itself.
func (a *app) addFlakes(ctx context.Context) {
	if len(a.settings.NixEnvs) == 0 {
		return
	}
	done := make(chan struct{})
	a.tasks.start(func(ctx context.Context) {
		defer close(done)
		dir := a.flakes()[0]
		failed := buildFlakes(ctx, a.settings, dir, a.log)
		for _, p := range failed {
			a.log.Warn("an environment was not built", "problem", p.Problem, "fix", p.Fix)
		}
		set, problems := a.discover(ctx, dir)
		if ctx.Err() == nil {
			a.environments.change(set, append(problems, failed...))
		}
	})
	wait := time.NewTimer(nixWait)
	defer wait.Stop()
	select {
	case <-done:
	case <-ctx.Done():
	case <-wait.C:
		a.log.Info("environments are still being built; they are there when they are ready")
	}
}

// checkCustom is doctor's lines about what the operator added.
func checkCustom(s *settings) (checks []sandbox.Check) {
	if s.ProjectDir != "" {
		checks = append(checks, sandbox.Check{Name: "project", Detail: s.ProjectDir + " is " + s.ProjectMount + " inside, read-only"})
	}
	if len(s.NixEnvs) > 0 {
		nix, problem := findNix(s)
		c := sandbox.Check{Name: "NIX_SANDBOX_ENVS", Detail: fmt.Sprintf("%s builds %s at the start", nix, strings.Join(s.NixEnvs, ", "))}
		if problem != nil {
			c.Status, c.Detail, c.Fix = sandbox.Warn, problem.Problem, problem.Fix
		}
		checks = append(checks, c)
	}
	return checks
}
