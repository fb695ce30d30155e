package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/logging"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/signedurl"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/workspace"
)

const (
	// closeTimeout is how long ending may take before the rest is left to the kernel and the next start.
	closeTimeout = 10 * time.Second
	// recordRetention is how long the record of a run is kept.
	recordRetention = 30 * 24 * time.Hour
)

// app is the parts that every command that runs code needs, wired together once.
type app struct {
	settings *settings
	env      map[string]string
	log      *slog.Logger
	keys     keys
	signer   *signedurl.Signer
	executor *executor.Executor
	sessions *session.Manager
	metrics  http.Handler
	registry *prometheus.Registry // what metrics shows

	isolation    isolation
	environments environments
	services     *services // nil: there is no configuration file of any

	tasks    *tasks
	instance *instance.Instance
	store    *store.Store
	closers  []func(context.Context) error // last first
}

// keys are the installation's secrets.
type keys struct {
	installation secret.Value // names session directories
	token        secret.Value
	tokenIsOurs  bool // not the operator's: it may be shown to them
	files        secret.Value
}

// newApp builds the parts, for a server whose links start with baseURL. Whatever it made is gone when it fails.
func newApp(ctx context.Context, inv *invocation, baseURL string) (_ *app, err error) {
	s := inv.settings
	if err := makeRoot(s.Root); err != nil {
		return nil, err
	}
	a := &app{settings: s, env: inv.env}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	var logFile io.Closer
	a.log, logFile = logging.New(logging.Config{
		Level: slog.Level(s.LogLevel), JSON: s.LogFormat == "json", Out: inv.stderr, File: s.LogFile,
	})
	a.onClose(func(context.Context) error { return logFile.Close() })

	for _, w := range s.warnings(inv.env) {
		a.log.Warn(w.name+": "+w.problem, "fix", w.fix)
	}
	if a.keys, err = loadKeys(s); err != nil {
		return nil, err
	}
	if a.instance, err = instance.Acquire(s.Root); err != nil {
		return nil, err
	}
	a.onClose(func(context.Context) error { return a.instance.Close() })

	a.isolation = newIsolation(ctx, s, a.instance, a.keys.installation, a.log)
	a.onClose(func(context.Context) error { a.isolation.close(); return nil })
	if err := a.isolation.checkAsked(s); err != nil {
		return nil, err
	}
	if s.Backend == backendDocker {
		if err := a.isolation.reachEngine(ctx); err != nil {
			return nil, err
		}
	}
	if engine, ok := a.isolation.driver.(*docker.Backend); ok {
		if err := engine.CheckRuntime(ctx); err != nil {
			return nil, err
		}
	}
	if inv.keepReady {
		a.isolation.keepReady(s, a.instance.Dir(), a.log)
	}
	if p := a.isolation.pool; p != nil {
		a.onClose(p.Close)
	}
	a.log.Info("isolation chosen", "backend", a.isolation.name, "why", a.isolation.why)
	if note := a.isolation.ignored(s, inv.env); note != "" {
		a.log.Warn(note, "fix", fixIgnored)
	}

	if a.store, err = store.Open(ctx, filepath.Join(s.Root, "state.db")); err != nil {
		return nil, err
	}
	a.onClose(func(context.Context) error { return a.store.Close() })

	a.environments = environments{settings: s, env: inv.env, catalogue: a.isolation.catalogue, log: a.log}
	a.environments.change(a.environments.discover(ctx))
	a.signer = signedurl.New([]byte(a.keys.files.Reveal()), baseURL, time.Duration(s.URLTTL), time.Now)

	registry := prometheus.NewRegistry()
	a.registry = registry
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})

	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sandbox_ready_sandboxes", Help: "Sandboxes that wait for a session.",
	}, a.isolation.ready))
	if a.services, err = a.newServices(ctx, baseURL, registry); err != nil {
		return nil, err
	}

	quota := workspace.Usage{Bytes: int64(s.WorkspaceBytes), Files: s.WorkspaceFiles}
	a.sessions = session.New(session.Config{
		Root: s.Root, InstallationKey: []byte(a.keys.installation.Reveal()), Backend: a.isolation.sessions, Owner: a.isolation.owner,
		MakeWorkspace: a.isolation.makeWorkspace(),
		Limits: sandbox.Limits{
			MemoryBytes: int64(s.MemoryLimit), CPUs: s.CPULimit, PIDs: s.PIDsLimit,
			TmpBytes: int64(s.TmpBytes),
			// A little more than the quota, so that a file that is stopped by its size has exceeded it.
			FileBytes: int64(s.WorkspaceBytes) + 4096,
		},
		Quota: quota, CallerBytes: int64(s.CallerBytes), CallerFiles: s.CallerFiles, CallerSessions: s.CallerSessions, MaxSessions: s.MaxSessions, EvictIdle: time.Duration(s.EvictIdle), MaxRunsPerSession: s.MaxRunsPerSession,
		IdleTTL: s.idleTTL(), MaxLifetime: time.Duration(s.MaxLifetime), CleanupInterval: time.Duration(s.CleanupInterval),
		ClosedRetention: time.Duration(s.ClosedRetention), OutputLimit: outputStop, Logger: a.log,
		Dial: a.services.dial(),
	})
	a.executor = executor.New(executor.Config{
		Services: a.services.granter(),
		Sessions: a.sessions, Runners: a.environments.runners, Signer: a.signer, Store: a.store,
		Logger: a.log, Metrics: executor.NewMetrics(registry), ExecTimeout: time.Duration(s.ExecTimeout), MaxExecTimeout: s.maxExecTimeout(),
		MaxCodeBytes: int(s.MaxCodeBytes), MaxOutputBytes: int(s.MaxOutputBytes), ResultMemory: int64(s.ResultMemory.byteSize), MaxUploadBytes: int(s.MaxUploadBytes),
		MaxReadBytes: int(s.MaxReadBytes), Quota: quota, NetworkAllowed: s.Network != "off", UploadTTL: uploadTTL,
		Instance: a.instance.ID(), Alive: func(id string) bool { return instance.Alive(s.Root, id) },
	})
	for name, pool := range a.executor.Shares() {
		a.showShares(name, pool)
	}
	a.onClose(a.sessions.Close)
	a.onClose(a.executor.Close) // first: what runs in the background closes its own sessions
	a.serveControl()

	a.tasks = newTasks()
	a.onClose(a.tasks.close)
	a.tasks.start(a.keepClean)
	a.tasks.start(a.followImages)
	a.tasks.start(a.isolation.closed.Follow)
	a.addFlakes(ctx)
	return a, nil
}

func (a *app) onClose(f func(context.Context) error) { a.closers = append(a.closers, f) }

// Close ends every run and sandbox and leaves nothing behind.
func (a *app) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	for len(a.closers) > 0 {
		last := len(a.closers) - 1
		errs = append(errs, a.closers[last](ctx))
		a.closers = a.closers[:last]
	}
	return errors.Join(errs...)
}

// keepClean cleans up after dead instances and forgets old records, now and then at every interval.
func (a *app) keepClean(ctx context.Context) {
	tick := time.NewTicker(time.Duration(a.settings.CleanupInterval))
	defer tick.Stop()
	for {
		a.clean(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (a *app) clean(ctx context.Context) {
	dead, err := instance.Dead(a.settings.Root)
	if err != nil {
		a.log.Warn("cannot look for dead instances", "error", err)
	}
	isDead := map[string]bool{} // their locks are held by this instance
	for _, d := range dead {
		isDead[d.ID()] = true
	}
	err = a.isolation.Reap(ctx, func(id string) bool { return !isDead[id] && instance.Alive(a.settings.Root, id) })
	if err != nil && ctx.Err() == nil {
		a.log.Warn("cannot clean up after dead instances; trying again later", "error", err)
	}
	for _, d := range dead {
		if err != nil {
			d.Abandon()
			continue
		}
		if err := d.Close(); err != nil {
			a.log.Warn("cannot remove the directory of a dead instance", "instance", d.ID(), "error", err)
			continue
		}
		a.log.Info("cleaned up after a dead instance", "instance", d.ID())
	}
	if err := a.store.PurgeResults(ctx, time.Now().Add(-executor.ResultRetention), a.instance.ID()); err != nil && ctx.Err() == nil {
		a.log.Warn("cannot forget old results", "error", err)
	}
	if err := a.store.Purge(ctx, time.Now().Add(-recordRetention)); err != nil && ctx.Err() == nil {
		a.log.Warn("cannot forget old records", "error", err)
	}
}

// ready starts a sandbox, and says why if that cannot be done.
func (a *app) ready(ctx context.Context) error { return a.tasks.do(ctx, a.probe) }

func (a *app) probe(ctx context.Context) error {
	return a.judge(a.isolation.Probe(ctx))
}

// judge returns an error when the checks of the backend, or the lack of runners, say that no code can be run.
func (a *app) judge(checks []sandbox.Check) error {
	for _, c := range checks {
		if c.Status == sandbox.Fail {
			return &sandbox.Error{Op: c.Name, Err: errors.New(c.Detail), Fix: c.Fix}
		}
	}
	if len(a.environments.runners()) == 0 {
		return &sandbox.Error{Op: "find runners", Err: errors.New("no language environment can be used"), Fix: a.isolation.installFix(a.settings)}
	}
	return nil
}

// installationName tells the containers of one installation from another's. It tells nothing of the key.
func installationName(key secret.Value) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte("name of the installation"))
	return hex.EncodeToString(mac.Sum(nil)[:12])
}

// loadKeys takes the operator's secrets, and makes and keeps those that are not given.
func loadKeys(s *settings) (k keys, err error) {
	dir := filepath.Join(s.Root, "keys")
	if k.installation, _, err = secret.Load(dir, "installation"); err != nil {
		return k, err
	}
	if k.token = s.APIToken; k.token.IsZero() {
		k.tokenIsOurs = true
		if k.token, _, err = secret.Load(dir, "api-token"); err != nil {
			return k, err
		}
	}
	if k.files = s.FileSecret; k.files.IsZero() {
		if k.files, _, err = secret.Load(dir, "file-secret"); err != nil {
			return k, err
		}
	}
	return k, nil
}
