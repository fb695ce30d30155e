package tools

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

func runCodeTool(runners runner.Set) *mcp.Tool {
	available := bracketed(runners.Names())
	var d strings.Builder
	fmt.Fprintf(&d, "Execute code in an isolated sandbox. Supports: %s. The working directory is /data; files created there are kept for the conversation and accessible via download URLs. Each call is a fresh process: only files are kept between calls.", available)
	d.WriteString(librariesOf(runners))
	return &mcp.Tool{
		Name:        "run_code",
		Title:       "Run code",
		Description: d.String(),
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(true)},
		InputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"conversationId": {Type: "string", Description: "Unique identifier for the conversation/session to isolate sandbox environments"},
				"language":       {Type: "string", Description: "Programming language to execute. Available: " + available, Enum: enumOf(runners.Names())},
				"code":           {Type: "string", Description: "The code to execute. Any files written to /data will be persisted and returned as downloadable URLs."},
				"network":        {Type: "boolean", Description: "Enable network access for the code (default: false for security)"},
				"environment": {
					Type:                 "object",
					Description:          "Environment variables to pass to the code (e.g., API keys, configuration)",
					AdditionalProperties: &jsonschema.Schema{Type: "string"},
				},
			},
			PropertyOrder: []string{"conversationId", "language", "code", "network", "environment"},
			Required:      []string{"conversationId", "language", "code"},
		},
	}
}

// librariesOf is the part of a description that names the libraries of each runner, empty when there are none.
func librariesOf(runners runner.Set) string {
	var d strings.Builder
	for _, r := range runners {
		if len(r.Libraries) > 0 {
			fmt.Fprintf(&d, "\n- %s: %s", r.Name, bracketed(r.Libraries))
		}
	}
	if d.Len() == 0 {
		return ""
	}
	return "\n\nAvailable libraries:" + d.String()
}

func bracketed(names []string) string { return "[" + strings.Join(names, ", ") + "]" }

func (t *toolset) runCode(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	req := executor.Request{
		Session: c.args.required("conversationId"),
		Runner:  c.args.required("language"),
		Code:    c.args.required("code"),
		Network: c.args.flag("network"),
		Env:     c.args.stringMap("environment"),

		Handover: t.handoverFor(c.client),
		Tool:     "run_code",
	}
	t.longWork(c.args, &req)
	req.Services = c.args.services()
	if c.args.err != nil {
		return nil, c.args.err
	}
	runners := t.executor.Runners()
	r, ok := runners.Lookup(req.Runner)
	log := t.log.With("session_id", logSession(req.Session))
	log.Info(fmt.Sprintf("[MCP] run_code: conversationId=%s, language=%s, codeLen=%d, network=%t, envVars=%d",
		logSession(req.Session), logLanguage(r, ok), len(req.Code), req.Network, len(req.Env)))
	if !ok {
		return unknownLanguage(runners), nil
	}
	req.Runner = r.Name
	res, err := t.perform(ctx, c, req)
	var refusal *executor.Error
	if errors.As(err, &refusal) && refusal.Code == executor.CodeUnknownRunner {
		return unknownLanguage(t.executor.Runners()), nil // it went away in between
	}
	if err != nil {
		return nil, err
	}

	if res.Running {
		return t.detailed(c, t.started(c, res), res), nil
	}
	how := "successfully"
	if !res.Success() {
		how = "with a failure"
	}
	log.Info("[MCP] run_code completed "+how, "run_id", res.RunID)
	return t.detailed(c, t.result(c, res), res), nil
}

func runCodeResult(res executor.Result) runCodeJSON {
	files := make([]fileJSON, len(res.Files))
	for i, f := range res.Files {
		files[i] = fileJSON{Name: f.Name, URL: f.URL}
	}
	ms := res.Duration.Milliseconds()
	return runCodeJSON{
		Success:        res.Success(),
		Output:         combine(res.Stdout, res.Stderr),
		Files:          files,
		FilesTruncated: res.FilesTruncated,
		ExitCode:       &res.ExitCode,
		Cause:          string(res.Cause),
		Hint:           res.Hint,
		RunID:          res.RunID,
		DurationMS:     &ms,
	}
}

// unknownLanguage is a result, not an error: the model reads it and chooses again.
func unknownLanguage(runners runner.Set) *mcp.CallToolResult {
	output := "Unknown language. Available: " + bracketed(runners.Names())
	if len(runners) == 0 {
		output = "No language is available on the server: mcp-code-sandbox doctor tells its operator why."
	}
	return textResult(runCodeJSON{Output: output, Files: []fileJSON{}})
}

// logSession and logLanguage keep what a client made up out of the log.
func logSession(id string) string {
	if session.CheckID(id) != nil {
		return "(invalid)"
	}
	return id
}

func logLanguage(r runner.Runner, ok bool) string {
	if !ok {
		return "(unknown)"
	}
	return r.Name
}
