package executor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/signedurl"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("database/sql.(*DB).connectionOpener"))
}

var python = runner.Runner{Image: "jail:python", Definition: runner.Definition{
	Name: "python", Aliases: []string{"py"}, File: "main.py", Argv: []string{"python3", "{file}"}, Libraries: []string{"numpy", "pandas"},
}}

// keeping is python with an interpreter that keeps its state.
var keeping = func() runner.Runner {
	r := python
	r.Persistent = []string{"python3", "{driver}"}
	return r
}()

// keepState configures keeping as the only runner.
func keepState(c *Config) {
	c.MaxExecTimeout = time.Hour
	c.Runners = func() runner.Set { return runner.Set{keeping} }
}

var (
	ann     = session.Caller{ID: "ann"}
	bob     = session.Caller{ID: "bob"}
	mallory = session.Caller{ID: "mallory"}
)

// rig is an executor on the fake backend, with a real store, signer and root.
type rig struct {
	*Executor
	root    string
	backend *sessiontest.Backend
	store   *store.Store
	signer  *signedurl.Signer
	reg     *prometheus.Registry
	log     *bytes.Buffer
}

func newRig(tb testing.TB, program func(*sessiontest.Process) wire.Exit, change func(*Config)) *rig {
	tb.Helper()
	r := &rig{root: tb.TempDir(), backend: &sessiontest.Backend{Program: program},
		signer: signedurl.New([]byte("secret"), "http://host:1", 0, nil), reg: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	var err error
	if r.store, err = store.Open(tb.Context(), filepath.Join(tb.TempDir(), "state.db")); err != nil {
		tb.Fatal(err)
	}
	sessions := session.New(session.Config{Root: r.root, InstallationKey: []byte("key"), Backend: r.backend,
		Owner: workspace.Owner{UID: -1, GID: -1}, MaxSessions: 2, MaxRunsPerSession: 2, ClosedRetention: time.Hour,
		Limits: sandbox.Limits{MemoryBytes: 512 << 20, PIDs: 64, TmpBytes: 64 << 20}})
	cfg := Config{
		Sessions: sessions, Runners: func() runner.Set { return runner.Set{python} }, Signer: r.signer, Store: r.store,
		Logger:  slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics: NewMetrics(r.reg), ExecTimeout: time.Minute, MaxCodeBytes: 1000, MaxOutputBytes: 1000, MaxUploadBytes: 1000,
		Quota: workspace.Usage{Bytes: 1 << 20, Files: 100},
	}
	if change != nil {
		change(&cfg)
	}
	r.Executor = New(cfg)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(sessions.Close(ctx), r.Close(ctx), r.store.Close()); err != nil {
			tb.Error(err)
		}
	})
	return r
}

// mustRun runs code that must not be refused.
func (r *rig) mustRun(tb testing.TB, caller session.Caller, req Request) Result {
	tb.Helper()
	res, err := r.Run(tb.Context(), caller, req)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

// mustWait waits for a run that must exist.
func (r *rig) mustWait(tb testing.TB, caller session.Caller, id string, req WaitRequest) Result {
	tb.Helper()
	res, err := r.WaitRun(tb.Context(), caller, id, req)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

// follow reads the file of a download link, as the server does. The error is OpenLink's.
func (r *rig) follow(tb testing.TB, link string) (string, error) {
	tb.Helper()
	u, err := url.Parse(link)
	if err != nil {
		tb.Fatal(err)
	}
	id, name, err := signedurl.ParsePath(u.EscapedPath())
	if err == nil {
		err = r.signer.Verify(id, name, u.Query())
	}
	if err != nil {
		tb.Fatalf("%s: %v", link, err)
	}
	f, _, err := r.OpenLink(id, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b), nil
}
