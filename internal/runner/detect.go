package runner

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/runners"
)

// basePath is the part of PATH that every sandbox has.
const basePath = "/usr/local/bin:/usr/bin:/bin"

// found is an environment as Detect found it.
type found struct {
	interpreter
	title     string          // "Python"
	command   string          // the interpreter's path inside
	path      []string        // directories for PATH
	mounts    []sandbox.Mount // what it needs inside
	installed bool            // with its libraries
}

// Detect returns the runners that can really be used with the environments in dir, and what is missing for the others, or for
// their libraries. It starts an interpreter only where Install has not been, or the interpreter has changed since.
func Detect(ctx context.Context, dir string) (Set, []Problem) {
	set, _, problems := detect(ctx, dir)
	return set, problems
}

// parts is what there is to make runners of.
type parts struct {
	defs []Definition
	envs map[string]found
	bash found
}

func detect(ctx context.Context, dir string) (Set, parts, []Problem) {
	defs, err := definitions(runners.Files, runners.Names())
	if err != nil {
		return nil, parts{}, []Problem{{"runners", err.Error(), "rebuild: make build"}}
	}
	if runtime.GOOS != "linux" {
		return nil, parts{}, []Problem{{"runners", "the jail runs on Linux only", "use the Docker backend"}}
	}
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	envs := map[string]found{}
	var problems []Problem
	for _, env := range []struct {
		name   string
		detect func(context.Context, string) (found, []Problem)
	}{{"python", detectPython}, {"node", detectNode}} {
		f, ps := env.detect(ctx, dir)
		problems = append(problems, ps...)
		if f.command != "" {
			envs[env.name] = f
		}
	}
	bash, ps := detectBash(ctx)
	problems = append(problems, ps...)

	var set Set
	for _, d := range defs {
		if r, ok := assemble(d, envs, bash); ok {
			set = append(set, r)
		}
	}
	return set, parts{defs, envs, bash}, problems
}

// assemble makes a runner of its definition and the environments there are.
func assemble(d Definition, envs map[string]found, bash found) (Runner, bool) {
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
		f, ok := envs[name]
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
		if bash.command == "" {
			return Runner{}, false
		}
		use(bash)
		replacements = append(replacements, "{bash}", bash.command)
		r.Version = bash.title + " " + bash.Version
	}
	for _, name := range d.Optional {
		if f, ok := envs[name]; ok && f.installed {
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

// current reads an environment's stamp and reports whether it can be used: its interpreter is where it was. A changed one is
// asked for its version by probe; compatible then decides.
func current(ctx context.Context, dir, env string, probe func(context.Context, string) (interpreter, error), compatible func(was, now string) bool) (stamp, bool) {
	s, err := readStamp(dir, env)
	if err != nil {
		return s, false
	}
	if s.Interpreter.unchanged() {
		return s, true
	}
	now, err := probe(ctx, s.Interpreter.Path)
	if err != nil || !compatible(s.Interpreter.Version, now.Version) {
		return s, false
	}
	s.Interpreter = now
	return s, true
}

// stale is the problem of an environment whose lock is not the one of this program, or nil.
func stale(s stamp, env string) []Problem {
	if hash, err := lockHash(runners.Files, env); err == nil && hash != s.Lock {
		return []Problem{{env, "the installed libraries are not the ones of this version", fixInstall}}
	}
	return nil
}

func detectPython(ctx context.Context, dir string) (found, []Problem) {
	if s, ok := current(ctx, dir, "python", probePython, sameMinor); ok && s.Complete {
		return pythonIn(filepath.Join(dir, "python"), s), stale(s, "python")
	}
	in := findPython(ctx)
	if in.Path == "" {
		return found{}, []Problem{{"python", "no Python 3.10 or newer", "apt-get install python3 python3-venv, then " + fixInstall}}
	}
	return found{
		interpreter: in, title: "Python", command: in.Path, mounts: mounts(in.Paths), path: []string{filepath.Dir(in.Path)},
	}, []Problem{{"python", "the libraries are not installed: Python runs without them", fixInstall}}
}

// pythonIn is the environment that was installed in dir. Inside, each takes the bundled one's place.
func pythonIn(dir string, s stamp) found {
	return found{
		interpreter: s.Interpreter, title: "Python", installed: true,
		command: inside + "python/bin/python",
		path:    []string{inside + "python/bin"},
		mounts:  append([]sandbox.Mount{{Source: dir, Target: inside + "python"}}, mounts(s.Interpreter.Paths)...),
	}
}

func nodeIn(dir string, s stamp) found {
	return found{
		interpreter: s.Interpreter, title: "Node.js", installed: s.Complete,
		command: s.Interpreter.Path,
		path:    []string{filepath.Dir(s.Interpreter.Path)},
		mounts:  append([]sandbox.Mount{{Source: dir, Target: inside + "node"}}, mounts(s.Interpreter.Paths)...),
	}
}

func detectNode(ctx context.Context, dir string) (found, []Problem) {
	newEnough := func(_, now string) bool { return atLeast(now, nodeMajor, nodeMinor) }
	s, ok := current(ctx, dir, "node", probeNode, newEnough)
	if !ok {
		if _, err := os.Stat(filepath.Join(dir, "node", stampName)); err == nil {
			return found{}, []Problem{{"node", "the Node.js it was installed with is gone: no JavaScript, no TypeScript", fixInstall}}
		}
		in, tooOld := findNode(ctx, dir)
		if in.Path == "" {
			return found{}, []Problem{noNode(tooOld)}
		}
		return found{}, []Problem{{"node", "not installed: no JavaScript, no TypeScript", fixInstall}}
	}
	f := nodeIn(filepath.Join(dir, "node"), s)
	if !s.Complete {
		return f, []Problem{{"node", "the libraries are not installed: JavaScript runs without them, TypeScript not at all", fixInstall}}
	}
	return f, stale(s, "node")
}

// noNode is the problem of a host without a usable Node.js.
func noNode(tooOld string) Problem {
	p := Problem{"node", fmt.Sprintf("no Node.js %d.%d or newer: no JavaScript, no TypeScript", nodeMajor, nodeMinor), "apt-get install nodejs npm, then " + fixInstall}
	if tooOld != "" {
		p.Problem += " (there is " + tooOld + ")"
		p.Fix = "apt-get install npm (with it, a newer Node.js is fetched), then " + fixInstall
	}
	return p
}

func detectBash(ctx context.Context) (found, []Problem) {
	for _, name := range []string{"/bin/bash", "/usr/bin/bash", "bash"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := output(ctx, path, "-c", `echo "${BASH_VERSION%%[(-]*}"`)
		if err != nil {
			continue
		}
		f := found{title: "GNU bash", command: path}
		f.Version = strings.TrimSpace(string(out))
		if real, err := filepath.EvalSymlinks(path); err == nil && !everywhere(real) {
			f.command = real
			f.mounts = mounts(needed(filepath.Dir(filepath.Dir(real)), real))
		}
		return f, nil
	}
	return found{}, []Problem{{"shell", "no bash", "apt-get install bash"}}
}
