package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mcp-code-sandbox/internal/control"
	"mcp-code-sandbox/internal/door"
	"mcp-code-sandbox/internal/egress"
	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/logging"
	"mcp-code-sandbox/internal/packages"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/signedurl"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/userns"
	"mcp-code-sandbox/internal/workspace"
)

// closeTimeout bounds a shutdown. The kernel and the next start clean up after a longer one.
const closeTimeout = 10 * time.Second

// app holds the parts that every command that runs code needs.
type app struct {
	settings *settings
	env      map[string]string
	log      *slog.Logger
	keys     keys
	instance *instance.Instance
	store    *store.Store
	metrics  *prometheus.Registry

	isolation    isolation
	environments environments
	services     *services        // nil if none are configured
	egress       *egress.Egress   // nil if code reaches no host by name
	packages     *packages.Mirror // nil: code installs none
	door         *door.Door       // nil if it leads nowhere
	signer       *signedurl.Signer
	sessions     *session.Manager
	executor     *executor.Executor

	stopping atomic.Bool // it takes no new sessions

	tasks   *tasks
	closers []func(context.Context) error // last first
}

// newApp opens every part. baseURL is the address that file links start with. On error nothing is
// left behind.
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
	a.openLog(inv.stderr)
	if a.keys, err = loadKeys(s); err != nil {
		return nil, err
	}
	if a.instance, err = instance.Acquire(s.Root); err != nil {
		return nil, err
	}
	a.closeLast(a.instance)
	if err := a.openIsolation(ctx, inv); err != nil {
		return nil, err
	}
	if a.store, err = store.Open(ctx, s.database()); err != nil {
		return nil, err
	}
	a.closeLast(a.store)
	if !s.DatabaseURL.IsZero() {
		a.log.Info("database opened", "database", a.store.String())
		if unused := filepath.Join(s.Root, stateFile); isFile(unused) {
			a.log.Warn(unused+" is not used: SANDBOX_DATABASE_URL is set", "fix", "copy it with mcp-code-sandbox store copy if that was not done, then remove it")
		}
	}
	a.signer = signedurl.New([]byte(a.keys.files.Reveal()), baseURL, s.URLTTL, a.store.Now)
	a.metrics = newMetrics(&a.isolation)
	if err := a.openDoor(ctx, baseURL); err != nil {
		return nil, err
	}
	a.environments = environments{settings: s, env: inv.env, catalogue: a.isolation.catalogue, log: a.log}
	if a.packages != nil {
		a.environments.indexes = a.packages.Indexes()
	}
	a.environments.change(a.environments.discover(ctx))
	a.openSessions()

	a.tasks = newTasks()
	a.onClose(a.tasks.close)
	a.tasks.start(a.keepClean)
	a.tasks.start(a.followImages)
	a.tasks.start(a.isolation.closed.Follow)
	a.addFlakes(ctx)
	return a, nil
}

func (a *app) openLog(stderr io.Writer) {
	s := a.settings
	log, file := logging.New(logging.Config{Level: slog.Level(s.LogLevel), JSON: s.LogFormat == "json", Out: stderr, File: s.LogFile})
	a.log = log
	a.closeLast(file)
	for _, w := range s.warnings(a.env) {
		log.Warn(w.name+": "+w.problem, "fix", w.fix)
	}
}

// openIsolation opens the backend, and a pool before it if the command wants one.
func (a *app) openIsolation(ctx context.Context, inv *invocation) error {
	s := a.settings
	a.isolation = newIsolation(ctx, s, a.instance, a.keys.installation, a.log)
	a.onClose(func(context.Context) error { a.isolation.close(); return nil })
	if err := a.isolation.check(ctx, s); err != nil {
		return err
	}
	if inv.keepReady {
		a.isolation.keepReady(s, a.instance.Dir(), a.log)
	}
	if p := a.isolation.pool; p != nil {
		a.onClose(p.Close)
	}
	a.log.Info("isolation chosen", "backend", a.isolation.name, "why", a.isolation.why)
	if problem, fix := userns.Current().Explain(); problem != "" && a.isolation.name == backendJail {
		a.log.Info("sandboxes are slower or share more than with root's server; mcp-code-sandbox doctor says why", "problem", problem, "fix", fix)
	}
	if note := a.isolation.ignoredSetting(s, a.env); note != "" {
		a.log.Warn(note, "fix", fixIgnored)
	}
	return nil
}

// openSessions makes the sessions, the executor that runs code in them, and the operator's control
// of both.
func (a *app) openSessions() {
	s := a.settings
	quota := workspace.Usage{Bytes: int64(s.WorkspaceBytes), Files: s.WorkspaceFiles}
	a.sessions = session.New(session.Config{
		Root: s.Root, InstallationKey: []byte(a.keys.installation.Reveal()),
		Backend: a.isolation.sessions, Owner: a.isolation.owner, MakeWorkspace: a.isolation.makeWorkspace(), Dial: a.dial(),
		Limits: sandbox.Limits{
			MemoryBytes: int64(s.MemoryLimit), CPUs: s.CPULimit, PIDs: s.PIDsLimit, TmpBytes: int64(s.TmpBytes),
			// Above the quota: a file that reaches this size has exceeded it.
			FileBytes: int64(s.WorkspaceBytes) + 4096,
		},
		Quota: quota, CallerBytes: int64(s.CallerBytes), CallerFiles: s.CallerFiles, CallerSessions: s.CallerSessions,
		MaxSessions: s.MaxSessions, MaxRunsPerSession: s.MaxRunsPerSession, EvictIdle: s.EvictIdle,
		IdleTTL: s.idleTTL(), MaxLifetime: s.MaxLifetime, CleanupInterval: s.CleanupInterval,
		ClosedRetention: s.ClosedRetention, OutputLimit: outputStop, Logger: a.log,
	})
	a.onClose(a.sessions.Close)
	a.executor = executor.New(executor.Config{
		Sessions: a.sessions, Runners: a.environments.runners, Services: a.services.granter(), Hosts: a.hosts(), Packages: packageGranter(a.packages), Signer: a.signer, Store: a.store,
		ExecTimeout: s.ExecTimeout, MaxExecTimeout: s.maxExecTimeout(), MaxCodeBytes: int(s.MaxCodeBytes),
		MaxOutputBytes: int(s.MaxOutputBytes), SpoolAfter: int(min(s.ResultBytes, s.MaxOutputBytes)), ResultMemory: int64(s.ResultMemory.byteSize), MaxUploadBytes: int(s.MaxUploadBytes),
		MaxReadBytes: int(s.MaxReadBytes), Quota: quota, NetworkAllowed: s.Network == networkFull, UploadTTL: uploadTTL,
		Instance: a.instance.ID(), Alive: func(id string) bool { return instance.Alive(s.Root, id) },
		Metrics: executor.NewMetrics(a.metrics), Logger: a.log,
	})
	a.onClose(a.executor.Close) // before the sessions: background runs close their own
	for name, pool := range a.executor.Shares() {
		a.showShares(name, pool)
	}
	if c, err := control.Serve(a.instance.Dir(), a.sessions, a.log); err != nil {
		a.log.Warn("mcp-code-sandbox sessions cannot reach this server", "error", err)
	} else {
		a.closeLast(c)
	}
}

func (a *app) onClose(f func(context.Context) error) { a.closers = append(a.closers, f) }

// closeLast makes Close close c after everything that is opened later.
func (a *app) closeLast(c io.Closer) {
	a.onClose(func(context.Context) error { return c.Close() })
}

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

// keys are the installation's secrets.
type keys struct {
	installation secret.Value // names session directories
	token        secret.Value
	tokenIsOurs  bool // generated, so the server may show it to the operator
	files        secret.Value
}

// loadKeys returns the operator's secrets, and generates and stores the others.
func loadKeys(s *settings) (keys, error) {
	var errs []error
	load := func(chosen secret.Value, name string) secret.Value {
		if !chosen.IsZero() {
			return chosen
		}
		value, _, err := secret.Load(filepath.Join(s.Root, "keys"), name)
		errs = append(errs, err)
		return value
	}
	k := keys{
		installation: load(secret.Value{}, "installation"), token: load(s.APIToken, "api-token"), tokenIsOurs: s.APIToken.IsZero(),
		files: load(s.FileSecret, "file-secret"),
	}
	return k, errors.Join(errs...)
}

// installationName identifies the containers of one installation without revealing its key.
func installationName(key secret.Value) string {
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte("name of the installation"))
	return hex.EncodeToString(mac.Sum(nil)[:12])
}
