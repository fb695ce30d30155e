package tools

import (
	"fmt"
	"log/slog"
	"strings"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
)

// maxLoggedFiles bounds how many of a run's files the log names.
const maxLoggedFiles = 20

// runLog writes contract 2's log lines about one run.
type runLog struct {
	log     *slog.Logger
	session string
	network bool
	envVars int
	runner  string
}

var _ executor.Observer = (*runLog)(nil)

func (l *runLog) Started(runID string, r runner.Runner) {
	l.runner = r.Name
	l.log = l.log.With("session_id", l.session, "run_id", runID)
	l.log.Info("[MCP] Using runner: " + r.Image)
}

func (l *runLog) Opened(sessionKey string) {
	l.log.Debug("[MCP] Sandbox directory: " + sessionKey)
	l.log.Info(fmt.Sprintf("[MCP] Executing %s code for conversation %s (network: %t, env vars: %d)",
		l.runner, l.session, l.network, l.envVars))
}

func (l *runLog) Ended(res executor.Result) {
	l.log.Info(fmt.Sprintf("[MCP] Execution completed: success=%t, exitCode=%d", res.Success(), res.ExitCode),
		"duration_ms", res.Duration.Milliseconds(), "exit_code", res.ExitCode, "cause", string(res.Cause))
}

func (l *runLog) Listed(res executor.Result) {
	for _, f := range res.Files[:min(len(res.Files), maxLoggedFiles)] {
		if !f.ModTime.Before(res.Started) {
			address, _, _ := strings.Cut(f.URL, "?") // the signature is a secret
			l.log.Info(fmt.Sprintf("[MCP] File available: %s -> %s", f.Name, address))
		}
	}
	l.log.Info(fmt.Sprintf("[MCP] Found %d files", len(res.Files)))
}
