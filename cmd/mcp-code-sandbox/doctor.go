package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"mcp-code-sandbox/internal/backend/wrapper"
	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
)

type doctorCmd struct{}

// Run prints what works, what does not and the fix, and fails when no run is possible.
func (*doctorCmd) Run(ctx context.Context, inv *invocation) error {
	s := inv.settings
	iso, release, err := openForDoctor(ctx, s)
	if err != nil {
		printChecks(inv.stdout, []sandbox.Check{{Name: "data directory", Status: sandbox.Fail, Detail: err.Error(), Fix: fixRoot}})
		return errors.New("code cannot be run here: mend what is marked FAIL, from the top")
	}
	defer release()
	checks := []sandbox.Check{checkBackend(iso, s, inv.env)}
	checks = append(checks, iso.checkHost(ctx, s)...)
	for _, c := range iso.Probe(ctx) {
		// The host's line explains what is missing, the backend's line what happened. One is enough if they agree.
		if !slices.ContainsFunc(checks, func(h sandbox.Check) bool { return h.Name == c.Name && h.Status == c.Status }) {
			c.Name = iso.name + ": " + c.Name
			checks = append(checks, c)
		}
	}
	if iso.isLocal(s) {
		checks = append(checks, doctor.System().CheckSessions(s.MaxSessions, iso.sessionCost(s))...)
	}
	checks = append(checks, checkRunners(ctx, inv, iso)...)
	checks = append(checks, checkCustom(s, inv.env)...)
	checks = append(checks, checkServices(inv)...)
	checks = append(checks, checkPort(ctx, s))
	for _, w := range s.warnings(inv.env) {
		checks = append(checks, sandbox.Check{Name: "settings", Status: sandbox.Warn, Detail: w.name + ": " + w.problem, Fix: w.fix})
	}
	printChecks(inv.stdout, checks)

	failed, warned := 0, 0
	for _, c := range checks {
		switch c.Status {
		case sandbox.Fail:
			failed++
		case sandbox.Warn:
			warned++
		}
	}
	switch {
	case failed > 0:
		return errors.New("code cannot be run here: mend what is marked FAIL, from the top")
	case warned > 0:
		fmt.Fprintln(inv.stdout, "\nCode can be run here, with something missing.")
	default:
		fmt.Fprintln(inv.stdout, "\nEverything works.")
	}
	return nil
}

// checkBackend says which backend was chosen, and whether it is less than what the settings ask for.
func checkBackend(iso isolation, s *settings, env map[string]string) sandbox.Check {
	c := sandbox.Check{Name: "backend", Detail: iso.name + ": " + iso.why}
	if note := iso.ignored(s, env); note != "" {
		c.Status, c.Detail, c.Fix = sandbox.Warn, note, fixIgnored
	}
	var known *sandbox.Error
	if errors.As(iso.checkAsked(s), &known) {
		c.Status, c.Detail, c.Fix = sandbox.Fail, known.Err.Error(), known.Fix
	}
	return c
}

// openForDoctor makes the backend that a server would have.
func openForDoctor(ctx context.Context, s *settings) (iso isolation, release func(), err error) {
	if err := makeRoot(s.Root); err != nil {
		return iso, nil, err
	}
	key, _, err := secret.Load(filepath.Join(s.Root, "keys"), "installation")
	if err != nil {
		return iso, nil, err
	}
	i, err := instance.Acquire(s.Root)
	if err != nil {
		return iso, nil, err
	}
	iso = newIsolation(ctx, s, i, key, slog.New(slog.DiscardHandler))
	return iso, func() { iso.close(); i.Close() }, nil
}

func checkRunners(ctx context.Context, inv *invocation, iso isolation) []sandbox.Check {
	found := environments{settings: inv.settings, env: inv.env, catalogue: iso.catalogue, log: slog.New(slog.DiscardHandler)}
	set, problems := found.discover(ctx)
	var checks []sandbox.Check
	for _, r := range set {
		c := sandbox.Check{Name: r.Name, Detail: r.Version}
		if r.ImageID != "" {
			c.Detail = strings.TrimSpace(c.Detail + " in " + r.Image)
		}
		if r.Wrapper != "" {
			c.Detail += ", isolates itself: " + r.Wrapper
			if os.Geteuid() == 0 {
				c.Detail += fmt.Sprintf(" (started as uid %d)", wrapper.UID)
			}
		}
		checks = append(checks, c)
	}
	for _, p := range problems {
		checks = append(checks, sandbox.Check{Name: p.Runner, Status: sandbox.Warn, Detail: p.Problem, Fix: p.Fix})
	}
	if len(set) == 0 {
		checks = append(checks, sandbox.Check{Name: "runners", Status: sandbox.Fail, Detail: "no language environment can be used", Fix: iso.installFix(inv.settings)})
	}
	return checks
}

func checkPort(ctx context.Context, s *settings) sandbox.Check {
	addr := s.listenAddr()
	c := sandbox.Check{Name: "port"}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case err == nil:
		l.Close()
		c.Detail = addr + " is free"
	case isOurs(ctx, addr):
		c.Detail = addr + " is served by another mcp-code-sandbox; a further one takes a free port"
		if s.HTTPAddr != "" {
			c.Detail = addr + " is served by another mcp-code-sandbox; another serve needs another MCP_HTTP_ADDR"
		}
	case s.addrIsDefault() && errors.Is(err, syscall.EADDRINUSE):
		c.Status, c.Detail = sandbox.Warn, addr+" is taken by another program; serve takes a free port instead"
		c.Fix = "stop the program that has it, or set MCP_HTTP_ADDR or SANDBOX_HTTP_PORT"
	default:
		c.Status, c.Detail, c.Fix = sandbox.Fail, err.Error(), "stop the program that has it, or set MCP_HTTP_ADDR or SANDBOX_HTTP_PORT"
	}
	return c
}

var statusNames = map[sandbox.Status]string{sandbox.OK: "ok", sandbox.Warn: "WARN", sandbox.Fail: "FAIL"}

func printChecks(w io.Writer, checks []sandbox.Check) {
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Name))
	}
	var long []sandbox.Check // their fix is a text to paste, which indenting would spoil
	for _, c := range checks {
		fmt.Fprintf(w, "%-4s  %-*s  %s\n", statusNames[c.Status], width, c.Name, strings.ReplaceAll(strings.TrimSpace(c.Detail), "\n", " "))
		switch {
		case strings.Contains(c.Fix, "\n"):
			fmt.Fprintf(w, "%*s  fix: see below\n", 6+width, "")
			long = append(long, c)
		case c.Fix != "":
			fmt.Fprintf(w, "%*s  fix: %s\n", 6+width, "", c.Fix)
		}
	}
	for _, c := range long {
		fmt.Fprintf(w, "\nTo fix %s:\n\n%s\n", c.Name, strings.TrimSpace(c.Fix))
	}
}
