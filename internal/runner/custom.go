package runner

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"mcp-code-sandbox/runners"
)

// customDir holds the environments of the operator's own runners.
func customDir(dir string) string { return filepath.Join(dir, "custom") }

// custom is an operator's runner.json, and the directory that it is in.
type custom struct {
	Name           string            `json:"name"` // default: the directory's
	Title          string            `json:"title"`
	Base           string            `json:"base"`
	Libraries      []string          `json:"libraries"` // import names; InstallOwn tries to import them
	Env            map[string]string `json:"env"`
	TimeoutSeconds int               `json:"timeout_seconds"`
	MemoryMB       int               `json:"memory_mb"`

	dir string
}

// bases are the bundled runners that a custom one can be based on.
var bases = map[string]string{"python": "python", "node": "javascript", "shell": "shell"}

var (
	runnerName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	moduleName = regexp.MustCompile(`^[@A-Za-z_][A-Za-z0-9_./@-]*$`)
	variable   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// customs reads the definitions in dir, sorted by directory. An invalid one is a problem.
func customs(dir string) (list []custom, problems []Problem) {
	for _, sub := range subdirectories(dir) {
		c := custom{dir: sub}
		err := readDescription(filepath.Join(sub, "runner.json"), &c,
			"name", "title", "base", "libraries", "env", "timeout_seconds", "memory_mb")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		c.Name = cmp.Or(c.Name, filepath.Base(sub))
		if err == nil {
			err = c.check()
		}
		if err != nil {
			problems = append(problems, Problem{filepath.Base(sub), "runner.json: " + err.Error(), "correct " + filepath.Join(sub, "runner.json")})
			continue
		}
		list = append(list, c)
	}
	return list, problems
}

func (c *custom) check() error {
	if !runnerName.MatchString(c.Name) {
		return fmt.Errorf("%q is not a valid name: use lower-case letters, digits, - and _", c.Name)
	}
	if bases[c.Base] == "" {
		return fmt.Errorf("base %q: use python, node or shell", c.Base)
	}
	for _, l := range c.Libraries {
		if !moduleName.MatchString(l) {
			return fmt.Errorf("library %q is not a valid module name", l)
		}
	}
	for k := range c.Env {
		if !variable.MatchString(k) {
			return fmt.Errorf("env: %q is not a valid variable name", k)
		}
	}
	return checkLimits(c.TimeoutSeconds, c.MemoryMB)
}

func checkLimits(timeoutSeconds, memoryMB int) error {
	if timeoutSeconds < 0 || timeoutSeconds > 7*24*3600 {
		return fmt.Errorf("timeout_seconds %d: use 1 to 604800", timeoutSeconds)
	}
	if memoryMB < 0 || memoryMB > 0 && memoryMB < 32 || memoryMB > 1<<22 {
		return fmt.Errorf("memory_mb %d: use 32 or more", memoryMB)
	}
	return nil
}

// runner returns nil if the host lacks something for it.
func (c *custom) runner(ctx context.Context, s Sources, h parts) (*Runner, []Problem) {
	i := slices.IndexFunc(h.defs, func(d Definition) bool { return d.Name == bases[c.Base] })
	if i < 0 {
		return nil, nil // bundled has reported why
	}
	d := h.defs[i]
	d.Name, d.Aliases, d.NeedsLibraries = c.Name, nil, false
	d.Title = cmp.Or(c.Title, c.Name)
	d.TimeoutSeconds, d.MemoryMB = c.TimeoutSeconds, c.MemoryMB
	d.Env = maps.Clone(d.Env)
	maps.Copy(d.Env, c.Env)
	if c.Libraries != nil {
		d.Libraries = c.Libraries
	}
	h.envs = maps.Clone(h.envs)
	var problems []Problem
	for _, t := range toolchains {
		if !c.has(t.manifest) {
			continue
		}
		f, current := c.environment(ctx, s, t)
		if f.command == "" {
			return nil, append(problems, Problem{c.Name, t.manifest + " is not installed", fixInstall})
		}
		if !current {
			problems = append(problems, Problem{c.Name, t.manifest + " has changed since it was installed", fixInstall})
		}
		h.envs[t.name] = f
	}
	r, ok := h.assemble(d)
	if !ok {
		return nil, append(problems, Problem{c.Name, "its base " + c.Base + " is not installed", fixInstall})
	}
	return &r, problems
}

// has reports whether the runner's directory has a file.
func (c *custom) has(file string) bool {
	fi, err := os.Stat(filepath.Join(c.dir, file))
	return err == nil && fi.Mode().IsRegular()
}

// environment returns the environment that InstallOwn made, and whether it matches the current
// files.
func (c *custom) environment(ctx context.Context, src Sources, t toolchain) (found, bool) {
	dir, err := filepath.Abs(filepath.Join(customDir(src.Dir), c.envName(t.name)))
	if err != nil {
		return found{}, false
	}
	s, ok := environ(src.Env).current(ctx, t, dir)
	if !ok || !s.Complete {
		return found{}, false
	}
	hash, err := c.hash(t)
	return t.at(dir, s), err == nil && hash == s.Lock
}

// envName is unique: the name of a runner has no dot.
func (c *custom) envName(env string) string { return c.Name + "." + env }

// hash identifies the operator's files, and the files of this project that are installed with them.
func (c *custom) hash(t toolchain) (string, error) {
	h := sha256.New()
	for _, name := range []string{"requirements.txt", "package.json", "package-lock.json"} {
		b, err := os.ReadFile(filepath.Join(c.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(b), b)
	}
	for _, name := range t.files {
		b, err := fs.ReadFile(runners.Files, t.name+"/"+name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(b), b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// subdirectories returns the directories in dir, and those that links in dir lead to, by name. It
// ignores hidden ones: a build may be in progress there.
func subdirectories(dir string) (dirs []string) {
	if dir == "" {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if fi, err := os.Stat(path); err == nil && fi.IsDir() && e.Name()[0] != '.' {
			dirs = append(dirs, path)
		}
	}
	return dirs
}

// maxDescription bounds a runner.json or metadata.json.
const maxDescription = 1 << 20

// fieldTypes says what the fields of these files must be.
var fieldTypes = map[string]string{
	"name": "a string", "title": "a string", "base": "a string", "interpreter_type": "a string", "libraries": "a list of strings",
	"env": "an object of strings", "timeout_seconds": "a whole number", "memory_mb": "a whole number",
}

// readDescription decodes a JSON file. If known lists fields, it refuses all others.
func readDescription(path string, v any, known ...string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDescription))
	if err != nil {
		return err
	}
	var fields map[string]any
	err = json.NewDecoder(bytes.NewReader(b)).Decode(&fields)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if known != nil && !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, name) }) {
			return fmt.Errorf("%q is unknown; known fields: %s", name, strings.Join(known, ", "))
		}
	}
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(b)).Decode(v)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		name, _, _ := strings.Cut(wrong.Field, ".")
		return fmt.Errorf("%s must be %s", cmp.Or(name, "it"), cmp.Or(fieldTypes[name], "an object"))
	}
	return err
}
