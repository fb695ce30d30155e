package tools

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

type runArguments struct {
	Code        string          `json:"code" jsonschema:"The code to run"`
	Env         string          `json:"env" jsonschema:"The environment to run it in"`
	Session     string          `json:"session,omitempty" jsonschema:"Name of the session that keeps the state; omit it for a single run"`
	Network     networkArgument `json:"network,omitempty" jsonschema:"Enable network access for the code (default: false)"`
	Environment environment     `json:"environment,omitempty" jsonschema:"Environment variables for this call's code"`
	Restart     bool            `json:"restart,omitempty" jsonschema:"Start a new interpreter first; the variables are lost (default: false)"`
	runOptions
}

func (t *toolset) runTool() *tool {
	tool := newTool[runArguments, runJSON](mcp.Tool{
		Name:  "run",
		Title: "Run code",
		Description: "Run code in an isolated sandbox and get its output. With a session, it works like a notebook: variables, imports and the working directory " +
			"are kept between calls, the value of a last expression is shown, plots come back as images. Without a session, each call is a fresh process, " +
			"and nothing is kept. Files in /data are kept for the session.",
		Annotations: &runsCode,
	}, t.run)
	tool.adapt = func(definition *mcp.Tool, input *jsonschema.Schema, runners runner.Set) {
		definition.Description += "\n\nEnvironments: " + strings.Join(runners.Names(), ", ") + "."
		var keeping []string
		for _, r := range runners {
			if len(r.Persistent) > 0 {
				keeping = append(keeping, r.Name)
			}
		}
		if len(keeping) > 0 {
			definition.Description += " State is kept in: " + strings.Join(keeping, ", ") + "."
		}
		definition.Description += librariesOf(runners)
		setEnum(input, "env", runners.Names())
	}
	return t.withRunOptions(tool)
}

func (t *toolset) run(ctx context.Context, c *call, in runArguments) (*mcp.CallToolResult, error) {
	runners := t.executor.Runners()
	r, ok := runners.Lookup(in.Env)
	if !ok {
		return nil, &executor.Error{Code: executor.CodeUnknownRunner,
			Message: "Unknown environment. Available: " + strings.Join(runners.Names(), ", ") + "."}
	}
	req := executor.Request{
		Session:         in.Session,
		Runner:          r.Name,
		Code:            in.Code,
		Env:             in.Environment,
		Persistent:      true,
		Restart:         in.Restart,
		Artifacts:       true,
		FailedArtifacts: true,
		Handover:        t.handover,
		Tool:            "run",
	}
	if in.Session == "" {
		req.Session, req.Persistent, req.Restart, req.Once = session.NewID(), false, false, true
	}
	in.Network.apply(&req)
	if err := t.applyOptions(in.runOptions, &req); err != nil {
		return nil, err
	}
	t.log.Info(fmt.Sprintf("[MCP] run: env=%s, codeLen=%d, persistent=%t, network=%t",
		r.Name, len(req.Code), req.Persistent, req.Network), "session_id", logSession(req.Session))
	res, err := t.execute(ctx, c, req)
	if err != nil {
		return nil, err
	}
	return t.report(c, res), nil
}

// runJSON is the result for a plain caller: run_python's fields, and the session's name as contract
// 5 has it. An MCP client gets text instead (run_text.go).
type runJSON struct {
	runPythonJSON
	Session string `json:"session,omitempty"`
	State   string `json:"state,omitempty" jsonschema:"What happened to the interpreter's variables, if anything"`
}

func runResult(res executor.Result, warnings []string) runJSON {
	out := runJSON{runPythonJSON: runPythonResult(res, warnings), State: stateOf(res)}
	if !res.Once {
		out.Session = res.Session
	}
	return out
}
