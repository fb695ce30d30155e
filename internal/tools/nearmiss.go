package tools

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/spelling"
)

const (
	maxUnknown     = 32 // arguments that the tool does not have and that are looked at
	maxUnknownName = 64 // bytes of the name of such an argument
	maxWarnings    = 5
)

// n8nMarks are arguments that n8n's agent adds to every call by itself. It also adds sessionId, the id of its chat, which is
// then not the model's misspelt session_id: to refuse it would shut n8n out, and to use it would put single runs into a session.
var n8nMarks = []string{"action", "chatInput", "toolCallId"}

// synonyms are names, folded, under which models know an argument of ours from elsewhere.
var synonyms = map[string][]string{
	"timeout": {"timeout_seconds"}, "timeoutms": {"timeout_seconds"}, "timeoutsec": {"timeout_seconds"}, "timeoutsecs": {"timeout_seconds"},
	"timeouts": {"timeout_seconds"}, "maxseconds": {"timeout_seconds"}, "waitseconds": {"timeout_seconds"},
	"lang": {"language"}, "runner": {"language"}, "runtime": {"language"}, "interpreter": {"language"},
	"conversation": {"session"}, "sessionname": {"session"},
	"internet": {"network"}, "internetaccess": {"network"}, "allowinternet": {"network"}, "enableinternet": {"network"},
	"networkaccess": {"network"}, "allownetwork": {"network"}, "enablenetwork": {"network"}, "networkenabled": {"network"}, "networking": {"network"},
	"env": {"environment"}, "envvars": {"environment"}, "environmentvariables": {"environment"}, "variables": {"environment"},
	"source": {"code"}, "sourcecode": {"code"}, "script": {"code"}, "program": {"code"},
	"file": {"filename", "path"}, "filepath": {"filename", "path"}, "path": {"filename"}, "filename": {"path"},
	"base64": {"content"}, "text": {"content"}, "data": {"content"}, "body": {"content"}, "filecontent": {"content"}, "filecontents": {"content"},
	"offset": {"cursor"}, "since": {"cursor"}, "async": {"background"}, "detach": {"background"},
	"replace": {"overwrite"}, "maxresults": {"limit"}, "count": {"limit"},
}

// decisive are the arguments that say what a call is to do or may touch, and what it would do without them: it is refused instead.
var decisive = map[string]string{
	"session": "use another session", "session_id": "use another session", "conversationId": "use another session",
	"network": "have no network", "services": "have no services",
	"content": "make an upload link and no file; content must be base64",
}

// unknowns are arguments that the tool does not have, a bounded number of them.
type unknowns []unknown

type unknown struct {
	name  string
	empty bool
}

func (u *unknowns) add(given argument) {
	if len(*u) < maxUnknown && len(given.name) <= maxUnknownName {
		*u = append(*u, unknown{given.name, given.empty()})
	}
}

func (u unknowns) has(names []string) bool {
	return slices.ContainsFunc(u, func(other unknown) bool { return slices.Contains(names, other.name) })
}

// judge says which of the unknown arguments are probably misspelt ones of the tool's. An argument that is also there under its
// right name has not been missed.
func (a *arguments) judge(others unknowns, accepted parameters) {
	for _, other := range others {
		meant := nearMiss(other.name, accepted)
		if given, ok := a.members[meant]; meant == "" || ok && !given.empty() {
			continue
		}
		if other.name == "sessionId" && others.has(n8nMarks) {
			continue
		}
		if what := decisive[meant]; what != "" && !other.empty {
			a.fail("argument %q is not known; did you mean %s? Nothing was done, because without it the call would %s", other.name, meant, what)
		}
		a.misses[meant] = other.name
		if len(a.warnings) < maxWarnings {
			a.warnings = append(a.warnings, fmt.Sprintf("argument %q is not known and was ignored; did you mean %s?", other.name, meant))
		}
	}
}

// nearMiss returns the tool's argument that the name probably stands for, by the name that the schema has for it, or "".
func nearMiss(name string, accepted parameters) string {
	folded := fold(name)
	for _, meant := range synonyms[folded] {
		if own, ok := accepted[meant]; ok {
			return own
		}
	}
	best, least := "", 3
	for _, known := range slices.Sorted(maps.Keys(accepted)) {
		other := fold(known)
		allowed := 1
		switch {
		case len(other) < 5:
			allowed = 0 // mode, node and name are no code, nor is end env
		case len(other) >= 10:
			allowed = 2
		}
		if d := spelling.Distance(folded, other); d <= allowed && d < least {
			best, least = accepted[known], d
		}
	}
	return best
}

// fold makes names that differ in case, underscores and hyphens the same.
func fold(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
}
