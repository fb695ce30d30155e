// Package tools is the MCP tools: what they are called, what they take, what they answer. It checks arguments, calls the
// engine and shapes the contracts' results. It knows no transport and no sandbox.
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

	"mcp-code-sandbox/internal/engine"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

// Engine is what the tools need of *engine.Engine.
type Engine interface {
	// Run executes code. A failing program is a Result; a refusal is an *engine.Error.
	Run(ctx context.Context, caller session.Caller, req engine.Request) (engine.Result, error)
	// Upload puts a file into the session's workspace.
	Upload(ctx context.Context, caller session.Caller, req engine.UploadRequest) (engine.FileLink, error)
	// UploadURL makes an address to which the file can be PUT once, until expires.
	UploadURL(ctx context.Context, caller session.Caller, sessionID, name string, overwrite bool) (url string, expires time.Time, err error)
	// ReadArtifact reads a file of a session that exists.
	ReadArtifact(ctx context.Context, caller session.Caller, sessionID, path string) (engine.Artifact, error)
	// ListArtifacts lists the files of a session that exists, newest first, and says whether there are more.
	ListArtifacts(ctx context.Context, caller session.Caller, sessionID string) (files []engine.FileLink, truncated bool, err error)
	// DeleteFile removes a file of a session that exists.
	DeleteFile(ctx context.Context, caller session.Caller, sessionID, path string) error
	// ListSessions lists the caller's sessions, last used first, at most limit of them, and says whether there may be more.
	ListSessions(ctx context.Context, caller session.Caller, limit int) (sessions []engine.SessionInfo, more bool, err error)
	// CloseSession ends a session that exists.
	CloseSession(ctx context.Context, caller session.Caller, sessionID string) error
	// Runners are the language environments there are now, always in the same order.
	Runners() runner.Set
	Runs
	Files
}

var _ Engine = (*engine.Engine)(nil)

// Options may be zero.
type Options struct {
	// Logger gets contract 2's lines, without code, contents, environment values or signatures. Nil is silent.
	Logger *slog.Logger
	// MaxTimeout is the most that timeout_seconds of a run may be. Zero is ten minutes.
	MaxTimeout time.Duration
	// Handover is how long run waits for the code's end before it lets it go on in the background. Zero is for ever.
	Handover time.Duration
	// NoBackground is for a server that does not offer wait_run: nothing goes on in the background.
	NoBackground bool
	// Services are the outside services that code may call. Nil: there are none, and no tool that lists them.
	Services *Services
}

// namePrefix may stand in front of a tool's name in a call (contract 1). Such names are not listed.
const namePrefix = "sandbox."

// Register adds the tools to srv.
func Register(srv *mcp.Server, e Engine, opt Options) {
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	t := &toolset{engine: e, log: opt.Logger, images: make(scaling, 2), services: opt.Services}
	if t.maxTimeout = opt.MaxTimeout; t.maxTimeout <= 0 {
		t.maxTimeout = defaultMaxTimeout
	}
	if t.noBackground = opt.NoBackground; !t.noBackground {
		t.handover = opt.Handover
	}
	type tool struct {
		*mcp.Tool
		call func(context.Context, call) (*mcp.CallToolResult, error)
	}
	list := []tool{
		{t.withOptions(runCodeTool(e.Runners())), t.runCode},
		{uploadFileTool(), t.uploadFile},
		{listRunnersTool(), t.listRunners},
		{t.withOptions(runPythonTool(e.Runners())), t.runPython},
		{readArtifactTool(), t.readArtifact},
		{listArtifactsTool(), t.listArtifacts},
		{closeSessionTool(), t.closeSession},
		{t.withOptions(runTool(e.Runners())), t.run},
		{waitRunTool(), t.waitRun},
		{cancelRunTool(), t.cancelRun},
		{listSessionsTool(), t.listSessions},
		{deleteFileTool(), t.deleteFile},
	}
	if t.services != nil {
		list = append(list, tool{listServicesTool(), t.listServices})
	}
	for _, tool := range list {
		srv.AddTool(tool.Tool, t.handler(tool.Name, tool.call))
	}
	srv.AddReceivingMiddleware(t.middleware)
	registerResources(srv, e, e)
}

type toolset struct {
	engine   Engine
	log      *slog.Logger
	images   scaling
	services *Services // nil: none

	maxTimeout, handover time.Duration
	noBackground         bool
}

// call is one call of one tool.
type call struct {
	req    *mcp.CallToolRequest
	client client
	caller session.Caller
	args   *arguments
}

// handler makes an SDK handler of fn, and its errors what the protocol wants them to be: a refusal of the arguments, a
// refusal of the engine, or a failure of ours.
func (t *toolset) handler(name string, fn func(context.Context, call) (*mcp.CallToolResult, error)) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		caller, err := callerOf(req.Extra)
		if err != nil {
			return nil, err
		}
		c := call{req: req, client: clientOf(req), caller: caller}
		t.log.Info("[MCP] Parsing " + name + " arguments")
		c.args, err = parseArguments(req.Params.Arguments)
		var res *mcp.CallToolResult
		if err == nil {
			res, err = fn(ctx, c)
		}
		var argErr argumentError
		var refusal *engine.Error
		switch {
		case err == nil:
			return res, nil
		case errors.As(err, &argErr):
			t.log.Info(fmt.Sprintf("[MCP] %s refused: %s", name, argErr))
			return c.client.argumentError(argErr)
		case errors.As(err, &refusal):
			t.log.Info(fmt.Sprintf("[MCP] %s refused: %s", name, refusal.Code), "error", refusal.Err)
			return errorResult(name, refusal), nil
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
			}
			return res, err
		}
		return next(ctx, method, req)
	}
}

// Names are the tools that Register adds; list_services only where there are services.
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

// withOptions adds to a run tool the arguments that all of them have.
func (t *toolset) withOptions(tool *mcp.Tool) *mcp.Tool { return t.withServices(t.withLongWork(tool)) }

// refresh puts the runners of this moment into the list, and takes out what is newer than the client.
func (t *toolset) refresh(list *mcp.ListToolsResult, c client) {
	runners := t.engine.Runners()
	t.log.Info(fmt.Sprintf("[MCP] Found %d runners", len(runners)))
	for i, tool := range list.Tools {
		switch tool.Name {
		case "run_code":
			tool = t.withOptions(runCodeTool(runners))
		case "run_python":
			tool = t.withOptions(runPythonTool(runners))
		case "run":
			tool = t.withOptions(runTool(runners))
		}
		if !c.atLeast(version20250618) {
			old := *tool
			old.Title, old.Annotations, old.OutputSchema = "", nil, nil
			tool = &old
		}
		list.Tools[i] = tool
	}
	t.log.Info(fmt.Sprintf("[MCP] Returning %d tools", len(list.Tools)))
}
