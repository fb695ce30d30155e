// Package executor is the program's use case: it runs code in a caller's session, returns its
// output and files, and moves files into and out of sessions.
//
// It checks requests, finds the runner, has the session run the code, lists and signs the files,
// and records and counts what happened. It knows no MCP, no HTTP and no wire protocol. A run's
// path, from the request to the stored result, is in run.go.
package executor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/signedurl"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/workspace"
)

// Config configures an Executor.
type Config struct {
	Sessions *session.Manager
	Runners  func() runner.Set // the runners that can be used now
	Signer   *signedurl.Signer
	Store    *store.Store // nil: no records, no background runs, no upload links
	Logger   *slog.Logger // nil: silent
	Metrics  *Metrics     // nil: nothing is counted
	Services Services     // nil: none
	Hosts    Hosts        // nil: code reaches no host by name
	Packages Packages     // nil: code installs no packages

	ExecTimeout    time.Duration // of a run that does not set one
	MaxExecTimeout time.Duration // the most that a run may set
	MaxCodeBytes   int
	MaxOutputBytes int // kept of each stream; zero: 100 KB
	SpoolAfter     int // what a run prints beyond this is kept in a file; zero: never
	MaxUploadBytes int
	MaxReadBytes   int             // the largest file that ReadArtifact reads; zero: 10 MB
	Quota          workspace.Usage // of one workspace
	NetworkAllowed bool            // a run may have the whole network
	UploadTTL      time.Duration   // how long an upload link works; zero: an hour

	// ResultMemory bounds the memory of results, which callers share. Zero: no limit.
	ResultMemory int64

	Instance string               // names this process among those that share the store
	Alive    func(id string) bool // whether another instance runs; nil: none does
}

// Executor runs code and moves files. Its methods are safe for concurrent use.
type Executor struct {
	cfg      Config
	log      *slog.Logger
	ids      runIDs
	recorder *recorder // nil without a store
	runs     runs
	memory   *share.Pool // bytes of results; nil: no limit
	reads    *share.Pool // turns to read files; see beginRead

	activity    activity
	fileChanges watchers
	runChanges  watchers

	packageStates packageStates
}

// New returns an Executor. The caller closes the session manager and the store after it.
func New(cfg Config) *Executor {
	e := &Executor{cfg: cfg, log: cfg.Logger, runs: runs{byID: map[string]*run{}}, reads: newReads()}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.cfg.UploadTTL <= 0 {
		e.cfg.UploadTTL = time.Hour
	}
	if e.cfg.MaxOutputBytes <= 0 {
		e.cfg.MaxOutputBytes = 100 << 10
	}
	if e.cfg.MaxReadBytes <= 0 {
		e.cfg.MaxReadBytes = 10 << 20
	}
	if cfg.ResultMemory > 0 {
		e.memory = share.New(share.Config{Capacity: cfg.ResultMemory, Exempt: session.Local.ID})
	}
	if cfg.Store != nil {
		e.recorder = newRecorder(cfg.Store, e.log)
	}
	cfg.Metrics.observe(cfg.Sessions.Stats)
	return e
}

// Drain refuses runs in sessions without a sandbox, and waits until no run is active or ctx is
// done.
func (e *Executor) Drain(ctx context.Context) {
	e.cfg.Sessions.Drain()
	e.runs.drain(ctx)
}

// Close ends background runs. It returns when they have ended and all records are written, or when
// ctx is done. Other runs must have ended before.
func (e *Executor) Close(ctx context.Context) error {
	err := e.runs.close(ctx)
	if e.recorder == nil {
		return err
	}
	return errors.Join(err, e.recorder.close(ctx))
}

// Shares returns the pools that callers share, by name.
func (e *Executor) Shares() map[string]*share.Pool {
	shares := map[string]*share.Pool{"reads": e.reads}
	if e.memory != nil {
		shares["result_bytes"] = e.memory
	}
	return shares
}

// Runners returns the language environments that can be used now.
func (e *Executor) Runners() runner.Set { return e.cfg.Runners() }
