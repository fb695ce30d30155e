package executor

import (
	"maps"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// Packages lets runs install packages from the server's mirror. Its methods are safe for concurrent
// use.
type Packages interface {
	// Indexes lists the kinds of packages that can be installed: "pypi", "npm".
	Indexes() []string
	// Grant lets a run that is about to start in a sandbox use the mirror, until Release. A run
	// that installs packages before its code gets its grant twice.
	Grant(caller session.Caller, runID, sandboxID string) Grant
	// Release ends the grant of a run, and returns what the mirror refused. unmet are requirements
	// for which pip or npm found no version, and those of an installation that failed.
	Release(runID string, unmet []string) []PackageProblem
}

// PackageProblem is a package, or a version of one, that a run asked for and did not get.
type PackageProblem struct {
	Code    Code
	Package string
	Message string // what is wrong and what to do
	Soft    bool   // the run may have taken another version
}

// The codes of refused packages, besides those of a PackageProblem.
const (
	CodeInvalidPackages      Code = "invalid_packages"
	CodePackageInstallFailed Code = "package_install_failed"
	CodeNeedsRestart         Code = "restart_needed"
	codePackageNotFound      Code = "package_not_found"
	codeNoWheel              Code = "no_wheel"
)

// Package is an installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// dataDir is the workspace inside a sandbox.
const dataDir = "/data/"

// packageEnvironment returns the variables with which code finds the session's packages and
// installs others. docs/packages.md lists them.
func (e *Executor) packageEnvironment(r runner.Runner, given map[string]string) map[string]string {
	env := map[string]string{}
	path := strings.Split(r.Env["PATH"], ":")
	for _, d := range e.packageDirs(r) {
		dir := dataDir + workspace.PackagesDir + "/" + d.Name
		switch d.Index {
		case pypi:
			maps.Copy(env, map[string]string{
				"SANDBOX_PYTHON_PACKAGES": dir, "PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1",
				"UV_LINK_MODE": "copy", "UV_PYTHON_DOWNLOADS": "never", "UV_COMPILE_BYTECODE": "1",
			})
			path = append(path, dir+"/bin")
		case npm:
			maps.Copy(env, map[string]string{
				"SANDBOX_NODE_PACKAGES": dir, "npm_config_prefix": dir,
				"npm_config_cache": "/tmp/.npm", "npm_config_ignore_scripts": "true",
			})
			if r.Prestart == nil && given["NODE_PATH"] == "" {
				env["NODE_PATH"] = dir + "/node_modules" // for a bundled runner, modules.cjs sets it
			}
			path = append(slices.Insert(path, 0, "/opt/runners/node"), dir+"/node_modules/.bin", dir+"/bin")
		}
	}
	if r.Env["PATH"] != "" && given["PATH"] == "" && len(env) > 0 {
		env["PATH"] = strings.Join(path, ":")
	}
	return env
}
