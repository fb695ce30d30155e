package executor

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// hintWindow is how much of the end of stderr is searched for known failures.
const hintWindow = 8 << 10

// A failure that is known by what the program printed about it.
var (
	noModule   = regexp.MustCompile(`(?:No module named|Cannot find module|Cannot find package|Could not resolve) ["']([A-Za-z0-9_@][A-Za-z0-9_.@/-]{0,63})["']`)
	noNetwork  = regexp.MustCompile(`Temporary failure in name resolution|Name or service not known|Network is unreachable|Could not resolve host|ENOTFOUND|EAI_AGAIN|ENETUNREACH`)
	readOnly   = regexp.MustCompile(`Read-only file system|EROFS`)
	noMemory   = regexp.MustCompile(`(?m)^MemoryError|Cannot allocate memory|ENOMEM|heap out of memory|Unable to allocate`)
	noSpace    = regexp.MustCompile(`No space left on device|ENOSPC`)
	noProcess  = regexp.MustCompile(`can't start new thread|fork: (?:retry: )?Resource temporarily unavailable|spawn \S+ EAGAIN`)
	noMounts   = regexp.MustCompile(`cannot read table of mounted file systems`) // df's
	fileTooBig = regexp.MustCompile(`File too large|EFBIG`)
)

// NoNetworkHint is the hint of a run that failed because it had no network and could have had it.
const NoNetworkHint = "This run had no network. Set network to true to have it."

// diskFull is what runs and uploads fail with when the file system of all sessions is full.
const diskFull = "The disk of the server, which holds /data, is full. The operator of the server must free space; until then nothing can be written to /data."

// diskShort is what a run is refused with when it is its caller who has filled that file system.
const diskShort = "The disk of the server, which all users share, is nearly full, and your sessions have grown the most lately: no code was run. " +
	"Your own quota is not the reason. Delete files (delete_file) or close sessions (close_session), or try again in ten minutes."

// noWorkspace is said with every result of an environment that isolates itself.
const noWorkspace = "This environment has no /data: it sees no file of the session, and files it writes are not kept."

// hint says in a sentence or two what to do about a failure that is not obvious from the output, and what cannot be known
// about the environment.
func (e *Executor) hint(res Result, r runner.Runner, network bool) string {
	hint := e.failureHint(res, r, network)
	if res.diskFull && (res.Cause == sandbox.CauseDiskQuota || res.Cause == "" && !res.Success() && noSpace.Match(lastOf(res.Stderr))) {
		hint = diskFull
	}
	if res.oomKilled {
		hint = e.childKilledHint(res, r, hint)
	}
	if r.Wrapper != "" {
		hint = strings.TrimSpace(hint + " " + noWorkspace)
	}
	return hint
}

// childKilledHint adds to a hint that the run lost a process to the memory limit. Code often only waits for such a process, or fails
// without the reason, and then neither more time nor what it printed helps.
func (e *Executor) childKilledHint(res Result, r runner.Runner, hint string) string {
	limit, setting := "its limit", ""
	if n := e.limits(r).MemoryBytes; n > 0 {
		limit = "the limit of " + size(n)
	}
	if r.MemoryMB == 0 {
		setting = " (SANDBOX_MEMORY_LIMIT)"
	}
	killed := fmt.Sprintf("While the code ran, a process was killed because memory reached %s%s: code that waits for its result hangs or fails. "+
		"Process the data in smaller pieces, or with fewer workers.", limit, setting)
	switch {
	case res.Cause == sandbox.CauseTimeout:
		return res.TimeoutMessage() + ". " + killed
	case hint == "" || hint == outOfMemory(e.limits(r)):
		return killed
	}
	return hint + " " + killed
}

// limits are those of the sandboxes of a runner.
func (e *Executor) limits(r runner.Runner) sandbox.Limits {
	limits := e.cfg.Sessions.Limits()
	if r.MemoryMB > 0 {
		limits.MemoryBytes = int64(r.MemoryMB) << 20
	}
	return limits
}

func (e *Executor) failureHint(res Result, r runner.Runner, network bool) string {
	limits := e.limits(r)
	switch res.Cause {
	case sandbox.CauseTimeout:
		more := ""
		if res.Timeout < e.cfg.MaxExecTimeout {
			more = fmt.Sprintf("ask for more time with timeout_seconds (%g at most), ", e.cfg.MaxExecTimeout.Seconds())
		}
		return res.TimeoutMessage() + ". Do less in one run, " + more + "or save intermediate results to /data and go on in the next run."
	case sandbox.CauseCancelled:
		if res.Operator {
			return "The operator of the server ended the run."
		}
		return "The run was cancelled."
	case sandbox.CausePreempted:
		return preemptedHint(res)
	case sandbox.CauseOutOfMemory:
		return outOfMemory(limits)
	case sandbox.CauseOutputLimit:
		return "The program was stopped because it printed too much. Write large output to a file in /data instead."
	case sandbox.CauseDiskQuota:
		return e.quotaHint(res)
	case sandbox.CausePIDsLimit:
		return tooManyProcesses(limits)
	case sandbox.CauseKilled:
		return "The program was ended by SIGKILL. If it did not do that itself, it probably ran out of memory: process the data in smaller pieces."
	case sandbox.CauseLost:
		switch {
		case res.Stopped && res.NotStarted:
			return "The server stopped before the code was started. Nothing has been executed: run it again."
		case res.Stopped:
			return "The server stopped while the code was running, and ended it. Files in /data are kept: check them before you run it again."
		case res.NotStarted:
			return "The sandbox ended before the code was started. Nothing has been executed: run it again."
		}
		return "The sandbox ended while the code was running. Some of it may have been executed: check the files before you run it again."
	}
	if res.Success() {
		return ""
	}
	if hint := e.stderrHint(res, r, network, limits); hint != "" {
		return hint
	}
	if res.Signal != 0 {
		return "The program was ended by " + signalName(res.Signal) + "."
	}
	return ""
}

// preemptedHint says why a run was stopped for another caller.
func preemptedHint(res Result) string {
	hint := "The run was stopped to make room for another user"
	if p := res.Preemption; p != nil {
		hint += fmt.Sprintf(": you held %d of %d sandboxes", p.Held, p.Of)
	}
	if res.NotStarted {
		return hint + ". Nothing has been executed: run it again, in fewer sessions at a time."
	}
	return hint + ". Some of it has been executed: check the files in /data before you run it again, in fewer sessions at a time."
}

// signalName names a signal of Linux, which is what sandboxes run, whatever the server runs on. A program that dies
// of one often prints nothing, so its result would not say why.
func signalName(n int) string {
	switch n {
	case 4:
		return "SIGILL (an illegal instruction)"
	case 6:
		return "SIGABRT (it gave up by itself)"
	case 7:
		return "SIGBUS (a bad memory access)"
	case 8:
		return "SIGFPE (an arithmetic error)"
	case 11:
		return "SIGSEGV (a bad memory access, or recursion that is too deep)"
	case 13:
		return "SIGPIPE (it wrote to a pipe that nobody reads)"
	case 15:
		return "SIGTERM"
	}
	return fmt.Sprintf("signal %d", n)
}

// lastOf is the part of stderr in which a known failure is looked for.
func lastOf(stderr []byte) []byte { return stderr[max(0, len(stderr)-hintWindow):] }

func (e *Executor) stderrHint(res Result, r runner.Runner, network bool, limits sandbox.Limits) string {
	p := lastOf(res.Stderr)
	owner := "run"
	if res.Persistent {
		owner = "interpreter"
	}
	// The last error is the one that ended the program.
	if m := noModule.FindAllSubmatch(p, -1); m != nil {
		have := "Only the standard library is there."
		if len(r.Libraries) > 0 {
			have = "Besides the standard library there are: " + strings.Join(r.Libraries, ", ") + "."
		}
		return fmt.Sprintf("%s is not installed, and nothing can be installed. %s", m[len(m)-1][1], have)
	}
	switch {
	case !network && noNetwork.Match(p):
		if e.cfg.NetworkAllowed {
			return NoNetworkHint
		}
		return "This server gives no network to code. Upload the data as a file instead."
	case readOnly.Match(p):
		return "Only /data (also reachable as /mnt/data and /workspace) and /tmp can be written to. Files in /data are kept; /tmp ends with the " + owner + "."
	case noMemory.Match(p):
		return outOfMemory(limits)
	case noSpace.Match(p):
		return fmt.Sprintf("The %s's private /tmp holds at most %s. Write larger files to /data.", owner, size(limits.TmpBytes))
	case noProcess.Match(p):
		return tooManyProcesses(limits)
	case noMounts.Match(p):
		return e.noMountsHint()
	case fileTooBig.Match(p) && res.callerBytes > 0:
		return fmt.Sprintf("A file grew beyond what is left of the %s that all your sessions together may store. Delete files that are no longer needed, or close sessions; "+
			"list_sessions tells what each holds.", size(res.callerBytes))
	case fileTooBig.Match(p):
		return "A file grew beyond what one file may hold, or the workspace is full. Delete files in /data that are no longer needed, or write less."
	}
	return ""
}

// noMountsHint tells df's users what they want to know: df finds no list of mounts, and what it says of /data is the server's disk.
func (e *Executor) noMountsHint() string {
	hint := "The list of mounts is hidden here: use df -h /data, which shows the disk of the server."
	if n := e.cfg.Quota.Bytes; n > 0 {
		hint += fmt.Sprintf(" The files of this session may take %s of it (SANDBOX_WORKSPACE_BYTES); du -sh /data shows what they take.", size(n))
	}
	return hint
}

// imagesHint says why images that a run showed are not files.
func (e *Executor) imagesHint(shown images) string {
	if shown.err == nil {
		return ""
	}
	var used *session.CallerError
	why := "the server could not write to /data"
	switch {
	case errors.As(shown.err, &used) && used.TooManyFiles:
		why = fmt.Sprintf("all your sessions together may have %d files and directories. Delete some or close sessions", used.MaxFiles)
	case errors.As(shown.err, &used):
		why = fmt.Sprintf("all your sessions together may store %s. Delete files or close sessions", size(used.MaxBytes))
	case errors.Is(shown.err, workspace.ErrQuota):
		why = fmt.Sprintf("/data may hold %s. Delete files in it", e.quota())
	case errors.Is(shown.err, syscall.ENOSPC):
		why = "the disk of the server is full"
	}
	what := "1 image that the code showed was not saved as a file"
	if shown.failed > 1 {
		what = fmt.Sprintf("%d images that the code showed were not saved as files", shown.failed)
	}
	return what + ": " + why + "."
}

// quota is what one workspace may hold.
func (e *Executor) quota() string {
	var most []string
	if n := e.cfg.Quota.Bytes; n > 0 {
		most = append(most, size(n))
	}
	if n := e.cfg.Quota.Files; n > 0 {
		most = append(most, fmt.Sprintf("%d files", n))
	}
	return strings.Join(most, " in ")
}

func (e *Executor) quotaHint(res Result) string {
	what := "The"
	switch res.ExitCode {
	case -1:
		what = "The run was stopped: the"
	case 0:
		what = "The code ran to its end, but the"
	}
	if res.diskShort {
		return "The run was stopped because the disk of the server, which all users share, is nearly full, and your runs are among those that fill it. " +
			"Your own quota is not the reason. Delete files that you no longer need, or close sessions; the operator of the server can free space."
	}
	if res.callerFull {
		return what + " files of all your sessions together exceed what a user of this server may store. Delete some, or close sessions; list_sessions tells " +
			"what each holds. Until then a run is stopped when its files grow."
	}
	return fmt.Sprintf("%s files in /data, deleted ones that are still open included, exceed the quota (%s) or the disk. "+
		"Delete some first: until then a run is stopped when its files grow, and a fresh process can write no file larger than 1 MB.",
		what, e.quota())
}

func outOfMemory(l sandbox.Limits) string {
	limit := ""
	if l.MemoryBytes > 0 {
		limit = " of " + size(l.MemoryBytes)
	}
	return fmt.Sprintf("The program needed more than its memory limit%s. Process the data in smaller pieces.", limit)
}

func tooManyProcesses(l sandbox.Limits) string {
	limit := ""
	if l.PIDs > 0 {
		limit = fmt.Sprintf(" of %d", l.PIDs)
	}
	return fmt.Sprintf("The program reached its limit%s on processes and threads, or was about to. Use fewer workers.", limit)
}

// seconds writes a duration as contract 4 does: "60 seconds".
func seconds(d time.Duration) string {
	n := math.Round(d.Seconds()*10) / 10
	if n == 1 {
		return "1 second"
	}
	return fmt.Sprintf("%g seconds", n)
}

func size(n int64) string {
	const kb, mb, gb = 1 << 10, 1 << 20, 1 << 30
	switch {
	case n <= 0:
		return "a limited amount"
	case n >= gb && n%gb == 0:
		return fmt.Sprintf("%d GB", n/gb)
	case n >= mb:
		return fmt.Sprintf("%d MB", n/mb)
	case n >= kb:
		return fmt.Sprintf("%d KB", n/kb)
	}
	return fmt.Sprintf("%d bytes", n)
}
