package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
	if err := iso.checkAsked(inv.settings); err != nil {
		return err
	}
	found := environments{settings: inv.settings, env: inv.env, catalogue: iso.catalogue, log: slog.New(slog.DiscardHandler)}
	set, problems := found.discover(ctx)
	printRunners(inv.stdout, set, problems)
	if len(set) == 0 {
		return errors.New("no language environment can be used; try: " + iso.installFix(inv.settings))
	}
	return nil
}

// lookOnly chooses the backend without one that could start anything. It opens it only to list its runners.
func lookOnly(ctx context.Context, s *settings) (iso isolation) {
	iso.choose(ctx, s)
	if iso.name == backendDocker {
		iso.opened, iso.refused = openDocker(ctx, backendConfig{settings: s})
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
	failed = append(failed, src.InstallOwn(ctx, progress)...)
	if err := ctx.Err(); err != nil {
		return err
	}
	installed := environments{settings: inv.settings, env: inv.env}
	set, problems := installed.discover(ctx)
	printRunners(inv.stdout, set, append(failed, problems...))
	if len(set) == 0 {
		return errors.New("no language environment can be used")
	}
	progress("A server that is running uses what is new after a restart.")
	return failure(failed)
}

// failure is an error that names the runners that could not be prepared; nil when there are none.
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
	seen := map[runner.Problem]bool{}
	for _, p := range problems {
		if seen[p] {
			continue
		}
		seen[p] = true
		fmt.Fprintf(w, "\n%s: %s\n", p.Runner, p.Problem)
		if p.Fix != "" {
			fmt.Fprintf(w, "  fix: %s\n", p.Fix)
		}
	}
}
