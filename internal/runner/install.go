package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"mcp-code-sandbox/internal/filelock"
	"mcp-code-sandbox/runners"
)

// Install prepares the bundled environments that are missing or outdated. It changes nothing
// outside s.Dir. It returns the failures; the other environments are usable. Processes may call it
// concurrently: one works while the others wait.
func (s Sources) Install(ctx context.Context, progress func(format string, args ...any)) []Problem {
	if runtime.GOOS != "linux" {
		return []Problem{linuxOnly}
	}
	in := installer{environ: s.Env, dir: s.Dir, progress: progress}
	if in.upToDate(ctx, python) && in.upToDate(ctx, node) {
		return nil
	}
	unlock, err := in.open()
	if err != nil {
		return []Problem{in.notWritable(err)}
	}
	defer unlock()
	return append(in.python(ctx), in.node(ctx)...)
}

// installer installs environments into dir.
type installer struct {
	environ
	dir      string
	progress func(format string, args ...any)
}

// open creates the directory, waits until no other process installs into it, and removes what a
// killed one left.
func (in *installer) open() (unlock func(), err error) {
	if in.dir, err = filepath.Abs(in.dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(in.dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(in.dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	unlock = func() { f.Close() }
	if err := filelock.Lock(f); err != nil {
		unlock()
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(in.dir, stagingPrefix+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		unlock()
	}
	return unlock, err
}

func (in *installer) notWritable(err error) Problem {
	return Problem{"runners", err.Error(), "make " + in.dir + " writable, then " + fixInstall}
}

func (in *installer) upToDate(ctx context.Context, t toolchain) bool {
	s, ok := in.current(ctx, t, filepath.Join(in.dir, t.name))
	hash, err := lockHash(runners.Files, t.name)
	return ok && s.Complete && err == nil && s.Lock == hash
}

// stagingPrefix starts the name of every staging directory.
const stagingPrefix = ".new-"

// stage calls fill with a new directory, then puts that into place as env. On error nothing has
// changed.
func (in *installer) stage(env string, fill func(staging string) error) error {
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
	target, old := filepath.Join(in.dir, env), staging+"-old"
	if err := os.Rename(target, old); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := os.Rename(staging, target); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// makeReadable makes a tree world-readable regardless of the umask: sandboxes run as another user.
func makeReadable(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		mode := fi.Mode().Perm() | 0o444
		if d.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		if mode == fi.Mode().Perm() {
			return nil
		}
		return os.Chmod(path, mode)
	})
}

func (in *installer) python(ctx context.Context) []Problem {
	if in.upToDate(ctx, python) {
		return nil
	}
	in.progress("python: looking for Python 3.10 or newer")
	py := in.findPython(ctx)
	if py.Path == "" {
		return []Problem{noPython}
	}
	if !py.canInstall {
		return []Problem{{"python", py.Path + " cannot create environments: the libraries are not installed",
			"apt-get install python3-venv, then " + fixInstall}}
	}
	start := time.Now()
	if err := in.stage("python", func(staging string) error { return in.fillPython(ctx, py, staging) }); err != nil {
		return []Problem{{"python", "the libraries could not be installed: " + err.Error(),
			"check that the Python package index can be reached, then " + fixInstall}}
	}
	in.progress("python: ready (Python %s, %.0f s)", py.Version, time.Since(start).Seconds())
	return nil
}

func (in *installer) fillPython(ctx context.Context, py interpreter, staging string) error {
	if err := copyFiles(runners.Files, "python", staging, "requirements.lock"); err != nil {
		return err
	}
	hash, err := lockHash(runners.Files, "python")
	if err != nil {
		return err
	}
	return in.fillVenv(ctx, py, staging, venv{
		label: "python", lock: hash, imports: append([]string{"matplotlib.font_manager"}, libraries("python")...),
		pip: []string{"--no-deps", "--require-hashes", "-r", filepath.Join(staging, "requirements.lock")},
	})
}

// venv describes a Python environment to install.
type venv struct {
	label   string   // for progress
	lock    string   // for the stamp
	pip     []string // further arguments of pip install
	imports []string // modules to import as a test
}

// fillVenv makes an environment that sandboxes mount at inside+"python". It runs no code of the
// packages, except to import v.imports.
func (in *installer) fillVenv(ctx context.Context, py interpreter, staging string, v venv) error {
	in.progress("%s: creating an environment with %s (Python %s)", v.label, py.Path, py.Version)
	exe := filepath.Join(staging, "bin", "python")
	run := func(args ...string) error {
		return in.command(ctx, staging, nil, nil, exe, append([]string{"-I", "-m"}, args...)...)
	}
	if err := in.command(ctx, staging, nil, nil, py.Path, "-I", "-m", "venv", staging); err != nil {
		return err
	}
	// Link to the executable itself: sandboxes may not have the link that venv chose.
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
	install := []string{"-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-cache-dir",
		"--retries", "2", "--progress-bar", "off", "--only-binary", ":all:", "--no-compile"}
	if err := in.command(ctx, staging, nil, downloads, exe, append(install, v.pip...)...); err != nil {
		return err
	}
	// Some versions of venv install setuptools, which slows down every start of the interpreter.
	if err := run("pip", "uninstall", "--disable-pip-version-check", "-q", "-y", "setuptools"); err != nil {
		return err
	}
	site, err := filepath.Glob(filepath.Join(staging, "lib", "python3.*", "site-packages"))
	if err != nil || len(site) != 1 {
		return fmt.Errorf("no site-packages in %s", staging)
	}
	if err := copyFiles(runners.Files, "python", site[0], python.files...); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(staging, "bin", "uv")); err != nil { // the operator's own stays
		if err := copyFiles(runners.Files, "python", filepath.Join(staging, "bin"), "uv"); err != nil {
			return err
		}
	}
	in.progress("%s: compiling and checking", v.label)
	// Nobody imports the libraries' tests, which are a third of all modules.
	if err := run("compileall", "-q", "-j", "0", "-x", "/tests/", "-s", staging, "-p", inside+"python", site[0]); err != nil {
		return err
	}
	cache := filepath.Join(staging, "share", "matplotlib-cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	// PATH keeps this user's tools out of the list of fonts that the import caches.
	if err := in.importPython(ctx, staging, exe, v.imports, "PATH=/nonexistent", "MPLCONFIGDIR="+cache); err != nil {
		return err
	}
	if err := relocateScripts(filepath.Join(staging, "bin"), inside+"python/bin/python"); err != nil {
		return err
	}
	return stamp{Lock: v.lock, Complete: true, Interpreter: py}.write(staging)
}

// importPython imports the modules to prove that they work.
func (in *installer) importPython(ctx context.Context, dir, exe string, modules []string, env ...string) error {
	if len(modules) == 0 {
		return nil
	}
	home, err := os.MkdirTemp(in.dir, stagingPrefix+"home-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	env = append(env, "HOME="+home, "MPLBACKEND=Agg", "PYTHONDONTWRITEBYTECODE=1")
	return in.command(ctx, dir, env, nil, exe, "-c", "import "+strings.Join(modules, ", "))
}

// libraries returns the import names of a bundled runner's libraries.
func libraries(name string) []string {
	defs, err := definitions(runners.Files, []string{name})
	if err != nil {
		return nil
	}
	return defs[0].Libraries
}

// relocateScripts makes the scripts in bin start the interpreter at its path inside.
func relocateScripts(bin, python string) error {
	entries, err := os.ReadDir(bin)
	if err != nil {
		return err
	}
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
		if !ok || !bytes.HasPrefix(line, []byte("#!"+bin+"/")) {
			continue
		}
		if err := os.WriteFile(path, append([]byte("#!"+python+"\n"), rest...), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (in *installer) node(ctx context.Context) []Problem {
	if in.upToDate(ctx, node) {
		return nil
	}
	in.progress("node: looking for Node.js %d.%d or newer", nodeMajor, nodeMinor)
	js, tooOld := in.findNode(ctx, in.dir)
	npm := in.lookPath("npm")
	if js.Path == "" {
		p := noNode(tooOld)
		if npm == "" {
			return []Problem{p}
		}
		in.progress("node: fetching Node.js itself: the host's is missing or too old")
		err := in.stage("nodejs", func(staging string) error { return in.npmLocked(ctx, npm, "nodejs", staging) })
		if err == nil {
			js, _ = in.findNode(ctx, in.dir)
		}
		if js.Path == "" {
			p.Problem += fmt.Sprintf("; fetching one failed: %v", err)
			return []Problem{p}
		}
	}
	start := time.Now()
	fix, err := fixNPM, errNoNPM
	if npm != "" {
		fix = "check that the npm registry can be reached, then " + fixInstall
		err = in.stage("node", func(staging string) error { return in.fillNode(ctx, js, npm, staging) })
	}
	if err == nil {
		in.progress("node: ready (Node.js %s, %.0f s)", js.Version, time.Since(start).Seconds())
		return nil
	}
	problem := Problem{"node", "the libraries could not be installed: " + err.Error(), fix}
	// JavaScript works without them, but an older complete environment is better.
	if s, ok := in.current(ctx, node, filepath.Join(in.dir, "node")); !ok || !s.Complete {
		if err := in.stage("node", func(staging string) error {
			return errors.Join(copyFiles(runners.Files, "node", staging, node.files...), stamp{Interpreter: js}.write(staging))
		}); err != nil {
			problem.Problem += "; " + err.Error()
		}
	}
	return []Problem{problem}
}

var errNoNPM = errors.New("npm is not installed")

const fixNPM = "apt-get install npm, then " + fixInstall

func (in *installer) fillNode(ctx context.Context, js interpreter, npm, staging string) error {
	in.progress("node: installing the libraries with npm (for Node.js %s)", js.Version)
	if err := in.npmLocked(ctx, npm, "node", staging); err != nil {
		return err
	}
	if err := copyFiles(runners.Files, "node", staging, node.files...); err != nil {
		return err
	}
	check := filepath.Join(staging, "check.ts")
	code := importAll(libraries("typescript")) + "const ok: boolean = true;\n"
	if err := os.WriteFile(check, []byte(code), 0o644); err != nil {
		return err
	}
	defer os.Remove(check)
	if err := in.command(ctx, staging, nil, nil, js.Path, "--experimental-vm-modules", "--disable-warning=ExperimentalWarning",
		filepath.Join(staging, "launch.cjs"), check); err != nil {
		return err
	}
	hash, err := lockHash(runners.Files, "node")
	if err != nil {
		return err
	}
	return stamp{Lock: hash, Complete: true, Interpreter: js}.write(staging)
}

// importAll returns a JavaScript module that imports the libraries.
func importAll(libraries []string) string {
	var code strings.Builder
	for _, name := range libraries {
		code.WriteString("import '" + name + "';\n")
	}
	return code.String()
}

// npmLocked installs the locked packages of a bundled environment.
func (in *installer) npmLocked(ctx context.Context, npm, env, staging string) error {
	if err := copyFiles(runners.Files, env, staging, "package.json", "package-lock.json"); err != nil {
		return err
	}
	return in.npm(ctx, npm, "ci", staging)
}

// npm installs packages without running their scripts.
func (in *installer) npm(ctx context.Context, npm, command, staging string) error {
	cache, err := os.MkdirTemp(in.dir, stagingPrefix+"npm-cache-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(cache)
	return in.command(ctx, staging, []string{"npm_config_cache=" + cache}, nil, npm, command, "--ignore-scripts", "--no-audit", "--no-fund",
		"--no-update-notifier", "--no-progress", "--loglevel=error", "--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000")
}

// copyFiles copies the named files of a directory in files to dir.
func copyFiles(files fs.FS, from, dir string, names ...string) error {
	for _, name := range names {
		b, err := fs.ReadFile(files, from+"/"+name)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if bytes.HasPrefix(b, []byte("#!")) {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, mode); err != nil {
			return err
		}
	}
	return nil
}
