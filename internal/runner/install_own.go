package runner

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"mcp-code-sandbox/runners"
)

// InstallOwn is Install for the operator's own runners.
func (s Sources) InstallOwn(ctx context.Context, progress func(format string, args ...any)) []Problem {
	list, problems := customs(s.Own)
	if runtime.GOOS != "linux" || len(list) == 0 {
		return problems
	}
	in := ownInstaller{installer{environ: s.Env, dir: customDir(s.Dir), progress: progress}, s}
	unlock, err := in.open()
	if err != nil {
		return append(problems, in.notWritable(err))
	}
	defer unlock()
	for _, c := range list {
		problems = append(problems, in.install(ctx, &c)...)
	}
	return problems
}

// ownInstaller installs the environments of custom runners.
type ownInstaller struct {
	installer
	src Sources
}

// install makes the environments that the runner's files ask for, and imports its libraries.
func (in *ownInstaller) install(ctx context.Context, c *custom) (problems []Problem) {
	imported := false
	for _, t := range toolchains {
		if !c.has(t.manifest) {
			continue
		}
		if _, current := c.environment(ctx, in.src, t); current {
			continue
		}
		imported = imported || t.name == c.Base
		start := time.Now()
		fill := in.ownPython
		if t.name == "node" {
			fill = in.ownNode
		}
		if p := fill(ctx, c); p != nil {
			problems = append(problems, *p)
			continue
		}
		in.progress("%s: ready (%.0f s)", c.Name, time.Since(start).Seconds())
	}
	if imported {
		return problems
	}
	if err := in.importLibraries(ctx, c); err != nil && ctx.Err() == nil {
		problems = append(problems, Problem{c.Name, "libraries: " + err.Error(), "remove it from " + filepath.Join(c.dir, "runner.json") +
			", or add its package to a requirements.txt or package.json beside it, then " + fixInstall})
	}
	return problems
}

// importLibraries imports the runner's libraries in its own environment, or in the bundled one.
func (in *ownInstaller) importLibraries(ctx context.Context, c *custom) error {
	dir := filepath.Join(in.src.Dir, c.Base)
	for _, t := range toolchains {
		if t.name == c.Base && c.has(t.manifest) {
			dir = filepath.Join(in.dir, c.envName(t.name))
		}
	}
	switch c.Base {
	case "python":
		exe := filepath.Join(dir, "bin", "python")
		if _, err := os.Stat(exe); err != nil {
			dir, exe = in.dir, in.findPython(ctx).Path // which the runner also uses
		}
		return in.importPython(ctx, dir, exe, c.Libraries)
	case "node":
		if s, ok := in.current(ctx, node, dir); ok { // otherwise Discover reports that Node.js is missing
			return in.importNode(ctx, dir, s.Interpreter, c.Libraries)
		}
	}
	return nil
}

// importNode imports the libraries to prove that they work.
func (in *ownInstaller) importNode(ctx context.Context, dir string, js interpreter, libraries []string) error {
	if len(libraries) == 0 {
		return nil
	}
	return in.command(ctx, dir, nil, nil, js.Path, "--input-type=module", "-e", importAll(libraries))
}

func (in *ownInstaller) ownPython(ctx context.Context, c *custom) *Problem {
	py := in.findPython(ctx)
	if py.Path == "" || !py.canInstall {
		return &Problem{c.Name, "no Python 3.10 or newer that can create environments", noPython.Fix}
	}
	hash, err := c.hash(python)
	if err == nil {
		v := venv{label: c.Name, lock: hash, pip: []string{"-r", filepath.Join(c.dir, "requirements.txt")}}
		if c.Base == "python" {
			v.imports = c.Libraries
		}
		err = in.stage(c.envName("python"), func(staging string) error { return in.fillVenv(ctx, py, staging, v) })
	}
	if err != nil {
		return &Problem{c.Name, "requirements.txt could not be installed: " + err.Error(),
			"check the file and that the Python package index can be reached, then " + fixInstall}
	}
	return nil
}

// ownNode installs what package-lock.json lists, if there is one, and runs no scripts of packages.
func (in *ownInstaller) ownNode(ctx context.Context, c *custom) *Problem {
	js, tooOld := in.findNode(ctx, in.src.Dir)
	if js.Path == "" {
		p := noNode(tooOld)
		p.Runner = c.Name
		return &p
	}
	npm := in.lookPath("npm")
	if npm == "" {
		return &Problem{c.Name, errNoNPM.Error(), fixNPM}
	}
	hash, err := c.hash(node)
	if err == nil {
		err = in.stage(c.envName("node"), func(staging string) error {
			in.progress("%s: installing the packages with npm (for Node.js %s)", c.Name, js.Version)
			command, files := "install", []string{"package.json"}
			if c.has("package-lock.json") {
				command, files = "ci", append(files, "package-lock.json")
			}
			if err := copyFiles(os.DirFS(filepath.Dir(c.dir)), filepath.Base(c.dir), staging, files...); err != nil {
				return err
			}
			if err := in.npm(ctx, npm, command, staging); err != nil {
				return err
			}
			if err := copyFiles(runners.Files, "node", staging, node.files...); err != nil {
				return err
			}
			if c.Base == "node" {
				if err := in.importNode(ctx, staging, js, c.Libraries); err != nil {
					return err
				}
			}
			return stamp{Lock: hash, Complete: true, Interpreter: js}.write(staging)
		})
	}
	if err != nil {
		return &Problem{c.Name, "package.json could not be installed: " + err.Error(),
			"check the file and that the npm registry can be reached, then " + fixInstall}
	}
	return nil
}
