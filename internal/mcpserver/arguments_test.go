package mcpserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/tools"
)

// textOf returns the text items of a result, joined by "|", or the message of a protocol error.
func textOf(t *testing.T, cs *mcp.ClientSession, tool string, args map[string]any) (text string, isError bool) {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	var rpc *jsonrpc.Error
	if errors.As(err, &rpc) {
		return rpc.Message, true
	}
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			all = append(all, text.Text)
		}
	}
	return strings.Join(all, "|"), res.IsError
}

// toolArguments are minimal arguments, without the session, of every tool that has a session.
var toolArguments = map[string]map[string]any{
	"run": {"code": "1", "env": "python"}, "run_code": {"code": "1", "language": "python"}, "run_python": {"code": "1"},
	"upload_file": {"filename": "a", "content": "eA=="}, "read_artifact": {"path": "a"}, "list_artifacts": {}, "delete_file": {"filename": "a"}, "close_session": {},
}

// with returns a copy of the arguments with more added, in pairs of name and value.
func with(args map[string]any, more ...any) map[string]any {
	all := map[string]any{}
	for k, v := range args {
		all[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		all[more[i].(string)] = more[i+1]
	}
	return all
}

// TestAliases: every tool accepts the names that other tools have for the session and the language.
func TestAliases(t *testing.T) {
	forClients(t, func(t *testing.T, transport, version string) {
		p := newProduct(t)
		cs := p.connect(t, transport, version, nil)
		for tool, args := range toolArguments {
			for _, alias := range []string{"session", "session_id", "conversationId"} {
				p.executor.session = ""
				if text, isError := textOf(t, cs, tool, with(args, alias, "mine")); isError || p.executor.session != "mine" {
					t.Errorf("%s with %s: session %q, %s", tool, alias, p.executor.session, text)
				}
			}
			if text, isError := textOf(t, cs, tool, with(args, "session", "mine", "session_id", "mine", "conversationId", nil)); isError || p.executor.session != "mine" {
				t.Errorf("%s with two equal names: %s", tool, text)
			}
			p.executor.session = ""
			text, isError := textOf(t, cs, tool, with(args, "session", "mine", "conversationId", "yours"))
			if !isError || !strings.Contains(text, "are the same argument; give one of them") || p.executor.session != "" {
				t.Errorf("%s with two names that disagree: %s, session %q", tool, text, p.executor.session)
			}
			if text, isError := textOf(t, cs, tool, with(args, "conversationId", 7)); !isError || text != "conversationId must be a string" {
				t.Errorf("%s with a number: %s", tool, text)
			}
		}
		for _, args := range []map[string]any{{"language": "python"}, {"env": "python"}, {"env": "python", "language": "python"}} {
			for _, tool := range []string{"run", "run_code"} {
				p.executor.request = executor.Request{}
				if text, isError := textOf(t, cs, tool, with(args, "session", "s", "code", "1")); isError || p.executor.request.Runner != "python" {
					t.Errorf("%s %v: %s", tool, args, text)
				}
			}
		}
		if text, isError := textOf(t, cs, "run", map[string]any{"code": "1", "env": "python", "language": "shell"}); !isError || !strings.Contains(text, "are the same argument") {
			t.Errorf("two languages: %s", text)
		}

		// The schemas do not mention aliases. Each has properties, which some clients need.
		list, err := cs.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list.Tools {
			properties, ok := tool.InputSchema.(map[string]any)["properties"].(map[string]any)
			if !ok {
				t.Errorf("%s has no properties: %v", tool.Name, tool.InputSchema)
			}
			_, a := properties["session"]
			_, b := properties["conversationId"]
			_, c := properties["session_id"]
			if names := a && b || a && c; names || b && c && tool.Name != "upload_file" /* has the arguments of two contracts */ {
				t.Errorf("%s advertises aliases: %v", tool.Name, properties)
			}
		}
	})
}

// TestNearMisses: a misspelt argument causes a warning, or a refusal if the call would touch
// something else without it. Other unknown arguments are ignored.
func TestNearMisses(t *testing.T) {
	p := newProduct(t)
	p.executor.result = executor.Result{RunID: "run_1", Session: "s", Stdout: []byte("1\n")}
	cs := p.connect(t, "http", "2025-11-25", nil)
	ignored := func(name, meant string) string {
		return fmt.Sprintf("argument %q is not known and was ignored; did you mean %s?", name, meant)
	}
	run := toolArguments["run"]
	if text, isError := textOf(t, cs, "run", with(run, "timeout", 5)); isError || text != "1\n["+ignored("timeout", "timeout_seconds")+"; run_1]" {
		t.Errorf("run: %s", text)
	}
	if text, _ := textOf(t, cs, "wait_run", map[string]any{"run_id": "run_1", "timeout": 5}); !strings.Contains(text, `"warnings": [`) {
		t.Errorf("wait_run: %s", text)
	}
	warned := func(text string) (warnings string) {
		var out struct{ Warnings []string }
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Errorf("%v in %s", err, text)
		}
		return strings.Join(out.Warnings, "|")
	}
	for _, tt := range []struct{ tool, name, meant string }{
		{"run_code", "enviroment", "environment"}, {"run_python", "env", "environment"}, {"upload_file", "overwrit", "overwrite"}, {"read_artifact", "encodng", "encoding"},
	} {
		text, isError := textOf(t, cs, tt.tool, with(toolArguments[tt.tool], "session", "s", tt.name, "x"))
		if isError || warned(text) != ignored(tt.name, tt.meant) {
			t.Errorf("%s: %s", tt.tool, text)
		}
		plain, isError := compact(t, p.call(t, tt.tool, mustJSON(with(toolArguments[tt.tool], "session", "s", tt.name, "x"))))
		if isError || warned(plain) != ignored(tt.name, tt.meant) {
			t.Errorf("%s of a plain caller: %s", tt.tool, plain)
		}
	}
	if plain, _ := compact(t, p.call(t, "run", mustJSON(with(run, "timeout", 5)))); warned(plain) != ignored("timeout", "timeout_seconds") {
		t.Errorf("run of a plain caller: %s", plain)
	}
	// A refusal by the executor also contains the warning.
	p.executor.err = &executor.Error{Code: executor.CodeSessionBusy, Message: "Wait."}
	if text, isError := textOf(t, cs, "run_python", with(toolArguments["run_python"], "timeout", 5)); !isError || warned(text) != ignored("timeout", "timeout_seconds") {
		t.Errorf("a refusal: %s", text)
	}
	p.executor.err = nil

	for _, tt := range []struct {
		tool string
		more []any
		want string // the refusal; "" if the call succeeds
	}{
		{"run", []any{"sesion", "a"}, "did you mean session?"},
		{"run", []any{"sessionId", "a"}, "did you mean session?"},
		{"run_python", []any{"sesion_id", "a"}, "did you mean session_id?"},
		{"upload_file", []any{"conversation", "a"}, "did you mean conversationId?"},
		{"run", []any{"networks", true}, "did you mean network?"},
		{"run_code", []any{"session", "s", "internet", true}, "did you mean network?"},
		{"run", []any{"service", []string{"github"}}, "did you mean services?"},
		// Ignoring these changes nothing.
		{"run", []any{"sesion", ""}, ""}, {"run", []any{"networks", false}, ""}, {"run", []any{"service", []string{}}, ""},
		{"run", []any{"session", "a", "sesion", "b"}, ""},
		{"run", []any{"sessionId", nil}, ""},
	} {
		p.executor.session = ""
		text, isError := textOf(t, cs, tt.tool, with(toolArguments[tt.tool], tt.more...))
		if isError != (tt.want != "") || !strings.Contains(text, tt.want) || isError != (p.executor.session == "") {
			t.Errorf("%s %v: error %t, %s", tt.tool, tt.more, isError, text)
		}
	}
	// Arguments that n8n and other clients add are not mistakes.
	for tool, args := range toolArguments {
		for _, own := range [][]any{
			{"session", "s", "sessionId", "chat/1", "action", "sendMessage", "chatInput", "hi", "toolCallId", "call_1"},
			{"session", "s", "sessionId", "chat/1"}, {"session", "s", "toolCallId", "call_1", "metadata", map[string]any{"a": 1}, "version", 2},
		} {
			for _, answer := range []string{p.call(t, tool, mustJSON(with(args, own...))), p.call(t, tool, mustJSON(with(args, own...)), "Mcp-Protocol-Version: 2025-06-18")} {
				if strings.Contains(answer, "not known") || strings.Contains(answer, `"error":{`) || p.executor.session != "s" {
					t.Errorf("%s %v: %s", tool, own, answer)
				}
			}
		}
	}
	if text, isError := textOf(t, cs, "run", with(run, "sessionId", "chat", "action", "sendMessage", "chatInput", "hi", "toolCallId", "call_1")); isError || text != "1\n" || p.executor.session == "chat" {
		t.Errorf("n8n's run without a session: %s, session %q", text, p.executor.session)
	}
	// The answer stays small, whatever the number and length of unknown arguments.
	flood := map[string]any{"code": "1", "env": "python", strings.Repeat("timeout_", 10000): 1}
	for i := range 5000 {
		flood[fmt.Sprintf("enviroment%d", i%10)+strings.Repeat("_", i)] = "x"
	}
	if text, isError := textOf(t, cs, "run", flood); isError || len(text) > 2000 {
		t.Errorf("a flood of arguments: error %t, %d bytes", isError, len(text))
	}
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// TestOtherInterpreter: after a change of network, a notice before the output says that the
// variables are in the other interpreter.
func TestOtherInterpreter(t *testing.T) {
	p := newProduct(t)
	cs := p.connect(t, "http", "2025-11-25", nil)
	for _, network := range []bool{true, false} {
		p.executor.result = executor.Result{RunID: "run_1", Session: "s", Persistent: true, Switched: true, Network: network, Stdout: []byte("1\n")}
		text, _ := textOf(t, cs, "run", with(toolArguments["run"], "session", "s", "network", network))
		want := map[bool]string{true: "the one with network: variables, functions and imports of runs without network", false: "the one without network: variables, functions and imports of runs with network"}[network]
		notice, output, _ := strings.Cut(text, "]\n")
		if !strings.Contains(notice, want) || !strings.Contains(notice, "/data") || output != "1\n" {
			t.Errorf("network %t: %s", network, text)
		}
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{
			Name: "run", Arguments: with(toolArguments["run"], "session", "s", "network", network), Meta: mcp.Meta{"mcp-code-sandbox/details": true},
		})
		if err != nil || !strings.Contains(mustJSON(res.Meta), want) {
			t.Errorf("network %t, details for people: %+v, %v", network, res, err)
		}
		plain, _ := compact(t, p.call(t, "run", mustJSON(with(toolArguments["run"], "session", "s", "network", network))))
		if !strings.HasPrefix(plain, `{"notice":"This run used`) || !strings.Contains(plain, want) {
			t.Errorf("network %t, a plain caller: %s", network, plain)
		}
	}
}

// TestHandedOver: for MCP clients, run_code and run_python leave long code running, and answer with
// the fields that their contracts require.
func TestHandedOver(t *testing.T) {
	p := newProductWith(t, tools.Options{Handover: 45 * time.Second})
	cs := p.connect(t, "http", "2025-11-25", nil)
	p.executor.result = executor.Result{Running: true, RunID: "run_1", Session: "s", Timeout: time.Minute, Started: time.Now(), Recent: executor.Output{Data: []byte("so far\nwarn\n"), Stderr: [][2]int{{7, 12}}, Cursor: 12}}
	for tool, required := range map[string][]string{
		"run_code":   {"success", "output", "files"},
		"run_python": {"session_id", "run_id", "exit_code", "stdout", "stderr", "stdout_truncated", "stderr_truncated", "artifacts", "duration_ms"},
	} {
		text, isError := textOf(t, cs, tool, with(toolArguments[tool], "session", "s"))
		var out map[string]any
		if err := json.Unmarshal([]byte(text), &out); err != nil || isError {
			t.Fatalf("%s: %v in %s", tool, err, text)
		}
		for _, name := range append(required, "status", "run_id", "cursor", "message") {
			if _, ok := out[name]; !ok {
				t.Errorf("%s has no %s: %s", tool, name, text)
			}
		}
		if out["status"] != "running" || out["success"] == true || out["exit_code"] == 0.0 || !strings.Contains(text, `so far\n`) || strings.Count(text, "so far") != 1 ||
			!strings.HasPrefix(text, "{\n  \"status\": \"running\"") {
			t.Errorf("%s: %s", tool, text)
		}
		if tool == "run_python" && (out["stdout"] != "so far\n" || out["stderr"] != "warn\n") {
			t.Errorf("the streams so far: %s", text)
		}
		if p.executor.request.Handover != 45*time.Second {
			t.Errorf("%s of a client: %+v", tool, p.executor.request)
		}
		p.call(t, tool, mustJSON(with(toolArguments[tool], "session", "s")))
		if p.executor.request.Handover != 0 {
			t.Errorf("%s of a plain caller: %+v", tool, p.executor.request)
		}
	}
	// Without wait_run, clients could not get the rest.
	p = newProductWith(t, tools.Options{Handover: 45 * time.Second, Tools: []string{"run", "run_code", "run_python"}})
	cs = p.connect(t, "http", "2025-11-25", nil)
	for _, tool := range []string{"run", "run_code", "run_python"} {
		if textOf(t, cs, tool, with(toolArguments[tool], "session", "s")); p.executor.request.Handover != 0 {
			t.Errorf("%s without wait_run: %+v", tool, p.executor.request)
		}
	}
}

// TestResourceLinksOfTheOperator: SANDBOX_RESOURCE_LINKS=on applies to all clients that know links.
func TestResourceLinksOfTheOperator(t *testing.T) {
	p := newProductWith(t, tools.Options{ResourceLinks: true})
	p.executor.result = exampleResult()
	for version, want := range map[string]int{"2025-03-26": 0, "2025-06-18": 1, "2026-07-28": 1} {
		cs := p.connect(t, "http", version, nil)
		for _, tool := range []string{"run", "run_code", "run_python"} {
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: with(toolArguments[tool], "session", "s")})
			if err != nil {
				t.Fatal(err)
			}
			links := 0
			for _, c := range res.Content {
				if _, ok := c.(*mcp.ResourceLink); ok {
					links++
				}
			}
			if links != want {
				t.Errorf("%s, %s: %d links, want %d", version, tool, links, want)
			}
		}
	}
	if _, isError := compact(t, p.call(t, "run_code", mustJSON(with(toolArguments["run_code"], "session", "s")))); isError { // one text item
		t.Error("a plain caller")
	}
}

// TestOnlyOfferedToolsAreNamed: descriptions, instructions and messages name only tools that the
// server offers.
func TestOnlyOfferedToolsAreNamed(t *testing.T) {
	selections := [][]string{
		nil, {"run_code", "upload_file", "list_runners"}, {"upload_file", "run_python", "read_artifact", "list_artifacts", "close_session"},
		{"run", "wait_run", "cancel_run", "upload_file", "list_artifacts", "read_artifact", "close_session", "list_sessions", "delete_file"}, {"run", "wait_run"},
	}
	for _, name := range tools.Names() {
		if name != "list_services" {
			selections = append(selections, []string{name})
		}
	}
	for _, selection := range selections {
		p := newProductWith(t, tools.Options{Tools: selection, Handover: time.Second})
		for _, version := range []string{"2025-11-25", "2026-07-28"} {
			cs := p.connect(t, "http", version, nil)
			list, err := cs.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			said := cs.InitializeResult().Instructions
			if n := len(strings.Fields(said)); n == 0 || n >= 120 {
				t.Errorf("%v, %s: instructions of %d words: %s", selection, version, n, said)
			}
			var offered []string
			for _, tool := range list.Tools {
				offered = append(offered, tool.Name)
				if !strings.Contains(said, "- "+tool.Name+":") {
					t.Errorf("%v: the instructions do not mention %s", selection, tool.Name)
				}
			}
			said += mustJSON(list)
			p.executor.result = executor.Result{Running: slices.Contains(offered, "wait_run"), RunID: "x_1", Session: "s"}
			for _, tool := range offered {
				if args, ok := toolArguments[tool]; ok {
					for _, more := range [][]any{nil, {"background", true}, {"content", "!"}} {
						text, _ := textOf(t, cs, tool, with(with(args, "session", "s"), more...))
						said += text
					}
				}
			}
			for _, name := range tools.Names() {
				pattern := `\b` + name + `\b`
				if name == "run" {
					pattern = `tool run\b|- run:`
				}
				if !slices.Contains(offered, name) && regexp.MustCompile(pattern).MatchString(said) {
					t.Errorf("%v, %s: %s is named: %s", selection, version, name, said)
				}
			}
		}
	}
}
