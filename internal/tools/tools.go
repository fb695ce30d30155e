// Package tools implements the MCP tools: their names, arguments and results. It checks arguments,
// calls the executor and shapes the contracts' results. It knows no transport and no sandbox.
//
// The file of a tool (or of a few related ones) reads top to bottom: arguments, definition,
// handler, result. The schemas that clients see are derived from these types (schema.go).
package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

// Executor is the part of [executor.Executor] that the tools call. A failing program is a Result; a
// refusal is an *executor.Error.
type Executor interface {
	Runners() runner.Set

	Run(context.Context, session.Caller, executor.Request) (executor.Result, error)
	WaitRun(ctx context.Context, caller session.Caller, runID string, req executor.WaitRequest) (executor.Result, error)
	CancelRun(ctx context.Context, caller session.Caller, runID string) (executor.Result, error)
	RecentRuns(caller session.Caller, sessionID string) []executor.RunInfo
	WatchRuns(changed func(session.Caller))

	Upload(context.Context, session.Caller, executor.UploadRequest) (executor.FileLink, error)
	UploadURL(ctx context.Context, caller session.Caller, sessionID, name string, overwrite bool) (
		url string, expires time.Time, err error)
	ReadArtifact(ctx context.Context, caller session.Caller, sessionID, path string) (executor.Artifact, error)
	ListArtifacts(ctx context.Context, caller session.Caller, sessionID string, opt executor.ListOptions) (
		executor.FileList, error)
	RunOutput(ctx context.Context, caller session.Caller, runID string, offset, limit int64) (executor.OutputPart, error)
	DeleteFile(ctx context.Context, caller session.Caller, sessionID, path string) error

	ListSessions(ctx context.Context, caller session.Caller, limit int) (
		sessions []executor.SessionInfo, more bool, err error)
	Storage(session.Caller) session.Storage
	CloseSession(ctx context.Context, caller session.Caller, sessionID string) error
	CloseAndRevoke(ctx context.Context, caller session.Caller, sessionID string) error

	RecentFiles(ctx context.Context, caller session.Caller, after executor.Position, limit int) (
		files []executor.FileLink, more bool, err error)
	ReadFile(ctx context.Context, caller session.Caller, sessionID, path string) (executor.Artifact, error)
	Watch(changed func(session.Caller))
}

var _ Executor = (*executor.Executor)(nil)

// Options configures [Register]. The zero value offers every tool except list_services.
type Options struct {
	// Logger receives contract 2's lines, without code, contents, environment values or signatures.
	// Nil is silent.
	Logger *slog.Logger
	// Tools names the tools to offer. Nil offers all.
	Tools []string
	// MaxTimeout is the maximum of timeout_seconds of a run. Zero means ten minutes.
	MaxTimeout time.Duration
	// Handover is how long a run tool waits before it leaves the code running in the background. It
	// needs wait_run. Zero waits until the code ends.
	Handover time.Duration
	// ResourceLinks adds resource links to the results of runs even if the client does not ask for
	// them.
	ResourceLinks bool
	// LinksEnd says that download links work only while this server runs.
	LinksEnd bool
	// ResultBytes is how much text of a run's output a model gets. Zero means 24 KB.
	ResultBytes int
	// Services are the outside services that code may call. Nil means none, and no list_services
	// tool.
	Services *Services
	// Hosts and Packages say that code may connect to hosts by name, and install packages.
	Hosts, Packages bool
	// NoNetwork says that no run gets the whole network.
	NoNetwork bool
	// HostCeiling describes the hosts that code may name. Empty: every public host.
	HostCeiling string
}

// Services are the outside services that code may call.
type Services struct {
	Names []string
	// List reports which services the caller has connected.
	List func(ctx context.Context, caller session.Caller) []executor.ServiceState
}

// Names returns the names of all tools, in the order in which documentation lists them.
func Names() []string { return slices.Clone(names()) }

var names = sync.OnceValue(func() (names []string) {
	for _, tool := range new(toolset).all() {
		names = append(names, tool.definition.Name)
	}
	return names
})

// Offered returns the names of the tools that a server with these options offers.
func (o Options) Offered() []string {
	return slices.DeleteFunc(Names(), func(name string) bool {
		return o.Tools != nil && !slices.Contains(o.Tools, name) || name == "list_services" && o.Services == nil
	})
}

// Register adds the tools and the files of sessions, as resources, to srv.
func Register(srv *mcp.Server, e Executor, opt Options) {
	t := newToolset(e, opt)
	for _, name := range t.offered {
		srv.AddTool(t.tools[name].define(e.Runners()), t.handler(t.tools[name]))
	}
	srv.AddReceivingMiddleware(t.middleware)
	t.registerResources(srv)
}

// toolset holds the state that the tools share.
type toolset struct {
	executor  Executor
	log       *slog.Logger
	images    imageScaler
	services  *Services // nil if none are configured
	noNetwork bool
	hosts     bool
	ceiling   string // of hosts
	packages  bool
	offered   []string
	tools     map[string]*tool

	maxTimeout, handover time.Duration
	resourceLinks        bool
	resultBytes          int
}

func newToolset(e Executor, opt Options) *toolset {
	t := &toolset{
		executor: e, log: opt.Logger, images: newImageScaler(2), services: opt.Services,
		noNetwork: opt.NoNetwork, hosts: opt.Hosts, ceiling: opt.HostCeiling, packages: opt.Packages,
		offered: opt.Offered(), tools: map[string]*tool{},
		maxTimeout: opt.MaxTimeout, resourceLinks: opt.ResourceLinks,
		resultBytes: cmp.Or(opt.ResultBytes, defaultResultBytes),
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	if t.maxTimeout <= 0 {
		t.maxTimeout = defaultMaxTimeout
	}
	if t.offers("wait_run") {
		t.handover = opt.Handover
	}
	for _, tool := range t.all() {
		t.tools[tool.definition.Name] = tool
	}
	return t
}

// all returns every tool, in the order of [Names].
func (t *toolset) all() []*tool {
	return []*tool{
		t.runCodeTool(), t.uploadFileTool(), t.listRunnersTool(),
		t.runPythonTool(), t.readArtifactTool(), t.listArtifactsTool(), t.closeSessionTool(),
		t.runTool(), t.waitRunTool(), t.cancelRunTool(), t.listSessionsTool(), t.deleteFileTool(), t.listServicesTool(),
	}
}

// offers reports whether the server offers the tool. Descriptions and messages must not name other
// tools.
func (t *toolset) offers(name string) bool { return slices.Contains(t.offered, name) }

// call is one call of a tool.
type call struct {
	ctx      context.Context
	req      *mcp.CallToolRequest
	client   client
	caller   session.Caller
	warnings []string // about arguments that were ignored
	meta     mcp.Meta // _meta of the result
	shown    *shownImages
}

// handler returns the SDK's handler for a tool. It turns errors into what the protocol expects: bad
// arguments, a refusal by the executor, or an internal error.
func (t *toolset) handler(tool *tool) mcp.ToolHandler {
	name := tool.definition.Name
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		caller, err := callerOf(req.Extra)
		if err != nil {
			return nil, err
		}
		c := &call{ctx: ctx, req: req, client: clientOf(req), caller: caller}
		t.log.Info("[MCP] Parsing " + name + " arguments")
		res, err := tool.call(ctx, c)
		if err == nil {
			if c.meta != nil {
				res.Meta = c.meta
			}
			return res, nil
		}
		if bad, ok := errors.AsType[argumentError](err); ok {
			t.log.Info(fmt.Sprintf("[MCP] %s refused: %s", name, bad))
			return c.client.argumentError(bad)
		}
		if refusal, ok := errors.AsType[*executor.Error](err); ok {
			log := t.log
			if refusal.Err != nil {
				log = log.With("error", refusal.Err)
			}
			if refusal.Code == executor.CodeInvalidHosts { // for the operator, who decides what is allowed
				log = log.With("caller", caller.ID, "reason", refusal.Message)
			}
			log.Info(fmt.Sprintf("[MCP] %s refused: %s", name, refusal.Code))
			return errorResult(name, refusal, c.warnings), nil
		}
		if ctx.Err() != nil {
			t.log.Info("[MCP] " + name + " cancelled")
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the request was cancelled"}
		}
		return nil, fmt.Errorf("%s: %w", name, err) // the server logs it and hides it from the client
	}
}

// callerOf returns the caller of a request. It refuses an HTTP request that carries no identity.
func callerOf(extra *mcp.RequestExtra) (session.Caller, error) {
	switch {
	case extra == nil || extra.Header == nil:
		return session.Local, nil // stdio
	case extra.TokenInfo == nil || extra.TokenInfo.UserID == "":
		return session.Caller{}, errors.New("an HTTP request reached the tools without a caller")
	}
	return session.Caller{ID: extra.TokenInfo.UserID}, nil
}

// namePrefix may precede a tool's name in a call (contract 1). Prefixed names are not listed.
const namePrefix = "sandbox."

// middleware accepts prefixed names, and lists the tools with the runners available now.
func (t *toolset) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req := req.(type) {
		case *mcp.CallToolRequest:
			name := strings.TrimPrefix(req.Params.Name, namePrefix)
			if !slices.Contains(Names(), name) {
				t.log.Info("[MCP] Tool call: (unknown)") // the log never contains a name that a client made up
				break
			}
			t.log.Info("[MCP] Tool call: " + req.Params.Name)
			req.Params.Name = name
		case *mcp.ListToolsRequest:
			t.log.Info("[MCP] Building tools list")
			res, err := next(ctx, method, req)
			if list, ok := res.(*mcp.ListToolsResult); ok && err == nil {
				t.refresh(list, clientOf(req))
				if req.Params != nil && req.Params.Meta[detailsKey] == true {
					list.Meta = mcp.Meta{detailsKey: true} // tells the client that no proxy in between drops _meta
				}
			}
			return res, err
		}
		return next(ctx, method, req)
	}
}

// refresh defines the listed tools for the runners available now, without fields that the client's
// protocol version does not have.
func (t *toolset) refresh(list *mcp.ListToolsResult, c client) {
	runners := t.executor.Runners()
	t.log.Info(fmt.Sprintf("[MCP] Found %d runners", len(runners)))
	for i, listed := range list.Tools {
		definition := t.tools[listed.Name].define(runners)
		if !c.atLeast(version20250618) {
			old := *definition
			old.Title, old.Annotations, old.OutputSchema = "", nil, nil
			definition = &old
		}
		list.Tools[i] = definition
	}
	t.log.Info(fmt.Sprintf("[MCP] Returning %d tools", len(list.Tools)))
}
