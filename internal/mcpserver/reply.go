package mcpserver

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"mcp-code-sandbox/internal/untrusted"
)

// writeTimeout bounds one write to a client that does not read. It takes the place of a limit on the whole
// response, which a stream cannot have.
const writeTimeout = 30 * time.Second

// largeAnswer is how large an answer may be that is sent as an event. The Python SDK refuses events of more than 1 MiB.
const largeAnswer = 512 << 10

// reply stands between the SDK and the client. To a client that asked for it, an event stream goes straight through, with
// heartbeats. Everything else is kept until [reply.finish]: of an event stream, just the responses, which become the JSON
// body; of a text, the reason, which becomes a JSON-RPC error.
type reply struct {
	w         http.ResponseWriter
	rc        *http.ResponseController
	streaming bool        // the client asked for an event stream
	header    http.Header // what the SDK sets; copied when the headers go out

	// batch makes finish write an array. messages may hold answers already. newest says that the client speaks the newest
	// protocol version. call says that one answer is to come: if it is large, and nothing was sent before it, it becomes the JSON
	// body. calls knows which requests the client has cancelled; it may be nil. All are set before use.
	newest   bool
	call     bool
	calls    *calls
	stopping func() bool // the server is
	batch    bool
	messages []json.RawMessage

	mu     sync.Mutex
	status int
	live   bool // the headers of an event stream are out
	late   bool // the SDK wanted another status afterwards; what it writes must still become an event
	silent bool // a response was left out, because the request has been cancelled
	buf    bytes.Buffer

	answered bool // a response has gone out on the event stream
}

var (
	_ http.ResponseWriter = (*reply)(nil)
	_ http.Flusher        = (*reply)(nil)
)

func newReply(w http.ResponseWriter, streaming bool) *reply {
	return &reply{stopping: func() bool { return false }, w: w, rc: http.NewResponseController(w), streaming: streaming, header: make(http.Header)}
}

func (r *reply) Header() http.Header { return r.header }

func (r *reply) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeaderLocked(status)
}

func (r *reply) writeHeaderLocked(status int) {
	if r.live {
		r.late = r.late || status != http.StatusOK && r.status == 0
		r.status = status
		return
	}
	if r.status != 0 {
		return
	}
	r.status = status
	if !r.call && r.isStreamLocked() {
		r.goLiveLocked()
	}
}

// isStreamLocked reports whether the SDK has begun an event stream, and the client asked for one.
func (r *reply) isStreamLocked() bool {
	return r.streaming && r.status == http.StatusOK && r.isEventStream()
}

func (r *reply) isEventStream() bool {
	return strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream")
}

func (r *reply) goLiveLocked() {
	h := r.w.Header()
	if r.status != 0 { // before, the SDK may still be setting r.header
		maps.Copy(h, r.header)
	}
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	r.live = true
	r.w.WriteHeader(http.StatusOK)
}

func (r *reply) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == 0 {
		r.writeHeaderLocked(http.StatusOK)
	}
	if !r.live && r.isStreamLocked() && !isLargeAnswer(p) {
		r.goLiveLocked()
	}
	switch {
	case r.live && r.late:
		if err := r.sendLocked([]byte("event: message\ndata: " + string(p) + "\n\n")); err != nil {
			return 0, err
		}
		return len(p), r.rc.Flush()
	case r.live:
		if !r.wantedLocked(p) {
			return len(p), nil
		}
		if err := r.sendLocked(p); err != nil {
			return 0, err
		}
	case r.isEventStream():
		r.buf.Write(p)
		r.collectLocked()
	default:
		r.buf.Write(p)
	}
	return len(p), nil
}

func (r *reply) sendLocked(p []byte) error {
	r.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every ResponseWriter has one
	_, err := r.w.Write(p)
	return err
}

// Flush sends what has been written, where it is not kept.
func (r *reply) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live {
		r.rc.Flush() // best effort; a client that is gone is noticed elsewhere
	}
}

// heartbeats sends a comment at every interval, so that no proxy or client takes a silent stream for dead. The first one
// starts the stream if need be. stop returns when no more will be sent. A client that did not ask for a stream gets none:
// its status must fit its answer, which is not known yet.
func (r *reply) heartbeats(interval time.Duration) (stop func()) {
	if !r.streaming {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				r.beat()
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func (r *reply) beat() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.live {
		if r.status != 0 && !r.isStreamLocked() || len(r.messages) > 0 {
			return // it will not be a stream
		}
		r.goLiveLocked()
	}
	if r.sendLocked([]byte(": heartbeat\n\n")) == nil {
		r.rc.Flush()
	}
}

// collectLocked takes the whole events out of buf and keeps the responses among them. Progress that a client
// cannot receive is dropped here.
func (r *reply) collectLocked() {
	for {
		event, rest, ok := bytes.Cut(r.buf.Bytes(), []byte("\n\n"))
		if !ok {
			return
		}
		data := eventData(event)
		if _, ok := responseID(data); ok && r.wantedLocked(event) {
			r.messages = append(r.messages, bytes.Clone(data))
		}
		r.buf.Next(r.buf.Len() - len(rest))
	}
}

// wantedLocked reports whether the client still wants an event of the SDK's: all but the response to a cancelled request.
func (r *reply) wantedLocked(event []byte) bool {
	id, ok := responseID(eventData(event))
	r.answered = r.answered || ok
	if !ok || r.calls == nil {
		return true
	}
	wanted, sent := r.calls.answer(id)
	sent()
	r.silent = r.silent || !wanted
	return wanted
}

func isLargeAnswer(event []byte) bool {
	if len(event) < largeAnswer {
		return false
	}
	_, ok := responseID(eventData(event))
	return ok
}

// eventData is the data of an event, which the SDK writes in one line.
func eventData(event []byte) []byte {
	for line := range bytes.Lines(event) {
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			return bytes.TrimRight(data, "\n")
		}
	}
	return nil
}

// responseID tells the SDK's responses from its notifications without parsing all of a large result.
func responseID(data []byte) (id json.RawMessage, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, false
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, false
		}
		switch key {
		case "result", "error":
			return id, true
		case "method":
			return nil, false
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return nil, false
		}
		if key == "id" {
			id = value
		}
	}
	return nil, false
}

// finish writes what has been kept, as the answer to m. The SDK has returned.
func (r *reply) finish(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live {
		if r.call && !r.answered && !r.silent && r.stopping() {
			_ = r.sendLocked([]byte("event: message\ndata: " + string(encodeError(m.id, stoppingError())) + "\n\n")) // the client may be gone
		}
		r.rc.SetWriteDeadline(time.Time{}) // the connection may serve another request
		return
	}
	contentType := r.header.Get("Content-Type")
	for _, name := range []string{sessionHeader, "Allow"} {
		if v := r.header.Get(name); v != "" {
			r.w.Header().Set(name, v)
		}
	}
	switch {
	case r.status >= 400 && !strings.HasPrefix(contentType, "application/json"):
		writeError(r.w, r.status, m.id, textError(r.status, r.buf.String()))
	case r.batch && len(r.messages) > 0:
		data, err := json.Marshal(r.messages)
		if err != nil {
			data = encodeError(nil, rpcErrorf(jsonrpc.CodeInternalError, "internal error"))
		}
		writeJSON(r.w, http.StatusOK, data)
	case len(r.messages) > 0:
		answer := r.messages[0]
		if !r.newest && (strings.HasSuffix(m.method, "/list") || m.method == "resources/read") {
			answer = withoutCaching(answer)
		}
		writeJSON(r.w, http.StatusOK, answer)
	case strings.HasPrefix(contentType, "application/json"):
		writeJSON(r.w, r.status, r.buf.Bytes())
	case r.silent:
		r.w.WriteHeader(http.StatusAccepted) // nothing follows, but HTTP needs an answer
	case m.isCall() && r.stopping():
		writeError(r.w, http.StatusServiceUnavailable, m.id, stoppingError())
	case m.isCall():
		// The session ended before the answer came. If it was the client who left, nobody reads this.
		writeError(r.w, http.StatusServiceUnavailable, m.id, rpcErrorf(codeUnavailable, "the session ended before the request was answered"))
	case r.status != 0:
		r.w.WriteHeader(r.status)
	default:
		r.w.WriteHeader(http.StatusAccepted)
	}
}

// stoppingError is the answer to a call that the end of the server has ended.
func stoppingError() *rpcError {
	return rpcErrorf(codeUnavailable, "the server is stopping and has ended this call; connect again in a moment (files are kept)")
}

// withoutCaching takes the fields out of a list, or of what was read, that came with the newest protocol version and that the SDK sends to all.
func withoutCaching(answer json.RawMessage) json.RawMessage {
	var msg struct {
		Version json.RawMessage            `json:"jsonrpc"`
		ID      json.RawMessage            `json:"id"`
		Result  map[string]json.RawMessage `json:"result"`
	}
	if json.Unmarshal(answer, &msg) != nil || msg.Result == nil {
		return answer
	}
	for _, name := range []string{"ttlMs", "cacheScope", "resultType"} {
		delete(msg.Result, name)
	}
	if clean, err := json.Marshal(msg); err == nil {
		return clean
	}
	return answer
}

// textError is the JSON-RPC error for what the SDK says as text with an HTTP status.
func textError(status int, text string) *rpcError {
	text = untrusted.Clip(strings.TrimSpace(text), 300)
	if text == "" {
		text = http.StatusText(status)
	}
	switch {
	case status == http.StatusNotFound:
		return rpcErrorf(codeSessionNotFound, "%s", text)
	case status >= 500:
		return rpcErrorf(jsonrpc.CodeInternalError, "%s", text)
	}
	return rpcErrorf(jsonrpc.CodeInvalidRequest, "%s", text)
}
