//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var protocolVersions = []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"}

// client connects the SDK's client with the server.
func (s *server) client(t *testing.T, version string) *mcp.ClientSession {
	t.Helper()
	transport := &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.Token)}}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1"}, nil).Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}

// said joins the text items of a result with "|". The message of a protocol error counts as one.
func said(t *testing.T, cs *mcp.ClientSession, tool string, args map[string]any) string {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, c := range res.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			all = append(all, c.Text)
		case *mcp.ResourceLink:
			all = append(all, c.URI)
		}
	}
	return strings.Join(all, "|")
}

// TestForgivingArguments checks that a model that uses another tool's argument names gets its
// session, that a misspelt name is reported, and that arguments added by n8n do no harm.
func TestForgivingArguments(t *testing.T) {
	s := serve(t)
	for _, version := range protocolVersions {
		cs := s.client(t, version)
		id := "aliases-" + version
		for i, step := range []struct {
			args map[string]any
			want string
		}{
			{map[string]any{"session_id": id, "language": "py", "code": "x = 41"}, "(no output)"},
			{map[string]any{"conversationId": id, "env": "python3", "code": "x + 1"}, "42\n"},
			{map[string]any{"session": id, "session_id": id, "env": "python", "code": "x"}, "41\n"},
			{map[string]any{"session": id, "env": "ts", "code": "const n: number = 1; n"}, "1\n"},
			{map[string]any{"session": id, "env": "js", "code": "2"}, "2\n"},
			{map[string]any{"session": id, "env": "sh", "code": "echo 3"}, "3\n"},
			{map[string]any{"session": id, "env": "python", "code": "x", "sessionId": "chat", "action": "sendMessage", "chatInput": "hi", "toolCallId": "call_1"}, "41\n"},
			{map[string]any{"session": id, "env": "python", "code": "x", "timeout": 5}, `argument "timeout" is not known and was ignored; did you mean timeout_seconds?`},
			{map[string]any{"sesion": id, "env": "python", "code": "x"}, `argument "sesion" is not known; did you mean session?`},
			{map[string]any{"session": id, "env": "python", "code": "x", "networks": true}, `argument "networks" is not known; did you mean network?`},
			{map[string]any{"session": id, "env": "python", "code": "x", "networking": true}, `argument "networking" is not known; did you mean network?`},
			{map[string]any{"session": id, "env": "Python", "code": "x"}, "41\n"},
			{map[string]any{"session": id, "env": "PY", "code": "x"}, "41\n"},
			{map[string]any{"session": id, "session_id": "other", "env": "python", "code": "x"}, "are the same argument"},
		} {
			if got := said(t, cs, "run", step.args); !strings.Contains(got, step.want) {
				t.Errorf("%s, step %d: %q, want %q", version, i+1, got, step.want)
			}
		}
		for _, name := range []string{"text", "data", "body", "contents"} {
			want := fmt.Sprintf("argument %q is not known; did you mean content? Nothing was done, because without it the call would make an upload link and no file; content must be base64", name)
			if got := said(t, cs, "upload_file", map[string]any{"session_id": id, "filename": "x.csv", name: "a,b"}); !strings.Contains(got, want) {
				t.Errorf("%s, upload_file with %s: %q", version, name, got)
			}
		}
		if got := said(t, cs, "upload_file", map[string]any{"session_id": id, "filename": "x.csv"}); !strings.Contains(got, `"upload_url"`) {
			t.Errorf("%s, upload_file without content: %q", version, got)
		}
		// Every schema has properties.
		list, err := cs.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			if _, ok := tool.InputSchema.(map[string]any)["properties"].(map[string]any); !ok {
				t.Errorf("%s, %s: no properties in %v", version, tool.Name, tool.InputSchema)
			}
		}
	}
	if r := s.run(t, "aliases-2025-06-18", "sh", "echo $((1+1))", func(args map[string]any) {
		args["session_id"], args["conversationId"] = args["conversationId"], nil
		args["enviroment"] = map[string]string{"A": "b"}
	}); r.Output != "2\n" {
		t.Errorf("a plain caller: %+v", r)
	}
}

// TestOtherInterpreterIsSaid checks that the result says first when a run uses the other
// interpreter, the one with or without network: variables do not follow, files do.
func TestOtherInterpreterIsSaid(t *testing.T) {
	s := serve(t)
	cs := s.client(t, "2025-11-25")
	cell := func(network bool, code string) string {
		return said(t, cs, "run", map[string]any{"session": "x", "env": "python", "network": network, "code": code})
	}
	cell(false, "x = 1\n_ = open('/data/x', 'w').write('from the other')")
	if got := cell(true, "print('x' in globals(), open('/data/x').read())"); !strings.HasPrefix(got, "[This run used the session's other interpreter, the one with network:") || !strings.HasSuffix(got, "]\nFalse from the other\n") {
		t.Errorf("with network: %q", got)
	}
	if got := cell(true, "1"); got != "1\n" {
		t.Errorf("and again: %q", got)
	}
	if got := cell(false, "x"); !strings.HasPrefix(got, "[This run used the session's other interpreter, the one without network:") || !strings.HasSuffix(got, "]\n1\n") {
		t.Errorf("and back: %q", got)
	}
	res := s.call(t, "run", map[string]any{"session": "x", "env": "python", "network": true, "code": "2"})
	if len(res.Content) != 1 || !strings.HasPrefix(res.Content[0].Text, "{\n  \"notice\": \"This run used") {
		t.Errorf("a plain caller: %+v", res)
	}
}

// TestHandoverOfAllRunTools checks that an MCP client gets the run's state before it times out and
// then, by the cursor, every line exactly once. A plain caller waits for the end.
func TestHandoverOfAllRunTools(t *testing.T) {
	s := serve(t, "SANDBOX_HANDOVER_S=1")
	const code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('/data/go'): time.sleep(0.02)\nprint('done')"
	for _, version := range []string{"2025-03-26", "2025-11-25", "2026-07-28"} {
		cs := s.client(t, version)
		for tool, required := range map[string][]string{
			"run_code":   {"success", "output", "files"},
			"run_python": {"session_id", "run_id", "exit_code", "stdout", "stderr", "stdout_truncated", "stderr_truncated", "artifacts", "duration_ms"},
			"run":        nil,
		} {
			id := tool + version
			args := map[string]any{"session": id, "code": code}
			if tool != "run_python" {
				args["env"] = "python"
			}
			text := said(t, cs, tool, args)
			var runID, cursor string
			if tool == "run" {
				m := regexp.MustCompile(`^(?:begun\n)?\[status: running; run_id: (\w+); session: \S+; cursor: (\d+)`).FindStringSubmatch(text)
				if m == nil {
					t.Fatalf("%s: %s", id, text)
				}
				runID, cursor = m[1], m[2]
			} else {
				var state map[string]any
				if err := json.Unmarshal([]byte(text), &state); err != nil || state["status"] != "running" {
					t.Fatalf("%s: %v in %s", id, err, text)
				}
				for _, name := range required {
					if _, ok := state[name]; !ok {
						t.Errorf("%s lacks %s: %s", id, name, text)
					}
				}
				runID, cursor = state["run_id"].(string), fmt.Sprint(state["cursor"])
			}
			s.call(t, "upload_file", map[string]any{"session_id": id, "filename": "go", "content": ""})
			text += said(t, cs, "wait_run", map[string]any{"run_id": runID, "cursor": json.Number(cursor)})
			if strings.Count(text, "begun") != 1 || strings.Count(text, "done") != 1 || !strings.Contains(text, "completed") {
				t.Errorf("%s: both answers together: %s", id, text)
			}
			if all := said(t, cs, "wait_run", map[string]any{"run_id": runID}); strings.Count(all, "begun") != 1 || strings.Count(all, "done") != 1 {
				t.Errorf("%s: without a cursor: %s", id, all)
			}
		}
	}
	begin := time.Now()
	if r := s.run(t, "plain", "python", "import time\ntime.sleep(2)\nprint('end')"); !r.Success || r.Output != "end\n" || time.Since(begin) < 2*time.Second {
		t.Errorf("a plain caller's run_code: %+v", r)
	}
}

// TestPresets checks that each preset explains its own tools only, and that links come with
// SANDBOX_RESOURCE_LINKS=on.
func TestPresets(t *testing.T) {
	for preset, want := range map[string][]string{
		"run":     {"run", "wait_run", "cancel_run", "upload_file", "list_artifacts", "read_artifact", "close_session", "list_sessions", "delete_file"},
		"session": {"upload_file", "run_python", "read_artifact", "list_artifacts", "close_session"}, "conversation": {"run_code", "upload_file", "list_runners"},
	} {
		s := serve(t, "SANDBOX_TOOLS="+preset, "SANDBOX_RESOURCE_LINKS=on")
		for _, version := range protocolVersions {
			cs := s.client(t, version)
			list, err := cs.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			text := cs.InitializeResult().Instructions
			if n := len(strings.Fields(text)); (n < 20) != (version == "2024-11-05") || n >= 120 { // contract 2 shows what the oldest version gets
				t.Errorf("%s, %s: instructions of %d words: %s", preset, version, n, text)
			}
			var got []string
			for _, tool := range list.Tools {
				got = append(got, tool.Name)
				schemas, err := json.Marshal(tool)
				if err != nil {
					t.Fatal(err)
				}
				text += string(schemas)
				if strings.HasPrefix(tool.Name, "run") && !strings.Contains(tool.Description, "pandas") {
					t.Errorf("%s names no libraries: %s", tool.Name, tool.Description)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, slices.Sorted(slices.Values(want))) {
				t.Errorf("%s, %s: tools %v", preset, version, got)
			}
			for _, name := range []string{"run_code", "run_python", "wait_run", "cancel_run", "list_runners", "read_artifact", "list_artifacts", "list_sessions", "delete_file", "close_session", "list_services"} {
				if !slices.Contains(got, name) && strings.Contains(text, name) {
					t.Errorf("%s, %s: %s is named", preset, version, name)
				}
			}
			if preset == "run" {
				text := said(t, cs, "run", map[string]any{"session": "l", "env": "python", "code": "_ = open('a.txt', 'w').write('" + version + "')"})
				if strings.Contains(text, "sandbox://sessions/l/a.txt") != (version >= "2025-06-18") || !strings.Contains(text, "/files/l/a.txt?sig=") {
					t.Errorf("%s: %s", version, text)
				}
			}
		}
	}
}
