// Package tools is the MCP tools: what they are called, what they take, what they answer. It checks arguments, calls the
// executor and shapes the contracts' results. It knows no transport and no sandbox.
package tools

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

// Executor is what the tools need of *executor.Executor.
type Executor interface {
	// Run executes code. A failing program is a Result; a refusal is an *executor.Error.
	Run(ctx context.Context, caller session.Caller, req executor.Request) (executor.Result, error)
	// Upload puts a file into the session's workspace.
	Upload(ctx context.Context, caller session.Caller, req executor.UploadRequest) (executor.FileLink, error)
	// UploadURL makes an address to which the file can be PUT once, until expires.
	UploadURL(ctx context.Context, caller session.Caller, sessionID, name string, overwrite bool) (url string, expires time.Time, err error)
	// ReadArtifact reads a file of a session that exists.
	ReadArtifact(ctx context.Context, caller session.Caller, sessionID, path string) (executor.Artifact, error)
	// ListArtifacts lists the files of a session that exists, newest first, and says whether there are more.
	ListArtifacts(ctx context.Context, caller session.Caller, sessionID string) (files []executor.FileLink, truncated bool, err error)
	// DeleteFile removes a file of a session that exists.
	DeleteFile(ctx context.Context, caller session.Caller, sessionID, path string) error
	// ListSessions lists the caller's sessions, last used first, at most limit of them, and says whether there may be more.
	ListSessions(ctx context.Context, caller session.Caller, limit int) (sessions []executor.SessionInfo, more bool, err error)
	Storage(caller session.Caller) session.Storage
	// CloseSession ends a session that exists.
	CloseSession(ctx context.Context, caller session.Caller, sessionID string) error
	// CloseAndRevoke ends a user's session, and every link to files of its or of earlier sessions of that id.
	CloseAndRevoke(ctx context.Context, caller session.Caller, sessionID string) error
	// Runners are the language environments there are now, always in the same order.
	Runners() runner.Set
	Runs
	Files
}

var _ Executor = (*executor.Executor)(nil)

// Options may be zero.
type Options struct {
	// Logger gets contract 2's lines, without code, contents, environment values or signatures. Nil is silent.
	Logger *slog.Logger
	// Tools are the names of the tools to offer. Nil: all.
	Tools []string
	// MaxTimeout is the most that timeout_seconds of a run may be. Zero is ten minutes.
	MaxTimeout time.Duration
	// Handover is how long a run tool waits for the code's end before it lets it go on in the background, where wait_run is
	// offered. Zero is for ever.
	Handover time.Duration
	// ResourceLinks adds resource links to the results of runs, whether or not the client asks for them.
	ResourceLinks bool
	// Services are the outside services that code may call. Nil: there are none, and no tool that lists them.
	Services *Services
}

// Offered returns the names of the tools that a server with these options has.
func (o Options) Offered() []string {
	return slices.DeleteFunc(Names(), func(name string) bool {
		return o.Tools != nil && !slices.Contains(o.Tools, name) || name == "list_services" && o.Services == nil
	})
}

// namePrefix may stand in front of a tool's name in a call (contract 1). Such names are not listed.
const namePrefix = "sandbox."

// tool is how a tool looks to a client, given the runners of the moment, and what it does.
type tool struct {
	define func(runner.Set) *mcp.Tool
	call   func(context.Context, call) (*mcp.CallToolResult, error)
}

// Register adds the tools to srv.
func Register(srv *mcp.Server, e Executor, opt Options) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	t := &toolset{executor: e, log: opt.Logger, images: make(scaling, 2), services: opt.Services, offered: opt.Offered(), resourceLinks: opt.ResourceLinks}
	if t.maxTimeout = opt.MaxTimeout; t.maxTimeout <= 0 {
		t.maxTimeout = defaultMaxTimeout
	}
	if t.offers("wait_run") {
		t.handover = opt.Handover
	}
	t.tools = t.all()
	for _, name := range t.offered {
		tool := t.tools[name]
		definition := tool.define(e.Runners())
		srv.AddTool(definition, t.handler(name, parametersOf(definition, unlisted(name)...), tool.call))
	}
	srv.AddReceivingMiddleware(t.middleware)
	registerResources(srv, e, e)
}

// all are the tools by their names.
func (t *toolset) all() map[string]tool {
	fixed := func(definition *mcp.Tool) func(runner.Set) *mcp.Tool {
		return func(runner.Set) *mcp.Tool { return definition }
	}
	running := func(define func(runner.Set) *mcp.Tool) func(runner.Set) *mcp.Tool {
		return func(runners runner.Set) *mcp.Tool { return t.withServices(t.withLongWork(define(runners))) }
	}
	return map[string]tool{
		"run_code":       {running(runCodeTool), t.runCode},
		"upload_file":    {fixed(uploadFileTool()), t.uploadFile},
		"list_runners":   {fixed(listRunnersTool(t.offers("run"))), t.listRunners},
		"run_python":     {running(runPythonTool), t.runPython},
		"read_artifact":  {fixed(readArtifactTool()), t.readArtifact},
		"list_artifacts": {fixed(listArtifactsTool()), t.listArtifacts},
		"close_session":  {fixed(closeSessionTool()), t.closeSession},
		"run":            {running(runTool), t.run},
		"wait_run":       {fixed(waitRunTool()), t.waitRun},
		"cancel_run":     {fixed(cancelRunTool()), t.cancelRun},
		"list_sessions":  {fixed(listSessionsTool()), t.listSessions},
		"delete_file":    {fixed(deleteFileTool()), t.deleteFile},
		"list_services":  {fixed(listServicesTool()), t.listServices},
	}
}

// unlisted are arguments that a tool reads even where the server's settings leave them out of its schema: to refuse them is
// better than to ignore them.
func unlisted(tool string) []string {
	if tool == "run" || tool == "run_code" || tool == "run_python" {
		return []string{"background", "services"}
	}
	return nil
}

type toolset struct {
	executor Executor
	log      *slog.Logger
	images   scaling
	services *Services // nil: none
	offered  []string
	tools    map[string]tool

	maxTimeout, handover time.Duration
	resourceLinks        bool
}

// offers reports whether the server has the tool: no description and no message may name one that it does not have.
func (t *toolset) offers(name string) bool { return slices.Contains(t.offered, name) }

// call is one call of one tool.
type call struct {
	req    *mcp.CallToolRequest
	client client
	caller session.Caller
	args   *arguments
}

// handler makes an SDK handler of fn, and its errors what the protocol wants them to be: a refusal of the arguments, a
// refusal of the executor, or a failure of ours.
func (t *toolset) handler(name string, accepted parameters, fn func(context.Context, call) (*mcp.CallToolResult, error)) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		caller, err := callerOf(req.Extra)
		if err != nil {
			return nil, err
		}
		c := call{req: req, client: clientOf(req), caller: caller}
		t.log.Info("[MCP] Parsing " + name + " arguments")
		c.args, err = parseArguments(req.Params.Arguments, accepted)
		var res *mcp.CallToolResult
		if err == nil {
			res, err = fn(ctx, c)
		}
		var argErr argumentError
		var refusal *executor.Error
		switch {
		case err == nil:
			return res, nil
		case errors.As(err, &argErr):
			t.log.Info(fmt.Sprintf("[MCP] %s refused: %s", name, argErr))
			return c.client.argumentError(argErr)
		case errors.As(err, &refusal):
			log := t.log
			if refusal.Err != nil {
				log = log.With("error", refusal.Err)
			}
			log.Info(fmt.Sprintf("[MCP] %s refused: %s", name, refusal.Code))
			return c.errorResult(name, refusal), nil
		case ctx.Err() != nil:
			t.log.Info("[MCP] " + name + " cancelled")
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the request was cancelled"}
		}
		return nil, fmt.Errorf("%s: %w", name, err) // the server logs it and hides it
	}
}

// callerOf says who is calling. A message that came over HTTP without an identity is nobody's.
func callerOf(extra *mcp.RequestExtra) (session.Caller, error) {
	switch {
	case extra == nil || extra.Header == nil:
		return session.Local, nil // stdio
	case extra.TokenInfo == nil || extra.TokenInfo.UserID == "":
		return session.Caller{}, errors.New("an HTTP request reached the tools without a caller")
	}
	return session.Caller{ID: extra.TokenInfo.UserID}, nil
}

// middleware accepts prefixed names, and lists the tools as they are now and as far as the client can understand them.
func (t *toolset) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req := req.(type) {
		case *mcp.CallToolRequest:
			t.log.Info("[MCP] Tool call: " + logName(req.Params.Name))
			if name, ok := strings.CutPrefix(req.Params.Name, namePrefix); ok && slices.Contains(Names(), name) {
				req.Params.Name = name
			}
		case *mcp.ListToolsRequest:
			t.log.Info("[MCP] Building tools list")
			res, err := next(ctx, method, req)
			if list, ok := res.(*mcp.ListToolsResult); ok && err == nil {
				t.refresh(list, clientOf(req))
				if req.Params != nil && req.Params.Meta[detailsKey] == true {
					list.Meta = mcp.Meta{detailsKey: true} // so that the client knows that nothing on the way drops _meta
				}
			}
			return res, err
		}
		return next(ctx, method, req)
	}
}

// Names are the tools there are; list_services only where there are services.
func Names() []string {
	return []string{"run_code", "upload_file", "list_runners", "run_python", "read_artifact", "list_artifacts", "close_session", "run", "wait_run", "cancel_run",
		"list_sessions", "delete_file", "list_services"}
}

// logName keeps what a client made up out of the log.
func logName(name string) string {
	if slices.Contains(Names(), strings.TrimPrefix(name, namePrefix)) {
		return name
	}
	return "(unknown)"
}

// refresh puts the runners of this moment into the list, and takes out what is newer than the client.
func (t *toolset) refresh(list *mcp.ListToolsResult, c client) {
	runners := t.executor.Runners()
	t.log.Info(fmt.Sprintf("[MCP] Found %d runners", len(runners)))
	for i, tool := range list.Tools {
		tool = t.tools[tool.Name].define(runners)
		if !c.atLeast(version20250618) {
			old := *tool
			old.Title, old.Annotations, old.OutputSchema = "", nil, nil
			tool = &old
		}
		list.Tools[i] = tool
	}
	t.log.Info(fmt.Sprintf("[MCP] Returning %d tools", len(list.Tools)))
}
