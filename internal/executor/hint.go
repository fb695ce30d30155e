package executor

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/versionrange"
	"mcp-code-sandbox/internal/workspace"
)

// hintWindow is how much of the end of stderr is searched for known failures.
const hintWindow = 8 << 10

// Failures that are known by what the program printed.
var (
	noModule  = regexp.MustCompile(`(?:No module named|Cannot find module|Cannot find package|Could not resolve) ["']([A-Za-z0-9_@][A-Za-z0-9_.@/-]{0,63})["']`)
	noBinding = regexp.MustCompile(`Could not locate the bindings file|No native build was found`)
	noPyPI    = regexp.MustCompile(`ERROR: No matching distribution found for`)
	pipAnswer = regexp.MustCompile(`No package index can be reached from this sandbox`) // of sandbox_pip.py
	noNPM     = regexp.MustCompile(`npm (?:error|ERR!) network request to`)
	hungUp    = regexp.MustCompile(`server closed the connection unexpectedly|Connection terminated unexpectedly|Connection reset by peer|ECONNRESET|invalid transaction is rolled back`)
	noPort    = regexp.MustCompile(`Connection refused|ECONNREFUSED`)
	noNetwork = regexp.MustCompile(`Temporary failure in name resolution|Name or service not known|Network is unreachable|Could not resolve host|ENOTFOUND|EAI_AGAIN|ENETUNREACH|(?i:tunnel (?:connection )?failed)`)
	readOnly  = regexp.MustCompile(`Read-only file system|EROFS`)
	noMemory  = regexp.MustCompile(`(?m)^MemoryError|Cannot allocate memory|ENOMEM|heap out of memory|Unable to allocate`)
	noSpace   = regexp.MustCompile(`No space left on device|ENOSPC`)
	noProcess = regexp.MustCompile(`can't start new thread|fork: (?:retry: )?Resource temporarily unavailable|spawn \S+ EAGAIN`)
	// otherNumPy matches what packages say that were built for another numpy.
	otherNumPy = regexp.MustCompile(`numpy\.dtype size changed|compiled using NumPy 1\.x cannot be run|numpy\.core\.multiarray failed to import`)
	noMounts   = regexp.MustCompile(`cannot read table of mounted file systems`) // by df
	fileTooBig = regexp.MustCompile(`File too large|EFBIG`)
)

// NoNetworkHint and NoHostsHint are hints of a run that failed because it did not ask for network.
// Where the server offers hosts, it is the second.
const (
	NoNetworkHint = "This run had no network access. Set network to true to enable it."
	NoHostsHint   = "This run had no network access. List the hosts that the code needs in hosts, or set network to true."
)

// CancelledHint is the hint of a run that its caller cancelled.
const CancelledHint = "The run was cancelled."

// notPrinted is the hint of a fresh run that ended in a value, as a cell does, and printed nothing.
const notPrinted = "Nothing was printed. A fresh process does not show the value of the last line: print it."

// noWorkspace comes with every result of an environment that isolates itself.
const noWorkspace = "This environment has no /data: it sees no file of the session, and files it writes are not kept."

// hint says in a sentence or two what to do about a failure that the output does not explain.
func (e *Executor) hint(res Result, r runner.Runner, req Request, refused []PackageProblem) string {
	limits := e.cfg.Sessions.Limits()
	if r.MemoryMB > 0 {
		limits.MemoryBytes = int64(r.MemoryMB) << 20
	}
	stderr := res.Stderr[max(0, len(res.Stderr)-hintWindow):]
	hint := e.causeHint(res, limits)
	if res.Cause == "" && !res.Success() {
		hint = e.stderrHint(res, stderr, r, req, limits)
		if hint == "" && res.Signal != 0 {
			hint = "The program was ended by " + signalName(res.Signal) + "."
		}
	}
	// A cell's ! commands print to stdout, and their failure is not the cell's.
	printed := slices.Concat(res.Stdout[max(0, len(res.Stdout)-hintWindow):], stderr)
	if off := e.packagesOffHint(printed, req); off != "" && res.Cause == "" {
		hint = off
	}
	refused = slices.DeleteFunc(refused, func(p PackageProblem) bool { return !p.explains(res, printed) })
	switch {
	case res.Cause != "":
	case len(refused) > 0:
		hint = describeProblems(refused) // code often ignores that an installation has failed
	case hint == "": // the mirror has hidden nothing
		hint = e.noWheelHint(printed)
	}
	if res.diskFull && (res.Cause == sandbox.CauseDiskQuota || res.Cause == "" && noSpace.Match(stderr)) {
		hint = diskFull
	}
	if res.oomKilled {
		hint = childKilledHint(res, r, limits, hint)
	}
	if hint == "" && res.Success() && !res.Persistent && res.isSilent() && valueLanguages[r.Name] && showsValue(req.Code) {
		hint = notPrinted
	}
	if r.Wrapper != "" {
		hint = strings.TrimSpace(hint + " " + noWorkspace)
	}
	return hint
}

// explains reports whether a problem is probably why the run, or a command in it, failed. Code
// may only have looked for a name, or have got another version, and npm skips optional packages.
func (p PackageProblem) explains(res Result, printed []byte) bool {
	isNamed := slices.ContainsFunc(unmetIn(string(printed)), func(text string) bool {
		name := requirementName(text)
		return name == p.Package || versionrange.NormalizeName(name) == p.Package
	})
	switch {
	case !p.Soft && p.Code != codePackageNotFound, isNamed:
		return true
	case res.Success():
		return p.Code != codePackageNotFound && len(res.Installed) == 0
	}
	return bytes.Contains(printed, []byte(p.Package))
}

// noWheelHint says why pip has found no version in an index that has some.
func (e *Executor) noWheelHint(printed []byte) string {
	if unmet := unmetIn(string(printed)); e.offers(pypi) && noPyPI.Match(printed) && len(unmet) > 0 {
		if name := requirementName(unmet[len(unmet)-1]); isRequirement(pypi, name) {
			return fmt.Sprintf("No version of %s that was asked for has a wheel for this Python and platform.", name)
		}
	}
	return ""
}

// packagesOffHint says that packages are off, if pip or npm failed for that and has not said so.
func (e *Executor) packagesOffHint(printed []byte, req Request) string {
	switch {
	case req.Network || len(req.Hosts) > 0 || pipAnswer.Match(printed):
	case noPyPI.Match(printed) && !e.offers(pypi):
		return packagesOff(pypi)
	case noNPM.Match(printed) && !e.offers(npm):
		return packagesOff(npm)
	}
	return ""
}

// isSilent reports whether the run printed and showed nothing.
func (r Result) isSilent() bool { return len(r.Stdout)+len(r.Stderr)+len(r.Displays) == 0 }

// valueLanguages are the runners whose live interpreters show the value of a cell.
var valueLanguages = map[string]bool{"python": true, "javascript": true, "typescript": true}

// Last lines of Python and JavaScript. Most calls are made for their effect; a few are not.
var (
	statement = regexp.MustCompile(`^(?:\s|[)\]}#/@]|(?:import|from|def|class|if|for|while|with|try|return|pass|del|assert|raise|global|async|const|let|var|function|export|throw)\b)`)
	assigns   = regexp.MustCompile(`[^=!<>]=[^=>]`)
	valueCall = regexp.MustCompile(`(?:^(?:len|sum|min|max|sorted|round|type|str|repr|list)|\.(?:head|tail|describe|sum|mean|value_counts))\([^()]*\)$|^(?:\w+\.)*[A-Z]\w*\(.*\)$`)
)

// showsValue reports whether the last line of code is an expression whose value a notebook shows.
func showsValue(code string) bool {
	lines := strings.Split(strings.TrimSpace(code), "\n")
	last := strings.TrimRight(lines[len(lines)-1], "; \t\r")
	if last == "" || statement.MatchString(last) {
		return false
	}
	return valueCall.MatchString(last) || !assigns.MatchString(last) && !strings.HasSuffix(last, ")")
}

// causeHint explains why the server ended a run.
func (e *Executor) causeHint(res Result, limits sandbox.Limits) string {
	switch res.Cause {
	case sandbox.CauseTimeout:
		more := ""
		if res.Timeout < e.cfg.MaxExecTimeout {
			more = fmt.Sprintf("ask for more time with timeout_seconds (%s at most), ", decimal(e.cfg.MaxExecTimeout.Seconds()))
		}
		installed := ""
		if len(res.Installed) > 0 {
			installed = " The packages that it has installed are kept, so the next run has more time."
		}
		return res.TimeoutMessage() + "." + installed + " Do less in one run, " + more + "or save intermediate results to /data and continue in the next run."
	case sandbox.CauseCancelled:
		if res.Operator {
			return "The operator of the server ended the run."
		}
		return CancelledHint
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
	return ""
}

// childKilledHint adds to a hint that the run lost a process to the memory limit. Code often waits
// for such a process forever, or fails without the reason.
func childKilledHint(res Result, r runner.Runner, limits sandbox.Limits, hint string) string {
	limit, setting := "its limit", ""
	if limits.MemoryBytes > 0 {
		limit = "the limit of " + size(limits.MemoryBytes)
	}
	if r.MemoryMB == 0 {
		setting = " (SANDBOX_MEMORY_LIMIT)"
	}
	killed := fmt.Sprintf("While the code ran, a process was killed because memory reached %s%s: code that waits for its result hangs or fails. "+
		"Process the data in smaller pieces, or with fewer workers.", limit, setting)
	switch {
	case res.Cause == sandbox.CauseTimeout:
		return res.TimeoutMessage() + ". " + killed
	case hint == "" || hint == outOfMemory(limits):
		return killed
	}
	return hint + " " + killed
}

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

func (e *Executor) quotaHint(res Result) string {
	what := "The"
	switch res.ExitCode {
	case -1:
		what = "The run was stopped: the"
	case 0:
		what = "The code ran to its end, but the"
	}
	switch {
	case res.diskShort:
		return "The run was stopped because the disk of the server, which all users share, is nearly full, and your runs are among those that fill it. " +
			"Your own quota is not the reason. Delete files that you no longer need, or close sessions; the operator of the server can free space."
	case res.unmeasured != "":
		return what + " files in /data cannot be measured, so they count as over the quota: " + res.unmeasured + ". Until then code can write no file there."
	case res.callerFull:
		return what + " files of all your sessions together exceed what a user of this server may store. Delete some, or close sessions; " +
			"list_sessions shows what each holds. Until then a run is stopped when its files grow."
	}
	packages := ""
	if e.cfg.Packages != nil {
		packages = " Installed packages count too: they are in /data/" + workspace.PackagesDir + "."
	}
	return fmt.Sprintf("%s files in /data, deleted ones that are still open included, exceed the quota (%s) or the disk. "+
		"Delete some first: until then a run is stopped when its files grow, and a fresh process can write no file larger than 1 MB.%s",
		what, e.quota(), packages)
}

// quota describes what one workspace may hold.
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

// stderrHint explains a failure of the program's own by the end of its stderr.
func (e *Executor) stderrHint(res Result, stderr []byte, r runner.Runner, req Request, limits sandbox.Limits) string {
	owner := "run"
	if res.Persistent {
		owner = "interpreter"
	}
	if noBinding.Match(stderr) && e.offers(npm) {
		return "An npm package lacks its compiled part, which its install script makes or downloads. Scripts are off here: use a package without one, or with compiled parts for each platform in npm."
	}
	// The last error is the one that ended the program.
	if all := noModule.FindAllSubmatchIndex(stderr, -1); all != nil {
		last := all[len(all)-1]
		module, rest := string(stderr[last[2]:last[3]]), stderr[last[1]:]
		_, isKnown := packageNames[module]
		index := npm
		if bytes.HasPrefix(stderr[last[0]:], []byte("No module named")) {
			index = pypi
		}
		switch {
		case isPartOf(module, r.Libraries):
		case !isKnown && !e.offers(index) && bytes.Contains(rest, []byte("\nHint: did you mean ")): // the driver's
			return ""
		case bytes.HasPrefix(stderr[last[0]:], []byte("Cannot find package")) && len(r.Environments) == 0 && e.offers(npm) && isRequirement(npm, packageOf(npm, module)):
			// import in a file that node runs
			return fmt.Sprintf("import finds packages of a project only. Make one with: npm init -y && npm install %s", packageOf(npm, module))
		default:
			return e.missingHint(index, module, r)
		}
	}
	switch {
	case otherNumPy.Match(stderr) && e.offers(pypi):
		return "A package was built for another version of numpy than the one that it got. Request both in one run, such as packages: [\"pandas<2\", \"numpy<2\"]."
	case !req.Network && noNetwork.Match(stderr), len(req.Hosts) > 0 && noPort.Match(stderr):
		return e.networkHint(res.Blocked, req.Hosts)
	case len(req.Hosts) > 0 && req.Persistent && len(res.Blocked) == 0 && hungUp.Match(stderr):
		return "Connections to hosts end with the cell that made them. Connect again in each cell; in SQLAlchemy, create_engine(…, pool_pre_ping=True) does it."
	case readOnly.Match(stderr):
		return "Only /data (also reachable as /mnt/data and /workspace) and /tmp can be written to. Files in /data are kept; /tmp ends with the " + owner + "."
	case noMemory.Match(stderr):
		return outOfMemory(limits)
	case noSpace.Match(stderr):
		return fmt.Sprintf("The %s's private /tmp holds at most %s. Write larger files to /data.", owner, size(limits.TmpBytes))
	case noProcess.Match(stderr):
		return tooManyProcesses(limits)
	case noMounts.Match(stderr):
		hint := "The list of mounts is hidden here: use df -h /data, which shows the disk of the server."
		if n := e.cfg.Quota.Bytes; n > 0 {
			hint += fmt.Sprintf(" The files of this session may take %s of it (SANDBOX_WORKSPACE_BYTES); du -sh /data shows what they take.", size(n))
		}
		return hint
	case fileTooBig.Match(stderr) && res.callerBytes > 0:
		return fmt.Sprintf("A file grew beyond the rest of the %s that all your sessions together may store. "+
			"Delete files that are no longer needed, or close sessions; list_sessions shows what each holds.", size(res.callerBytes))
	case fileTooBig.Match(stderr):
		return "A file grew beyond what one file may hold, or the workspace is full. Delete files in /data that are no longer needed, or write less."
	case len(res.Blocked) > 0: // such as a connection that was reset
		return e.networkHint(res.Blocked, req.Hosts)
	}
	return ""
}

// missingHint says how to get a missing module from an index, or what is there instead.
func (e *Executor) missingHint(index, module string, r runner.Runner) string {
	for name, package_ := range packageNames {
		if strings.EqualFold(strings.ReplaceAll(module, "_", "-"), package_) && slices.Contains(r.Libraries, name) {
			return fmt.Sprintf("The package %s is installed. Its module is called %s: import %[2]s.", package_, name)
		}
	}
	isOf := func(d runner.PackageDir) bool { return d.Index == index }
	at, name := slices.IndexFunc(e.packageDirs(r), isOf), packageOf(index, module)
	switch {
	case at >= 0 && name == "":
		return module + " is not installed, and its package has another name" + packageExamples[module] + ". Run the code again with it in packages."
	case at > 0 && isRequirement(index, name): // packages takes those of another index
		return fmt.Sprintf("%s is not installed. Install it with: %s", module, installCommand(index, name, r))
	case at == 0 && isRequirement(index, name):
		return fmt.Sprintf("%s is not installed. Run the code again with packages: [%q], or install it with: %s", module, name, installCommand(index, name, r))
	}
	have, why := "Only the standard library is there.", ""
	if len(r.Libraries) > 0 {
		have = "Besides the standard library there are: " + strings.Join(r.Libraries, ", ") + "."
	}
	if dirs := r.PackageDirs(); slices.ContainsFunc(dirs, isOf) {
		if at < 0 {
			why = " " + packagesOff(index)
		}
	} else if len(dirs) > 0 { // such as a program that Python has started with node
		return module + " is not installed, and cannot be installed in this environment."
	}
	return fmt.Sprintf("%s is not installed, and nothing can be installed.%s %s", module, why, have)
}

// installCommand returns what installs a package in a runner's code, or else in a shell.
func installCommand(index, name string, r runner.Runner) string {
	switch {
	case index == npm && len(r.Environments) > 0:
		return "npm install " + name + " (in a shell)"
	case index == npm:
		return "npm install " + name
	case slices.Contains(r.Environments, "python"):
		return "%pip install " + name
	}
	return "pip install " + name
}

// isPartOf reports whether a module is said to be part of an installed library. The driver's own
// hint is about that.
func isPartOf(module string, libraries []string) bool {
	library, _, isPart := strings.Cut(module, ".")
	return isPart && slices.Contains(libraries, library)
}

// signalName names a Linux signal, on every system. A program that a signal ends often prints
// nothing, so its result would not say why.
func signalName(n int) string {
	names := map[int]string{
		4:  "SIGILL (an illegal instruction)",
		6:  "SIGABRT (it gave up by itself)",
		7:  "SIGBUS (a bad memory access)",
		8:  "SIGFPE (an arithmetic error)",
		11: "SIGSEGV (a bad memory access, or recursion that is too deep)",
		13: "SIGPIPE (it wrote to a pipe that nobody reads)",
		15: "SIGTERM",
	}
	if name := names[n]; name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", n)
}

// imagesHint says why images that a run showed were not saved.
func (e *Executor) imagesHint(failed unsaved) string {
	if failed.err == nil {
		return ""
	}
	why := "the server could not write to /data"
	unmeasured, isUnmeasured := errors.AsType[*workspace.UnmeasuredError](failed.err)
	used, overShare := errors.AsType[*session.CallerError](failed.err)
	switch {
	case overShare && used.TooManyFiles:
		why = fmt.Sprintf("all your sessions together may have %d files and directories. Delete some or close sessions", used.MaxFiles)
	case overShare:
		why = fmt.Sprintf("all your sessions together may store %s. Delete files or close sessions", size(used.MaxBytes))
	case isUnmeasured:
		why = unmeasured.Error()
	case errors.Is(failed.err, workspace.ErrQuota):
		why = fmt.Sprintf("/data may hold %s. Delete files in it", e.quota())
	case errors.Is(failed.err, syscall.ENOSPC):
		why = "the disk of the server is full"
	}
	what := "1 image that the code showed was not saved as a file"
	if failed.count > 1 {
		what = fmt.Sprintf("%d images that the code showed were not saved as files", failed.count)
	}
	return what + ": " + why + "."
}

// seconds writes a duration as contract 4 does: "60 seconds".
func seconds(d time.Duration) string {
	n := math.Round(d.Seconds()*10) / 10
	if n == 1 {
		return "1 second"
	}
	return decimal(n) + " seconds"
}

// decimal writes a number without an exponent.
func decimal(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

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
