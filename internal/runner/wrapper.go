package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"mcp-code-sandbox/internal/userns"
)

// wrappers returns the environments in dir that isolate themselves (contract 5): directories with a
// metadata.json, bin/run, which reads code from stdin, and optionally bin/session-run, which keeps
// state.
func wrappers(dir string) (list []Runner, problems []Problem) {
	for _, sub := range subdirectories(dir) {
		var meta struct {
			Name           string `json:"name"`
			Interpreter    string `json:"interpreter_type"`
			TimeoutSeconds int    `json:"timeout_seconds"`
			MemoryMB       int    `json:"memory_mb"`
		}
		err := readDescription(filepath.Join(sub, "metadata.json"), &meta)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		name := filepath.Base(sub)
		bad := func(fix, format string, args ...any) {
			problems = append(problems, Problem{name, "skipped: " + fmt.Sprintf(format, args...), fix})
		}
		correct := "correct " + filepath.Join(sub, "metadata.json")
		if err != nil {
			bad(correct, "metadata.json: %v", err)
			continue
		}
		if !runnerName.MatchString(meta.Name) {
			bad(correct, "metadata.json: %q is not a valid name: use lower-case letters, digits, - and _", meta.Name)
			continue
		}
		name = meta.Name
		if !runnerName.MatchString(meta.Interpreter) {
			bad(correct, "metadata.json: interpreter_type %q: use python, node or bash", meta.Interpreter)
			continue
		}
		if err := checkLimits(meta.TimeoutSeconds, meta.MemoryMB); err != nil {
			bad(correct, "metadata.json: %v", err)
			continue
		}
		// Follow links now, so that a changed link does not change the environment later.
		real, err := filepath.EvalSymlinks(sub)
		if err == nil {
			real, err = filepath.Abs(real)
		}
		if err != nil {
			bad("", "%v", err)
			continue
		}
		run, session := filepath.Join(real, "bin", "run"), filepath.Join(real, "bin", "session-run")
		if !executable(run) {
			bad("rebuild it with an executable bin/run", "%s has no executable bin/run", sub)
			continue
		}
		if closed := unreachable(run); closed != "" {
			bad("keep it in a directory that everybody may read, such as /opt/sandboxes; a link to it may stay",
				"a server that runs as root starts wrappers as another user, who cannot reach %s", closed)
			continue
		}
		r := Runner{
			Definition: Definition{
				Name: meta.Name, Title: meta.Name, File: "code", Argv: []string{run},
				TimeoutSeconds: meta.TimeoutSeconds, MemoryMB: meta.MemoryMB,
			},
			Image: "wrapper:" + meta.Name, Version: meta.Interpreter, Wrapper: real,
		}
		if executable(session) {
			r.Persistent = []string{session, meta.Interpreter}
		}
		list = append(list, r)
	}
	return list, problems
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

// unreachable returns the deepest part of path that other users cannot access, or "". It checks
// only if the server runs as root.
func unreachable(path string) string {
	if userns.UID() != 0 {
		return ""
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	for _, p := range []string{path, real} {
		want := fs.FileMode(0o005)
		for ; ; p = filepath.Dir(p) {
			if fi, err := os.Stat(p); err != nil || fi.Mode()&want != want {
				return p
			}
			if want = 0o001; p == filepath.Dir(p) {
				break
			}
		}
	}
	return ""
}
