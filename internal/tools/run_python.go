package tools

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

const python = "python"

type runPythonArguments struct {
	SessionID   string          `json:"session_id,omitempty" jsonschema:"The session to run in, from an earlier result. Without it, a new session is created; the result contains its id."`
	Code        string          `json:"code" jsonschema:"Python source. Print what you want to see: the value of a last expression is not shown."`
	Network     networkArgument `json:"network,omitempty" jsonschema:"Enable network access for the code (default: false)"`
	Environment environment     `json:"environment,omitempty" jsonschema:"Environment variables for the code"`
	runOptions
}

func (t *toolset) runPythonTool() *tool {
	tool := newTool[runPythonArguments, runPythonJSON](mcp.Tool{
		Name:  "run_python",
		Title: "Run Python",
		Description: "Run Python code in the session's isolated sandbox and get stdout, stderr, the exit code and the files it created or changed. " +
			"The working directory is /mnt/data; files there are kept for the session, so save charts, tables and reports there. " +
			"Each call is a fresh process: variables and imports are not kept between calls, files are. " +
			"When the code fails, read stderr, fix the code and call again with the same session_id. " +
			"One run at a time per session; " + t.installing() + ", and there is no network unless you enable it.",
		Annotations: &runsCode,
	}, t.runPython)
	tool.adapt = func(definition *mcp.Tool, _ *jsonschema.Schema, runners runner.Set) {
		if r, ok := runners.Lookup(python); ok && len(r.Libraries) > 0 {
			definition.Description += "\n\nAvailable libraries: " + strings.Join(r.Libraries, ", ")
		}
	}
	return t.withRunOptions(tool)
}

func (t *toolset) runPython(ctx context.Context, c *call, in runPythonArguments) (*mcp.CallToolResult, error) {
	req := executor.Request{
		Session:   cmp.Or(in.SessionID, session.NewID()),
		Runner:    python,
		Code:      in.Code,
		Env:       in.Environment,
		Artifacts: true,
		Handover:  t.handoverFor(c.client),
		Tool:      "run_python",
	}
	in.Network.apply(&req)
	if err := t.applyOptions(in.runOptions, &req); err != nil {
		return nil, err
	}
	id := logSession(req.Session)
	t.log.Info(fmt.Sprintf("[MCP] run_python: session_id=%s, codeLen=%d, network=%t, envVars=%d",
		id, len(req.Code), req.Network, len(req.Env)), "session_id", id)
	res, err := t.execute(ctx, c, req)
	if err != nil {
		return nil, err
	}
	return t.report(c, res), nil
}

// runPythonJSON is contract 4's result of run_python, plus the cause of a failure if it is known.
type runPythonJSON struct {
	Notice             string             `json:"notice,omitempty" jsonschema:"What to know before reading the output"`
	SessionID          string             `json:"session_id" jsonschema:"The session, for the next call"`
	RunID              string             `json:"run_id"`
	ExitCode           int                `json:"exit_code"`
	Stdout             string             `json:"stdout"`
	Stderr             string             `json:"stderr"`
	StdoutTruncated    bool               `json:"stdout_truncated" jsonschema:"The middle of a long output is missing"`
	StderrTruncated    bool               `json:"stderr_truncated"`
	Artifacts          []artifactJSON     `json:"artifacts" jsonschema:"Files that the run created or changed"`
	ArtifactsTruncated bool               `json:"artifacts_truncated,omitempty" jsonschema:"There are more files than listed"`
	Images             []fileJSON         `json:"images,omitempty" jsonschema:"Images that the code showed and did not save, with download URLs"`
	DurationMS         int64              `json:"duration_ms"`
	Cause              string             `json:"cause,omitempty" jsonschema:"Why the code did not end by itself, such as timeout or out_of_memory"`
	Hint               string             `json:"hint,omitempty" jsonschema:"What to do about a known failure"`
	Blocked            []executor.Blocked `json:"blocked,omitempty" jsonschema:"Hosts that the code tried to reach and may not"`
	installedJSON
	warned
}

func runPythonResult(res executor.Result, warnings []string) runPythonJSON {
	out := runPythonJSON{
		Notice:             noticeOf(res),
		SessionID:          res.Session,
		RunID:              res.RunID,
		ExitCode:           res.ExitCode,
		Stdout:             validUTF8(res.Stdout),
		Stderr:             validUTF8(res.Stderr),
		StdoutTruncated:    res.StdoutCut != nil,
		StderrTruncated:    res.StderrCut != nil,
		Artifacts:          artifactsOf(res.Files),
		ArtifactsTruncated: res.FilesTruncated,
		Images:             unsavedImages(res),
		DurationMS:         res.Duration.Milliseconds(),
		Cause:              string(res.Cause),
		Hint:               res.Hint,
		Blocked:            res.Blocked,
		installedJSON:      installedOf(res),
		warned:             warned{warnings},
	}
	if res.Cause == sandbox.CauseTimeout {
		if out.Stderr != "" && !strings.HasSuffix(out.Stderr, "\n") {
			out.Stderr += "\n"
		}
		out.Stderr += res.TimeoutMessage()
	}
	return out
}

// runPythonStartedJSON is the result while the code runs: the state of the run, and the fields of
// contract 4.
type runPythonStartedJSON struct {
	runStateJSON
	ExitCode        int            `json:"exit_code"`
	Stdout          string         `json:"stdout"`
	Stderr          string         `json:"stderr"`
	StdoutTruncated bool           `json:"stdout_truncated"`
	StderrTruncated bool           `json:"stderr_truncated"`
	Artifacts       []artifactJSON `json:"artifacts"`
	DurationMS      int64          `json:"duration_ms"`
}

func runPythonStarted(state runStateJSON, res executor.Result) runPythonStartedJSON {
	state.Output = nil // in Stdout and Stderr
	stdout, stderr := splitStreams(res.Recent)
	missed := res.Recent.Missed > 0
	return runPythonStartedJSON{
		runStateJSON: state, ExitCode: -1, Stdout: stdout, Stderr: stderr, StdoutTruncated: missed, StderrTruncated: missed,
		Artifacts: []artifactJSON{}, DurationMS: time.Since(res.Started).Milliseconds(),
	}
}

// splitStreams separates the output of a run into its two streams.
func splitStreams(recent executor.Output) (stdout, stderr string) {
	var out, err []byte
	at := 0
	for _, part := range recent.Stderr {
		out = append(out, recent.Data[at:part[0]]...)
		err = append(err, recent.Data[part[0]:part[1]]...)
		at = part[1]
	}
	return validUTF8(append(out, recent.Data[at:]...)), validUTF8(err)
}
