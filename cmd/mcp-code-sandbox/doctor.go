package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/userns"
)

type doctorCmd struct{}

// discard is a logger for commands that print instead.
var discard = slog.New(slog.DiscardHandler)

// Run prints what works, and a fix for what does not. It fails if no code can run.
func (*doctorCmd) Run(ctx context.Context, inv *invocation) error {
	checks := runChecks(ctx, inv)
	printChecks(inv.stdout, checks)
	worst := slices.MaxFunc(checks, func(a, b sandbox.Check) int { return cmp.Compare(a.Status, b.Status) })
	switch worst.Status {
	case sandbox.Fail:
		return errors.New("code cannot run here: fix the checks marked FAIL, starting at the top")
	case sandbox.Warn:
		fmt.Fprintln(inv.stdout, "\nCode can run here, with the restrictions marked WARN.")
	default:
		fmt.Fprintln(inv.stdout, "\nEverything works.")
	}
	return nil
}

func runChecks(ctx context.Context, inv *invocation) []sandbox.Check {
	s := inv.settings
	iso, release, err := openForDoctor(ctx, s)
	if err != nil {
		return []sandbox.Check{{Name: "data directory", Status: sandbox.Fail, Detail: err.Error(), Fix: fixRoot}}
	}
	defer release()
	checks := []sandbox.Check{checkBackend(iso, s, inv.env), checkNetwork(inv)}
	checks = append(checks, slices.DeleteFunc(iso.checkHost(ctx, s), s.ignores)...)
	for _, c := range slices.DeleteFunc(iso.Probe(ctx), s.ignores) {
		// The host's check explains what is missing, the backend's what happened. One is enough.
		if !slices.ContainsFunc(checks, func(h sandbox.Check) bool { return h.Name == c.Name && h.Status == c.Status }) {
			c.Name = iso.name + ": " + c.Name
			checks = append(checks, c)
		}
	}
	if iso.isLocal(s) {
		checks = append(checks, doctor.System().CheckSessions(s.MaxSessions, iso.sessionCost(s))...)
	}
	checks = append(checks, checkFiles(s.Root, userns.Current(), userns.MayChown)...)
	checks = append(checks, checkDatabase(ctx, s))
	found := environments{settings: s, env: inv.env, catalogue: iso.catalogue, log: discard}
	set, problems := found.discover(ctx)
	checks = slices.Concat(checks, checkRunners(set, problems, iso.installFix(s)), checkCustom(s, inv.env), checkServices(inv), checkPackages(ctx, inv, set))
	checks = append(checks, checkPort(ctx, s))
	for _, w := range s.warnings(inv.env) {
		checks = append(checks, sandbox.Check{Name: "settings", Status: sandbox.Warn, Detail: w.name + ": " + w.problem, Fix: w.fix})
	}
	return checks
}

// openForDoctor opens the backend that a server would use.
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
	iso = newIsolation(ctx, s, i, key, discard)
	return iso, func() { iso.close(); i.Close() }, nil
}

// checkBackend reports the backend, and whether it is weaker than the one the settings ask for.
func checkBackend(iso isolation, s *settings, env map[string]string) sandbox.Check {
	c := sandbox.Check{Name: "backend", Detail: iso.name + ": " + iso.why}
	if note := iso.ignoredSetting(s, env); note != "" {
		c.Status, c.Detail, c.Fix = sandbox.Warn, note, fixIgnored
	}
	if known, ok := errors.AsType[*sandbox.Error](iso.checkSettings(s)); ok {
		c.Status, c.Detail, c.Fix = sandbox.Fail, known.Err.Error(), known.Fix
	}
	return c
}

// checkFiles reports sessions whose files this server cannot use: those of subordinate ids that its
// outer namespace lacks, or if it is in none. mayChown is userns.MayChown.
func checkFiles(root string, outer userns.Status, mayChown func(fs.FileInfo) bool) []sandbox.Check {
	dirs, _ := filepath.Glob(filepath.Join(root, "*", "files")) // the patterns are valid
	closed, _ := filepath.Glob(filepath.Join(root, "closed", "*", "*", "files"))
	foreign := slices.DeleteFunc(slices.Concat(dirs, closed), func(dir string) bool {
		fi, err := os.Lstat(dir)
		return err != nil || mayChown(fi)
	})
	if len(foreign) == 0 {
		return nil
	}
	why, _ := outer.Explain()
	fix := `do what the check "jail: uids" says`
	switch {
	case !outer.Inside:
		why, fix = "the server is in no outer namespace: "+why, `do what the check "outer namespace" says`
	case outer.HasRange:
		why, fix = "/etc/subuid or /etc/subgid gives the user other ids than before", "restore the earlier range there"
	}
	return []sandbox.Check{{
		Name: "files", Status: sandbox.Warn,
		Detail: fmt.Sprintf("%s (closed ones included) cannot be used, because their files belong to subordinate ids that this server lacks: %s",
			counted(len(foreign), "session", "sessions"), why),
		Fix: fmt.Sprintf("%s; or stop all servers on this data directory, and run sudo chown -hR %d:%d %s", fix, userns.UID(), userns.GID(), root),
	}}
}

func checkRunners(set runner.Set, problems []runner.Problem, install string) (checks []sandbox.Check) {
	for _, r := range set {
		c := sandbox.Check{Name: r.Name, Detail: r.Version}
		if r.ImageID != "" {
			c.Detail = strings.TrimSpace(c.Detail + " in " + r.Image)
		}
		if r.Wrapper != "" {
			c.Detail += ", isolates itself: " + r.Wrapper
			if userns.UID() == 0 {
				c.Detail += fmt.Sprintf(" (started as uid %d)", wrapper.UID)
			}
		}
		checks = append(checks, c)
	}
	for _, p := range problems {
		checks = append(checks, sandbox.Check{Name: p.Runner, Status: sandbox.Warn, Detail: p.Problem, Fix: p.Fix})
	}
	if len(set) == 0 {
		checks = append(checks, sandbox.Check{Name: "runners", Status: sandbox.Fail, Detail: errNoRunners.Error(), Fix: install})
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
	case isOurs(ctx, addr) && s.HTTPAddr != "":
		c.Detail = addr + " is served by another mcp-code-sandbox; another serve needs another MCP_HTTP_ADDR"
	case isOurs(ctx, addr):
		c.Detail = addr + " is served by another mcp-code-sandbox; a further one takes a free port"
	case s.addrIsDefault() && errors.Is(err, syscall.EADDRINUSE):
		c.Status, c.Detail, c.Fix = sandbox.Warn, addr+" is taken by another program; serve takes a free port instead", s.fixPort()
	default:
		c.Status, c.Detail, c.Fix = sandbox.Fail, err.Error(), s.fixPort()
	}
	return c
}

var statusNames = map[sandbox.Status]string{sandbox.OK: "ok", sandbox.Warn: "WARN", sandbox.Fail: "FAIL"}

func printChecks(w io.Writer, checks []sandbox.Check) {
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Name))
	}
	var long []sandbox.Check // with a fix to paste, which indenting would break
	for _, c := range checks {
		fmt.Fprintf(w, "%-4s  %-*s  %s\n", statusNames[c.Status], width, c.Name, strings.ReplaceAll(strings.TrimSpace(c.Detail), "\n", " "))
		fix := c.Fix
		if strings.Contains(fix, "\n") {
			fix = "see below"
			long = append(long, c)
		}
		if fix != "" {
			fmt.Fprintf(w, "%*s  fix: %s\n", 6+width, "", fix)
		}
	}
	for _, c := range long {
		fmt.Fprintf(w, "\nTo fix %s:\n\n%s\n", c.Name, strings.TrimSpace(c.Fix))
	}
}
