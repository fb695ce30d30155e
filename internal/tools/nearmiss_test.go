package tools

import (
	"strings"
	"testing"

	"mcp-code-sandbox/internal/runner"
)

func TestNearMiss(t *testing.T) {
	runners := runner.Set{{Definition: runner.Definition{Name: "python"}}}
	all := (&toolset{offered: Names(), maxTimeout: defaultMaxTimeout}).all()
	accepted := map[string]parameters{}
	for name, tool := range all {
		accepted[name] = parametersOf(tool.define(runners), unlisted(name)...)
	}
	for _, tt := range []struct{ tool, name, want string }{
		{"run", "sesion", "session"}, {"run", "sessionn", "session"}, {"run", "SESSION", "session"}, {"run", "sessionId", "session"}, {"run", "sesison_id", "session"},
		{"run", "conversation_id", "session"}, {"run", "conversation", "session"}, {"run", "sessions", "session"},
		{"run_code", "sesion", "conversationId"}, {"run_code", "conversation-id", "conversationId"}, {"read_artifact", "sesion", "session_id"},
		{"run", "lang", "env"}, {"run_code", "lang", "language"}, {"run", "langauge", "env"}, {"run_python", "lang", ""},
		{"run", "timeout", "timeout_seconds"}, {"wait_run", "timeout", "timeout_seconds"}, {"run", "timeoutSeconds", "timeout_seconds"}, {"list_sessions", "timeout", ""},
		{"run", "enviroment", "environment"}, {"run", "env_vars", "environment"}, {"run_python", "env", "environment"},
		{"run", "networks", "network"}, {"run", "internet", "network"}, {"run_code", "allow_network", "network"}, {"run", "netwrok", "network"}, {"run", "networking", "network"},
		{"upload_file", "text", "content"}, {"upload_file", "data", "content"}, {"upload_file", "body", "content"}, {"upload_file", "contents", "content"},
		{"upload_file", "file_content", "content"}, {"upload_file", "base64", "content"}, {"run", "text", ""}, {"run_python", "data", ""},
		{"run", "service", "services"}, {"run", "backgroud", "background"}, {"wait_run", "runId", "run_id"}, {"wait_run", "offset", "cursor"},
		{"read_artifact", "filename", "path"}, {"delete_file", "path", "filename"}, {"upload_file", "file_name", "filename"},
		// What clients add, and words that only look alike.
		{"run", "action", ""}, {"run", "chatInput", ""}, {"run", "toolCallId", ""}, {"run", "tool", ""}, {"run", "version", ""}, {"run", "version_id", ""}, {"run", "mode", ""},
		{"run", "node", ""}, {"run", "end", ""}, {"run", "name", ""}, {"run", "metadata", ""}, {"run", "thread_id", ""}, {"run", "user", ""}, {"run", "", ""}, {"run", "_", ""},
		{"run", "mission", ""}, {"run", "id", ""}, {"list_runners", "session", ""}, {"run", strings.Repeat("session", 9), ""},
	} {
		if got := nearMiss(tt.name, accepted[tt.tool]); got != tt.want {
			t.Errorf("%s of %s: %q, want %q", tt.name, tt.tool, got, tt.want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "axc", 1}, {"abc", "abcd", 1}, {"sesion", "session", 1}, {"ca", "abc", 3}, {"kitten", "sitting", 3}} {
		if got := distance(tt.a, tt.b); got != tt.want || distance(tt.b, tt.a) != got {
			t.Errorf("%q, %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
