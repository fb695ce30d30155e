package tools

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

// runJSON is the result of run for a plain caller: run_python's fields, and the session's name as contract 5 has it.
type runJSON struct {
	Notice string `json:"notice,omitempty"` // what to know before reading the output
	runPythonJSON
	Session string `json:"session,omitempty"`
	State   string `json:"state,omitempty"` // what became of the interpreter's variables, where there is something to say
}

func runTool(runners runner.Set) *mcp.Tool {
	var keeping []string
	for _, r := range runners {
		if len(r.Persistent) > 0 {
			keeping = append(keeping, r.Name)
		}
	}
	names := runners.Names()
	environments := "\n\nEnvironments: " + strings.Join(names, ", ") + "."
	if len(keeping) > 0 {
		environments += " State is kept in: " + strings.Join(keeping, ", ") + "."
	}
	return &mcp.Tool{
		Name:  "run",
		Title: "Run code",
		Description: "Run code in an isolated sandbox and get its output. With a session, the interpreter lives on between calls like a notebook: variables, imports, " +
			"functions and the working directory are kept, the value of a last expression is shown, plots come back as images. Without one, each call is a fresh process " +
			"and nothing is kept. Files written to /data are kept for the session." + environments + librariesOf(runners),
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(true)},
		InputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"code":    {Type: "string", Description: "The code to run"},
				"env":     {Type: "string", Description: "The environment to run it in", Enum: enumOf(names)},
				"session": {Type: "string", Description: "Name of the session whose state to use and keep; leave it out for a single run"},
				"network": {Type: "boolean", Description: "Enable network access for the code (default: false)"},
				"environment": {
					Type:                 "object",
					Description:          "Environment variables for this call's code",
					AdditionalProperties: &jsonschema.Schema{Type: "string"},
				},
			},
			PropertyOrder: []string{"code", "env", "session", "network", "environment"},
			Required:      []string{"code", "env"},
		},
	}
}

func enumOf(names []string) []any {
	list := make([]any, len(names))
	for i, n := range names {
		list[i] = n
	}
	return list
}

func (t *toolset) run(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	req := executor.Request{
		Code:      c.args.required("code"),
		Runner:    c.args.required("env"),
		Network:   c.args.flag("network"),
		Env:       c.args.stringMap("environment"),
		Artifacts: true,
		Handover:  t.handover,
		Tool:      "run",

		FailedArtifacts: true,
	}
	t.longWork(c.args, &req)
	req.Services = c.args.services()
	req.Session, req.Persistent = c.args.text("session")
	if c.args.err != nil {
		return nil, c.args.err
	}
	if req.Persistent = req.Persistent && req.Session != ""; !req.Persistent {
		req.Session, req.Once = session.NewID(), true
	}
	runners := t.executor.Runners()
	r, ok := runners.Lookup(req.Runner)
	if !ok {
		return nil, &executor.Error{Code: executor.CodeUnknownRunner, Message: "Unknown environment. Available: " + strings.Join(runners.Names(), ", ") + "."}
	}
	req.Runner = r.Name
	log := t.log.With("session_id", logSession(req.Session))
	log.Info(fmt.Sprintf("[MCP] run: env=%s, codeLen=%d, persistent=%t, network=%t", r.Name, len(req.Code), req.Persistent, req.Network))
	res, err := t.perform(ctx, c, req)
	if err != nil {
		return nil, err
	}
	if res.Running {
		return t.detailed(c, t.started(c, res), res), nil
	}
	log.Info("[MCP] run completed", "run_id", res.RunID)
	return t.detailed(c, t.result(c, res), res), nil
}

// runResult is the plain output, what was shown, and a line of facts when there is something to say.
func (t *toolset) runResult(c call, res executor.Result) *mcp.CallToolResult {
	facts := append(factsOf(res), c.args.warnings...)
	if len(facts) > 0 {
		facts = append(facts, res.RunID)
	}
	return t.runText(c, res, combine(res.Stdout, res.Stderr), facts)
}

// runText is the result of run for an MCP client: what to know first, the output, what was shown, and one line of facts. All of
// it is one text item, since some frameworks show their model the first item alone; the images follow.
func (t *toolset) runText(c call, res executor.Result, output string, facts []string) *mcp.CallToolResult {
	var text strings.Builder
	add := func(part string) {
		if text.Len() > 0 && part != "" && !strings.HasSuffix(text.String(), "\n") {
			text.WriteByte('\n')
		}
		text.WriteString(part)
	}
	if notice := noticeOf(res); notice != "" {
		add("[" + notice + "]")
	}
	add(output)
	left, long := maxDisplayText, 0
	for _, d := range res.Displays {
		if !strings.HasPrefix(d.MIME, "text/") || d.MIME == "text/html" {
			continue
		}
		if data, _ := d.Content(); len(data) <= left {
			left -= len(data)
			add(validUTF8(data))
		} else {
			long++
		}
	}
	if long > 0 {
		facts = append([]string{fmt.Sprintf("%d long texts that were shown are left out; save them to /data instead", long)}, facts...)
	}
	images, missing := t.images.images(res.Displays)
	for _, fact := range []string{droppedOf(res), missing} {
		if fact != "" {
			facts = append([]string{fact}, facts...)
		}
	}
	if len(facts) > 0 {
		add("[" + strings.Join(facts, "; ") + "]")
	}
	if text.Len() == 0 && len(images) == 0 {
		add("(no output)")
	}
	out := &mcp.CallToolResult{}
	if text.Len() > 0 {
		out.Content = append(out.Content, &mcp.TextContent{Text: text.String()})
	}
	out.Content = append(append(out.Content, images...), t.links(c, res)...)
	return out
}

// droppedOf says that displays are lost, empty when none are.
func droppedOf(res executor.Result) string {
	if n := res.Dropped(); n > 0 {
		return fmt.Sprintf("%d of the displays are no longer kept: server memory is short; run again or save to /data", n)
	}
	return ""
}

// factsOf are facts about a run, none when all went well and nothing was made.
func factsOf(res executor.Result) (facts []string) {
	add := func(format string, args ...any) { facts = append(facts, fmt.Sprintf(format, args...)) }
	if res.Cause == sandbox.CauseTimeout {
		add("%s", res.TimeoutMessage())
	} else if res.Cause != "" {
		add("cause: %s", res.Cause)
	} else if res.ExitCode != 0 {
		add("exit code %d", res.ExitCode)
	}
	if state := stateOf(res); state != "" {
		add("%s", state)
	}
	if hint := strings.TrimPrefix(res.Hint, res.TimeoutMessage()+". "); hint != "" { // said above
		add("%s", hint)
	}
	if n := len(res.Files); n > 0 {
		names := make([]string, 0, 5)
		for _, f := range res.Files[:min(n, 5)] {
			name := factName(f.Name)
			if f.URL != "" {
				name += " <" + f.URL + ">"
			}
			names = append(names, name)
		}
		more := ""
		if n > 5 {
			more = fmt.Sprintf(" and %d more", n-5)
		}
		add("files: %s%s", strings.Join(names, ", "), more)
	}
	return facts
}

// factName is a file's name in a line of facts. Code chooses names: one that could end the line, or add to it, is quoted.
func factName(name string) string {
	if !utf8.ValidString(name) || strings.ContainsAny(name, "[]<>;,\"") || strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// noticeOf is what a reader must know before the output of a run: that it has not used the interpreter of the run before.
func noticeOf(res executor.Result) string {
	if !res.Switched {
		return ""
	}
	this, other := "without", "with"
	if res.Network {
		this, other = other, this
	}
	return fmt.Sprintf("This run used the session's other interpreter, the one %s network: variables, functions and imports of runs %s network are not defined in it. "+
		"To pass data, save it to a file in /data in one and read it in the other.", this, other)
}

// stateOf says what became of the variables of a persistent run.
func stateOf(res executor.Result) string {
	switch {
	case !res.Persistent:
	case res.StateLost:
		return "the interpreter has ended: its variables are lost, and the next run starts a new one"
	case res.Evicted:
		return "the interpreter of earlier runs was ended to make room for other sessions: this run started a new one, without their variables; " +
			"files in /data are kept (the operator can raise SANDBOX_MAX_SESSIONS)"
	case res.Forgotten:
		return "the interpreter of earlier runs had ended: this run started a new one, without their variables"
	case res.Cause == sandbox.CauseCancelled && res.NotStarted:
		return "the code was not started; the variables are as they were"
	case res.Cause == sandbox.CauseTimeout || res.Cause == sandbox.CauseCancelled:
		return "the code was interrupted; the variables are kept"
	}
	return ""
}
