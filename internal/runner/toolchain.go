package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/runners"
)

// toolchain is an interpreter with libraries that are installed into an environment, a directory
// that sandboxes mount.
type toolchain struct {
	name string
	// manifest is the file next to an operator's runner.json that asks for a separate environment.
	manifest string
	// files are the programs of this project that are installed with the libraries. The images have
	// the files of the same patterns.
	files []string
	probe func(environ, context.Context, string) (interpreter, error)
	// compatible reports whether libraries for one version work with another.
	compatible func(was, now string) bool
	// at describes the environment in dir.
	at func(dir string, s stamp) found
}

var python = toolchain{
	name: "python", manifest: "requirements.txt",
	files: bundled("python", "sandbox_*"),
	probe: environ.probePython, compatible: sameMinor, at: pythonAt,
}

var node = toolchain{
	name: "node", manifest: "package.json",
	files: bundled("node", "*.cjs", "*.sh", "npm"),
	probe: environ.probeNode, compatible: nodeIsNew, at: nodeAt,
}

var toolchains = []toolchain{python, node}

// bundled returns the files of a bundled environment that match one of the patterns.
func bundled(env string, patterns ...string) (names []string) {
	for _, pattern := range patterns {
		found, _ := fs.Glob(runners.Files, env+"/"+pattern) // the only error is a malformed pattern
		for _, path := range found {
			names = append(names, filepath.Base(path))
		}
	}
	return names
}

func sameMinor(a, b string) bool {
	cut := func(s string) string {
		parts := strings.SplitN(s, ".", 3)
		return strings.Join(parts[:min(2, len(parts))], ".")
	}
	return cut(a) == cut(b)
}

func nodeIsNew(_, now string) bool { return atLeast(now, nodeMajor, nodeMinor) }

// pythonAt describes the environment in dir. Inside, every Python environment has the same path.
func pythonAt(dir string, s stamp) found {
	return found{
		interpreter: s.Interpreter, title: "Python", installed: true,
		command: inside + "python/bin/python",
		path:    []string{inside + "python/bin"},
		mounts:  append([]sandbox.Mount{{Source: dir, Target: inside + "python"}}, mounts(s.Interpreter.Paths)...),
	}
}

func nodeAt(dir string, s stamp) found {
	return found{
		interpreter: s.Interpreter, title: "Node.js", installed: s.Complete,
		command: s.Interpreter.Path,
		path:    []string{filepath.Dir(s.Interpreter.Path)},
		mounts:  append([]sandbox.Mount{{Source: dir, Target: inside + "node"}}, mounts(s.Interpreter.Paths)...),
	}
}

// current reads the stamp of an environment and reports whether its interpreter is still usable. It
// starts the interpreter only if that has changed.
func (e environ) current(ctx context.Context, t toolchain, dir string) (stamp, bool) {
	s, err := readStamp(dir)
	if err != nil {
		return s, false
	}
	if s.Interpreter.unchanged() {
		return s, true
	}
	now, err := t.probe(e, ctx, s.Interpreter.Path)
	if err != nil || !t.compatible(s.Interpreter.Version, now.Version) {
		return s, false
	}
	s.Interpreter = now
	return s, true
}

// stamp is a file that Install leaves in an environment. With it, Discover starts no interpreter.
type stamp struct {
	Lock        string      `json:"lock"` // hash of the files that the environment was made from
	Complete    bool        `json:"complete"`
	Interpreter interpreter `json:"interpreter"`
}

const stampName = "stamp.json"

func readStamp(dir string) (stamp, error) {
	var s stamp
	b, err := os.ReadFile(filepath.Join(dir, stampName))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

func (s stamp) write(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, stampName), append(b, '\n'), 0o644)
}

// lockHash identifies the bundled definition that an environment is made from.
func lockHash(files fs.FS, env string) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(files, env, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "runner.json" || d.Name() == "driver.py" || d.Name() == "zygote.py" { // not installed
			return err
		}
		b, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(h, "%s %d\n%s", path, len(b), b)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
