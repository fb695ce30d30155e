// Package runner finds, installs and describes the language environments that code can run in.
//
// The definitions are data in the top-level package runners. [Sources.Install] turns their locked
// library lists into directories on the host. [Sources.Discover] returns the runners that work
// here, with their mounts and command lines. The package knows nothing of sessions.
package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
)

// Definition is the content of a runner.json.
type Definition struct {
	Name    string   `json:"name"`
	Aliases []string `json:"aliases"`
	Title   string   `json:"title"`
	// File is the name of the code file. The agent may add a unique part before the extension.
	File string `json:"file"`
	// Argv is the command of a run. The agent replaces "{file}" with the path of the code file.
	// Discover replaces "{python}", "{node}" and "{bash}".
	Argv []string `json:"argv"`
	// Persistent is the command of an interpreter, with the same replacements and "{driver}", which
	// the agent replaces with the path of the driver. If it is empty, the runner keeps no state.
	Persistent []string `json:"persistent"`
	// Driver is the name of the driver's file, next to runner.json.
	Driver       string `json:"driver"`
	DriverSource []byte `json:"-"`
	// Zygote forks the processes of runs. Argv must then be an interpreter and its file.
	Zygote *Zygote `json:"zygote"`
	// Prestart says that Argv can be started before its code is known. See docs/warm-start.md.
	Prestart *Prestart `json:"prestart"`
	// Displays says that programs leave plots and tables where the agent looks for them.
	Displays bool `json:"displays"`
	// Env is added to every run. Discover replaces "{path}".
	Env map[string]string `json:"env"`
	// Libraries are the names for the tool description. Discover omits those that are not
	// installed.
	Libraries []string `json:"libraries"`
	// Environments are required. Optional ones are mounted if they are installed.
	Environments []string `json:"environments"`
	Optional     []string `json:"optional"`
	// NeedsLibraries says that the runner does not work without its libraries.
	NeedsLibraries bool `json:"needs_libraries"`
	// TimeoutSeconds and MemoryMB replace the server's limits, unless they are 0.
	TimeoutSeconds int `json:"timeout_seconds"`
	MemoryMB       int `json:"memory_mb"`
}

// Zygote is an interpreter with libraries imported, that forks a process for each run.
type Zygote struct {
	// File is the name of the zygote's program, next to runner.json.
	File   string `json:"file"`
	Source []byte `json:"-"`
	// Reads lists the prefixes of the variables that the interpreter and its libraries read while
	// they start: a run that changes one does not come from the zygote.
	Reads []string `json:"reads"`
	// PerRun lists variables among them that each run may set. The zygote starts without them.
	PerRun []string `json:"per_run"`
	// Preload is imported at once: libraries that many programs use and that take little memory.
	Preload []string `json:"preload"`
	// ToInstall is imported as well where code may install packages.
	ToInstall []string `json:"preload_to_install"`
	// OnUse lists modules that a session's zygote imports once code has mentioned them.
	OnUse []string `json:"preload_on_use"`
	// Light is imported by a second zygote, for programs that import nothing else. They do not
	// carry the memory of the libraries.
	Light []string `json:"light"`
}

// Prestart describes a program that can wait for its code. Reads lists the prefixes of the
// variables that it reads while it starts: a run that changes one needs a new program. Helper is
// the command of a process that waits beside it, connected to its descriptor 3.
type Prestart struct {
	Reads  []string `json:"reads"`
	Helper []string `json:"helper"`
}

// Runner is a language environment that can be used on this host.
type Runner struct {
	Definition
	Image   string // for list_runners, for example "jail:python"
	ImageID string // for backends that have images
	Version string // for example "Python 3.11.7"
	Mounts  []sandbox.Mount
	// Wrapper is the directory of an environment that isolates itself (contract 5). It has no
	// workspace.
	Wrapper string
}

// HasAgent reports whether this project's agent runs the code. Without it, code reaches nothing
// that the server offers at the door.
func (r Runner) HasAgent() bool { return r.Wrapper == "" && len(r.Argv) > 0 }

// MayUse reports whether an environment, such as "node", is the runner's own or an optional one.
func (r Runner) MayUse(environment string) bool {
	return slices.Contains(r.Environments, environment) || slices.Contains(r.Optional, environment)
}

// Zygotes returns the runner's zygotes: the one that imports the libraries, then the light one.
func (r Runner) Zygotes() (all []sandbox.Zygote) {
	if r.Zygote == nil || len(r.Argv) == 0 {
		return nil
	}
	env := maps.Clone(r.Env)
	for _, name := range r.Zygote.PerRun {
		delete(env, name)
	}
	z := sandbox.Zygote{
		Name: r.Name, Argv: r.Argv[:1], Env: env, Reads: r.Zygote.Reads, PerRun: r.Zygote.PerRun,
		Source: r.Zygote.Source, Preload: r.Zygote.Preload, OnUse: r.Zygote.OnUse,
	}
	all = append(all, z)
	if len(r.Zygote.Light) > 0 {
		z.Name, z.Preload, z.OnUse = r.Name+" light", r.Zygote.Light, nil
		all = append(all, z)
	}
	return all
}

// ZygoteFor returns the zygote for a program, or nil. An interpreter gets the one with all
// libraries: its later cells may import anything.
func (r Runner) ZygoteFor(code string, persistent bool) *sandbox.Zygote {
	all := r.Zygotes()
	switch {
	case len(all) == 0:
		return nil
	case len(all) > 1 && !persistent && importsOnly(code, all[1].Preload):
		return &all[1]
	}
	return &all[0]
}

// Prestarted returns the program that can wait for its code, or nil.
func (r Runner) Prestarted() *sandbox.Prestart {
	if r.Prestart == nil {
		return nil
	}
	return &sandbox.Prestart{Argv: r.Argv, File: r.File, Env: r.Env, Reads: r.Prestart.Reads, Helper: r.Prestart.Helper}
}

// Catalogue is implemented by backends that bring their own runners, such as images.
type Catalogue interface {
	// Runners lists the runners that can be used now. notes are for the log.
	Runners(ctx context.Context) (set Set, notes []string, problems []Problem, err error)
	// Watch calls changed when the result of Runners may have changed, until ctx is done.
	Watch(ctx context.Context, changed func())
}

// Set is the runners of this host, in the order of the definitions.
type Set []Runner

// Lookup finds a runner by its name or an alias and ignores case. An exact match wins, then a name:
// an operator's runner may have the name of another's alias.
func (s Set) Lookup(nameOrAlias string) (Runner, bool) {
	same := func(name string) bool { return strings.EqualFold(name, nameOrAlias) }
	for _, matches := range []func(Runner) bool{
		func(r Runner) bool { return r.Name == nameOrAlias },
		func(r Runner) bool { return slices.Contains(r.Aliases, nameOrAlias) },
		func(r Runner) bool { return same(r.Name) },
		func(r Runner) bool { return slices.ContainsFunc(r.Aliases, same) },
	} {
		if i := slices.IndexFunc(s, matches); i >= 0 {
			return s[i], true
		}
	}
	return Runner{}, false
}

// Names returns the names of the runners, without aliases.
func (s Set) Names() []string {
	names := make([]string, len(s))
	for i, r := range s {
		names[i] = r.Name
	}
	return names
}

// Problem describes something that is missing, and its fix.
type Problem struct {
	Runner  string // a runner's or an environment's name
	Problem string
	Fix     string // a command, or one sentence
}

func (p Problem) String() string {
	s := p.Runner + ": " + p.Problem
	if p.Fix != "" {
		s += " (fix: " + p.Fix + ")"
	}
	return s
}

// fixInstall is the command that prepares the environments.
const fixInstall = "mcp-code-sandbox runners install"

// inside is where sandboxes mount the environments.
const inside = "/opt/runners/"

// definitions reads the runner.json of each name.
func definitions(files fs.FS, names []string) ([]Definition, error) {
	var defs []Definition
	for _, name := range names {
		b, err := fs.ReadFile(files, name+"/runner.json")
		if err != nil {
			return nil, err
		}
		var d Definition
		if err := json.Unmarshal(b, &d); err != nil {
			return nil, fmt.Errorf("%s/runner.json: %w", name, err)
		}
		if d.Driver != "" {
			if d.DriverSource, err = fs.ReadFile(files, name+"/"+d.Driver); err != nil {
				return nil, err
			}
		}
		if d.Zygote != nil {
			if d.Zygote.Source, err = fs.ReadFile(files, name+"/"+d.Zygote.File); err != nil {
				return nil, err
			}
		}
		defs = append(defs, d)
	}
	return defs, nil
}
