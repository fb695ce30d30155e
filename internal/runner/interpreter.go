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

// interpreter is a program on the host, and what of the host it needs inside a sandbox.
type interpreter struct {
	Path    string   `json:"path"` // the real executable: no symlink, no version manager's shim
	Version string   `json:"version"`
	Paths   []string `json:"paths"` // what must be mounted, each at its own path; nothing that every sandbox has
	Size    int64    `json:"size"`
	ModTime int64    `json:"mod_time"` // Unix nanoseconds

	canInstall bool // python: has venv and ensurepip
}

// stat records the executable's size and time, by which unchanged recognises it.
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

// sameMinor tells whether libraries built for one version of Python serve the other.
func sameMinor(a, b string) bool {
	cut := func(s string) string {
		parts := strings.SplitN(s, ".", 3)
		return strings.Join(parts[:min(2, len(parts))], ".")
	}
	return cut(a) == cut(b)
}

const probeTimeout = 15 * time.Second

// output runs a short command and returns what it printed.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	cmd.Env = withoutVariables(os.Environ(), "PYTHON", "NODE_", "BASH_ENV")
	return cmd.Output()
}

// withoutVariables drops the variables whose names begin with one of the prefixes.
func withoutVariables(env []string, prefixes ...string) []string {
	return slices.DeleteFunc(env, func(kv string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(kv, p) })
	})
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

// probePython asks a Python about itself.
func probePython(ctx context.Context, path string) (interpreter, error) {
	out, err := output(ctx, path, "-I", "-S", "-c", pythonProbe)
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
	in.Paths = needed(p.Prefix, append(p.Parts, p.Library, p.Path)...)
	return in, in.stat()
}

// probeNode asks a Node.js about itself.
func probeNode(ctx context.Context, path string) (interpreter, error) {
	out, err := output(ctx, path, "-p", "process.versions.node+'\\n'+require('fs').realpathSync(process.execPath)")
	if err != nil {
		return interpreter{}, fmt.Errorf("%s: %w", path, err)
	}
	version, real, ok := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if !ok || !filepath.IsAbs(real) {
		return interpreter{}, fmt.Errorf("%s is not Node.js", path)
	}
	in := interpreter{Path: real, Version: version}
	in.Paths = needed(filepath.Dir(filepath.Dir(real)), real)
	return in, in.stat()
}

// needed returns the host paths that an installation needs inside: its prefix, and any part that lies elsewhere. Where the
// prefix holds more than the installation (a home directory, ~/.local), the parts alone.
func needed(prefix string, parts ...string) []string {
	var paths []string
	if !broad(prefix) {
		parts = append([]string{prefix}, parts...)
	}
	for _, p := range parts {
		if p == "" {
			continue
		}
		if within(p, "/nix/store") {
			p = "/nix/store" // a program there is made of many of its directories; all are world-readable
		}
		if everywhere(p) || slices.ContainsFunc(paths, func(q string) bool { return within(p, q) }) {
			continue
		}
		paths = append(paths, p)
	}
	return paths
}

// everywhere tells whether every sandbox has the path anyway.
func everywhere(p string) bool {
	return slices.ContainsFunc([]string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"}, func(q string) bool { return within(p, q) })
}

func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// broad tells whether a directory may hold anything of the host, and so must not be mounted as a whole.
func broad(dir string) bool {
	if filepath.Base(dir) == ".local" || filepath.Dir(dir) == "/home" || filepath.Dir(dir) == "/Users" {
		return true
	}
	if home, err := os.UserHomeDir(); err == nil && within(home, dir) {
		return true
	}
	// Directories of the root are broad, but for the one that every sandbox has.
	return filepath.Dir(dir) == "/" && dir != "/usr"
}

func mounts(paths []string) []sandbox.Mount {
	var ms []sandbox.Mount
	for _, p := range paths {
		ms = append(ms, sandbox.Mount{Source: p, Target: p})
	}
	return ms
}

// findPython returns the best Python of the host: the first on the list that is 3.10 to 3.13 and able to make environments,
// else one that is newer, else one that can only run code. The version is empty if there is none.
func findPython(ctx context.Context) interpreter {
	candidates := onPath("python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.14")
	candidates = append(candidates, versions("PYENV_ROOT", ".pyenv", "versions/3.*/bin/python3")...)
	var newer, bare interpreter
	for _, path := range candidates {
		in, err := probePython(ctx, path)
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

// The oldest Node.js whose vm module can do what launch.cjs needs.
const nodeMajor, nodeMinor = 20, 12

// findNode returns a Node.js that is new enough: of the host, or the one that Install put into dir. If there is none, tooOld
// is the version of one that is not.
func findNode(ctx context.Context, dir string) (in interpreter, tooOld string) {
	candidates := append(onPath("node", "nodejs"), versions("NVM_DIR", ".nvm", "versions/node/*/bin/node")...)
	own, _ := filepath.Glob(filepath.Join(dir, "nodejs/node_modules/node-linux-*/bin/node"))
	for _, path := range append(candidates, own...) {
		found, err := probeNode(ctx, path)
		if err != nil {
			continue
		}
		if atLeast(found.Version, nodeMajor, nodeMinor) {
			return found, ""
		}
		tooOld = found.Version
	}
	return interpreter{}, tooOld
}

// onPath lists the programs of these names in every directory of PATH, each file once: the first python3 may be too old, or a
// version manager's shim, and a later one right.
func onPath(names ...string) []string {
	var paths []string
	seen := map[string]bool{}
	for _, name := range names {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
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

// versions lists what a version manager has installed, newest first.
func versions(variable, home, pattern string) []string {
	root := os.Getenv(variable)
	if root == "" {
		h, err := os.UserHomeDir()
		if err != nil {
			return nil
		}
		root = filepath.Join(h, home)
	}
	found, _ := filepath.Glob(filepath.Join(root, pattern))
	slices.SortFunc(found, func(a, b string) int { return -compareVersions(a, b) })
	return found
}

// compareVersions orders strings so that numbers in them count as numbers.
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
