package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/spelling"
)

// defaultMaxExecTimeout is MaxExecTimeout's default.
const defaultMaxExecTimeout = 10 * time.Minute

// warning is about a setting that works, but hardly as its operator meant.
type warning struct{ name, problem, fix string }

// warnings returns what serve and doctor warn about. It expects settings that are valid.
func (s *settings) warnings(env map[string]string) (list []warning) {
	for _, weak := range s.weakSecrets() {
		list = append(list, warning{weak.name, weak.problem + "; whoever can reach this server can guess it", "use for instance the output of openssl rand -hex 32"})
	}
	for _, p := range prefixes(s.TrustedProxies) {
		if p.Bits() < 8 || p.Addr().Is6() && p.Bits() < 16 {
			list = append(list, warning{"SANDBOX_TRUSTED_PROXIES", p.String() + " trusts much of the internet: a client there can choose its own address", "name the proxies alone, such as 127.0.0.1"})
		}
	}
	for _, p := range prefixes(s.NetworkDeny) {
		if p.Bits() == 0 {
			list = append(list, warning{"SANDBOX_NETWORK_DENY", p.String() + " closes everything to runs with network, and to services", "set SANDBOX_NETWORK=off to refuse network: true with a clear error"})
		}
	}
	if s.CallerBytes != 0 && s.CallerBytes < s.WorkspaceBytes {
		list = append(list, warning{
			"SANDBOX_CALLER_BYTES", fmt.Sprintf("%s is less than one session may hold (SANDBOX_WORKSPACE_BYTES is %s): no user can fill a session", s.CallerBytes, s.WorkspaceBytes),
			"raise it, or lower SANDBOX_WORKSPACE_BYTES",
		})
	}
	if s.CallerFiles != 0 && s.CallerFiles < s.WorkspaceFiles {
		list = append(list, warning{
			"SANDBOX_CALLER_FILES", fmt.Sprintf("%d is less than one session may hold (SANDBOX_WORKSPACE_FILES is %d): no user can fill a session", s.CallerFiles, s.WorkspaceFiles),
			"raise it, or lower SANDBOX_WORKSPACE_FILES",
		})
	}
	// Who raises the usual time alone means to raise the maximum with it.
	if s.ExecTimeout > s.MaxExecTimeout && time.Duration(s.MaxExecTimeout) != defaultMaxExecTimeout {
		list = append(list, warning{
			"SANDBOX_MAX_EXEC_TIMEOUT_S", fmt.Sprintf("%v is less than SANDBOX_EXEC_TIMEOUT_S, so runs may take %v", time.Duration(s.MaxExecTimeout), s.maxExecTimeout()),
			"lower SANDBOX_EXEC_TIMEOUT_S as well",
		})
	}
	return append(list, s.unknownVariables(env)...)
}

// unknownVariables warns about variables that look like settings and are none.
func (s *settings) unknownVariables(env map[string]string) (list []warning) {
	const prefix = "SANDBOX_"
	var known []string
	for f := range reflect.TypeFor[settings]().Fields() {
		known = append(known, f.Tag.Get("environ"))
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !strings.HasPrefix(name, prefix) || strings.HasPrefix(name, prefix+"TEST_") || env[name] == "" || slices.Contains(known, name) {
			continue
		}
		w := warning{name: name, problem: "unknown setting, ignored"}
		if meant := nearest(name, known); meant != "" {
			w.fix = "did you mean " + meant + "?"
		} else if s.Config != "" {
			continue // the configuration file may refer to it
		} else {
			w.fix = "unset it; mcp-code-sandbox serve --help lists the settings"
		}
		list = append(list, w)
	}
	return list
}

// nearest returns the known name that a misspelt one most probably means, or "".
func nearest(name string, known []string) (best string) {
	least := 3
	if len(name) < len("SANDBOX_")+8 { // ROOT, PORT and HOST are not the same word misspelt
		least = 2
	}
	for _, k := range known {
		if d := spelling.Distance(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}
