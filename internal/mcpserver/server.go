// Package mcpserver carries MCP messages between clients and the official SDK: streamable HTTP in every protocol
// version on one endpoint, plain HTTP callers (curl, n8n), server-sent events, and stdio.
//
// It is a thin bridge. The SDK speaks the protocol; this package only repairs what the SDK would refuse or end a session
// over, bounds what a client can use up, and ties a call's life to its client's. It knows no tool, no sandbox and no
// credentials: tools are added by [Config.Tools], and whoever mounts [Server.Handler] has authenticated the caller and
// checked Host and Origin before.
package mcpserver

import (
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

// Config is what a Server needs. The zero value of a field means its default.
type Config struct {
	// Version is the program's version, told to clients. Default "1.0.0".
	Version string
	// Instructions tell the client's model which tool to use for what.
	Instructions string
	// Tools adds the tools to the server.
	Tools func(*mcp.Server)
	// MaxBodyBytes limits one request's body and one line of stdio. Default 70 MiB: a 50 MB file in base64.
	MaxBodyBytes int64
	// MaxSessions limits the transport sessions, and apart from them the event streams without one, those that listen among them. Default 1000.
	MaxSessions int
	// Operator is the user whom shares do not bind: only what it leaves idle is ended for others. Empty: nobody.
	Operator string
	// SessionIdle ends a transport session that has had no request and no open stream for so long. Default 30 minutes.
	SessionIdle time.Duration
	// Heartbeat is the time to the first comment on an event stream, and between two of them. Default 2 s: clients that
	// use httpx as it comes, the Python SDK among them, give up after 5 silent seconds.
	Heartbeat time.Duration
	// Logger gets one line per event of contract 2; nil is silent. It never gets bodies, arguments or credentials.
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

	ctx    context.Context // ends with Close; every call hangs on it
	cancel context.CancelCauseFunc
}

// New makes a Server. [Server.Close] ends it.
func New(cfg Config) (*Server, error) {
	if cfg.Tools == nil {
		return nil, errors.New("mcpserver: Config.Tools is missing")
	}
	if cfg.Version == "" {
		cfg.Version = "1.0.0"
	}
	if cfg.MaxBodyBytes <= 0 {
		cfg.MaxBodyBytes = 70 << 20
	}
	if cfg.MaxSessions <= 0 {
		cfg.MaxSessions = 1000
	}
	if cfg.SessionIdle <= 0 {
		cfg.SessionIdle = 30 * time.Minute
	}
	if cfg.Heartbeat <= 0 {
		cfg.Heartbeat = 2 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
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
		// The SDK's own logger stays silent: its messages may quote what a client sent.
		&mcp.ServerOptions{Instructions: cfg.Instructions, Capabilities: &mcp.ServerCapabilities{
			Tools:     &mcp.ToolCapabilities{},
			Resources: &mcp.ResourceCapabilities{ListChanged: true},
		}},
	)
	cfg.Tools(s.mcp)
	// The last one added is the outermost.
	s.mcp.AddReceivingMiddleware(s.bind)
	s.mcp.AddReceivingMiddleware(s.guard)

	server := func(*http.Request) *mcp.Server { return s.mcp }
	opts := mcp.StreamableHTTPOptions{
		MaxRequestBodyBytes: cfg.MaxBodyBytes,
		// Whoever mounts the handler checks Host against the operator's list; the SDK's own check would refuse every
		// reverse proxy on this machine.
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

// Handler serves POST, GET and DELETE on /mcp and GET on /mcp/events. The caller's identity is expected where
// [auth.RequireBearerToken] puts it.
func (s *Server) Handler() http.Handler { return s.handler }

// Shares returns what callers share, by name.
func (s *Server) Shares() map[string]*share.Pool {
	return map[string]*share.Pool{"transport_sessions": s.sessions.pool, "event_streams": s.streams, "body_bytes": s.large}
}

// Close cancels every call, ends every session and stream, and refuses what comes later. It waits for calls to return
// until ctx ends. Call it before or while the HTTP server shuts down, which otherwise waits for open streams.
func (s *Server) Close(ctx context.Context) error {
	s.cancel(errShutdown)
	s.sessions.drain()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for ss := range s.mcp.Sessions() {
			wg.Go(func() { ss.Close() })
		}
		wg.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close MCP sessions: %w", ctx.Err())
	}
}

// guard answers for handlers that panic, and gives every error a code.
func (s *Server) guard(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("[MCP] A handler panicked", "method", printable(method), "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		res, err = next(ctx, method, req)
		var coded *jsonrpc.Error
		if err != nil && (!errors.As(err, &coded) || coded.Code == 0) {
			s.log.Error("[MCP] Request failed", "method", printable(method), "error", err)
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
		}
		return res, err
	}
}

// bind ends a call's context when its HTTP request, its session or the server ends, whichever is first. The SDK does
// so for a client's cancel notification and for the end of a stdio client.
func (s *Server) bind(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(s.ctx, func() { cancel(errShutdown) })()

		var user string
		if extra := req.GetExtra(); extra != nil {
			if key := extra.Header[exchangeHeader]; len(key) == 1 {
				defer s.exchanges.attach(key[0], func() { cancel(errGone) })()
				ctx = share.WithScope(ctx, s.exchanges.scope(key[0]))
			}
			user = userID(extra.TokenInfo)
		}
		ss, _ := req.GetSession().(*mcp.ServerSession)
		if ss != nil && ss.ID() != "" {
			if e := s.sessions.get(ss.ID()); e != nil {
				defer context.AfterFunc(e.ctx, func() { cancel(errSessionEnded) })()
			}
		}
		if method != "initialize" {
			res, err := next(ctx, method, req)
			if discovered, ok := res.(*mcp.DiscoverResult); ok && err == nil {
				// The SDK answers for prompts, with an empty list; this version wants that declared.
				discovered.Capabilities.Prompts = new(mcp.PromptCapabilities)
			}
			return res, err
		}
		s.log.Info("[MCP] Processing initialize request")
		res, err := next(ctx, method, req)
		if err == nil {
			if init, ok := res.(*mcp.InitializeResult); ok && init.ProtocolVersion < versionResources {
				init.Capabilities.Resources, init.Instructions = nil, "" // contract 2 shows what the oldest version gets
			}
			if ss != nil && ss.ID() != "" && !s.sessions.add(ss, user) {
				go ss.Close() // it waits for this call
			}
			s.log.Info("[MCP] Initialize successful")
		}
		return res, err
	}
}

func userID(info *auth.TokenInfo) string {
	if info == nil {
		return ""
	}
	return info.UserID
}

// logIncoming writes contract 2's line for every message, whatever transport it came by.
func (s *Server) logIncoming(m message) {
	s.log.Info(fmt.Sprintf("[MCP] Incoming request - Method: %s, ID: %s", printable(m.method), logID(m)))
}

func logID(m message) string {
	if m.id == nil {
		return "none"
	}
	return printable(string(m.id))
}
