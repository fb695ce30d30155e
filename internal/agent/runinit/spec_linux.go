package runinit

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/wire"
)

// Spec describes a run. The agent writes it to run-init's descriptor 3.
type Spec struct {
	Argv      []string          `json:"argv"`
	File      string            `json:"file"`
	Code      []byte            `json:"code"`
	Env       map[string]string `json:"env"`
	TmpBytes  int64             `json:"tmp_bytes"`
	FileBytes uint64            `json:"file_bytes"`
	DataBytes uint64            `json:"data_bytes"`
	Processes uint64            `json:"processes"`
	Driver    []byte            `json:"driver"`
	Channel   bool              `json:"channel"` // the program is an interpreter
	Displays  bool              `json:"displays"`
	Dir       string            `json:"dir"`                // private to the run
	Landlock  int               `json:"landlock,omitempty"` // with SharedPIDs: the version to use, 0 for none
	// Adopted is the pid of the program, which a zygote has forked. With namespaces, its exit
	// follows the spec.
	Adopted int `json:"adopted,omitempty"`
	// Prestart asks run-init to start the program before its run. Another spec follows.
	Prestart bool `json:"prestart,omitempty"`
	// Helper, with Prestart, is a program that waits beside it, connected to its descriptor 3.
	Helper []string `json:"helper,omitempty"`

	Zygote *wire.Zygote `json:"-"` // the agent's: the zygote that the program may come from
}

// Status is what run-init writes to its descriptor 4 when the program has ended.
type Status struct {
	wire.Exit
	Alone bool `json:"alone,omitempty"` // no process of the run is left but run-init, or a dying one
}

// MaxStatus limits the size of a Status.
const MaxStatus = 64 << 10

// BaseEnv returns the environment of every run. The runner's and the caller's variables are added
// to it.
func BaseEnv() map[string]string {
	return map[string]string{
		"PATH":   "/usr/local/bin:/usr/bin:/bin",
		"HOME":   "/tmp",
		"TMPDIR": "/tmp",
		"LANG":   "C.UTF-8",
		"USER":   "sandbox",
	}
}

// Adopt returns the spec for a run-init that adopts a program forked by a zygote.
func (spec *Spec) Adopt(pid int) *Spec {
	return &Spec{Adopted: pid, Channel: spec.Channel, Displays: spec.Displays, Dir: spec.Dir, Landlock: spec.Landlock}
}

// WriteForFork writes what a program forked by a zygote reads for itself, and closes w. It returns
// when the program has read it, or has ended.
func (spec *Spec) WriteForFork(w *os.File) error {
	defer w.Close()
	name, code := spec.File, spec.Code
	if spec.Channel {
		name, code = driverFile, spec.Driver
	}
	return json.NewEncoder(w).Encode(struct {
		Path   string            `json:"path"`
		Code   string            `json:"code"` // hex
		Env    map[string]string `json:"env"`
		Limits map[string]uint64 `json:"limits"`
	}{spec.privatePath(name), hex.EncodeToString(code), spec.variables(), confine.LimitsByName(spec.limits())})
}

const driverFile = ".driver"

// programFile is a file for the program in the run's private directory.
type programFile struct {
	path string
	text []byte
}

func (f programFile) write() error {
	if err := os.WriteFile(f.path, f.text, 0o600); err != nil {
		return fmt.Errorf("write code: %w", err)
	}
	return nil
}

// argv returns the program's arguments, and the files with the code and the driver that they name.
func (spec *Spec) argv() (argv []string, files []programFile, err error) {
	if len(spec.Argv) == 0 {
		return nil, nil, errors.New("no program to run")
	}
	argv = slices.Clone(spec.Argv)
	for _, f := range []struct {
		placeholder, name string
		text              []byte
	}{{"{file}", spec.File, spec.Code}, {"{driver}", driverFile, spec.Driver}} {
		i := slices.Index(argv, f.placeholder)
		if i < 0 {
			continue
		}
		argv[i] = spec.privatePath(f.name)
		files = append(files, programFile{argv[i], f.text})
	}
	return argv, files, nil
}

// privatePath returns a unique path for a file of the run.
func (spec *Spec) privatePath(name string) string {
	var b [4]byte
	_, _ = rand.Read(b[:])
	ext := filepath.Ext(strings.TrimPrefix(name, "."))
	return spec.Dir + "/" + strings.TrimSuffix(filepath.Base(name), ext) + "-" + hex.EncodeToString(b[:]) + ext
}

// variables returns the program's environment.
func (spec *Spec) variables() map[string]string {
	env := BaseEnv()
	env["HOME"], env["TMPDIR"] = spec.Dir, spec.Dir
	maps.Copy(env, spec.Env)
	if spec.Displays {
		env[DisplayVariable] = spec.Dir + "/" + DisplayDir
	}
	return env
}

// limits returns the rlimits of this run.
func (spec *Spec) limits() []confine.Limit {
	limits := []confine.Limit{
		{Name: "RLIMIT_FSIZE", Resource: unix.RLIMIT_FSIZE, Max: spec.FileBytes},
		{Name: "RLIMIT_DATA", Resource: unix.RLIMIT_DATA, Max: spec.DataBytes},
		{Name: "RLIMIT_NPROC", Resource: unix.RLIMIT_NPROC, Max: spec.Processes},
	}
	return slices.DeleteFunc(limits, func(l confine.Limit) bool { return l.Max == 0 })
}

// Environ returns variables as os/exec wants them.
func Environ(vars map[string]string) []string {
	env := make([]string, 0, len(vars))
	for name, value := range vars {
		env = append(env, name+"="+value)
	}
	return env
}

// FindProgram finds a bare program name on the PATH of the program's environment, which starts in
// dir.
func FindProgram(name string, vars map[string]string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, place := range filepath.SplitList(vars["PATH"]) {
		if !filepath.IsAbs(place) {
			place = filepath.Join(dir, place)
		}
		path := filepath.Join(place, name)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: not found in the sandbox", name)
}
