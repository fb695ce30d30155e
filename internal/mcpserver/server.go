// Package mcpserver carries MCP messages between clients and the official SDK: streamable HTTP in
// every protocol version on one endpoint, plain HTTP callers (curl, n8n), server-sent events, and
// stdio.
//
// It is a thin bridge. The SDK speaks the protocol. This package repairs what the SDK would refuse
// or end a session over, bounds what a client can use, and cancels a call when its client leaves.
// It knows no tool, no sandbox and no credentials: [Config.Tools] adds the tools, and the code that
// mounts [Server.Handler] authenticates the caller and checks Host and Origin.
package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/share"
)

// Config configures a Server. Zero values mean the defaults.
type Config struct {
	Version      string            // of the program, sent to clients; default "1.0.0"
	Instructions string            // tell the client's model when to use which tool
	Tools        func(*mcp.Server) // adds the tools to the server; required
	Operator     string            // a user who loses only idle sessions to other users; default none
	// MaxBodyBytes limits the body of a request and a line of stdio. Default 70 MiB: a 50 MB file
	// in base64.
	MaxBodyBytes int64
	// MaxSessions limits the transport sessions and, separately, the event streams without a
	// session. Default 1000.
	MaxSessions int
	// SessionIdle ends a transport session without requests and open streams after that time.
	// Default 30 minutes.
	SessionIdle time.Duration
	// Heartbeat is the interval of comments on an event stream. Default 2 s: clients that use httpx
	// with its default settings, such as the Python SDK, give up after 5 silent seconds.
	Heartbeat time.Duration
	// Logger receives contract 2's lines, without bodies, arguments and credentials. Nil is silent.
	Logger *slog.Logger
}

// Server serves MCP. Its methods are safe for concurrent use.
type Server struct {
	cfg       Config
	log       *slog.Logger
	mcp       *mcp.Server
	handler   http.Handler
	stateful  *mcp.StreamableHTTPHandler
	stateless *mcp.StreamableHTTPHandler
	sessions  *sessions
	exchanges exchanges
	large     *share.Pool // bytes of large bodies in memory
	streams   *share.Pool // event streams without a session

	ctx    context.Context // of every call; Close cancels it
	cancel context.CancelCauseFunc
}

// Causes of the end of a call's context.
var (
	errSessionEnded = errors.New("the session was ended")
	errShutdown     = errors.New("the server is shutting down")
	errGone         = errors.New("the client closed the connection")
)

// New returns a Server. [Server.Close] ends it.
func New(cfg Config) (*Server, error) {
	if cfg.Tools == nil {
		return nil, errors.New("mcpserver: Config.Tools is missing")
	}
	cfg.Version = cmp.Or(cfg.Version, "1.0.0")
	cfg.MaxBodyBytes = cmp.Or(cfg.MaxBodyBytes, 70<<20)
	cfg.MaxSessions = cmp.Or(cfg.MaxSessions, 1000)
	cfg.SessionIdle = cmp.Or(cfg.SessionIdle, 30*time.Minute)
	cfg.Heartbeat = cmp.Or(cfg.Heartbeat, 2*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &Server{
		cfg:      cfg,
		log:      cfg.Logger,
		sessions: newSessions(cfg.MaxSessions, cfg.Operator, cfg.SessionIdle),
		// The SDK copies a body several times, so two of the largest at once are enough.
		large:   share.New(share.Config{Capacity: 2 * cfg.MaxBodyBytes, Exempt: cfg.Operator}),
		streams: share.New(share.Config{Capacity: int64(cfg.MaxSessions), Exempt: cfg.Operator}),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.mcp = mcp.NewServer(
		&mcp.Implementation{Name: "mcp-code-sandbox", Version: cfg.Version},
		// The SDK gets no logger: its messages may quote what a client sent.
		&mcp.ServerOptions{Instructions: cfg.Instructions, Capabilities: &mcp.ServerCapabilities{
			Tools:     &mcp.ToolCapabilities{},
			Resources: &mcp.ResourceCapabilities{ListChanged: true},
		}},
	)
	cfg.Tools(s.mcp)
	s.mcp.AddReceivingMiddleware(s.guard, s.bind, s.adaptVersion)

	server := func(*http.Request) *mcp.Server { return s.mcp }
	opts := mcp.StreamableHTTPOptions{
		MaxRequestBodyBytes: cfg.MaxBodyBytes,
		// The code that mounts the handler checks Host. The SDK's check would refuse reverse
		// proxies on this machine.
		DisableLocalhostProtection: true,
	}
	s.stateful = mcp.NewStreamableHTTPHandler(server, &opts)
	opts.Stateless = true
	s.stateless = mcp.NewStreamableHTTPHandler(server, &opts)

	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", s.serveMCP)
	mux.HandleFunc("/mcp/events", s.serveEvents)
	s.handler = mux
	return s, nil
}

// Handler serves POST, GET and DELETE on /mcp and GET on /mcp/events. It expects the caller's
// identity where [auth.RequireBearerToken] stores it.
func (s *Server) Handler() http.Handler { return s.handler }

// Shares returns the pools that callers share, by name.
func (s *Server) Shares() map[string]*share.Pool {
	return map[string]*share.Pool{"transport_sessions": s.sessions.pool, "event_streams": s.streams, "body_bytes": s.large}
}

// Drain waits until the requests in progress are answered, except for streams, or ctx is done.
func (s *Server) Drain(ctx context.Context) { s.exchanges.drain(ctx) }

// Close cancels every call, ends every session and stream, and refuses later requests. It waits for
// calls to return until ctx ends. Call it before or while the HTTP server shuts down, which
// otherwise waits for open streams.
func (s *Server) Close(ctx context.Context) error {
	s.cancel(errShutdown)
	s.sessions.cancelAll()
	var wg sync.WaitGroup
	for ss := range s.mcp.Sessions() {
		wg.Go(func() { ss.Close() })
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close MCP sessions: %w", ctx.Err())
	}
}

// guard recovers panics of handlers and hides errors that are not meant for clients.
func (s *Server) guard(next mcp.MethodHandler) mcp.MethodHandler {
	internal := &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("[MCP] A handler panicked", "method", printable(method),
					"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				res, err = nil, internal
			}
		}()
		if res, err = next(ctx, method, req); err == nil || hasCode(err) {
			return res, err
		}
		s.log.Error("[MCP] Request failed", "method", printable(method), "error", err)
		return nil, internal
	}
}

// hasCode reports whether err is a JSON-RPC error.
func hasCode(err error) bool {
	coded, ok := errors.AsType[*jsonrpc.Error](err)
	return ok && coded.Code != 0
}

// bind cancels a call's context when its HTTP request, its session or the server ends. The SDK does
// so itself when a client sends a cancel notification and when a stdio client ends.
func (s *Server) bind(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		cancelWith := func(parent context.Context, cause error) (stop func() bool) {
			return context.AfterFunc(parent, func() { cancel(cause) })
		}
		defer cancelWith(s.ctx, errShutdown)()

		var exchange *exchange
		var user string
		if extra := req.GetExtra(); extra != nil {
			user = userID(extra.TokenInfo)
			if key := extra.Header[exchangeHeader]; len(key) == 1 {
				if exchange = s.exchanges.get(key[0]); exchange == nil {
					cancel(errGone)
				} else {
					defer cancelWith(exchange.ctx, errGone)()
					ctx = share.WithScope(ctx, exchange.scope)
				}
			}
		}
		ss, _ := req.GetSession().(*mcp.ServerSession)
		if ss == nil || ss.ID() == "" {
			return next(ctx, method, req)
		}
		if e := s.sessions.get(ss.ID()); e != nil {
			defer cancelWith(e.ctx, errSessionEnded)()
			return next(ctx, method, req)
		}
		res, err := next(ctx, method, req)
		if method == "initialize" && err == nil {
			if lease := s.exchanges.takeLease(exchange); lease != nil {
				s.sessions.add(ss, user, lease)
			} else {
				go ss.Close() // the client has left; Close waits for this call
			}
		}
		return res, err
	}
}

// adaptVersion corrects what the SDK declares to clients of the oldest and of the newest protocol
// version.
func (s *Server) adaptVersion(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "initialize" {
			s.log.Info("[MCP] Processing initialize request")
		}
		res, err := next(ctx, method, req)
		if err != nil {
			return res, err
		}
		switch res := res.(type) {
		case *mcp.InitializeResult:
			if res.ProtocolVersion < versionResources {
				res.Capabilities.Resources, res.Instructions = nil, "" // as in contract 2
			}
			s.log.Info("[MCP] Initialize successful")
		case *mcp.DiscoverResult:
			// The SDK answers prompts/list with an empty list. The newest version wants that
			// declared.
			res.Capabilities.Prompts = new(mcp.PromptCapabilities)
		}
		return res, nil
	}
}

func userID(info *auth.TokenInfo) string {
	if info == nil {
		return ""
	}
	return info.UserID
}

// logIncoming writes contract 2's line about a message, for every transport.
func (s *Server) logIncoming(m message) {
	s.log.Info(fmt.Sprintf("[MCP] Incoming request - Method: %s, ID: %s", printable(m.method), logID(m)))
}

func logID(m message) string {
	if m.id == nil {
		return "none"
	}
	return printable(string(m.id))
}
