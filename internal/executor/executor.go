// Package executor is the use case of the program: run a piece of code in a caller's session and hand back
// its output and files; put files into a session and get them out.
//
// It checks requests, finds the runner, has the session run the code, lists and signs the files, and
// records and counts what happened. It knows no MCP and no HTTP.
package executor

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/signedurl"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/workspace"
)

const (
	maxListed    = 200  // files in a run's result
	maxArtifacts = 1000 // files in a list of their own
)

// Config is what an Executor needs.
type Config struct {
	Sessions *session.Manager
	Runners  func() runner.Set // what can be used now
	Signer   *signedurl.Signer
	Store    *store.Store // nil: runs are not recorded and there are no upload links
	Logger   *slog.Logger // nil: silent
	Metrics  *Metrics     // nil: nothing is counted
	Services Services     // nil: there are none

	ExecTimeout    time.Duration // of a run that does not ask for more
	MaxExecTimeout time.Duration // of a run that does
	MaxCodeBytes   int
	MaxOutputBytes int // kept of each stream
	MaxUploadBytes int
	MaxReadBytes   int             // of a file that ReadArtifact reads; zero: 10 MB
	Quota          workspace.Usage // of one workspace
	NetworkAllowed bool
	UploadTTL      time.Duration // how long an upload link works; zero: an hour

	// ResultMemory is the most that results hold in memory, shared among callers. Zero: there is no such limit.
	ResultMemory int64

	Instance string               // names this process among those that share the store
	Alive    func(id string) bool // whether another process of that name is; nil: none is
}

// Executor runs code and moves files. Its methods are safe for concurrent use.
type Executor struct {
	cfg    Config
	log    *slog.Logger
	ids    runIDs
	record *recorder
	runs   runs
	memory *share.Pool // of results, in bytes; nil: no limit
	reads  *share.Pool // see beginRead

	activity activity
}

// New returns an Executor. Close ends it; the session manager and the store it was given outlive it.
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
		e.record = newRecorder(cfg.Store, e.log)
	}
	cfg.Metrics.observe(cfg.Sessions.Stats)
	return e
}

// Close ends background runs, and returns when they have ended and the records and results of all runs are written, or ctx is
// done. Other runs must have ended.
func (e *Executor) Close(ctx context.Context) error {
	err := e.runs.close(ctx)
	if e.record == nil {
		return err
	}
	return errors.Join(err, e.record.close(ctx))
}

// Shares returns what callers share, by name.
func (e *Executor) Shares() map[string]*share.Pool {
	shares := map[string]*share.Pool{"reads": e.reads}
	if e.memory != nil {
		shares["result_bytes"] = e.memory
	}
	return shares
}

// Runners returns the language environments that can be used now.
func (e *Executor) Runners() runner.Set { return e.cfg.Runners() }

// execute carries out a run that has been checked.
func (e *Executor) execute(ctx context.Context, log *slog.Logger, run *run, r runner.Runner, req Request) (Result, error) {
	caller := run.caller
	res := Result{RunID: run.id, Session: req.Session, Runner: r.Name, Tool: req.Tool, Started: run.started, Timeout: req.Timeout,
		Persistent: req.Persistent, Once: req.Once}
	req.Observer.Started(run.id, r)

	s, err := e.cfg.Sessions.Open(caller, req.Session)
	if err != nil {
		return Result{}, e.failed(ctx, log, run, r, res, err)
	}
	defer s.Release()
	changed := false
	defer func() { e.activity.used(caller, s.ID(), changed) }()
	req.Observer.Opened(s.Key())

	if req.Artifacts && !req.Persistent { // those wait for each other
		release, err := s.Reserve()
		if err != nil {
			return Result{}, e.failed(ctx, log, run, r, res, err)
		}
		defer release()
	}

	stdout, stderr := newCollector(e.cfg.MaxOutputBytes, &run.memory), newCollector(e.cfg.MaxOutputBytes, &run.memory)
	shown := map[session.Stream]*redactor{
		session.Stdout: {out: func(p []byte) { stdout.write(p); run.output(Stdout, p) }},
		session.Stderr: {out: func(p []byte) { stderr.write(p); run.output(Stderr, p) }},
	}
	displays := displays{memory: &run.memory, redact: shown[session.Stdout].redact}
	release := sync.OnceFunc(func() { e.release(run, req) })
	defer release() // also when it panics
	var shownImages images
	sres, err := s.Run(ctx, r, session.RunRequest{
		ID: run.id, KeepWaiting: run.isBackground, Background: run.isBackground,
		Queued: func(b *session.Behind) {
			if b == nil {
				res.Started = time.Now()
				run.wait(nil)
				return
			}
			run.wait(&waits{*b, e.runs.tool(b.RunID)})
		},
		Code: req.Code, Env: req.Env, Network: req.Network, Timeout: res.Timeout, Persistent: req.Persistent,
		Files: maxListed, Changes: req.Artifacts,
		Grant: e.grant(run, req, func(secrets []string) {
			shown[session.Stdout].hide(secrets)
			shown[session.Stderr].hide(secrets)
		}),
		Started: run.begin,
		Display: displays.add,
		Ended:   func() { shownImages = e.keepImages(ctx, log, s, run.id, displays.list) },
		Output:  func(s session.Stream, p []byte) { shown[s].write(p) },
	})
	release()
	shown[session.Stdout].flush()
	shown[session.Stderr].flush()
	if err != nil {
		return Result{}, e.failed(ctx, log, run, r, res, err)
	}
	if run.queue() == nil { // otherwise it was cancelled before its turn
		res.Duration = time.Since(res.Started)
	}
	res.ExitCode, res.Signal, res.Cause = sres.ExitCode, sres.Signal, sres.Cause
	res.NotStarted, res.MaxRSSBytes = !sres.Started, sres.MaxRSSBytes
	res.StateLost, res.Forgotten, res.Evicted = sres.StateLost, sres.Forgotten, sres.Evicted
	res.Switched, res.Network = sres.Switched, req.Network
	res.Preemption, res.Operator = sres.Preemption, sres.Operator
	if res.Cause == sandbox.CauseCancelled && errors.Is(context.Cause(ctx), errStopped) {
		res.Cause, res.Stopped, res.StateLost = sandbox.CauseLost, true, req.Persistent
	}
	run.memory.fix(func() { e.runs.forget(run) }, stdout.hold, stderr.hold)
	res.Displays, res.DisplaysDropped, res.DisplaysBeyond = displays.list, displays.dropped, displays.beyond
	res.Stdout, res.StdoutTruncated = stdout.bytes()
	res.Stderr, res.StderrTruncated = stderr.bytes()
	res.stdoutTotal, res.stderrTotal = stdout.total, stderr.total
	res.callerFull, res.diskShort, res.oomKilled = sres.CallerFull, sres.DiskShort, sres.OOMKilled
	res.diskFull = !res.Success() && s.DiskIsFull()
	if sres.CallerBound {
		res.callerBytes = e.Storage(caller).MaxBytes
	}
	res.Hint = strings.TrimSpace(e.hint(res, r, req.Network) + " " + e.imagesHint(shownImages))
	req.Observer.Ended(res)
	e.cfg.Metrics.ran(caller, r.Name, outcome(res), res.Duration, stdout.total+stderr.total)
	files, truncated := e.files(ctx, log, s, req, sres.Scan)
	if images := shownImages.files; len(images) > 0 {
		files = append(images, files...)
		files, truncated = files[:min(len(files), maxListed)], truncated || len(files) > maxListed
	}
	changed = sres.Scan == nil || len(files) > 0 && (req.Artifacts || !files[0].ModTime.Before(res.Started.Add(-clockSlack)))
	if req.Artifacts && !req.FailedArtifacts && res.ExitCode != 0 {
		return res, nil
	}
	res.Files, res.FilesTruncated = e.links(caller, res.Session, files), truncated
	req.Observer.Listed(res)
	return res, nil
}

// files are those that a run's result tells of. Where its sandbox was lost, nothing is known of what it changed.
func (e *Executor) files(ctx context.Context, log *slog.Logger, s *session.Session, req Request, scan *workspace.Scan) ([]workspace.File, bool) {
	if scan != nil {
		return scan.Files()
	}
	if req.Artifacts {
		return nil, true
	}
	files, truncated, err := s.Workspace().List(maxListed)
	if err != nil {
		// The run has happened: its output must not be lost with the list.
		log.ErrorContext(ctx, "cannot list the files of the sandbox", "err", err)
		return nil, true
	}
	return files, truncated
}

// failed accounts for a run that could not be tried. Whoever waits for a run that is refused on a full server logs that.
func (e *Executor) failed(ctx context.Context, log *slog.Logger, run *run, r runner.Runner, res Result, err error) error {
	wrapped := e.wrap(err)
	outcome := "error"
	if e.cfg.Metrics.refused(run.caller, wrapped) {
		outcome = "refused"
	}
	e.cfg.Metrics.ran(run.caller, r.Name, outcome, time.Since(res.Started), 0)
	if run.isBackground() || !errors.Is(err, session.ErrMaxSessions) {
		log.WarnContext(ctx, "execution failed", "err", err)
	}
	return wrapped
}

func outcome(res Result) string {
	switch {
	case res.Success():
		return "success"
	case res.Cause != "":
		return string(res.Cause)
	}
	return "failure"
}

func (e *Executor) links(caller session.Caller, id string, files []workspace.File) []FileLink {
	links := make([]FileLink, len(files))
	linkID := e.linkID(caller, id)
	for i, f := range files {
		links[i] = FileLink{File: f, Session: id, URL: e.cfg.Signer.FileURL(linkID, f.Name)}
	}
	return links
}

// url is where a file can be downloaded.
func (e *Executor) url(caller session.Caller, id, name string) string {
	return e.cfg.Signer.FileURL(e.linkID(caller, id), name)
}

// linkID is how links name a session: the local caller's by its id, any other's by its key, since ids are each caller's own,
// and its generation, so that a link ends with the session. No id begins as a key does.
func (e *Executor) linkID(caller session.Caller, id string) string {
	if caller == session.Local {
		return id
	}
	return keyPrefix + e.cfg.Sessions.Key(caller, id) + generationMark + e.cfg.Sessions.Generation(caller, id)
}

const (
	keyPrefix      = "~"
	generationMark = "."
)
