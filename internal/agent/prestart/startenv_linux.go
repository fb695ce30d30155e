package prestart

import (
	"slices"
	"strings"

	"mcp-code-sandbox/internal/wire"
)

// startEnv is the environment that a program was started with before its run was known.
type startEnv struct {
	vars   map[string]string
	reads  []string // prefixes of the variables that the program reads only while it starts
	perRun []string // variables among them that a run may set
}

func startEnvOf(w *wire.Zygote) startEnv { return startEnv{w.Env, w.Reads, w.PerRun} }

// allows reports whether a run with this environment may use the program: no variable that the
// program has already read differs.
func (s startEnv) allows(env map[string]string) bool {
	for _, vars := range []map[string]string{env, s.vars} {
		for name := range vars {
			now, isSet := env[name]
			then, wasSet := s.vars[name]
			if now == then && isSet == wasSet || slices.Contains(s.perRun, name) {
				continue
			}
			if slices.ContainsFunc(s.reads, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				return false
			}
		}
	}
	return true
}
