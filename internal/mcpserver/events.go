package mcpserver

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// serveEvents serves GET: the stream of a session, or without one a stream of what the server tells everybody. It never
// carries one caller's output: that goes to the request it belongs to.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", "GET")
		writeError(w, http.StatusMethodNotAllowed, nil, rpcErrorf(jsonrpc.CodeInvalidRequest, "method not allowed; use GET"))
		return
	}
	if s.ctx.Err() != nil {
		writeError(w, http.StatusServiceUnavailable, nil, rpcErrorf(codeUnavailable, "the server is shutting down"))
		return
	}
	if len(r.Header.Values("Accept")) > 0 && !accepts(r, "text/event-stream") && !accepts(r, "*/*") && !accepts(r, "text/*") {
		writeError(w, http.StatusNotAcceptable, nil, rpcErrorf(jsonrpc.CodeInvalidRequest, "this is an event stream; send Accept: text/event-stream"))
		return
	}
	inner := r.WithContext(r.Context())
	inner.Header = r.Header.Clone()
	inner.Header.Set("Accept", "text/event-stream")
	rep := newReply(w, true)

	if id := r.Header.Get(sessionHeader); id != "" {
		defer s.sessions.use(id, s.user(r))()
		s.log.Info("[HTTP] Event stream of a session from " + r.RemoteAddr)
		s.serveStream(rep, inner, s.stateful)
		return
	}

	stream, closed, ok := s.openStream(w, r, nil)
	if !ok {
		return
	}
	defer closed()
	inner = inner.WithContext(stream)
	s.log.Info("[HTTP] Event stream from " + r.RemoteAddr)
	inner.Header.Del("Last-Event-ID") // nothing is kept for a stream without a session
	transport := &mcp.StreamableServerTransport{Stateless: true}
	// The SDK serves no stream before "initialize", so it is told that this has been.
	session, err := s.mcp.Connect(stream, transport, &mcp.ServerSessionOptions{State: &mcp.ServerSessionState{
		InitializeParams:  &mcp.InitializeParams{ProtocolVersion: "2025-03-26"},
		InitializedParams: new(mcp.InitializedParams),
	}})
	if err != nil {
		s.log.Error("[HTTP] Event stream failed", "error", err)
		writeError(w, http.StatusInternalServerError, nil, rpcErrorf(jsonrpc.CodeInternalError, "internal error"))
		return
	}
	defer session.Close()
	if s.ctx.Err() != nil {
		return // Close may have missed this session
	}
	s.serveStream(rep, inner, transport)
}

// openStream counts an event stream without a session until closed is called. Its context ends with the request, or when a
// caller who has fewer streams needs the room: clients open a new one. If there are too many it says so to the client.
func (s *Server) openStream(w http.ResponseWriter, r *http.Request, id json.RawMessage) (ctx context.Context, closed func(), ok bool) {
	lease, err := s.streams.TryAcquire(s.user(r), 1)
	if err != nil {
		w.Header().Set("Retry-After", "10")
		writeError(w, http.StatusServiceUnavailable, id, rpcErrorf(codeUnavailable, "too many event streams; close one, or try again later"))
		return nil, nil, false
	}
	ctx, cancel := context.WithCancel(r.Context())
	lease.Yield(cancel)
	return ctx, func() {
		lease.Release()
		cancel()
	}, true
}

func (s *Server) serveStream(rep *reply, r *http.Request, h http.Handler) {
	stop := rep.heartbeats(s.cfg.Heartbeat)
	h.ServeHTTP(rep, r)
	stop()
	rep.finish(message{})
}
