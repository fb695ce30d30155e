package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/httpconn"
	"mcp-code-sandbox/internal/logging"
	"mcp-code-sandbox/internal/packages"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/serviceconfig"
	"mcp-code-sandbox/internal/session"
)

// packageCache returns the directory of the mirror's files. Sessions are directories of the root
// that have "files", so it is not one level below.
func packageCache(s *settings) string { return filepath.Join(s.Root, "cache", "packages") }

// openPackages returns the package mirror, or nil if packages are off.
func (a *app) openPackages(ctx context.Context, file *serviceconfig.File, trail *audit.Trail) (*packages.Mirror, error) {
	cfg, warnings, err := packageConfig(ctx, a.settings, a.env, file, a.log)
	for _, w := range warnings {
		a.log.Warn("packages: " + w)
	}
	if cfg == nil || err != nil {
		return nil, err
	}
	cfg.Closed, cfg.Audit, cfg.Registerer = a.isolation.closed, trail, a.metrics
	cfg.User = func(caller string) string {
		if a.services == nil {
			return ""
		}
		return a.services.email(caller)
	}
	m, err := newMirror(*cfg)
	if err == nil {
		a.closeLast(m)
	}
	return m, err
}

// newMirror is packages.New. Its error says what to do if the cache cannot be made.
func newMirror(cfg packages.Config) (*packages.Mirror, error) {
	m, err := packages.New(cfg)
	if denied, ok := errors.AsType[*fs.PathError](err); ok && errors.Is(err, fs.ErrPermission) && strings.HasPrefix(denied.Path, filepath.Dir(cfg.CacheDir)) {
		err = fmt.Errorf("%w (make %s writable for the server's user with chown)", err, filepath.Dir(cfg.CacheDir))
	}
	return m, err
}

// packageConfig returns what the settings and the configuration file say of packages, or nil if
// packages are off, and warnings that say what to do.
func packageConfig(ctx context.Context, s *settings, env map[string]string, file *serviceconfig.File, log *slog.Logger) (_ *packages.Config, warnings []string, err error) {
	section := file.Packages
	if section == nil {
		section = serviceconfig.DefaultPackages()
	}
	if section.Enable(s.Packages); len(section.Kinds) == 0 {
		return nil, nil, nil
	}
	warnings = section.Warnings()
	host := packages.Host{Env: env, ReadFile: os.ReadFile}
	err = section.Complete(func(kind string) ([]packages.Index, error) {
		list, more, err := host.Indexes(ctx, kind)
		for _, w := range more {
			if !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		}
		return list, err
	})
	return &packages.Config{
		Kinds: section.Kinds, MinAge: section.MinAge, WheelsOnly: section.WheelsOnly, CacheBytes: section.CacheBytes,
		CacheDir: packageCache(s), Logger: log,
	}, warnings, err
}

// configuredPackages is packageConfig for commands that have no app.
func configuredPackages(ctx context.Context, inv *invocation, log *slog.Logger) (cfg *packages.Config, warnings []string, err error) {
	file := &serviceconfig.File{}
	if name := inv.settings.Config; name != "" {
		if file, err = loadServices(name, inv.env); err != nil {
			return nil, nil, fmt.Errorf("SANDBOX_CONFIG: %w", err)
		}
	}
	cfg, warnings, err = packageConfig(ctx, inv.settings, inv.env, file, log)
	if cfg != nil {
		cfg.Closed = closednet.New(ctx, closednet.Config{Deny: prefixes(inv.settings.NetworkDeny)})
	}
	return cfg, warnings, err
}

// packageAccess is the executor's view of the mirror.
type packageAccess struct{ *packages.Mirror }

var _ executor.Packages = packageAccess{}

func packageGranter(m *packages.Mirror) executor.Packages {
	if m == nil {
		return nil
	}
	return packageAccess{m}
}

func (g packageAccess) Grant(caller session.Caller, runID, sandboxID string) executor.Grant {
	return executor.Grant{Env: g.Mirror.Grant(caller.ID, runID, sandboxID)}
}

func (g packageAccess) Release(runID string, unmet []string) (list []executor.PackageProblem) {
	for _, p := range g.Mirror.Release(runID, unmet...) {
		list = append(list, executor.PackageProblem{Code: p.Code, Package: p.Package, Message: p.Message, Soft: p.Soft})
	}
	return list
}

type packagesCmd struct {
	Cache packagesCacheCmd `cmd:"" help:"Show how much the cache of packages holds."`
}

type packagesCacheCmd struct {
	Purge bool `help:"Remove all files from the cache."`
}

// Run shows or empties the cache. Running servers download again what they need.
func (c *packagesCacheCmd) Run(inv *invocation) error {
	dir := packageCache(inv.settings)
	n, bytes, err := packages.Usage(dir)
	if err != nil {
		return explainDenied(err)
	}
	amount := fmt.Sprintf("%s, %.1f MB", counted(n, "file", "files"), float64(bytes)/(1<<20))
	if c.Purge {
		if err := packages.Purge(dir); err != nil {
			return explainDenied(err)
		}
		fmt.Fprintf(inv.stdout, "removed %s from %s\n", amount, dir)
		return nil
	}
	fmt.Fprintf(inv.stdout, "%s holds %s\n", dir, amount)
	return nil
}

// checkPackages reports for doctor whether the indexes answer, and whether code can install from
// them.
func checkPackages(ctx context.Context, inv *invocation, set runner.Set) (checks []sandbox.Check) {
	cfg, warnings, err := configuredPackages(ctx, inv, discard)
	if cfg == nil && err == nil {
		return nil
	}
	for _, w := range warnings {
		checks = append(checks, sandbox.Check{Name: "packages", Status: sandbox.Warn, Detail: w, Fix: "see docs/packages.md"})
	}
	if err != nil { // the server would not start
		return append(checks, sandbox.Check{Name: "packages", Status: sandbox.Fail, Detail: err.Error(), Fix: "see docs/packages.md; SANDBOX_CONFIG can name another index"})
	}
	checks = append(checks, checkCache(inv.settings, cfg)...)
	return append(checks, checkIndexes(ctx, cfg, set)...)
}

// checkCache checks the directory of the mirror's files and its disk.
func checkCache(s *settings, cfg *packages.Config) []sandbox.Check {
	_, held, _ := packages.Usage(cfg.CacheDir) // an unreadable one is not writable either
	limit := cmp.Or(cfg.CacheBytes, packages.DefaultCacheBytes)
	return doctor.System().CheckCache(cfg.CacheDir, filepath.Join(s.Root, "keys"), held, limit)
}

// checkIndexes asks the indexes. It leaves the cache alone: doctor may run as another user than the
// server, who could not write to a cache that it made.
func checkIndexes(ctx context.Context, cfg *packages.Config, set runner.Set) []sandbox.Check {
	c := sandbox.Check{Name: "packages"}
	own := *cfg
	var err error
	if own.CacheDir, err = os.MkdirTemp("", "mcp-code-sandbox-doctor-*"); err != nil {
		c.Status, c.Detail, c.Fix = sandbox.Fail, err.Error(), "make the directory for temporary files writable, or set TMPDIR"
		return []sandbox.Check{c}
	}
	defer os.RemoveAll(own.CacheDir)
	m, err := packages.New(own)
	if err != nil { // the server would not start
		c.Status, c.Detail, c.Fix = sandbox.Fail, err.Error(), "see docs/packages.md; SANDBOX_CONFIG can name another index"
		return []sandbox.Check{c}
	}
	defer m.Close()
	unused := unusedKinds(m.Indexes(), set)
	switch err := m.Check(ctx); {
	case err != nil:
		c.Status, c.Detail, c.Fix = sandbox.Warn, strings.ReplaceAll(err.Error(), "\n", "; "),
			"correct the address or the credential of the index (docs/packages.md), or find out why this host cannot reach it"
		if errors.Is(err, packages.ErrAgeUnknown) {
			c.Fix = `use an index that has upload times, or accept releases of any age: "minAge": 0 in the entry of a private index, or in the section packages for all indexes`
		}
	case len(unused) > 0:
		c.Status, c.Detail, c.Fix = sandbox.Warn, "no environment can install packages of "+strings.Join(unused, ", ")+", because its libraries are missing",
			"mcp-code-sandbox runners install"
	default:
		open := slices.DeleteFunc(m.Indexes(), func(kind string) bool { return cfg.Kinds[kind].IsShut(kind) })
		if len(open) == 0 { // a warning says so
			return nil
		}
		c.Detail = "code can install them from " + strings.Join(open, ", ")
	}
	return []sandbox.Check{c}
}

// unusedKinds returns the kinds of packages that no environment can install.
func unusedKinds(kinds []string, set runner.Set) (unused []string) {
	for _, kind := range kinds {
		installs := func(r runner.Runner) bool {
			return slices.ContainsFunc(r.PackageDirs(), func(d runner.PackageDir) bool { return d.Index == kind })
		}
		if !slices.ContainsFunc(set, installs) {
			unused = append(unused, kind)
		}
	}
	return unused
}

// installBudget is for the operator's own runners, which may be large.
var installBudget = packages.Budget{Requests: 1_000_000, Bytes: 1 << 40, UnknownNames: 10_000}

// onlyMirror returns variables that keep pip and npm from other indexes, which the host's files may
// name, and from the host's proxies. Without a mirror of its kind, a program uses the host's index.
func onlyMirror(cfg *packages.Config, env map[string]string) map[string]string {
	only := map[string]string{}
	for _, name := range []string{"no_proxy", "NO_PROXY"} {
		only[name] = strings.TrimPrefix(env[name]+",127.0.0.1", ",")
	}
	if _, ok := cfg.Kinds[packages.PyPI]; ok {
		only["PIP_CONFIG_FILE"], only["PIP_PROXY"] = os.DevNull, ""
	}
	if _, ok := cfg.Kinds[packages.NPM]; ok {
		// npm refuses to read one file twice.
		only["npm_config_userconfig"], only["npm_config_globalconfig"] = os.DevNull, filepath.Join(cfg.CacheDir, "no-npmrc")
	}
	return only
}

// throughMirror makes the installation of the operator's own runners use the mirror, if there are
// any and packages are on. The audit trail has its requests. stop ends it and reports what the
// mirror refused.
func throughMirror(ctx context.Context, inv *invocation, src runner.Sources) (_ runner.Sources, stop func(func(string, ...any)), err error) {
	if own, _ := filepath.Glob(filepath.Join(src.Own, "*", "runner.json")); len(own) == 0 {
		return src, func(func(string, ...any)) {}, nil
	}
	log, _ := logging.New(logging.Config{Level: slog.LevelWarn, Out: inv.stderr})
	cfg, warnings, err := configuredPackages(ctx, inv, log)
	for _, w := range warnings {
		log.Warn("packages: " + w)
	}
	if cfg == nil || err != nil {
		return src, func(func(string, ...any)) {}, err
	}
	cfg.Budget = installBudget
	trail, err := audit.Open(filepath.Join(inv.settings.Root, auditFile))
	if err != nil {
		return src, nil, err
	}
	cfg.Audit = trail
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return src, nil, errors.Join(err, trail.Close())
	}
	secretPath := "/" + rand.Text() // other users of this host must not use the index's credential
	cfg.Base = "http://" + listener.Addr().String() + secretPath + "/packages"
	m, err := newMirror(*cfg)
	if err != nil {
		return src, nil, errors.Join(err, listener.Close(), trail.Close())
	}
	const self = "runners install" // the execution in the audit trail
	src.Env = maps.Clone(src.Env)
	maps.Copy(src.Env, m.Grant("operator", self, self))
	maps.Copy(src.Env, onlyMirror(cfg, src.Env))
	server := &http.Server{ReadHeaderTimeout: httpconn.HeaderTimeout, Handler: http.StripPrefix(secretPath,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.ServeSandbox(w, r, self) }))}
	go server.Serve(listener)
	return src, func(report func(string, ...any)) {
		for _, p := range m.Release(self) {
			report("%s: %s", p.Package, p.Message)
		}
		_ = server.Close()
		_ = m.Close()
		_ = trail.Close()
	}, nil
}
