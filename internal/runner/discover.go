package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/runners"
)

// Sources says where runners come from. A directory that does not exist counts as empty.
type Sources struct {
	// Env is the server's environment. PATH, HOME, PYENV_ROOT and NVM_DIR lead to interpreters.
	Env map[string]string
	// Dir holds the environments that Install prepares.
	Dir string
	// Own holds the operator's runners, a directory each: a runner.json, or a wrapper.
	Own string
	// Wrappers hold environments that isolate themselves (contract 5), a directory each.
	Wrappers []string
}

// basePath is the part of PATH that every sandbox has.
const basePath = "/usr/local/bin:/usr/bin:/bin"

// found is an environment of this host.
type found struct {
	interpreter
	title     string          // "Python"
	command   string          // the interpreter's path inside; empty if it is not usable
	path      []string        // directories for PATH
	mounts    []sandbox.Mount // what it needs inside
	installed bool            // with its libraries
}

// Discover returns the runners that work on this host, and why the others do not. An operator's
// runner replaces a bundled one of the same name, and a later source an earlier one.
func (s Sources) Discover(ctx context.Context) (Set, []Problem) {
	set, h, problems := s.bundled(ctx)
	wrappers, more := s.findWrappers()
	for _, r := range wrappers {
		set = set.with(r)
	}
	own, ps := customs(s.Own)
	problems = append(append(problems, more...), ps...)
	for _, c := range own {
		r, ps := c.runner(ctx, s, h)
		problems = append(problems, ps...)
		if r != nil {
			set = set.with(*r)
		}
	}
	return set, problems
}

// DiscoverWrappers is the part of Discover that needs no jail. It reports each runner.json as a
// problem.
func (s Sources) DiscoverWrappers() (Set, []Problem) {
	if runtime.GOOS != "linux" {
		return nil, nil
	}
	set, problems := s.findWrappers()
	own, ps := customs(s.Own)
	problems = append(problems, ps...)
	for _, c := range own {
		problems = append(problems, Problem{c.Name, "a runner.json works on the jail only",
			"on docker, build an image with the labels sandbox.runner=true and sandbox.language=" + c.Name})
	}
	return set, problems
}

// with adds a runner, in place of one with the same name.
func (s Set) with(r Runner) Set {
	if i := slices.IndexFunc(s, func(have Runner) bool { return have.Name == r.Name }); i >= 0 {
		s[i] = r
		return s
	}
	return append(s, r)
}

func (s Sources) findWrappers() (set Set, problems []Problem) {
	for _, dir := range append(slices.Clone(s.Wrappers), s.Own) {
		list, ps := wrappers(dir)
		problems = append(problems, ps...)
		for _, r := range list {
			set = set.with(r)
		}
	}
	return set, problems
}

// parts are the components of runners.
type parts struct {
	defs []Definition
	envs map[string]found
	bash found
}

// bundled returns the runners of this project. It starts an interpreter only if Install has not
// prepared it, or if it has changed since.
func (s Sources) bundled(ctx context.Context) (Set, parts, []Problem) {
	defs, err := definitions(runners.Files, runners.Names())
	if err != nil {
		return nil, parts{}, []Problem{{"runners", err.Error(), "rebuild: make build"}}
	}
	if runtime.GOOS != "linux" {
		return nil, parts{}, []Problem{linuxOnly}
	}
	if abs, err := filepath.Abs(s.Dir); err == nil {
		s.Dir = abs
	}
	p := parts{defs: defs, envs: map[string]found{}}
	python, problems := s.detectPython(ctx)
	node, more := s.detectNode(ctx)
	problems = append(problems, more...)
	for name, f := range map[string]found{"python": python, "node": node} {
		if f.command != "" {
			p.envs[name] = f
		}
	}
	p.bash, more = environ(s.Env).detectBash(ctx)
	var set Set
	for _, d := range defs {
		if r, ok := p.assemble(d); ok {
			set = append(set, r)
		}
	}
	return set, p, append(problems, more...)
}

func (s Sources) detectPython(ctx context.Context) (found, []Problem) {
	dir := filepath.Join(s.Dir, "python")
	if stamp, ok := environ(s.Env).current(ctx, python, dir); ok && stamp.Complete {
		return pythonAt(dir, stamp), stale(stamp, "python")
	}
	in := environ(s.Env).findPython(ctx)
	if in.Path == "" {
		return found{}, []Problem{noPython}
	}
	return found{
		interpreter: in, title: "Python", command: in.Path, mounts: mounts(in.Paths), path: []string{filepath.Dir(in.Path)},
	}, []Problem{{"python", "the libraries are not installed: Python runs without them", fixInstall}}
}

func (s Sources) detectNode(ctx context.Context) (found, []Problem) {
	dir := filepath.Join(s.Dir, "node")
	stamp, ok := environ(s.Env).current(ctx, node, dir)
	if !ok {
		if _, err := os.Stat(filepath.Join(dir, stampName)); err == nil {
			return found{}, []Problem{{"node", "the Node.js it was installed with is gone: no JavaScript, no TypeScript", fixInstall}}
		}
		in, tooOld := environ(s.Env).findNode(ctx, s.Dir)
		if in.Path == "" {
			return found{}, []Problem{noNode(tooOld)}
		}
		return found{}, []Problem{{"node", "not installed: no JavaScript, no TypeScript", fixInstall}}
	}
	f := nodeAt(dir, stamp)
	if !stamp.Complete {
		return f, []Problem{{"node", "the libraries are not installed: JavaScript runs without them, TypeScript not at all", fixInstall}}
	}
	return f, stale(stamp, "node")
}

// stale returns a problem if an environment was made from another version's definition.
func stale(s stamp, env string) []Problem {
	if hash, err := lockHash(runners.Files, env); err == nil && hash != s.Lock {
		return []Problem{{env, "the installed libraries are not the ones of this version", fixInstall}}
	}
	return nil
}

var (
	linuxOnly = Problem{"runners", "the jail runs on Linux only", "use the Docker backend"}
	noPython  = Problem{"python", "no Python 3.10 or newer", "apt-get install python3 python3-venv, then " + fixInstall}
)

// noNode reports that the host has no usable Node.js.
func noNode(tooOld string) Problem {
	p := Problem{"node", fmt.Sprintf("no Node.js %d.%d or newer: no JavaScript, no TypeScript", nodeMajor, nodeMinor),
		"apt-get install nodejs npm, then " + fixInstall}
	if tooOld != "" {
		p.Problem += " (there is " + tooOld + ")"
		p.Fix = "apt-get install npm (with it, a newer Node.js is fetched), then " + fixInstall
	}
	return p
}

func (e environ) detectBash(ctx context.Context) (found, []Problem) {
	for _, path := range append([]string{"/bin/bash", "/usr/bin/bash"}, e.onPath("bash")...) {
		out, err := e.output(ctx, path, "-c", `echo "${BASH_VERSION%%[(-]*}"`)
		if err != nil {
			continue
		}
		f := found{title: "GNU bash", command: path}
		f.Version = strings.TrimSpace(string(out))
		if real, err := filepath.EvalSymlinks(path); err == nil && !inEverySandbox(real) {
			f.command = real
			f.mounts = mounts(e.needed(filepath.Dir(filepath.Dir(real)), real))
		}
		return f, nil
	}
	return found{}, []Problem{{"shell", "no bash", "apt-get install bash"}}
}

// assemble makes a runner from its definition, if its environments are usable.
func (p parts) assemble(d Definition) (Runner, bool) {
	r := Runner{Definition: d, Image: "jail:" + d.Name}
	var replacements, path []string
	use := func(f found) {
		path = append(path, f.path...)
		for _, m := range f.mounts {
			if !slices.Contains(r.Mounts, m) {
				r.Mounts = append(r.Mounts, m)
			}
		}
	}
	for _, name := range d.Environments {
		f, ok := p.envs[name]
		if !ok || d.NeedsLibraries && !f.installed {
			return Runner{}, false
		}
		use(f)
		replacements = append(replacements, "{"+name+"}", f.command)
		r.Version = f.title + " " + f.Version
		if !f.installed {
			r.Libraries = nil
		}
	}
	if slices.Contains(d.Argv, "{bash}") {
		if p.bash.command == "" {
			return Runner{}, false
		}
		use(p.bash)
		replacements = append(replacements, "{bash}", p.bash.command)
		r.Version = p.bash.title + " " + p.bash.Version
	}
	for _, name := range d.Optional {
		if f, ok := p.envs[name]; ok && f.installed {
			use(f)
		}
	}
	base := strings.Split(basePath, ":")
	path = slices.DeleteFunc(path, func(p string) bool { return slices.Contains(base, p) })
	replacements = append(replacements, "{path}", strings.Join(append(path, base...), ":"))

	replacer := strings.NewReplacer(replacements...)
	replaced := func(argv []string) (out []string) {
		for _, a := range argv {
			out = append(out, replacer.Replace(a))
		}
		return out
	}
	r.Argv, r.Persistent = replaced(d.Argv), replaced(d.Persistent)
	r.Env = make(map[string]string, len(d.Env))
	for k, v := range d.Env {
		r.Env[k] = replacer.Replace(v)
	}
	return r, true
}
