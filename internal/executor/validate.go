package executor

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/untrusted"
	"mcp-code-sandbox/internal/workspace"
)

// maxEnvBytes bounds a run's environment. It is also the most that the kernel takes in one variable.
const maxEnvBytes = 128 << 10

// maxQuoted bounds what a message quotes of a name in a request.
const maxQuoted = 64

// busy is contract 4's sentence.
const busy = "A run is already in progress for this session. Wait for it to complete."

func refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// check refuses what cannot be run, before anything is made for it.
func (e *Executor) check(req Request) (runner.Runner, error) {
	if err := session.CheckID(req.Session); err != nil {
		return runner.Runner{}, e.wrap(err)
	}
	runners := e.cfg.Runners()
	r, ok := runners.Lookup(req.Runner)
	if !ok {
		return runner.Runner{}, unknownRunner(req.Runner, runners)
	}
	if limit := e.cfg.MaxCodeBytes; limit > 0 && len(req.Code) > limit {
		return runner.Runner{}, refuse(CodeCodeTooLarge,
			"The code has %d bytes, the limit is %d. Upload data as a file and read it from /data.", len(req.Code), limit)
	}
	if err := checkEnv(req.Env); err != nil {
		return runner.Runner{}, err
	}
	if req.Network && !e.cfg.NetworkAllowed {
		return runner.Runner{}, refuse(CodeNetworkDenied,
			"This server gives no network to code (SANDBOX_NETWORK=off). Run it without network.")
	}
	return r, nil
}

func unknownRunner(name string, runners runner.Set) error {
	if len(runners) == 0 {
		return refuse(CodeUnknownRunner, "No language is available on this server. The operator learns why from: mcp-code-sandbox doctor.")
	}
	return refuse(CodeUnknownRunner, "Unknown language %q. Available: %s.", untrusted.Clip(name, maxQuoted), strings.Join(runners.Names(), ", "))
}

// checkEnv never puts a value into its message: values may be secrets.
func checkEnv(env map[string]string) error {
	total := 0
	for name, value := range env {
		switch {
		case !envName(name):
			return refuse(CodeInvalidEnvironment,
				"The environment variable name %q is not valid. Use letters, digits and underscores, and do not start with a digit.", untrusted.Clip(name, maxQuoted))
		case strings.ContainsRune(value, 0):
			return refuse(CodeInvalidEnvironment, "The value of the environment variable %s contains a NUL byte. Remove it.", name)
		case !utf8.ValidString(value):
			return refuse(CodeInvalidEnvironment, "The value of the environment variable %s is not valid UTF-8. Encode it, for example as base64.", name)
		}
		total += len(name) + len(value) + 2 // "=" and NUL
	}
	if total > maxEnvBytes {
		return refuse(CodeInvalidEnvironment,
			"The environment has %d bytes, the limit is %d. Upload large values as a file.", total, maxEnvBytes)
	}
	return nil
}

func envName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 1024
}

// wrapSession is wrap for an operation on a session that must exist.
func (e *Executor) wrapSession(id string, err error) error {
	if errors.Is(err, session.ErrNotFound) {
		return &Error{Code: CodeSessionNotFound, Message: "No active session with id " + id, Err: err}
	}
	return e.wrap(err)
}

// wrap turns the errors of the layers below into an *Error where the caller or the operator can do something.
// It is the one place that does.
func (e *Executor) wrap(err error) error {
	if err == nil {
		return nil
	}
	var (
		id   *session.IDError
		name *workspace.NameError
		iso  *sandbox.Error
		full *session.MaxSessionsError
		used *session.CallerError
		over *session.OverloadError

		short *session.DiskError
		code  Code
	)
	message := err.Error()
	switch {
	case errors.As(err, &id):
		code = CodeInvalidID
	case errors.As(err, &name):
		code = CodeInvalidPath
	case errors.Is(err, workspace.ErrExists):
		code = CodeFileExists
	case errors.Is(err, workspace.ErrTooLarge):
		code = CodeFileTooLarge
	case errors.As(err, &used):
		code, message = CodeQuotaExceeded, describeUsed(used)
	case errors.Is(err, workspace.ErrQuota):
		code = CodeQuotaExceeded
	case errors.Is(err, workspace.ErrLeased):
		code, message = CodeFileBusy, "The file "+workspace.ErrLeased.Error()+"."
	case errors.As(err, &short):
		code, message = CodeDiskFull, diskShort
	case errors.Is(err, syscall.ENOSPC):
		code, message = CodeDiskFull, diskFull
	case errors.Is(err, session.ErrTooManyRuns):
		code, message = CodeSessionBusy, busy+fmt.Sprintf(" There are at most %d runs of a session at a time.", e.cfg.Sessions.MaxRunsPerSession())
	case errors.Is(err, session.ErrBusy):
		code, message = CodeSessionBusy, busy
	case errors.Is(err, session.ErrNotPersistent):
		code, message = CodeNotPersistent, "This language keeps no state between runs. Leave out the session."
	case errors.As(err, &full):
		code, message = CodeMaxSessions, fmt.Sprintf( // contract 4's sentence, and what it does not say
			"Maximum %d concurrent sessions reached. Close an existing session first. %s", e.cfg.Sessions.MaxSessions(), describeFull(full))
	case errors.As(err, &over):
		return &Error{Code: CodeBusy, Err: err, RetryAfter: over.RetryAfter, Message: fmt.Sprintf(
			"The server is busy: no sandbox was ready in time, and no code was run. Try again in %s.", seconds(over.RetryAfter))}
	case errors.Is(err, session.ErrClosed):
		code, message = CodeBackendUnavailable, "The server is shutting down. Try again in a moment."
	case errors.As(err, &iso) && iso.NetworkOnly:
		code = CodeNetworkDenied
		message = "Network is not available here: run it without network. The operator learns why from the log and from mcp-code-sandbox doctor."
	case errors.As(err, &iso):
		code, message = CodeBackendUnavailable, "No sandbox can be started: "+iso.Error()
	default:
		return err
	}
	return &Error{Code: code, Message: message, Err: err}
}

// describeUsed says what of the caller's share is used up, and what to do.
func describeUsed(used *session.CallerError) string {
	if used.TooManySessions {
		return fmt.Sprintf("You have %d sessions, the most that a user of this server may have. Close some with close_session; list_sessions lists them. "+
			"Nothing was lost.", used.Sessions)
	}
	if used.TooManyFiles {
		return fmt.Sprintf("Your sessions hold %d files and directories, and a user of this server may have %d. Delete some (delete_file, or code that does) "+
			"or close sessions (close_session); list_sessions tells what each holds. Nothing was lost.", used.Files, used.MaxFiles)
	}
	if used.Bytes <= 0 {
		return fmt.Sprintf("This is more than the %s that a user of this server may store. Nothing was lost.", size(used.MaxBytes))
	}
	return fmt.Sprintf("There is no room for this: your sessions hold %s of the %s that a user of this server may store. Delete files (delete_file) "+
		"or close sessions (close_session); list_sessions tells what each holds. Nothing was lost.", size(used.Bytes), size(used.MaxBytes))
}

// maxNamed is how many of the caller's own sessions a message names.
const maxNamed = 3

// describeFull says what keeps a further session out, when to try again, and what the caller can do. It names the caller's own
// sessions alone.
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
		when = fmt.Sprintf("try again in %s, when the first of them can make room", seconds(full.RetryAfter.Truncate(time.Second)+time.Second))
	}
	return strings.Join(groups, " and ") + ": " + when + ". " + adviseFull(full)
}

// adviseFull says how the caller can make room without losing files, and that closing a session, which contract 4's sentence asks
// for, deletes them.
func adviseFull(full *session.MaxSessionsError) string {
	switch {
	case len(full.RunningOwn) > 0:
		return "To make room sooner, end a run of yours with cancel_run, which keeps its files; closing a session deletes them."
	case len(full.RecentOwn) > 0:
		return "Closing a session of yours makes room now, but deletes its files."
	}
	return "None of these sessions is yours, so there is nothing for you to close."
}
