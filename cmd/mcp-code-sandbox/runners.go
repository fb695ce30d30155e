package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"mcp-code-sandbox/internal/runner"
)

type runnersCmd struct {
	List    runnersListCmd    `cmd:"" default:"1" help:"List the language environments (the default)."`
	Install runnersInstallCmd `cmd:"" help:"Prepare the language environments under the root."`
}

type runnersListCmd struct{}

func (*runnersListCmd) Run(ctx context.Context, inv *invocation) error {
	iso := lookOnly(ctx, inv.settings)
	defer iso.close()
	if err := iso.checkSettings(inv.settings); err != nil {
		return err
	}
	found := environments{settings: inv.settings, env: inv.env, catalogue: iso.catalogue, log: discard}
	set, problems := found.discover(ctx)
	printRunners(inv.stdout, set, problems)
	if len(set) == 0 {
		return fmt.Errorf("%w; try: %s", errNoRunners, iso.installFix(inv.settings))
	}
	return nil
}

// lookOnly chooses the backend, and opens it only to list its runners.
func lookOnly(ctx context.Context, s *settings) (iso isolation) {
	iso.choose(ctx, s)
	if iso.hasImages {
		iso.opened, iso.refused = iso.backend.open(ctx, backendConfig{settings: s})
	}
	return iso
}

type runnersInstallCmd struct {
	Own bool `help:"Only your own runners, those of --runners-dir."`
}

func (c *runnersInstallCmd) Run(ctx context.Context, inv *invocation) error {
	src := inv.settings.sources(inv.env)
	if err := makeRoot(inv.settings.Root); err != nil {
		return err
	}
	progress := func(format string, args ...any) { fmt.Fprintf(inv.stderr, format+"\n", args...) }
	var failed []runner.Problem
	if !c.Own {
		failed = src.Install(ctx, progress)
	}
	if own, stop, err := throughMirror(ctx, inv, src); err != nil {
		failed = append(failed, runner.Problem{Runner: "your own", Problem: "packages cannot be installed: " + err.Error(),
			Fix: "correct SANDBOX_PACKAGES or SANDBOX_CONFIG (docs/packages.md), then mcp-code-sandbox runners install --own"})
	} else {
		refused := own.InstallOwn(ctx, progress)
		if c.Own {
			refused = onlyOwn(refused)
		}
		failed = append(failed, refused...)
		stop(progress)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	installed := environments{settings: inv.settings, env: inv.env}
	set, problems := installed.discover(ctx)
	if c.Own { // that they are not installed is known
		problems = slices.DeleteFunc(problems, func(p runner.Problem) bool {
			return slices.ContainsFunc(failed, func(f runner.Problem) bool { return f.Runner == p.Runner })
		})
	}
	printRunners(inv.stdout, set, append(failed, problems...))
	if len(set) == 0 {
		return errNoRunners
	}
	progress("A running server uses the changes after a restart.")
	return failure(failed)
}

// onlyOwn returns problems whose fixes repeat the installation of the operator's own runners only.
func onlyOwn(problems []runner.Problem) (list []runner.Problem) {
	const again = ", then mcp-code-sandbox runners install"
	for _, p := range problems {
		if strings.HasSuffix(p.Fix, again) {
			p.Fix += " --own"
		}
		list = append(list, p)
	}
	return list
}

// failure returns an error that names the runners that could not be prepared, if any.
func failure(failed []runner.Problem) error {
	if len(failed) == 0 {
		return nil
	}
	var names []string
	for _, p := range failed {
		names = append(names, p.Runner)
	}
	slices.Sort(names)
	return errors.New("these language environments could not be prepared: " + strings.Join(slices.Compact(names), ", "))
}

func printRunners(w io.Writer, set runner.Set, problems []runner.Problem) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUNNER\tALSO\tVERSION\tLIBRARIES")
	for _, r := range set {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Name, strings.Join(r.Aliases, ", "), r.Version, strings.Join(r.Libraries, ", "))
	}
	t.Flush()
	for i, p := range problems {
		if slices.Contains(problems[:i], p) {
			continue
		}
		fmt.Fprintf(w, "\n%s: %s\n", p.Runner, p.Problem)
		if p.Fix != "" {
			fmt.Fprintf(w, "  fix: %s\n", p.Fix)
		}
	}
}
