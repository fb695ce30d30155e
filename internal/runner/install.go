package runner

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"mcp-code-sandbox/runners"
)

// Install prepares the environments in dir: those that are missing or not made of this program's locks. It reports what it does
// through progress, changes nothing outside dir, and returns what could not be had; the rest is usable. Several processes
// may call it at once; one works, the others wait.
func Install(ctx context.Context, dir string, progress func(format string, args ...any)) []Problem {
	if runtime.GOOS != "linux" {
		return []Problem{{"runners", "the jail runs on Linux only", "use the Docker backend"}}
	}
	fail := func(err error) []Problem {
		return []Problem{{"runners", err.Error(), "make " + dir + " writable, then " + fixInstall}}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	in := installer{dir: dir, files: runners.Files, progress: progress}
	if in.upToDate(ctx, "python", probePython, sameMinor) && in.upToDate(ctx, "node", probeNode, sameNode) {
		return nil
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return fail(err)
	}
	defer unlock()
	if err := in.removeLeftovers(); err != nil {
		return fail(err)
	}
	var problems []Problem
	if p := in.python(ctx); p != nil {
		problems = append(problems, *p)
	}
	if p := in.node(ctx); p != nil {
		problems = append(problems, *p)
	}
	return problems
}

// nodeFiles are the programs of the Node environment: the launcher of fresh runs, the driver of living interpreters, and what
// they are made of.
func nodeFiles() []string {
	return []string{"launch.cjs", "modules.cjs", "driver.cjs", "cell.cjs", "interrupt.cjs"}
}

func sameNode(_, now string) bool { return atLeast(now, nodeMajor, nodeMinor) }

type installer struct {
	dir      string
	files    fs.FS
	progress func(format string, args ...any)
}

func (in installer) upToDate(ctx context.Context, env string, probe func(context.Context, string) (interpreter, error), compatible func(was, now string) bool) bool {
	s, ok := current(ctx, in.dir, env, probe, compatible)
	hash, err := lockHash(in.files, env)
	return ok && s.Complete && err == nil && s.Lock == hash
}

// Staging directories begin with this, so that what a killed installation left can be told and removed.
const stagingPrefix = ".new-"

func (in installer) removeLeftovers() error {
	left, err := filepath.Glob(filepath.Join(in.dir, stagingPrefix+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// stage calls fill on a new directory and puts the result into place as env. On error nothing has changed.
func (in installer) stage(env string, fill func(staging string) error) error {
	staging, err := os.MkdirTemp(in.dir, stagingPrefix+env+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(staging)
	if err := fill(staging); err != nil {
		return err
	}
	if err := makeReadable(staging); err != nil {
		return err
	}
	return replace(staging, filepath.Join(in.dir, env))
}

func (in installer) python(ctx context.Context) *Problem {
	if in.upToDate(ctx, "python", probePython, sameMinor) {
		return nil
	}
	in.progress("python: looking for Python 3.10 or newer")
	py := findPython(ctx)
	if py.Path == "" {
		return &Problem{"python", "no Python 3.10 or newer", "apt-get install python3 python3-venv, then " + fixInstall}
	}
	if !py.canInstall {
		return &Problem{"python", py.Path + " cannot make environments: the libraries are not installed", "apt-get install python3-venv, then " + fixInstall}
	}
	start := time.Now()
	err := in.stage("python", func(staging string) error { return in.fillPython(ctx, py, staging) })
	if err != nil {
		return &Problem{"python", "the libraries could not be installed: " + err.Error(), "check that the Python package index can be reached, then " + fixInstall}
	}
	in.progress("python: ready (Python %s, %.0f s)", py.Version, time.Since(start).Seconds())
	return nil
}

func (in installer) fillPython(ctx context.Context, py interpreter, staging string) error {
	if err := copyFiles(in.files, "python", staging, "requirements.lock"); err != nil {
		return err
	}
	hash, err := lockHash(in.files, "python")
	if err != nil {
		return err
	}
	return in.fillVenv(ctx, py, staging, venv{
		label: "python", lock: hash, imports: append([]string{"matplotlib.font_manager"}, libraries(in.files, "python")...),
		pip: []string{"--no-deps", "--require-hashes", "-r", filepath.Join(staging, "requirements.lock")},
	})
}

// venv is what a Python environment is made of.
type venv struct {
	label   string   // for progress
	lock    string   // for the stamp
	pip     []string // further arguments of pip install
	imports []string // modules whose import proves that it works
}

// fillVenv makes an environment that will be at inside+"python". No package's own code is run but by those imports.
func (in installer) fillVenv(ctx context.Context, py interpreter, staging string, v venv) error {
	in.progress("%s: making an environment with %s (Python %s)", v.label, py.Path, py.Version)
	if err := in.command(ctx, staging, nil, nil, py.Path, "-I", "-m", "venv", staging); err != nil {
		return err
	}
	// The environment's interpreter must be the real one, not a link to a link that the sandbox may not have.
	exe := filepath.Join(staging, "bin", "python")
	if err := os.Remove(exe); err != nil {
		return err
	}
	if err := os.Symlink(py.Path, exe); err != nil {
		return err
	}
	in.progress("%s: downloading and installing the libraries", v.label)
	downloads := func(line string) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Downloading "); ok {
			in.progress("%s:   %s", v.label, name)
		}
	}
	if err := in.command(ctx, staging, nil, downloads, exe, append([]string{"-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check",
		"--no-cache-dir", "--retries", "2", "--progress-bar", "off", "--only-binary", ":all:", "--no-compile"}, v.pip...)...); err != nil {
		return err
	}
	// Some versions of venv bring setuptools, which adds to every start of the interpreter.
	if err := in.command(ctx, staging, nil, nil, exe, "-I", "-m", "pip", "uninstall", "--disable-pip-version-check", "-q", "-y", "setuptools"); err != nil {
		return err
	}
	site, err := filepath.Glob(filepath.Join(staging, "lib", "python3.*", "site-packages"))
	if err != nil || len(site) != 1 {
		return fmt.Errorf("no site-packages in %s", staging)
	}
	if err := copyFiles(in.files, "python", site[0], installed["python"]...); err != nil {
		return err
	}
	in.progress("%s: compiling and checking", v.label)
	if err := in.command(ctx, staging, nil, nil, exe, "-I", "-m", "compileall", "-q", "-j", "0", "-s", staging, "-p", inside+"python", site[0]); err != nil {
		return err
	}
	cache := filepath.Join(staging, "share", "matplotlib-cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	// Nothing of this user's home or tools gets into the list of fonts; importing every library proves that they work.
	if len(v.imports) > 0 {
		if err := in.command(ctx, staging, []string{"HOME=/nonexistent", "PATH=/nonexistent", "MPLBACKEND=Agg", "MPLCONFIGDIR=" + cache, "PYTHONDONTWRITEBYTECODE=1"}, nil,
			exe, "-c", "import "+strings.Join(v.imports, ", ")); err != nil {
			return err
		}
	}
	if err := relocateScripts(filepath.Join(staging, "bin"), exe, inside+"python/bin/python"); err != nil {
		return err
	}
	return stamp{Lock: v.lock, Complete: true, Interpreter: py}.write(staging)
}

// libraries returns the import names of a runner's libraries.
func libraries(files fs.FS, name string) []string {
	defs, err := definitions(files, []string{name})
	if err != nil {
		return nil
	}
	return defs[0].Libraries
}

// relocateScripts makes the scripts of an environment start the interpreter where it will be inside.
func relocateScripts(bin, from, to string) error {
	entries, err := os.ReadDir(bin)
	if err != nil {
		return err
	}
	from = filepath.Dir(from) + "/"
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(bin, e.Name())
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		line, rest, ok := bytes.Cut(b, []byte("\n"))
		if !ok || !bytes.HasPrefix(line, []byte("#!"+from)) {
			continue
		}
		if err := os.WriteFile(path, append([]byte("#!"+to+"\n"), rest...), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (in installer) node(ctx context.Context) *Problem {
	if in.upToDate(ctx, "node", probeNode, sameNode) {
		return nil
	}
	in.progress("node: looking for Node.js %d.%d or newer", nodeMajor, nodeMinor)
	node, tooOld := findNode(ctx, in.dir)
	npm, npmErr := exec.LookPath("npm")
	if node.Path == "" {
		if npmErr != nil {
			p := noNode(tooOld)
			return &p
		}
		in.progress("node: fetching Node.js itself: the host's is missing or too old")
		err := in.stage("nodejs", func(staging string) error { return in.npm(ctx, npm, "nodejs", staging) })
		if err == nil {
			node, _ = findNode(ctx, in.dir)
		}
		if node.Path == "" {
			p := noNode(tooOld)
			p.Problem += fmt.Sprintf("; fetching one failed: %v", err)
			return &p
		}
	}
	start := time.Now()
	var problem *Problem
	err := errors.New("npm is not installed")
	if npmErr == nil {
		err = in.stage("node", func(staging string) error { return in.fillNode(ctx, node, npm, staging) })
	}
	if err == nil {
		in.progress("node: ready (Node.js %s, %.0f s)", node.Version, time.Since(start).Seconds())
		return nil
	}
	problem = &Problem{"node", "the libraries could not be installed: " + err.Error(), "check that the npm registry can be reached, then " + fixInstall}
	if npmErr != nil {
		problem.Fix = "apt-get install npm, then " + fixInstall
	}
	// JavaScript needs these alone. An older complete environment is better still.
	if s, ok := current(ctx, in.dir, "node", probeNode, sameNode); ok && s.Complete {
		return problem
	}
	err = in.stage("node", func(staging string) error {
		return errors.Join(copyFiles(in.files, "node", staging, nodeFiles()...), stamp{Interpreter: node}.write(staging))
	})
	if err != nil {
		problem.Problem += "; " + err.Error()
	}
	return problem
}

func (in installer) fillNode(ctx context.Context, node interpreter, npm, staging string) error {
	in.progress("node: installing the libraries with npm (for Node.js %s)", node.Version)
	if err := in.npm(ctx, npm, "node", staging); err != nil {
		return err
	}
	if err := copyFiles(in.files, "node", staging, nodeFiles()...); err != nil {
		return err
	}
	check := filepath.Join(staging, "check.ts")
	var code strings.Builder
	for _, name := range libraries(in.files, "typescript") {
		fmt.Fprintf(&code, "import %q;\n", name)
	}
	code.WriteString("const ok: boolean = true;\n")
	if err := os.WriteFile(check, []byte(code.String()), 0o644); err != nil {
		return err
	}
	defer os.Remove(check)
	if err := in.command(ctx, staging, nil, nil, node.Path, "--experimental-vm-modules", "--disable-warning=ExperimentalWarning",
		filepath.Join(staging, "launch.cjs"), check); err != nil {
		return err
	}
	hash, err := lockHash(in.files, "node")
	if err != nil {
		return err
	}
	return stamp{Lock: hash, Complete: true, Interpreter: node}.write(staging)
}

// npm installs the locked packages of an environment. No package's scripts are run.
func (in installer) npm(ctx context.Context, npm, env, staging string) error {
	if err := copyFiles(in.files, env, staging, "package.json", "package-lock.json"); err != nil {
		return err
	}
	return in.npmCommand(ctx, npm, "ci", staging)
}

func (in installer) npmCommand(ctx context.Context, npm, command, staging string) error {
	cache, err := os.MkdirTemp(in.dir, stagingPrefix+"npm-cache-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(cache)
	return in.command(ctx, staging, []string{"npm_config_cache=" + cache}, nil, npm, command, "--ignore-scripts", "--no-audit", "--no-fund",
		"--no-update-notifier", "--no-progress", "--loglevel=error", "--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")
}

// command runs a step of an installation. The error holds the last line that says what was wrong.
func (in installer) command(ctx context.Context, dir string, env []string, line func(string), name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(withoutVariables(os.Environ(), "PYTHON", "NODE_", "VIRTUAL_ENV", "PIP_TARGET", "PIP_USER", "PIP_PREFIX"), env...)
	var log tail
	log.line = line
	cmd.Stdout, cmd.Stderr = &log, &log
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, log.summary())
	}
	return nil
}

// tail passes complete lines on and keeps the last ones. os/exec writes to it from one goroutine.
type tail struct {
	line    func(string)
	partial []byte
	last    []string
}

func (t *tail) Write(p []byte) (int, error) {
	t.partial = append(t.partial, p...)
	for {
		advance, token, _ := bufio.ScanLines(t.partial, false)
		if advance == 0 {
			return len(p), nil
		}
		t.add(string(token))
		t.partial = t.partial[advance:]
	}
}

func (t *tail) add(line string) {
	if t.line != nil {
		t.line(line)
	}
	if strings.TrimSpace(line) == "" {
		return
	}
	if t.last = append(t.last, line); len(t.last) > 20 {
		t.last = t.last[1:]
	}
}

// summary picks the line that tells most: the first that is marked as an error, else the last.
func (t *tail) summary() string {
	if len(t.partial) > 0 {
		t.add(string(t.partial))
		t.partial = nil
	}
	for _, l := range t.last {
		for _, mark := range []string{"ERROR: ", "npm error ", "npm ERR! "} {
			_, text, ok := strings.Cut(l, mark)
			if first, _, _ := strings.Cut(text, " "); ok && first != "code" && first != "errno" && first != "syscall" {
				return text
			}
		}
	}
	if len(t.last) == 0 {
		return "no message"
	}
	return t.last[len(t.last)-1]
}
