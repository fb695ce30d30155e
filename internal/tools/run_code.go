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
	"mcp-code-sandbox/internal/workspace"
)

type runCodeArguments struct {
	ConversationID string          `json:"conversationId" jsonschema:"Unique identifier for the conversation/session to isolate sandbox environments"`
	Language       string          `json:"language"`
	Code           string          `json:"code" jsonschema:"The code to execute. Any files written to /data will be persisted and returned as downloadable URLs."`
	Network        networkArgument `json:"network,omitempty" jsonschema:"Enable network access for the code (default: false for security)"`
	Environment    environment     `json:"environment,omitempty" jsonschema:"Environment variables to pass to the code (e.g., API keys, configuration)"`
	runOptions
}

func (t *toolset) runCodeTool() *tool {
	tool := newTool[runCodeArguments, runCodeJSON](mcp.Tool{Name: "run_code", Title: "Run code", Annotations: &runsCode}, t.runCode)
	tool.adapt = func(definition *mcp.Tool, input *jsonschema.Schema, runners runner.Set) {
		available := bracketed(runners.Names())
		definition.Description = "Execute code in an isolated sandbox. Supports: " + available + ". The working directory is /data; " +
			"files created there are kept for the conversation and accessible via download URLs. " +
			"Each call is a fresh process: only files are kept between calls." + librariesOf(runners)
		setEnum(input, "language", runners.Names()).Description = "Programming language to execute. Available: " + available
	}
	return t.withRunOptions(tool)
}

func (t *toolset) runCode(ctx context.Context, c *call, in runCodeArguments) (*mcp.CallToolResult, error) {
	req := executor.Request{
		Session:  in.ConversationID,
		Code:     in.Code,
		Env:      in.Environment,
		Handover: t.handoverFor(c.client),
		Tool:     "run_code",
	}
	in.Network.apply(&req)
	if err := t.applyOptions(in.runOptions, &req); err != nil {
		return nil, err
	}
	runners := t.executor.Runners()
	r, known := runners.Lookup(in.Language)
	id, language := logSession(req.Session), r.Name
	if !known {
		language = "(unknown)"
	}
	t.log.Info(fmt.Sprintf("[MCP] run_code: conversationId=%s, language=%s, codeLen=%d, network=%t, envVars=%d",
		id, language, len(req.Code), req.Network, len(req.Env)), "session_id", id)
	if !known {
		return unknownLanguage(runners), nil
	}
	req.Runner = r.Name
	res, err := t.execute(ctx, c, req)
	if refusal, ok := errors.AsType[*executor.Error](err); ok && refusal.Code == executor.CodeUnknownRunner {
		return unknownLanguage(t.executor.Runners()), nil // the runner was removed since Lookup
	}
	if err != nil {
		return nil, err
	}
	return t.report(c, res), nil
}

// unknownLanguage is a result, not an error: the model reads it and chooses again.
func unknownLanguage(runners runner.Set) *mcp.CallToolResult {
	output := "Unknown language. Available: " + bracketed(runners.Names())
	if len(runners) == 0 {
		output = "No language is available on the server; mcp-code-sandbox doctor shows its operator why."
	}
	return textResult(runCodeJSON{Output: output, Files: []fileJSON{}})
}

// fileJSON is contract 1's FileDescriptor.
type fileJSON struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// runCodeJSON is contract 1's RunCodeResult and further facts about the run, or about why it was
// refused.
type runCodeJSON struct {
	Success        bool               `json:"success"`
	Output         string             `json:"output" jsonschema:"What the code printed: stdout, then stderr"`
	Files          []fileJSON         `json:"files" jsonschema:"Files in /data, newest first, with download URLs"`
	FilesTruncated bool               `json:"files_truncated,omitempty" jsonschema:"There are more files than listed"`
	FilesTotal     int                `json:"files_total,omitempty" jsonschema:"How many files there are, if not all are listed"`
	Images         []fileJSON         `json:"images,omitempty" jsonschema:"Images that the code showed and did not save, with download URLs"`
	ExitCode       *int               `json:"exit_code,omitempty"`
	Cause          string             `json:"cause,omitempty" jsonschema:"Why the code did not end by itself, such as timeout or out_of_memory"`
	Hint           string             `json:"hint,omitempty" jsonschema:"What to do about a known failure"`
	Blocked        []executor.Blocked `json:"blocked,omitempty" jsonschema:"Hosts that the code tried to reach and may not"`
	Notice         string             `json:"notice,omitempty" jsonschema:"What to know before reading the output"`
	RunID          string             `json:"run_id,omitempty"`
	DurationMS     *int64             `json:"duration_ms,omitempty"`
	Error          string             `json:"error,omitempty" jsonschema:"The code of a refusal, such as session_busy"`
	Message        string             `json:"message,omitempty"`
	ConnectURL     string             `json:"connect_url,omitempty" jsonschema:"Where the user connects a missing service"`
	RetryAfter     float64            `json:"retry_after_seconds,omitempty"`
	installedJSON
	warned
}

func runCodeResult(res executor.Result, warnings []string) runCodeJSON {
	files := make([]fileJSON, len(res.Files))
	for i, f := range res.Files {
		files[i] = fileJSON{Name: f.Name, URL: f.URL}
	}
	return runCodeJSON{
		Success:        res.Success(),
		Output:         combine(res.Stdout, res.Stderr),
		Files:          files,
		FilesTruncated: res.FilesTruncated,
		Images:         unsavedImages(res),
		ExitCode:       &res.ExitCode,
		Cause:          string(res.Cause),
		Hint:           res.Hint,
		Blocked:        res.Blocked,
		installedJSON:  installedOf(res),
		Notice:         noticeOf(res),
		RunID:          res.RunID,
		DurationMS:     new(res.Duration.Milliseconds()),
		warned:         warned{warnings},
	}
}

// unsavedImages returns the links to images that no list of files contains.
func unsavedImages(res executor.Result) (images []fileJSON) {
	for _, d := range res.Displays {
		if strings.HasPrefix(d.File, workspace.PlotsDir+"/") {
			images = append(images, fileJSON{Name: d.File, URL: d.URL})
		}
	}
	return images
}

// installedJSON lists the packages that a run added.
type installedJSON struct {
	Installed      []executor.Package `json:"installed,omitempty" jsonschema:"Packages that the run added to the session"`
	InstalledTotal int                `json:"installed_total,omitempty" jsonschema:"How many there are, if not all are listed; lock.txt has all packages"`
}

// maxInstalled bounds the packages that a result lists.
const maxInstalled = 200

func installedOf(res executor.Result) installedJSON {
	out := installedJSON{Installed: res.Installed}
	out.shortenInstalled(maxInstalled)
	return out
}

func (l *installedJSON) shortenInstalled(most int) {
	if n := len(l.Installed); n > most {
		l.Installed, l.InstalledTotal = l.Installed[:most], max(n, l.InstalledTotal)
	}
}

// shorten keeps the newest files and some packages only: a model reads the lists after each run.
func (r *runCodeJSON) shorten(total int) {
	r.shortenInstalled(maxFactFiles)
	total = max(total, len(r.Files))
	if len(r.Files) > maxFactFiles {
		r.Files, r.FilesTruncated = r.Files[:maxFactFiles], true
	}
	if r.FilesTruncated {
		r.FilesTotal = total
	}
}

// runCodeStartedJSON is the result while the code runs: the state of the run, and the fields of
// contract 1. Success is false until it is known.
type runCodeStartedJSON struct {
	runStateJSON
	Success bool       `json:"success"`
	Files   []fileJSON `json:"files"`
}
