package runner

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"mcp-code-sandbox/runners"
)

// installed are the files of ours that are put beside an environment's libraries.
var installed = map[string][]string{"python": {"sandbox_runner.py", "sandbox_runner.pth", "sandbox_exercise.py"}, "node": nodeFiles()}

// InstallOwn prepares the environments of the operator's own runners in own: those that are missing or not made of the files
// that are there now. Like Install, it changes nothing outside dir, and what could not be had is a problem.
func InstallOwn(ctx context.Context, dir, own string, progress func(format string, args ...any)) []Problem {
	list, problems := customs(own)
	if runtime.GOOS != "linux" || len(list) == 0 {
		return problems
	}
	fail := func(err error) []Problem {
		return append(problems, Problem{"runners", err.Error(), "make " + dir + " writable, then " + fixInstall})
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fail(err)
	}
	in := installer{dir: customDir(dir), files: runners.Files, progress: progress}
	if err := os.MkdirAll(in.dir, 0o755); err != nil {
		return fail(err)
	}
	unlock, err := lockDir(in.dir)
	if err != nil {
		return fail(err)
	}
	defer unlock()
	if err := in.removeLeftovers(); err != nil {
		return fail(err)
	}
	for _, c := range list {
		tried := false // the libraries, by installing them
		for _, e := range customEnvs {
			if !c.has(e.file) {
				continue
			}
			if _, current := c.environment(ctx, dir, e.env); current {
				continue
			}
			tried = tried || e.env == c.Base
			start := time.Now()
			fill := in.ownPython
			if e.env == "node" {
				fill = in.ownNode
			}
			if p := fill(ctx, &c, dir); p != nil {
				problems = append(problems, *p)
				continue
			}
			progress("%s: ready (%.0f s)", c.Name, time.Since(start).Seconds())
		}
		if !tried {
			if err := in.tryLibraries(ctx, &c, dir); err != nil && ctx.Err() == nil {
				problems = append(problems, Problem{c.Name, "libraries: " + err.Error(),
					"take it out of " + filepath.Join(c.dir, "runner.json") + ", or name its package in a requirements.txt or package.json beside it, then " + fixInstall})
			}
		}
	}
	return problems
}

// tryLibraries imports the libraries that a runner promises from the environment that it uses: its own, or the bundled one.
func (in installer) tryLibraries(ctx context.Context, c *custom, dir string) error {
	if len(c.Libraries) == 0 {
		return nil
	}
	env := filepath.Join(dir, c.Base)
	for _, e := range customEnvs {
		if e.env == c.Base && c.has(e.file) {
			env = filepath.Join(in.dir, c.envName(e.env))
		}
	}
	switch c.Base {
	case "python":
		exe := filepath.Join(env, "bin", "python")
		if _, err := os.Stat(exe); err != nil {
			env, exe = in.dir, findPython(ctx).Path // the runner, too, then has the plain interpreter
		}
		return in.command(ctx, env, []string{"HOME=/nonexistent", "MPLBACKEND=Agg", "PYTHONDONTWRITEBYTECODE=1"}, nil, exe, "-c", "import "+strings.Join(c.Libraries, ", "))
	case "node":
		s, ok := current(ctx, filepath.Dir(env), filepath.Base(env), probeNode, sameNode)
		if !ok {
			return nil // discovering says that there is no Node.js
		}
		return in.command(ctx, env, nil, nil, s.Interpreter.Path, "--input-type=module", "-e", importAll(c.Libraries))
	}
	return nil
}

// importAll is a JavaScript module that imports the libraries.
func importAll(libraries []string) string {
	var code strings.Builder
	for _, name := range libraries {
		code.WriteString("import '" + name + "';\n")
	}
	return code.String()
}

func (in installer) ownPython(ctx context.Context, c *custom, _ string) *Problem {
	py := findPython(ctx)
	if py.Path == "" || !py.canInstall {
		return &Problem{c.Name, "no Python 3.10 or newer that can make environments", "apt-get install python3 python3-venv, then " + fixInstall}
	}
	hash, err := c.hash("python")
	if err == nil {
		v := venv{label: c.Name, lock: hash, pip: []string{"-r", filepath.Join(c.dir, "requirements.txt")}}
		if c.Base == "python" {
			v.imports = c.Libraries
		}
		err = in.stage(c.envName("python"), func(staging string) error { return in.fillVenv(ctx, py, staging, v) })
	}
	if err != nil {
		return &Problem{c.Name, "requirements.txt could not be installed: " + err.Error(), "check the file and that the Python package index can be reached, then " + fixInstall}
	}
	return nil
}

// ownNode installs exactly what a package-lock.json says where there is one. As with the bundled packages, no scripts are run.
func (in installer) ownNode(ctx context.Context, c *custom, dir string) *Problem {
	node, tooOld := findNode(ctx, dir)
	if node.Path == "" {
		p := noNode(tooOld)
		p.Runner = c.Name
		return &p
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return &Problem{c.Name, "npm is not installed", "apt-get install npm, then " + fixInstall}
	}
	hash, err := c.hash("node")
	if err == nil {
		err = in.stage(c.envName("node"), func(staging string) error {
			in.progress("%s: installing the packages with npm (for Node.js %s)", c.Name, node.Version)
			command, files := "install", []string{"package.json"}
			if c.has("package-lock.json") {
				command, files = "ci", append(files, "package-lock.json")
			}
			if err := copyFiles(os.DirFS(filepath.Dir(c.dir)), filepath.Base(c.dir), staging, files...); err != nil {
				return err
			}
			if err := in.npmCommand(ctx, npm, command, staging); err != nil {
				return err
			}
			if err := copyFiles(in.files, "node", staging, installed["node"]...); err != nil {
				return err
			}
			if err := in.checkNode(ctx, c, node, staging); err != nil {
				return err
			}
			return stamp{Lock: hash, Complete: true, Interpreter: node}.write(staging)
		})
	}
	if err != nil {
		return &Problem{c.Name, "package.json could not be installed: " + err.Error(), "check the file and that the npm registry can be reached, then " + fixInstall}
	}
	return nil
}

// checkNode imports the libraries that the runner promises.
func (in installer) checkNode(ctx context.Context, c *custom, node interpreter, staging string) (err error) {
	if c.Base != "node" || len(c.Libraries) == 0 {
		return nil
	}
	check := filepath.Join(staging, "check.mjs")
	if err := os.WriteFile(check, []byte(importAll(c.Libraries)), 0o644); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(check)) }()
	return in.command(ctx, staging, nil, nil, node.Path, check)
}
