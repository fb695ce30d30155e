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
)

const (
	versionHeader = "Mcp-Protocol-Version"
	sessionHeader = "Mcp-Session-Id"

	// codeSessionNotFound is what the other SDKs answer for a session they do not know.
	codeSessionNotFound = -32001
	// codeUnavailable asks the client to come back later.
	codeUnavailable = -32000
)

func (s *Server) serveMCP(w http.ResponseWriter, r *http.Request) {
	if s.ctx.Err() != nil {
		writeError(w, http.StatusServiceUnavailable, nil, rpcErrorf(codeUnavailable, "the server is shutting down"))
		return
	}
	stateless := r.Header.Get(versionHeader) >= versionStateless
	switch {
	case r.Method == http.MethodPost:
		s.servePOST(w, r)
	case r.Method == http.MethodGet && !stateless:
		s.serveEvents(w, r)
	case r.Method == http.MethodDelete && !stateless:
		s.serveDELETE(w, r)
	default:
		allow := "GET, POST, DELETE"
		if stateless {
			allow = "POST"
		}
		w.Header().Set("Allow", allow)
		writeError(w, http.StatusMethodNotAllowed, nil, rpcErrorf(jsonrpc.CodeInvalidRequest, "method not allowed; use %s", allow))
	}
}

// servePOST takes one message, or a batch of them, to the SDK and brings back what it answers: as an event
// stream to a client that asked for one, else as JSON.
func (s *Server) servePOST(w http.ResponseWriter, r *http.Request) {
	s.log.Info("[HTTP] MCP request from " + r.RemoteAddr)
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		writeError(w, http.StatusUnsupportedMediaType, nil, rpcErrorf(jsonrpc.CodeInvalidRequest, "the body must not be compressed"))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	body, done, status, rerr := s.readBody(w, r, cancel)
	if rerr != nil {
		writeError(w, status, nil, rerr)
		return
	}
	defer done()
	s.log.Debug(fmt.Sprintf("[HTTP] Request body: %d bytes", len(body)))

	msgs, batch, rerr := parse(body)
	if rerr != nil {
		writeError(w, http.StatusBadRequest, nil, rerr)
		return
	}
	version := r.Header.Get(versionHeader)
	for i := range msgs {
		s.log.Info(fmt.Sprintf("[HTTP] Parsed JSON-RPC request: method=%s, id=%s", printable(msgs[i].method), logID(msgs[i])))
		s.logIncoming(msgs[i])
		checkMethod(&msgs[i], version, batch)
	}
	if batch {
		s.serveBatch(w, r, msgs)
		return
	}
	m := msgs[0]
	switch {
	case m.err != nil && m.isNotification():
		w.WriteHeader(http.StatusAccepted) // nothing can be answered to a notification
	case m.err != nil:
		writeError(w, errorStatus(m.err, version), m.id, m.err)
	default:
		s.forward(w, r, m, body)
	}
	s.log.Info("[HTTP] Sending response for method=" + printable(m.method))
}

// checkMethod refuses what the SDK would answer with a text.
func checkMethod(m *message, version string, batch bool) {
	if m.err != nil || m.method == "" {
		return
	}
	info, known := lookupMethod(m.method)
	notification := strings.HasPrefix(m.method, "notifications/")
	switch {
	case version >= versionStateless:
		// The SDK answers these in JSON, with the status that version asks for.
	case notification && m.id != nil:
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, "invalid request: a notification has no id")
	case notification:
		switch m.method {
		case "notifications/initialized", "notifications/cancelled", "notifications/roots/list_changed", "notifications/progress":
		default:
			m.err = rpcErrorf(jsonrpc.CodeMethodNotFound, "method not found")
		}
	case !known || info.stateless:
		m.err = rpcErrorf(jsonrpc.CodeMethodNotFound, "method not found: %s", printable(m.method))
		if m.id == nil {
			return // it may well be a notification of some other version
		}
	case m.id == nil:
		m.method = "" // not a notification, however it looks: it is owed an answer
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, `invalid request: "id" must be a string or an integer`)
	case batch && m.method == "initialize":
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, "invalid request: initialize must not be in a batch")
	}
}

// errorStatus is the HTTP status that goes with an error. Up to 2025-11-25 a request that was understood is answered
// with 200, whatever the answer.
func errorStatus(e *rpcError, version string) int {
	switch e.Code {
	case jsonrpc.CodeMethodNotFound:
		if version >= versionStateless {
			return http.StatusNotFound
		}
		return http.StatusOK
	case jsonrpc.CodeInvalidParams:
		if version >= versionStateless {
			return http.StatusBadRequest
		}
		return http.StatusOK
	}
	return http.StatusBadRequest
}

// forward gives one message to the handler that is right for it.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, m message, body []byte) {
	session := r.Header.Get(sessionHeader)
	handler := http.Handler(s.stateless)
	rep := newReply(w, accepts(r, "text/event-stream"))
	rep.stopping = func() bool { return s.ctx.Err() != nil }
	switch {
	case r.Header.Get(versionHeader) >= versionStateless:
		if m.method == "subscriptions/listen" { // it lasts until the client goes
			stream, closed, ok := s.openStream(w, r, m.id)
			if !ok {
				return
			}
			defer closed()
			r = r.WithContext(stream)
		}
	case session != "":
		handler = s.stateful
		defer s.sessions.use(session, s.user(r))()
		if rep.calls = s.sessions.callsOf(session, s.user(r)); rep.calls != nil {
			defer rep.calls.take(m)()
		}
	case m.method == "initialize":
		release, ok := s.sessions.reserve(s.user(r))
		if !ok {
			w.Header().Set("Retry-After", "10")
			writeError(w, http.StatusServiceUnavailable, m.id, rpcErrorf(codeUnavailable, "too many sessions; end one, or try again later"))
			return
		}
		defer release()
		handler = s.stateful
	}

	inner, closed := s.innerRequest(w, r, body)
	defer closed()
	rep.newest = r.Header.Get(versionHeader) >= versionStateless
	stop := func() {}
	if m.isCall() && m.method != "initialize" {
		// Its answer may take long. That of initialize comes at once, with headers of its own.
		rep.call = m.method != "subscriptions/listen"
		stop = rep.heartbeats(s.cfg.Heartbeat)
	}
	handler.ServeHTTP(rep, inner)
	stop()
	rep.finish(m)
}

// serveBatch answers each message of a batch, in one JSON array. Protocol versions from 2025-06-18 on have no batches;
// the SDK says so.
func (s *Server) serveBatch(w http.ResponseWriter, r *http.Request, msgs []message) {
	var valid []json.RawMessage
	var answers []json.RawMessage
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
		case !m.isNotification():
			answers = append(answers, encodeError(m.id, m.err))
		}
	}
	rep := newReply(w, false)
	rep.batch, rep.messages = true, answers
	if len(valid) > 0 {
		body, err := json.Marshal(valid)
		if err != nil {
			writeError(w, http.StatusBadRequest, nil, parseError(err))
			return
		}
		inner, closed := s.innerRequest(w, r, body)
		defer closed()
		handler := http.Handler(s.stateless)
		if id := r.Header.Get(sessionHeader); id != "" && r.Header.Get(versionHeader) < versionStateless {
			handler = s.stateful
			defer s.sessions.use(id, s.user(r))()
			if rep.calls = s.sessions.callsOf(id, s.user(r)); rep.calls != nil {
				for _, m := range msgs {
					if m.err == nil {
						defer rep.calls.take(m)()
					}
				}
			}
		}
		handler.ServeHTTP(rep, inner)
	}
	rep.finish(message{})
}

// innerRequest is the request as the SDK wants it. Plain callers send any Accept and any Content-Type.
func (s *Server) innerRequest(w http.ResponseWriter, r *http.Request, body []byte) (*http.Request, func()) {
	ctx, cancel := context.WithCancel(r.Context())
	key, sent := s.exchanges.open(ctx, func() {
		cancel()
		http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)) // not every ResponseWriter has one
	})
	closed := func() {
		sent()
		cancel()
	}
	inner := r.WithContext(ctx)
	inner.Header = r.Header.Clone()
	inner.Header.Set("Accept", "application/json, text/event-stream")
	inner.Header.Set("Content-Type", "application/json")
	inner.Header.Del("Last-Event-ID") // has a meaning for GET alone
	inner.Header[exchangeHeader] = []string{key}
	inner.Body = io.NopCloser(bytes.NewReader(body))
	inner.ContentLength = int64(len(body))
	return inner, closed
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

// accepts reports whether the client names the media type in Accept. A wildcard is not enough: curl and n8n send one
// and want JSON.
func accepts(r *http.Request, mediaType string) bool {
	for _, value := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(value, ",") {
			t, params, err := mime.ParseMediaType(part)
			if err != nil || t != mediaType {
				continue
			}
			if q, err := strconv.ParseFloat(params["q"], 64); err == nil && q == 0 {
				continue
			}
			return true
		}
	}
	return false
}

func writeError(w http.ResponseWriter, status int, id json.RawMessage, e *rpcError) {
	writeJSON(w, status, encodeError(id, e))
}

func writeJSON(w http.ResponseWriter, status int, data []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	w.Write(data) // the client may be gone; nobody is left to tell
}
