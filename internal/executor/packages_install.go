package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/untrusted"
	"mcp-code-sandbox/internal/versionrange"
	"mcp-code-sandbox/internal/workspace"
)

// The programs that install packages, with their arguments as JSON. They run in the sandbox of the
// run, like its code.
const (
	installPython = `import json, sys
from pip._internal.cli.main import main
sys.exit(main(json.loads(%s)))
`
	installNode = `const { spawnSync } = require('node:child_process');
require('node:fs').mkdirSync(process.env.SANDBOX_NODE_PACKAGES, { recursive: true });
const { error, status } = spawnSync('npm', %s, { cwd: process.env.SANDBOX_NODE_PACKAGES, stdio: 'inherit' });
if (error) console.error(error.code === 'ENOENT' ? 'npm error this environment has no npm' : String(error));
process.exit(status ?? 1);
`
)

var (
	pipArguments = []string{"install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-color"}
	npmArguments = []string{"install", "--no-audit", "--no-fund", "--no-progress", "--loglevel=error", "--ignore-scripts", "--prefix=."}
)

// Prefixes of the temporary directories of pip and uv; see sandbox_pip.py and runners/python/uv.
const (
	temporaryPrefix = ".tmp-"
	uvPrefix        = ".uv-"
)

// installer returns the program that installs packages, in the language of the run.
func (p *packagesRun) installer(index string, packages []string) string {
	args := append(slices.Clone(pipArguments), packages...)
	if index == npm {
		args = append(slices.Clone(npmArguments), packages...)
	}
	text, _ := json.Marshal(args) // strings
	switch {
	case slices.Contains(p.runner.Environments, "python"):
		literal, _ := json.Marshal(string(text)) // a string in Python too
		return fmt.Sprintf(installPython, literal)
	case slices.Contains(p.runner.Environments, "node"):
		return fmt.Sprintf(installNode, text)
	}
	for i, arg := range args {
		args[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	command := "exec python -m pip " + strings.Join(args, " ")
	if index == npm {
		command = `mkdir -p "$SANDBOX_NODE_PACKAGES" && cd "$SANDBOX_NODE_PACKAGES" && exec npm ` + strings.Join(args, " ")
	}
	return command + "\n"
}

// prepare returns the function that prepares a run when it is its turn: it installs the packages of
// the request, and has Python start with those that replace the runner's.
func (p *packagesRun) prepare(r *run, req Request) func(context.Context, *session.RunRequest) (*session.RunResult, error) {
	if p == nil {
		return nil
	}
	return func(ctx context.Context, run *session.RunRequest) (*session.RunResult, error) {
		if d, _ := p.e.packageDir(p.runner); len(req.Packages) > 0 {
			unlock, err := p.lock(ctx, d, req.Timeout) // does not count towards the run's time
			if err != nil {
				return nil, err
			}
			defer unlock()
		}
		p.refresh()
		p.before, p.listed, p.prepared = slices.Clone(p.now), slices.Clone(p.now), true
		ended, err := p.install(ctx, r, req)
		if ended != nil || err != nil {
			return ended, err
		}
		run.Timeout = max(run.Timeout-r.elapsed(), min(run.Timeout, time.Second))
		run.Cold = p.cold()
		if run.HasInterpreter {
			return nil, p.checkLoadable(req)
		}
		return nil, nil
	}
}

// checkLoadable refuses a request for other versions of the runner's libraries if the interpreter
// has started with the runner's: the code would get those.
func (p *packagesRun) checkLoadable(req Request) error {
	known, ok := p.e.packageStates.liveIn(p.interpreter(req.Network))
	if len(known.started) > 0 {
		return nil
	}
	for _, each := range p.replaced() {
		isNamed := func(requested string) bool {
			return versionrange.NormalizeName(requirementName(requested)) == each.Name
		}
		if (ok || !slices.Contains(p.python(p.before), each)) && slices.ContainsFunc(req.Packages, isNamed) {
			p.knownTo(req.Network, nil, false)
			return refuse(CodeNeedsRestart, "%s %s is installed, but the interpreter of this session started with %s. "+
				"Run the code again with restart: true, which ends the interpreter and its variables. The code was not run.",
				each.Name, each.Version, p.e.distributions(p.runner)[each.Name])
		}
	}
	return nil
}

// install installs the packages of a request, within the time of its run. A run that is cancelled
// meanwhile has a result; anything else that fails is an error.
func (p *packagesRun) install(ctx context.Context, r *run, req Request) (*session.RunResult, error) {
	if len(req.Packages) == 0 {
		return nil, nil
	}
	d, _ := p.e.packageDir(p.runner)
	state := p.read(d)
	missing := slices.DeleteFunc(slices.Clone(req.Packages), func(each string) bool { return slices.Contains(state.satisfied, each) })
	if len(missing) == 0 {
		return nil, nil
	}
	if d.Index == pypi {
		missing = p.keepVersions(missing)
	}
	var out tail
	redact := redactor{out: func(b []byte) {
		out.write(b)
		r.output(Stderr, b)
	}}
	request := req
	request.Services, request.Hosts = nil, nil
	ended, err := p.s.Run(ctx, p.runner, session.RunRequest{
		ID: r.id, Code: p.installer(d.Index, missing), Network: req.Network, Timeout: req.Timeout,
		KeepWaiting: r.inBackground, Background: r.inBackground,
		Grant: p.e.grant(r, p.runner, request, redact.hide), Started: r.begin,
		Output: func(_ Stream, b []byte) { redact.write(b) },
	})
	redact.flush()
	if err == nil && ended.Started && ended.Cause != "" && d.Index == pypi {
		p.cleanUp(ctx, d)
	}
	switch {
	case err != nil:
		return nil, err
	case ended.Cause == "" && ended.ExitCode == 0:
		p.conflicts = conflictsIn(out.String())
		p.satisfy(d, req.Packages)
		p.refresh()
		p.writeLock(ctx, r)
		return nil, nil
	case ended.Cause == sandbox.CauseCancelled || ended.Cause == sandbox.CausePreempted || ended.Cause == sandbox.CauseLost:
		ended.Started = false
		return &ended, nil
	}
	problem := p.installError(r, ended, req.Packages, out.String())
	var added []string
	for _, each := range p.added() {
		added = append(added, each.Name+" "+each.Version)
	}
	if len(added) > 0 {
		problem.Message += fmt.Sprintf(" Before that, these were installed: %s.", untrusted.Clip(strings.Join(added, ", "), 400))
	}
	p.writeLock(ctx, r)
	return nil, problem
}

// cleanUpTime bounds the removal of what is left. The next pip tries again.
const cleanUpTime = 5 * time.Second

// cleanUp removes what a pip that was killed has left: its temporary files, or everything if no
// package is complete and no other installer is at work.
func (p *packagesRun) cleanUp(ctx context.Context, d runner.PackageDir) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer cancel()
	ws, dir := p.s.Workspace(), workspace.PackagesDir+"/"+d.Name
	isTemporary := func(name string) bool { return strings.HasPrefix(name, temporaryPrefix) }
	isOther := func(name string) bool {
		return isTemporary(name) || strings.HasPrefix(name, uvPrefix) || name == "node_modules" // npm's, for an operator's runner
	}
	p.s.RemoveStale(ctx, dir, isTemporary)
	left, _ := ws.Names(dir, maxEntriesRead)
	if !slices.ContainsFunc(left, isOther) && len(p.read(d).list) == 0 {
		p.s.RemoveStale(ctx, workspace.PackagesDir, func(name string) bool { return name == d.Name })
	}
}

// installError says why packages could not be installed. What the mirror refused comes first.
func (p *packagesRun) installError(r *run, ended session.RunResult, packages []string, output string) *Error {
	names := untrusted.Clip(strings.Join(packages, ", "), 200)
	said := explained(output, p.meantBy(packages))
	if problems := p.e.cfg.Packages.Release(r.id, append(unmetIn(output), packages...)); len(problems) > 0 {
		return refuse(problems[0].Code, "%s%s The code was not run.%s", describeProblems(problems), p.meantBy([]string{problems[0].Package}), requiredBy(output))
	}
	switch ended.Cause {
	case sandbox.CauseDiskQuota:
		return refuse(CodeQuotaExceeded, "There is not enough space for %s: /data, which holds the session's packages in /data/%[2]s, may take %[3]s. "+
			"If it is almost empty, they need more than that: the operator can raise SANDBOX_WORKSPACE_BYTES. "+
			"Otherwise delete files in it; rm -rf /data/%[2]s removes all packages. The code was not run.",
			names, workspace.PackagesDir, p.e.quota())
	case sandbox.CauseTimeout:
		return refuse(CodePackageInstallFailed, "Installing %s took longer than the run may take. Ask for more time with timeout_seconds. "+
			"If that does not help, rm -rf /data/%s removes all packages of the session. The code was not run.", names, workspace.PackagesDir)
	case "":
		if strings.Contains(output, "ERROR: Exception:") { // pip's own, whose text is a traceback
			return refuse(CodePackageInstallFailed, "pip failed on %s, probably because of what the session has in /data/%[2]s, and the code was not run. "+
				"rm -rf /data/%[2]s removes all packages of the session.", names, workspace.PackagesDir)
		}
		if unmet := unmetIn(output); len(unmet) > 0 && strings.Contains(output, "(from versions: none)") {
			return refuse(codeNoWheel, "No version that was asked for has a wheel for this Python and platform, and the code was not run.%s", said)
		} else if len(unmet) > 0 {
			return refuse(codePackageNotFound, "There is no version of a package that fits, and the code was not run.%s", said)
		}
		return refuse(CodePackageInstallFailed, "%s could not be installed, and the code was not run.%s", names, said)
	}
	return refuse(CodePackageInstallFailed, "%s could not be installed (%s), and the code was not run.%s", names, ended.Cause, said)
}

// meantBy says which packages have the modules that a request took for packages, such as sklearn.
func (p *packagesRun) meantBy(requested []string) (text string) {
	if !slices.Contains(p.runner.Environments, "python") {
		return ""
	}
	for _, each := range requested {
		name := strings.ReplaceAll(requirementName(each), "-", "_")
		for module, package_ := range packageNames {
			switch {
			case package_ == "" || !strings.EqualFold(module, name):
			case slices.Contains(p.runner.Libraries, module):
				text += fmt.Sprintf(" The module %s belongs to the package %s, which is installed: only import it.", module, package_)
			default:
				text += fmt.Sprintf(" The module %s belongs to the package %s.", module, package_)
			}
		}
	}
	return text
}

// describeProblems returns the messages of the first problems.
func describeProblems(problems []PackageProblem) string {
	var texts []string
	for _, each := range problems[:min(len(problems), 3)] {
		texts = append(texts, each.Message)
	}
	return strings.Join(slices.Compact(texts), " ")
}

// tail keeps the end of a text.
type tail struct{ kept []byte }

func (t *tail) write(p []byte) {
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - hintWindow; over > 0 {
		t.kept = slices.Delete(t.kept, 0, over)
	}
}

func (t *tail) String() string { return strings.ToValidUTF8(string(t.kept), "�") }
