package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

// This file has the steps that run, run_code and run_python share: common arguments, running the
// code, and choosing the form of the result.

const (
	defaultMaxTimeout  = 10 * time.Minute
	defaultResultBytes = 24 << 10
	minTimeout         = time.Second
)

// runOptions are the last arguments of every run tool.
type runOptions struct {
	TimeoutSeconds float64          `json:"timeout_seconds,omitempty" jsonschema:"Time limit in seconds, if the server's default is too short"`
	Background     bool             `json:"background,omitempty" jsonschema:"Return at once; wait_run returns the output and the result (default: false)"`
	Hosts          hostsArgument    `json:"hosts,omitempty" jsonschema:"Hosts that the code may connect to, such as api.example.com, *.example.org or db.example.com:5432"`
	Packages       packagesArgument `json:"packages,omitempty" jsonschema:"Packages to install first: from PyPI for python and shell, such as shapely or shapely==2.*; from npm for typescript and javascript, such as lodash@^4"`
	Services       servicesArgument `json:"services,omitempty"`
}

// withRunOptions adapts the schema of runOptions to the server's settings.
func (t *toolset) withRunOptions(tool *tool) *tool {
	tool.limit("timeout_seconds", minTimeout.Seconds(), t.maxTimeout.Seconds())
	if !t.offers("wait_run") {
		tool.hidden = append(tool.hidden, "background")
	}
	if t.noNetwork {
		network := tool.input.Properties["network"]
		if network.Description = "This server refuses it"; t.hosts {
			network.Description += ": name the hosts"
		}
	}
	if !t.hosts {
		tool.hidden = append(tool.hidden, "hosts")
	} else if t.ceiling != "" {
		tool.input.Properties["hosts"].Description += ". This server allows: " + t.ceiling
	}
	if !t.packages {
		tool.hidden = append(tool.hidden, "packages")
	}
	if t.services == nil {
		tool.hidden = append(tool.hidden, "services")
		return tool
	}
	services := tool.input.Properties["services"]
	services.Description = "Outside services that the code may call while it runs, with the user's credentials, which it never sees. " +
		"No network is needed. For each, the code has the environment variables <NAME>_PROXY_URL and <NAME>_TOKEN (for a single one also " +
		"PROXY_URL and EXECUTION_TOKEN): request PROXY_URL + the API's path with the header \"Authorization: Bearer \" + EXECUTION_TOKEN. " +
		"Available: " + strings.Join(t.services.Names, ", ")
	setEnum(services.Items, "name", t.services.Names)
	services.Items.Properties["max_requests"].Minimum = new(1.0)
	return tool
}

// installing says in a description whether code can install packages.
func (t *toolset) installing() string {
	if t.packages {
		return "packages that are missing can be installed with packages or pip"
	}
	return "nothing can be installed"
}

// applyOptions adds the options to a request.
func (t *toolset) applyOptions(o runOptions, req *executor.Request) error {
	if o.Background && !t.offers("wait_run") {
		return argumentError("background is not available: this server does not run code in the background")
	}
	req.Timeout = time.Duration(o.TimeoutSeconds * float64(time.Second))
	req.Background = o.Background
	req.Hosts = append(req.Hosts, o.Hosts...)
	req.Packages = o.Packages
	for _, s := range o.Services {
		service := executor.ServiceRequest{Name: s.Name, Paths: s.Paths, Methods: s.Methods}
		if s.MaxRequests != nil {
			service.MaxRequests = *s.MaxRequests
		}
		req.Services = append(req.Services, service)
	}
	return nil
}

// maxServicesJSON bounds the argument services before it is decoded.
const maxServicesJSON = 256 << 10

// servicesArgument lists the services that a run may call.
type servicesArgument []serviceArgument

type serviceArgument struct {
	Name        string   `json:"name"`
	Paths       []string `json:"paths,omitempty" jsonschema:"Paths that the code may request, such as /api/v1/metrics, /api/*/metrics or /api/** (default: the service's)"`
	Methods     []string `json:"methods,omitempty" jsonschema:"HTTP methods that the code may use (default: the service's)"`
	MaxRequests *int64   `json:"max_requests,omitempty" jsonschema:"Maximum number of requests"`
}

// UnmarshalJSON accepts objects, and names in place of objects. It refuses unknown fields: a
// misspelt restriction must not mean no restriction.
func (s *servicesArgument) UnmarshalJSON(data []byte) error {
	if len(data) > maxServicesJSON {
		return argumentError("services is too large")
	}
	const wrongType = argumentError("services must be an array of objects with a name and, optionally, paths, methods and max_requests")
	var items []json.RawMessage
	if json.Unmarshal(data, &items) != nil {
		return wrongType
	}
	for _, item := range items {
		var service serviceArgument
		dec := json.NewDecoder(bytes.NewReader(item))
		dec.DisallowUnknownFields()
		if json.Unmarshal(item, &service.Name) != nil && dec.Decode(&service) != nil || service.Name == "" {
			return wrongType
		}
		if service.MaxRequests != nil && *service.MaxRequests < 1 {
			return argumentError("max_requests must be at least 1")
		}
		// An empty list allows nothing; a missing one allows what the service allows.
		if service.Paths != nil && len(service.Paths) == 0 || service.Methods != nil && len(service.Methods) == 0 {
			return argumentError("paths and methods must not be empty; leave them out for the service's own")
		}
		*s = append(*s, service)
	}
	return nil
}

// handoverFor returns when run_code and run_python leave their code running in the background.
// Plain callers know contracts 1 and 4, where these tools answer when the code has ended.
func (t *toolset) handoverFor(c client) time.Duration {
	if c.plain {
		return 0
	}
	return t.handover
}

// execute runs the code and streams its output as progress notifications.
func (t *toolset) execute(ctx context.Context, c *call, req executor.Request) (executor.Result, error) {
	progress := startProgress(ctx, c)
	defer progress.stop()
	req.Output, req.Queued = progress.hooks()
	if c.wantsDetails() {
		// The client shows output as it arrives: it waits for the end, or follows a background run.
		req.Handover, req.Followed = 0, req.Background
		req.Tag = c.tag()
		if progress != nil {
			req.Begun = func(runID string) {
				_ = c.req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: c.req.Params.GetProgressToken(), Meta: mcp.Meta{runIDKey: runID},
				}) // the next notification detects a client that is gone
			}
		}
	}
	req.Observer = &runLog{log: t.log, session: req.Session, network: req.Network, envVars: len(req.Env)}
	return t.executor.Run(ctx, c.caller, req)
}

// report returns the result of a run tool: the code's result, or the state of a run that continues
// in the background.
func (t *toolset) report(c *call, res executor.Result) *mcp.CallToolResult {
	t.addDetails(c, res)
	if res.Running {
		return t.startedResult(c, res)
	}
	outcome := "successfully"
	if !res.Success() {
		outcome = "with a failure"
	}
	t.log.Info("[MCP] "+res.Tool+" completed "+outcome, "session_id", logSession(res.Session), "run_id", res.RunID)
	return t.finishedResult(c, res)
}

// startedResult returns the result of a run tool that leaves its code running in the background.
func (t *toolset) startedResult(c *call, res executor.Result) *mcp.CallToolResult {
	if c.wantsText(res) {
		return t.stateText(c, res, false)
	}
	state := t.stateJSON(c, res)
	switch res.Tool {
	case "run":
		return textResult(state)
	case "run_code":
		return textResult(runCodeStartedJSON{runStateJSON: state, Files: []fileJSON{}})
	}
	return textResult(runPythonStarted(state, res))
}

// finishedResult returns the result of a run that has ended, in the form of the tool that started
// it.
func (t *toolset) finishedResult(c *call, res executor.Result) *mcp.CallToolResult {
	if c.wantsText(res) {
		return t.finishedText(c, res)
	}
	images, warnings := t.imagesFor(c, res)
	return t.withFiles(c, res, c.finishedJSON(res, append(warnings, c.warnings...)), images)
}

// finishedJSON returns the JSON of a run that has ended, as the tool that started it returns it.
func (c *call) finishedJSON(res executor.Result, warnings []string) any {
	switch res.Tool {
	case "run":
		return runResult(res, warnings)
	case "run_code":
		out := runCodeResult(res, warnings)
		if !c.client.plain {
			out.shorten(res.FilesTotal)
		}
		return out
	}
	out := runPythonResult(res, warnings)
	if !c.client.plain {
		out.shortenInstalled(maxFactFiles)
	}
	return out
}

// wantsText reports whether the result of the run is plain text instead of JSON.
func (c *call) wantsText(res executor.Result) bool { return res.Tool == "run" && !c.client.plain }

// imagesFor returns the images that a run showed, none for a plain caller, and warnings about those
// left out.
func (t *toolset) imagesFor(c *call, res executor.Result) (images []mcp.Content, warnings []string) {
	if c.client.plain {
		return nil, nil
	}
	shown := t.imagesOf(c, res)
	for _, warning := range []string{shown.missing, droppedDisplays(res)} {
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return items(shown.list), warnings
}

// withFiles appends the images and the file links of a run to the JSON.
func (t *toolset) withFiles(c *call, res executor.Result, json any, images []mcp.Content) *mcp.CallToolResult {
	out := textResult(json)
	out.Content = append(append(out.Content, images...), t.links(c, res)...)
	return out
}

// librariesOf describes the libraries of each runner, for the description of a tool.
func librariesOf(runners runner.Set) string {
	var lines strings.Builder
	for _, r := range runners {
		if len(r.Libraries) > 0 {
			lines.WriteString("\n- " + r.Name + ": " + bracketed(r.Libraries))
		}
	}
	if lines.Len() == 0 {
		return ""
	}
	return "\n\nAvailable libraries:" + lines.String()
}

func bracketed(names []string) string { return "[" + strings.Join(names, ", ") + "]" }

// logSession returns an id for the log, which never contains an invalid id that a client made up.
func logSession(id string) string {
	if session.CheckID(id) != nil {
		return "(invalid)"
	}
	return id
}
