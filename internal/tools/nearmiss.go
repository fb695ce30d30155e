package tools

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/spelling"
)

const (
	maxUnknown     = 32 // unknown arguments to check
	maxUnknownName = 64 // bytes of the longest unknown name to check
	maxWarnings    = 5
)

// n8nMarks are arguments that n8n's agent adds to every call. It also adds sessionId, the id of its
// chat. That is not the model's misspelt session_id: refusing it would shut n8n out; using it would
// put single runs into a session.
var n8nMarks = []string{"action", "chatInput", "toolCallId"}

// synonyms are folded names that other servers use for our arguments.
var synonyms = map[string][]string{
	"background":      {"async", "detach"},
	"code":            {"source", "sourcecode", "script", "program"},
	"content":         {"base64", "text", "data", "body", "filecontent", "filecontents"},
	"cursor":          {"offset", "since"},
	"environment":     {"env", "envvars", "environmentvariables", "variables"},
	"filename":        {"file", "filepath", "path"},
	"language":        {"lang", "runner", "runtime", "interpreter"},
	"limit":           {"maxresults", "count"},
	"network":         {"internet", "internetaccess", "allowinternet", "enableinternet", "networkaccess", "allownetwork", "enablenetwork", "networkenabled", "networking"},
	"hosts":           {"domains", "alloweddomains", "allowedhosts", "allowhosts"},
	"overwrite":       {"replace"},
	"packages":        {"requirements", "dependencies", "deps", "pip", "pippackages", "npm", "install", "libraries", "modules"},
	"path":            {"file", "filepath", "filename"},
	"session":         {"conversation", "sessionname"},
	"timeout_seconds": {"timeout", "timeoutms", "timeoutsec", "timeoutsecs", "timeouts", "maxseconds", "waitseconds"},
}

// decisive maps each argument that decides what a call affects to what the call would do without
// it. A call that misspells one of them is refused.
var decisive = map[string]string{
	"session": "use another session", "session_id": "use another session", "conversationId": "use another session",
	"network": "have no network", "services": "have no services", "hosts": "reach no host", "packages": "install nothing",
	"content": "make an upload link and no file; content must be base64",
}

// checkUnknown warns about unknown arguments that are probably misspelt, and fails for decisive
// ones. A correctly spelt argument of the same name takes precedence.
func (a *arguments) checkUnknown(others []argument, accepted parameters) {
	fromN8n := slices.ContainsFunc(others, func(arg argument) bool { return slices.Contains(n8nMarks, arg.name) })
	for _, other := range others {
		meant := nearMiss(other.name, accepted)
		if correct, ok := a.members[meant]; meant == "" || ok && !correct.isEmpty() {
			continue
		}
		if other.name == "sessionId" && fromN8n {
			continue
		}
		if effect := decisive[meant]; effect != "" && !other.isEmpty() {
			a.fail("argument %q is not known; did you mean %s? Nothing was done, because without it the call would %s",
				other.name, meant, effect)
		}
		a.misses[meant] = other.name
		if len(a.warnings) < maxWarnings {
			a.warnings = append(a.warnings,
				fmt.Sprintf("argument %q is not known and was ignored; did you mean %s?", other.name, meant))
		}
	}
}

// nearMiss returns the argument that a misspelt name probably means, as the tool's schema names it,
// or "".
func nearMiss(name string, accepted parameters) string {
	folded := fold(name)
	for meant, names := range synonyms {
		if own, ok := accepted[meant]; ok && slices.Contains(names, folded) {
			return own
		}
	}
	best, least := "", 3
	for _, known := range slices.Sorted(maps.Keys(accepted)) {
		candidate := fold(known)
		allowed := 1
		switch {
		case len(candidate) < 5:
			allowed = 0 // "mode" is not a misspelt "code", nor "end" a misspelt "env"
		case len(candidate) >= 10:
			allowed = 2
		}
		if d := spelling.Distance(folded, candidate); d <= allowed && d < least {
			best, least = accepted[known], d
		}
	}
	return best
}

// fold removes differences in case, underscores and hyphens.
func fold(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
}
