package executor

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// Code is the machine-readable kind of an Error.
type Code = string

// The codes of an Error. They appear verbatim in tool results.
const (
	CodeInvalidID          Code = "invalid_id"
	CodeInvalidPath        Code = "invalid_path"
	CodeInvalidEnvironment Code = "invalid_environment"
	CodeUnknownRunner      Code = "unknown_runner"
	CodeCodeTooLarge       Code = "code_too_large"
	CodeFileExists         Code = "file_exists"
	CodeFileTooLarge       Code = "file_too_large"
	CodeQuotaExceeded      Code = "quota_exceeded"
	CodeDiskFull           Code = "disk_full" // the server's disk is full, regardless of the quota
	CodeMaxSessions        Code = "max_sessions"
	CodeBusy               Code = "busy" // the server; the same call works later, see RetryAfter
	CodeSessionBusy        Code = "session_busy"
	CodeSessionNotFound    Code = "session_not_found"
	CodeNotFound           Code = "not_found" // of a file
	CodeFileBusy           Code = "file_busy" // code holds a lease on it
	CodeArtifactTooLarge   Code = "artifact_too_large"
	CodeBackendUnavailable Code = "backend_unavailable"
	CodeNetworkDenied      Code = "network_denied"
	CodeNotPersistent      Code = "not_persistent" // of a runner
	CodeLinkExpired        Code = "link_expired"   // of an upload
	CodeLinksPermanent     Code = "links_permanent"
	CodeRunNotFound        Code = "run_not_found"
	CodeRunActive          Code = "run_active"    // it has not ended
	CodeRunElsewhere       Code = "run_elsewhere" // another process has it
	CodeInvalidTimeout     Code = "invalid_timeout"

	CodeUnknownService      Code = "unknown_service"
	CodeInvalidServices     Code = "invalid_services" // what a run asks of them
	CodeServiceNotConnected Code = "service_not_connected"

	CodeInvalidHosts Code = "invalid_hosts"
)

// Error is a refusal that the caller or the operator can do something about. Any other error of
// this package is the server's own failure.
type Error struct {
	Code    Code
	Message string // for the caller; contains no secret
	Err     error  // the reason, for the log; may be nil

	SizeBytes   int64  // the file's size, for artifact_too_large
	DownloadURL string // the file's link, for artifact_too_large and busy

	RetryAfter time.Duration // for busy
	ConnectURL string        // where the caller connects the service, for service_not_connected
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Err }

func refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// codeOf returns the code of an *Error, and "" for any other error.
func codeOf(err error) Code {
	if refusal, ok := errors.AsType[*Error](err); ok {
		return refusal.Code
	}
	return ""
}

const (
	// busy is contract 4's sentence.
	busy = "A run is already in progress for this session. Wait for it to complete."

	diskFull = "The disk of the server, which holds /data, is full. The operator of the server must free space; " +
		"until then nothing can be written to /data."

	// diskShort refuses a run of a caller that has filled the disk.
	diskShort = "The disk of the server, which all users share, is nearly full, and your sessions have grown the most lately: " +
		"no code was run. Your own quota is not the reason. Delete files (delete_file) or close sessions (close_session), " +
		"or try again in ten minutes."
)

// wrapSession is wrap for an operation on a session that must exist.
func (e *Executor) wrapSession(id string, err error) error {
	if errors.Is(err, session.ErrNotFound) {
		return &Error{Code: CodeSessionNotFound, Message: "No active session with id " + id, Err: err}
	}
	return e.wrap(err)
}

// wrap turns errors of the layers below into an *Error where the caller or the operator can do
// something about them. It is the only place that does so.
func (e *Executor) wrap(err error) error {
	code, message := e.describe(err)
	if code == "" {
		return err
	}
	wrapped := &Error{Code: code, Message: message, Err: err}
	if over, ok := errors.AsType[*session.OverloadError](err); ok && code == CodeBusy {
		wrapped.RetryAfter = over.RetryAfter
	}
	return wrapped
}

// describe returns the code and the message for an error, and no code for a failure of the server.
func (e *Executor) describe(err error) (Code, string) {
	if err == nil {
		return "", ""
	}
	if _, ok := errors.AsType[*session.IDError](err); ok {
		return CodeInvalidID, err.Error()
	}
	if _, ok := errors.AsType[*workspace.NameError](err); ok {
		return CodeInvalidPath, err.Error()
	}
	if used, ok := errors.AsType[*session.CallerError](err); ok {
		return CodeQuotaExceeded, describeUsed(used)
	}
	if _, ok := errors.AsType[*session.DiskError](err); ok {
		return CodeDiskFull, diskShort
	}
	if full, ok := errors.AsType[*session.MaxSessionsError](err); ok {
		return CodeMaxSessions, fmt.Sprintf( // contract 4's sentence and the details
			"Maximum %d concurrent sessions reached. Close an existing session first. %s",
			e.cfg.Sessions.MaxSessions(), describeFull(full))
	}
	if over, ok := errors.AsType[*session.OverloadError](err); ok {
		return CodeBusy, fmt.Sprintf("The server is busy: no sandbox was ready in time, and no code was run. Try again in %s.",
			seconds(over.RetryAfter))
	}
	switch {
	case errors.Is(err, workspace.ErrExists):
		return CodeFileExists, err.Error()
	case errors.Is(err, workspace.ErrTooLarge):
		return CodeFileTooLarge, err.Error()
	case errors.Is(err, workspace.ErrQuota):
		return CodeQuotaExceeded, err.Error()
	case errors.Is(err, workspace.ErrLeased):
		return CodeFileBusy, "The file " + workspace.ErrLeased.Error() + "."
	case errors.Is(err, syscall.ENOSPC):
		return CodeDiskFull, diskFull
	case errors.Is(err, session.ErrTooManyRuns):
		return CodeSessionBusy, fmt.Sprintf("%s A session may have at most %d runs at a time.", busy, e.cfg.Sessions.MaxRunsPerSession())
	case errors.Is(err, session.ErrBusy):
		return CodeSessionBusy, busy
	case errors.Is(err, session.ErrNotPersistent):
		return CodeNotPersistent, "This language keeps no state between runs. Leave out the session."
	case errors.Is(err, session.ErrClosed):
		return CodeBackendUnavailable, "The server is shutting down. Try again in a moment."
	}
	if failure, ok := errors.AsType[*sandbox.Error](err); ok {
		if failure.NetworkOnly {
			return CodeNetworkDenied, "Network is not available here: run it without network. " +
				"The operator can find out why in the log and with mcp-code-sandbox doctor."
		}
		if errors.Is(err, session.ErrForeign) {
			return CodeBackendUnavailable, "This session cannot be used: " + session.ErrForeign.Error() + " (fix: " + failure.Fix + ")"
		}
		return CodeBackendUnavailable, "No sandbox can be started: " + failure.Error()
	}
	return "", ""
}

// describeUsed says which part of the caller's share is used up, and what to do.
func describeUsed(used *session.CallerError) string {
	switch {
	case used.TooManySessions:
		return fmt.Sprintf("You have %d sessions, the most that a user of this server may have. "+
			"Close some with close_session; list_sessions lists them. Nothing was lost.", used.Sessions)
	case used.Unmeasured > 0:
		return fmt.Sprintf("Not enough space: a session that cannot be measured counts as full, and you have %d. "+
			"list_sessions says which, and what to do. Nothing was lost.", used.Unmeasured)
	case used.TooManyFiles:
		return fmt.Sprintf("Your sessions hold %d files and directories, and a user of this server may have %d. "+
			"Delete some (delete_file, or code that does) or close sessions (close_session); "+
			"list_sessions shows what each holds. Nothing was lost.", used.Files, used.MaxFiles)
	case used.Bytes <= 0:
		return fmt.Sprintf("This is more than the %s that a user of this server may store. Nothing was lost.", size(used.MaxBytes))
	}
	return fmt.Sprintf("Not enough space: your sessions hold %s of the %s that a user of this server may store. "+
		"Delete files (delete_file) or close sessions (close_session); list_sessions shows what each holds. Nothing was lost.",
		size(used.Bytes), size(used.MaxBytes))
}

// maxNamed bounds the caller's own sessions that a message names.
const maxNamed = 3

// describeFull says which sessions use the server, when to try again, and what the caller can do.
// It names only the caller's own sessions.
func describeFull(full *session.MaxSessionsError) string {
	var groups []string
	group := func(n int, one, many string, own []string) {
		if n == 0 {
			return
		}
		text := fmt.Sprintf("%d sessions %s", n, many)
		if n == 1 {
			text = "1 session " + one
		}
		if len(own) > 0 {
			text += " (yours: " + strings.Join(own[:min(len(own), maxNamed)], ", ")
			if more := len(own) - maxNamed; more > 0 {
				text += fmt.Sprintf(" and %d more", more)
			}
			text += ")"
		}
		groups = append(groups, text)
	}
	last := fmt.Sprintf("used in the last %s", seconds(full.EvictIdle))
	group(full.Running, "is running code", "are running code", full.RunningOwn)
	group(full.Recent, "was "+last, "were "+last, full.RecentOwn)
	when := "try again when one of these runs has ended"
	if full.RetryAfter > 0 {
		when = fmt.Sprintf("try again in %s, when the first of them can make room",
			seconds(full.RetryAfter.Truncate(time.Second)+time.Second))
	}
	// Contract 4's sentence asks to close a session, which deletes its files. Say so, and name the
	// alternatives.
	advice := "None of these sessions is yours, so you have none to close."
	switch {
	case len(full.RunningOwn) > 0:
		advice = "To make room sooner, end a run of yours with cancel_run, which keeps its files; closing a session deletes them."
	case len(full.RecentOwn) > 0:
		advice = "Closing a session of yours makes room now, but deletes its files."
	}
	return strings.Join(groups, " and ") + ": " + when + ". " + advice
}

// memoryShort refuses an answer that the server has no memory for. url, if any, downloads the file.
func memoryShort(url string) *Error {
	instead := ""
	if url != "" {
		instead = ", or use download_url instead"
	}
	return &Error{Code: CodeBusy, DownloadURL: url, RetryAfter: 10 * time.Second,
		Message: "The server's memory for answers is in use. Try again in 10 seconds" + instead + "."}
}

func runNotFound() error {
	return refuse(CodeRunNotFound, "No run has this id, or its result is no longer kept. Results are kept for %d hours.",
		int(ResultRetention.Hours()))
}
