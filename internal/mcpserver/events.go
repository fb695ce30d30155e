package mcpserver

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// serveEvents serves GET: the stream of a session or, without one, a stream of what the server
// sends to every client. A caller's output goes to the request that it belongs to, never to this
// stream.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		refuseMethod(w, "GET")
		return
	}
	if s.ctx.Err() != nil {
		writeError(w, http.StatusServiceUnavailable, nil, rpcErrorf(codeUnavailable, "the server is shutting down"))
		return
	}
	if len(r.Header.Values("Accept")) > 0 && !accepts(r, "text/event-stream") && !accepts(r, "*/*") && !accepts(r, "text/*") {
		writeError(w, http.StatusNotAcceptable, nil,
			rpcErrorf(jsonrpc.CodeInvalidRequest, "this is an event stream; send Accept: text/event-stream"))
		return
	}
	inner := r.WithContext(r.Context())
	inner.Header = r.Header.Clone()
	inner.Header.Set("Accept", "text/event-stream")

	if id := r.Header.Get(sessionHeader); id != "" {
		_, release := s.sessions.use(id, s.user(r))
		defer release()
		s.log.Info("[HTTP] Event stream of a session from " + r.RemoteAddr)
		s.serveStream(w, inner, s.stateful)
		return
	}

	stream, closed, ok := s.openStream(w, r, nil)
	if !ok {
		return
	}
	defer closed()
	s.log.Info("[HTTP] Event stream from " + r.RemoteAddr)
	inner = inner.WithContext(stream)
	inner.Header.Del("Last-Event-ID") // events without a session are not kept
	transport := &mcp.StreamableServerTransport{Stateless: true}
	// The SDK serves no stream before "initialize", so this state says that it has happened.
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
	s.serveStream(w, inner, transport)
}

// openStream counts an event stream without a session until closed is called. ctx ends with the
// request, or when a caller with fewer streams needs the room: clients reconnect. If there is no
// room, openStream answers the request.
func (s *Server) openStream(w http.ResponseWriter, r *http.Request, id json.RawMessage) (ctx context.Context, closed func(), ok bool) {
	lease, err := s.streams.TryAcquire(s.user(r), 1)
	if err != nil {
		writeUnavailable(w, id, "too many event streams; close one, or try again later")
		return nil, nil, false
	}
	ctx, cancel := context.WithCancel(r.Context())
	lease.Yield(cancel)
	return ctx, func() {
		lease.Release()
		cancel()
	}, true
}

func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, h http.Handler) {
	rep := newReply(w, true)
	stop := rep.heartbeats(s.cfg.Heartbeat)
	h.ServeHTTP(rep, r)
	stop()
	rep.finish(message{})
}
