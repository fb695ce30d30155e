package tools

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/mediatype"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

const python = "python"

// runPythonJSON is contract 4's result of run_python, and why it failed where that is known.
type runPythonJSON struct {
	SessionID          string         `json:"session_id"`
	RunID              string         `json:"run_id"`
	ExitCode           int            `json:"exit_code"`
	Stdout             string         `json:"stdout"`
	Stderr             string         `json:"stderr"`
	StdoutTruncated    bool           `json:"stdout_truncated"`
	StderrTruncated    bool           `json:"stderr_truncated"`
	Artifacts          []artifactJSON `json:"artifacts"`
	ArtifactsTruncated bool           `json:"artifacts_truncated,omitempty"`
	DurationMS         int64          `json:"duration_ms"`
	Cause              string         `json:"cause,omitempty"`
	Hint               string         `json:"hint,omitempty"`
	Warnings           []string       `json:"warnings,omitempty"`
}

// artifactJSON is a file as contract 4 describes it.
type artifactJSON struct {
	Path        string `json:"path"`
	Filename    string `json:"filename"`
	SizeBytes   int64  `json:"size_bytes"`
	MIMEType    string `json:"mime_type"`
	DownloadURL string `json:"download_url,omitempty"`
	ModifiedAt  string `json:"modified_at,omitempty"` // in a list, for MCP clients
}

func artifactOf(f executor.FileLink) artifactJSON {
	name := validUTF8([]byte(f.Name))
	return artifactJSON{
		Path: executor.DataPath(name), Filename: path.Base(name), SizeBytes: f.Size, MIMEType: mediatype.ByName(name), DownloadURL: f.URL,
	}
}

func artifactsOf(files []executor.FileLink) []artifactJSON {
	list := make([]artifactJSON, len(files))
	for i, f := range files {
		list[i] = artifactOf(f)
	}
	return list
}

func runPythonTool(runners runner.Set) *mcp.Tool {
	description := "Run Python code in the session's isolated sandbox and get stdout, stderr, the exit code and the files it created or changed. " +
		"The working directory is /mnt/data; files there are kept for the session, so save charts, tables and reports there. " +
		"Each call is a fresh process: variables and imports are not kept between calls, files are. " +
		"When the code fails, read stderr, fix the code and call again with the same session_id. " +
		"One run at a time per session; nothing can be installed, and there is no network unless asked for."
	if r, ok := runners.Lookup(python); ok && len(r.Libraries) > 0 {
		description += "\n\nAvailable libraries: " + strings.Join(r.Libraries, ", ")
	}
	return &mcp.Tool{
		Name:        "run_python",
		Title:       "Run Python",
		Description: description,
		Annotations: &mcp.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(true)},
		InputSchema: &jsonschema.Schema{
			Type: "object",
			Properties: map[string]*jsonschema.Schema{
				"session_id": {Type: "string", Description: "The session to run in, from an earlier result. A new session is made when it is missing; the result has its id."},
				"code":       {Type: "string", Description: "Python source. Print what you want to see: the value of a last expression is not shown."},
				"network":    {Type: "boolean", Description: "Enable network access for the code (default: false)"},
				"environment": {
					Type:                 "object",
					Description:          "Environment variables for the code",
					AdditionalProperties: &jsonschema.Schema{Type: "string"},
				},
			},
			PropertyOrder: []string{"session_id", "code", "network", "environment"},
			Required:      []string{"code"},
		},
	}
}

func (t *toolset) runPython(ctx context.Context, c call) (*mcp.CallToolResult, error) {
	req := executor.Request{
		Session:   c.args.optional("session_id"),
		Runner:    python,
		Code:      c.args.required("code"),
		Network:   c.args.flag("network"),
		Env:       c.args.stringMap("environment"),
		Artifacts: true,
		Handover:  t.handoverFor(c.client),
		Tool:      "run_python",
	}
	t.longWork(c.args, &req)
	req.Services = c.args.services()
	if c.args.err != nil {
		return nil, c.args.err
	}
	if req.Session == "" {
		req.Session = session.NewID()
	}
	log := t.log.With("session_id", logSession(req.Session))
	log.Info(fmt.Sprintf("[MCP] run_python: session_id=%s, codeLen=%d, network=%t, envVars=%d",
		logSession(req.Session), len(req.Code), req.Network, len(req.Env)))
	res, err := t.perform(ctx, c, req)
	if err != nil {
		return nil, err
	}
	if res.Running {
		return t.detailed(c, t.started(c, res), res), nil
	}
	log.Info("[MCP] run_python completed", "run_id", res.RunID)
	return t.detailed(c, t.result(c, res), res), nil
}

func runPythonResult(res executor.Result) runPythonJSON {
	out := runPythonJSON{
		SessionID:          res.Session,
		RunID:              res.RunID,
		ExitCode:           res.ExitCode,
		Stdout:             validUTF8(res.Stdout),
		Stderr:             validUTF8(res.Stderr),
		StdoutTruncated:    res.StdoutTruncated,
		StderrTruncated:    res.StderrTruncated,
		Artifacts:          artifactsOf(res.Files),
		ArtifactsTruncated: res.FilesTruncated,
		DurationMS:         res.Duration.Milliseconds(),
		Cause:              string(res.Cause),
		Hint:               res.Hint,
	}
	if res.Cause == sandbox.CauseTimeout {
		if out.Stderr != "" && !strings.HasSuffix(out.Stderr, "\n") {
			out.Stderr += "\n"
		}
		out.Stderr += res.TimeoutMessage()
	}
	return out
}
