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
	"runtime"
	"slices"

	"mcp-code-sandbox/runners"
)

// Sources are the places that Discover looks at. Those that do not exist have nothing in them.
type Sources struct {
	Dir string // prepared environments, as for Detect
	// Own holds the operator's own runners, a directory each: a runner.json that Install prepares, or a wrapper.
	Own string
	// Wrappers hold contract 5's environments, a directory each.
	Wrappers []string
}

// Discover is Detect with the operator's own environments. One of the same name as a bundled one takes its place; so does a
// later source's with an earlier's.
func Discover(ctx context.Context, src Sources) (Set, []Problem) {
	set, h, problems := detect(ctx, src.Dir)
	add := func(r Runner) {
		if i := slices.IndexFunc(set, func(have Runner) bool { return have.Name == r.Name }); i >= 0 {
			set[i] = r
			return
		}
		set = append(set, r)
	}
	for _, dir := range append(slices.Clone(src.Wrappers), src.Own) {
		found, ps := wrappers(dir)
		problems = append(problems, ps...)
		for _, r := range found {
			add(r)
		}
	}
	own, ps := customs(src.Own)
	problems = append(problems, ps...)
	for _, c := range own {
		r, ps := c.runner(ctx, h, src.Dir)
		problems = append(problems, ps...)
		if r != nil {
			add(*r)
		}
	}
	return set, problems
}

// Wrappers is the part of Discover that needs no jail: environments that isolate themselves. A runner.json is a problem.
func Wrappers(src Sources) (set Set, problems []Problem) {
	if runtime.GOOS != "linux" {
		return nil, nil
	}
	for _, dir := range append(slices.Clone(src.Wrappers), src.Own) {
		found, ps := wrappers(dir)
		problems = append(problems, ps...)
		for _, r := range found {
			set = slices.DeleteFunc(set, func(have Runner) bool { return have.Name == r.Name })
			set = append(set, r)
		}
	}
	own, ps := customs(src.Own)
	problems = append(problems, ps...)
	for _, c := range own {
		problems = append(problems, Problem{c.Name, "a runner.json is for the jail", "on docker, build an image with the labels sandbox.runner=true and sandbox.language=" + c.Name})
	}
	return set, problems
}

// customDir is the part of the directory of environments that holds the operator's own.
func customDir(dir string) string { return filepath.Join(dir, "custom") }

// custom is an operator's runner.json, and what lies beside it.
type custom struct {
	Name           string            `json:"name"` // default: the directory's
	Title          string            `json:"title"`
	Base           string            `json:"base"`
	Libraries      []string          `json:"libraries"` // import names; installing tries to import them
	Env            map[string]string `json:"env"`
	TimeoutSeconds int               `json:"timeout_seconds"`
	MemoryMB       int               `json:"memory_mb"`

	dir string
}

// bases are the bundled runners that one can be made of.
var bases = map[string]string{"python": "python", "node": "javascript", "shell": "shell"}

// customEnvs are the environments that a runner's directory can replace, and the file that asks for it.
var customEnvs = []struct{ env, file string }{{"python", "requirements.txt"}, {"node", "package.json"}}

var (
	runnerName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	moduleName = regexp.MustCompile(`^[@A-Za-z_][A-Za-z0-9_./@-]*$`)
	variable   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// maxDescription bounds a runner.json or metadata.json.
const maxDescription = 1 << 20

// customs reads the definitions in dir, by name. What is wrong with one is a problem of that one alone.
func customs(dir string) (list []custom, problems []Problem) {
	for _, sub := range subdirectories(dir) {
		c := custom{dir: sub}
		err := readDescription(filepath.Join(sub, "runner.json"), &c, true)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		c.Name = cmp.Or(c.Name, filepath.Base(sub))
		if err == nil {
			err = c.check()
		}
		if err != nil {
			problems = append(problems, Problem{filepath.Base(sub), "runner.json: " + err.Error(), "mend " + filepath.Join(sub, "runner.json")})
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

// runner is nil when something is missing for it.
func (c *custom) runner(ctx context.Context, h parts, dir string) (*Runner, []Problem) {
	i := slices.IndexFunc(h.defs, func(d Definition) bool { return d.Name == bases[c.Base] })
	if i < 0 {
		return nil, nil // detect has said why there are none
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
	envs := maps.Clone(h.envs)
	var problems []Problem
	for _, e := range customEnvs {
		if !c.has(e.file) {
			continue
		}
		f, current := c.environment(ctx, dir, e.env)
		if f.command == "" {
			return nil, append(problems, Problem{c.Name, e.file + " is not installed", fixInstall})
		}
		if !current {
			problems = append(problems, Problem{c.Name, e.file + " has changed since it was installed", fixInstall})
		}
		envs[e.env] = f
	}
	r, ok := assemble(d, envs, h.bash)
	if !ok {
		return nil, append(problems, Problem{c.Name, "its base " + c.Base + " is not installed", fixInstall})
	}
	return &r, problems
}

func (c *custom) has(file string) bool {
	fi, err := os.Stat(filepath.Join(c.dir, file))
	return err == nil && fi.Mode().IsRegular()
}

// environment finds the one that InstallOwn made, and whether it is made of what is there now.
func (c *custom) environment(ctx context.Context, dir, env string) (found, bool) {
	probe, compatible, in := probePython, sameMinor, pythonIn
	if env == "node" {
		probe, compatible, in = probeNode, sameNode, nodeIn
	}
	s, ok := current(ctx, customDir(dir), c.envName(env), probe, compatible)
	if !ok || !s.Complete {
		return found{}, false
	}
	dir, err := filepath.Abs(filepath.Join(customDir(dir), c.envName(env)))
	if err != nil {
		return found{}, false
	}
	hash, err := c.hash(env)
	return in(dir, s), err == nil && hash == s.Lock
}

// envName has a dot, so no two runners have the same.
func (c *custom) envName(env string) string { return c.Name + "." + env }

// hash identifies what an environment is made of: the operator's files, and ours that are installed beside.
func (c *custom) hash(env string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"requirements.txt", "package.json", "package-lock.json"} {
		b, err := os.ReadFile(filepath.Join(c.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(b), b)
	}
	for _, name := range installed[env] {
		b, err := fs.ReadFile(runners.Files, env+"/"+name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(b), b)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// subdirectories returns the directories in dir, and those that links in it lead to, by name. A name that starts with a dot
// is somebody's work in progress.
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

func readDescription(path string, v any, strict bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDescription))
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	if strict {
		dec.DisallowUnknownFields()
	}
	return dec.Decode(v)
}
