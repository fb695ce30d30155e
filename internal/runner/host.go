package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// environ is the server's environment, which leads to the host's programs.
type environ map[string]string

// interpreter is a program of the host, and the parts of the host that it needs inside a sandbox.
type interpreter struct {
	Path    string   `json:"path"` // the executable itself, not a link or a version manager's shim
	Version string   `json:"version"`
	Paths   []string `json:"paths"` // to mount, each at its own path; without what every sandbox has
	Size    int64    `json:"size"`
	ModTime int64    `json:"mod_time"` // Unix nanoseconds

	canInstall bool // python: has venv and ensurepip
}

// stat records the executable's size and time, by which unchanged recognizes it.
func (in *interpreter) stat() error {
	fi, err := os.Stat(in.Path)
	if err != nil {
		return err
	}
	in.Size, in.ModTime = fi.Size(), fi.ModTime().UnixNano()
	return nil
}

func (in interpreter) unchanged() bool {
	now := in
	return now.stat() == nil && now.Size == in.Size && now.ModTime == in.ModTime
}

// findPython returns the first Python from 3.10 to 3.13 that can create environments. Otherwise it
// prefers a newer one, then one that can only run code. Path is empty if the host has none.
func (e environ) findPython(ctx context.Context) interpreter {
	candidates := e.onPath("python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.14")
	candidates = append(candidates, e.installedVersions("PYENV_ROOT", ".pyenv", "versions/3.*/bin/python3")...)
	var newer, bare interpreter
	for _, path := range candidates {
		in, err := e.probePython(ctx, path)
		switch {
		case err != nil || !atLeast(in.Version, 3, 10):
		case !in.canInstall:
			if bare.Path == "" {
				bare = in
			}
		case atLeast(in.Version, 3, 14):
			if newer.Path == "" {
				newer = in
			}
		default:
			return in
		}
	}
	if newer.Path != "" {
		return newer
	}
	return bare
}

// nodeMajor and nodeMinor are the oldest Node.js version with a vm module that launch.cjs can use.
const nodeMajor, nodeMinor = 20, 12

// findNode returns a Node.js that is new enough, of the host or one that Install put into dir. If
// no suitable one is found, tooOld is the version of an older one.
func (e environ) findNode(ctx context.Context, dir string) (in interpreter, tooOld string) {
	candidates := append(e.onPath("node", "nodejs"), e.installedVersions("NVM_DIR", ".nvm", "versions/node/*/bin/node")...)
	own, _ := filepath.Glob(filepath.Join(dir, "nodejs/node_modules/node-linux-*/bin/node"))
	for _, path := range append(candidates, own...) {
		found, err := e.probeNode(ctx, path)
		if err != nil {
			continue
		}
		if nodeIsNew("", found.Version) {
			return found, ""
		}
		tooOld = found.Version
	}
	return interpreter{}, tooOld
}

// onPath lists the programs with these names in every directory of PATH, each file once: the first
// python3 may be too old or a version manager's shim, and a later one right.
func (e environ) onPath(names ...string) []string {
	var paths []string
	seen := map[string]bool{}
	for _, name := range names {
		for _, dir := range filepath.SplitList(e["PATH"]) {
			path, err := exec.LookPath(filepath.Join(dir, name))
			if err != nil || !filepath.IsAbs(path) {
				continue
			}
			real, err := filepath.EvalSymlinks(path)
			if err != nil || seen[real] {
				continue
			}
			seen[real] = true
			paths = append(paths, path)
		}
	}
	return paths
}

// lookPath returns the first program with that name on PATH, or an empty string.
func (e environ) lookPath(name string) string {
	if paths := e.onPath(name); len(paths) > 0 {
		return paths[0]
	}
	return ""
}

// installedVersions lists the programs that a version manager installed, newest first.
func (e environ) installedVersions(variable, home, pattern string) []string {
	root := e[variable]
	if root == "" {
		if e["HOME"] == "" {
			return nil
		}
		root = filepath.Join(e["HOME"], home)
	}
	found, _ := filepath.Glob(filepath.Join(root, pattern))
	slices.SortFunc(found, func(a, b string) int { return -compareVersions(a, b) })
	return found
}

// compareVersions compares the numbers in two strings.
func compareVersions(a, b string) int {
	fields := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	}
	return slices.CompareFunc(fields(a), fields(b), func(x, y string) int {
		m, _ := strconv.Atoi(x)
		n, _ := strconv.Atoi(y)
		return m - n
	})
}

// atLeast compares the first two parts of a version.
func atLeast(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA == nil && errB == nil && (a > major || a == major && b >= minor)
}

const pythonProbe = `
import importlib.util, json, os, sys, sysconfig
var = sysconfig.get_config_var
lib = os.path.join(var("LIBDIR") or "", var("LDLIBRARY") or "")
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "path": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "prefix": os.path.realpath(sys.base_prefix),
    "parts": [os.path.realpath(sysconfig.get_path(k, vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix,
        "installed_base": sys.base_prefix, "installed_platbase": sys.base_exec_prefix})) for k in ("stdlib", "platstdlib")],
    "library": os.path.realpath(lib) if var("Py_ENABLE_SHARED") and os.path.isfile(lib) else "",
    "venv": all(importlib.util.find_spec(m) for m in ("venv", "ensurepip")),
}))`

// probePython starts a Python to ask for its version and files.
func (e environ) probePython(ctx context.Context, path string) (interpreter, error) {
	out, err := e.output(ctx, path, "-I", "-S", "-c", pythonProbe)
	if err != nil {
		return interpreter{}, fmt.Errorf("%s: %w", path, err)
	}
	var p struct {
		Version, Path, Prefix, Library string
		Parts                          []string
		Venv                           bool
	}
	if err := json.Unmarshal(out, &p); err != nil {
		return interpreter{}, fmt.Errorf("%s: %w", path, err)
	}
	in := interpreter{Path: p.Path, Version: p.Version, canInstall: p.Venv}
	in.Paths = e.needed(p.Prefix, append(p.Parts, p.Library, p.Path)...)
	return in, in.stat()
}

// probeNode starts a Node.js to ask for its version and path.
func (e environ) probeNode(ctx context.Context, path string) (interpreter, error) {
	out, err := e.output(ctx, path, "-p", "process.versions.node+'\\n'+require('fs').realpathSync(process.execPath)")
	if err != nil {
		return interpreter{}, fmt.Errorf("%s: %w", path, err)
	}
	version, real, ok := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if !ok || !filepath.IsAbs(real) {
		return interpreter{}, fmt.Errorf("%s is not Node.js", path)
	}
	in := interpreter{Path: real, Version: version}
	in.Paths = e.needed(filepath.Dir(filepath.Dir(real)), real)
	return in, in.stat()
}

const probeTimeout = 15 * time.Second

// output runs a short command and returns its stdout.
func (e environ) output(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	cmd.Env = e.without("PYTHON", "NODE_", "BASH_ENV")
	return cmd.Output()
}

// without returns the variables with names that start with none of the prefixes.
func (e environ) without(prefixes ...string) []string {
	list := []string{} // not nil, or a command would inherit all variables
	for name, value := range e {
		if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			list = append(list, name+"="+value)
		}
	}
	return list
}

// needed returns the paths to mount for an installation: its prefix, and the parts outside it. If
// the prefix holds more than the installation (a home directory, ~/.local), only the parts.
func (e environ) needed(prefix string, parts ...string) []string {
	var paths []string
	if !e.isBroad(prefix) {
		parts = append([]string{prefix}, parts...)
	}
	for _, p := range parts {
		if p == "" {
			continue
		}
		if within(p, "/nix/store") {
			p = "/nix/store" // a program uses many of its directories, and all are world-readable
		}
		if inEverySandbox(p) || slices.ContainsFunc(paths, func(q string) bool { return within(p, q) }) {
			continue
		}
		paths = append(paths, p)
	}
	return paths
}

// isBroad reports whether a directory may hold unrelated files, so that it must not be mounted.
func (e environ) isBroad(dir string) bool {
	if filepath.Base(dir) == ".local" || filepath.Dir(dir) == "/home" || filepath.Dir(dir) == "/Users" {
		return true
	}
	if e["HOME"] != "" && within(e["HOME"], dir) {
		return true
	}
	return filepath.Dir(dir) == "/" && dir != "/usr"
}

// inEverySandbox reports whether every sandbox already has the path.
func inEverySandbox(p string) bool {
	return slices.ContainsFunc([]string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"}, func(q string) bool { return within(p, q) })
}

func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// mounts mounts each path at its own place.
func mounts(paths []string) []sandbox.Mount {
	var ms []sandbox.Mount
	for _, p := range paths {
		ms = append(ms, sandbox.Mount{Source: p, Target: p})
	}
	return ms
}
