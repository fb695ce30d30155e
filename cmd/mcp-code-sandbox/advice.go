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

// warning is about a setting that is valid but probably not what the operator meant.
type warning struct{ name, problem, fix string }

// warnings returns what serve and doctor warn about. The settings must be valid.
func (s *settings) warnings(env map[string]string) (list []warning) {
	warn := func(name, fix, format string, args ...any) {
		list = append(list, warning{name, fmt.Sprintf(format, args...), fix})
	}
	for _, weak := range s.weakSecrets() {
		warn(weak.name, generateSecret, "should have at least %d bytes: anybody who can reach this server can guess it", weak.least)
	}
	for _, p := range prefixes(s.TrustedProxies) {
		if p.Bits() < 8 || p.Addr().Is6() && p.Bits() < 16 {
			warn("SANDBOX_TRUSTED_PROXIES", "name only the proxies, such as 127.0.0.1",
				"%s trusts much of the internet: a client there can choose its own address", p)
		}
	}
	for _, p := range prefixes(s.NetworkDeny) {
		if p.Bits() == 0 {
			warn("SANDBOX_NETWORK_DENY", "set SANDBOX_NETWORK=off to refuse network: true with a clear error",
				"%s closes everything to runs with network, and to services", p)
		}
	}
	const tooSmall = "%v is less than one session may hold (%s is %v): no user can fill a session"
	if s.CallerBytes != 0 && s.CallerBytes < s.WorkspaceBytes {
		warn("SANDBOX_CALLER_BYTES", "raise it, or lower SANDBOX_WORKSPACE_BYTES", tooSmall, s.CallerBytes, "SANDBOX_WORKSPACE_BYTES", s.WorkspaceBytes)
	}
	if s.CallerFiles != 0 && s.CallerFiles < s.WorkspaceFiles {
		warn("SANDBOX_CALLER_FILES", "raise it, or lower SANDBOX_WORKSPACE_FILES", tooSmall, s.CallerFiles, "SANDBOX_WORKSPACE_FILES", s.WorkspaceFiles)
	}
	// No warning with the default: it rises with SANDBOX_EXEC_TIMEOUT_S.
	if s.ExecTimeout > s.MaxExecTimeout && s.MaxExecTimeout != defaultMaxExecTimeout {
		warn("SANDBOX_MAX_EXEC_TIMEOUT_S", "lower SANDBOX_EXEC_TIMEOUT_S as well",
			"%v is less than SANDBOX_EXEC_TIMEOUT_S, so runs may take %v", s.MaxExecTimeout, s.maxExecTimeout())
	}
	return append(list, s.unknownVariables(env)...)
}

// unknownVariables warns about variables that look like settings but are not.
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

// nearest returns the known name that a misspelled one most probably means, or "".
func nearest(name string, known []string) (best string) {
	least := 3
	if len(name) < len("SANDBOX_")+8 { // ROOT, PORT and HOST are different words
		least = 2
	}
	for _, k := range known {
		if d := spelling.Distance(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}
