package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/share"
)

const (
	versionHeader = "Mcp-Protocol-Version"
	sessionHeader = "Mcp-Session-Id"

	codeSessionNotFound = -32001 // as other SDKs answer for an unknown session
	codeUnavailable     = -32000 // the client may try again later
)

func (s *Server) serveMCP(w http.ResponseWriter, r *http.Request) {
	if s.ctx.Err() != nil {
		writeError(w, http.StatusServiceUnavailable, nil, rpcErrorf(codeUnavailable, "the server is shutting down"))
		return
	}
	switch {
	case r.Method == http.MethodPost:
		s.servePOST(w, r)
	case r.Method == http.MethodGet && !isStateless(r):
		s.serveEvents(w, r)
	case r.Method == http.MethodDelete && !isStateless(r):
		s.serveDELETE(w, r)
	case isStateless(r):
		refuseMethod(w, "POST")
	default:
		refuseMethod(w, "GET, POST, DELETE")
	}
}

// isStateless reports whether the client speaks a protocol version without sessions.
func isStateless(r *http.Request) bool { return r.Header.Get(versionHeader) >= versionStateless }

// servePOST passes one message, or a batch, to the SDK and returns its answer: as an event stream
// if the client asked for one, otherwise as JSON.
func (s *Server) servePOST(w http.ResponseWriter, r *http.Request) {
	s.log.Info("[HTTP] MCP request from " + r.RemoteAddr)
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		writeError(w, http.StatusUnsupportedMediaType, nil, rpcErrorf(jsonrpc.CodeInvalidRequest, "the body must not be compressed"))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	body, done, ok := s.readBody(w, r, cancel)
	if !ok {
		return
	}
	defer done()
	s.log.Debug(fmt.Sprintf("[HTTP] Request body: %d bytes", len(body)))

	msgs, batch, rerr := parse(body)
	if rerr != nil {
		writeError(w, http.StatusBadRequest, nil, rerr)
		return
	}
	for i := range msgs {
		s.log.Info(fmt.Sprintf("[HTTP] Parsed JSON-RPC request: method=%s, id=%s", printable(msgs[i].method), logID(msgs[i])))
		s.logIncoming(msgs[i])
		if !isStateless(r) { // otherwise the SDK answers in JSON, with the status that the version asks for
			checkMethod(&msgs[i], batch)
		}
	}
	if batch {
		s.serveBatch(w, r, msgs)
		return
	}
	m := msgs[0]
	switch {
	case m.err != nil && m.isNotification():
		w.WriteHeader(http.StatusAccepted) // a notification has no answer
	case m.err != nil:
		writeError(w, errorStatus(m.err, isStateless(r)), m.id, m.err)
	default:
		s.forward(w, r, m, body)
	}
	s.log.Info("[HTTP] Sending response for method=" + printable(m.method))
}

// errorStatus returns the HTTP status of an error. Versions with sessions answer 200 if they
// understood the request.
func errorStatus(e *jsonrpc.Error, stateless bool) int {
	switch {
	case e.Code != jsonrpc.CodeMethodNotFound && e.Code != jsonrpc.CodeInvalidParams:
		return http.StatusBadRequest
	case !stateless:
		return http.StatusOK
	case e.Code == jsonrpc.CodeMethodNotFound:
		return http.StatusNotFound
	}
	return http.StatusBadRequest
}

// forward passes one message to the SDK.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, m message, body []byte) {
	handler, calls, release := s.route(r)
	defer release()
	defer calls.track(m)()
	var lease *share.Lease
	switch {
	case isStateless(r) && m.method == "subscriptions/listen":
		stream, closed, ok := s.openStream(w, r, m.id)
		if !ok {
			return
		}
		defer closed()
		r = r.WithContext(stream)
	case handler == s.stateless && !isStateless(r) && m.method == "initialize":
		var err error
		if lease, err = s.sessions.pool.TryAcquire(s.user(r), 1); err != nil {
			writeUnavailable(w, m.id, "too many sessions; end one, or try again later")
			return
		}
		handler = s.stateful
	}

	inner, end := s.innerRequest(w, r, body, &exchange{lease: lease, isStream: m.method == "subscriptions/listen"})
	defer end()
	rep := newReply(w, accepts(r, "text/event-stream"))
	rep.stopping = func() bool { return s.ctx.Err() != nil }
	rep.calls = calls
	rep.stripCaching = !isStateless(r) && (strings.HasSuffix(m.method, "/list") || m.method == "resources/read")
	stop := func() {}
	if m.isCall() && m.method != "initialize" { // initialize is answered at once, with its own headers
		rep.call = m.method != "subscriptions/listen"
		stop = rep.heartbeats(s.cfg.Heartbeat)
	}
	handler.ServeHTTP(rep, inner)
	stop()
	rep.finish(m)
}

// route returns the SDK's handler for a request. If the request belongs to a session, route marks
// the session as in use until release is called and returns its open calls.
func (s *Server) route(r *http.Request) (handler *mcp.StreamableHTTPHandler, open *calls, release func()) {
	id := r.Header.Get(sessionHeader)
	if id == "" || isStateless(r) {
		return s.stateless, nil, func() {}
	}
	open, release = s.sessions.use(id, s.user(r))
	return s.stateful, open, release
}

// serveBatch answers the messages of a batch in one JSON array. The SDK refuses batches of protocol
// versions from 2025-06-18 on, which have none.
func (s *Server) serveBatch(w http.ResponseWriter, r *http.Request, msgs []message) {
	handler, calls, release := s.route(r)
	defer release()
	var valid, answers []json.RawMessage
	seen := make(map[string]bool)
	for _, m := range msgs {
		if m.err == nil && m.isCall() {
			if seen[string(m.id)] {
				m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, "invalid request: the id is used twice in the batch")
			}
			seen[string(m.id)] = true
		}
		switch {
		case m.err == nil:
			valid = append(valid, m.raw)
			defer calls.track(m)()
		case !m.isNotification():
			answers = append(answers, encodeError(m.id, m.err))
		}
	}
	rep := newReply(w, false)
	rep.batch, rep.messages, rep.calls = true, answers, calls
	if len(valid) > 0 {
		body, err := json.Marshal(valid)
		if err != nil {
			writeError(w, http.StatusBadRequest, nil, parseError(err))
			return
		}
		inner, end := s.innerRequest(w, r, body, &exchange{})
		defer end()
		handler.ServeHTTP(rep, inner)
	}
	rep.finish(message{})
}

// innerRequest returns the request for the SDK, which is strict about Accept and Content-Type. Call
// end when the answer has been sent.
func (s *Server) innerRequest(w http.ResponseWriter, r *http.Request, body []byte, e *exchange) (inner *http.Request, end func()) {
	ctx, cancel := context.WithCancel(r.Context())
	e.ctx, e.scope = ctx, share.NewScope(func() {
		cancel()
		http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)) // not every ResponseWriter has one
	})
	key, sent := s.exchanges.open(e)
	inner = r.WithContext(ctx)
	inner.Header = r.Header.Clone()
	inner.Header.Set("Accept", "application/json, text/event-stream")
	inner.Header.Set("Content-Type", "application/json")
	inner.Header.Del("Last-Event-ID") // only for GET
	inner.Header[exchangeHeader] = []string{key}
	inner.Body = io.NopCloser(bytes.NewReader(body))
	inner.ContentLength = int64(len(body))
	return inner, func() {
		sent()
		cancel()
	}
}

func (s *Server) serveDELETE(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(sessionHeader)
	if id == "" {
		writeError(w, http.StatusBadRequest, nil, rpcErrorf(jsonrpc.CodeInvalidRequest, "DELETE needs the %s header", sessionHeader))
		return
	}
	s.sessions.cancelCalls(id, s.user(r))
	rep := newReply(w, false)
	s.stateful.ServeHTTP(rep, r)
	rep.finish(message{})
}

func (s *Server) user(r *http.Request) string {
	return userID(auth.TokenInfoFromContext(r.Context()))
}

// accepts reports whether Accept names the media type. A wildcard is not enough: curl and n8n send
// one and want JSON.
func accepts(r *http.Request, mediaType string) bool {
	for _, value := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(value, ",") {
			t, params, err := mime.ParseMediaType(part)
			if err != nil || t != mediaType {
				continue
			}
			if q, err := strconv.ParseFloat(params["q"], 64); err != nil || q != 0 {
				return true
			}
		}
	}
	return false
}

func refuseMethod(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	writeError(w, http.StatusMethodNotAllowed, nil, rpcErrorf(jsonrpc.CodeInvalidRequest, "method not allowed; use %s", allow))
}

// writeUnavailable asks the client to try again later.
func writeUnavailable(w http.ResponseWriter, id json.RawMessage, message string) {
	w.Header().Set("Retry-After", "10")
	writeError(w, http.StatusServiceUnavailable, id, rpcErrorf(codeUnavailable, "%s", message))
}

func writeError(w http.ResponseWriter, status int, id json.RawMessage, e *jsonrpc.Error) {
	writeJSON(w, status, encodeError(id, e))
}

func writeJSON(w http.ResponseWriter, status int, data []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	w.Write(data) // an error means that the client is gone
}
