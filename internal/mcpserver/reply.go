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

// writeTimeout bounds one write to a client that does not read. A stream cannot have a limit on the
// whole response.
const writeTimeout = 30 * time.Second

// largeAnswer is the size from which an answer is not sent as an event. The Python SDK refuses
// events over 1 MiB.
const largeAnswer = 512 << 10

// reply is the ResponseWriter that the SDK writes to. It passes an event stream through, with
// heartbeats, if the client asked for one. It keeps everything else until finish: the responses of
// an event stream become the JSON body, and a text becomes a JSON-RPC error.
type reply struct {
	w         http.ResponseWriter
	rc        *http.ResponseController
	streaming bool        // the client asked for an event stream
	header    http.Header // set by the SDK; copied when the headers are sent

	// Set before use.
	call         bool              // one answer is expected; if it is large and comes first, it becomes the JSON body
	calls        *calls            // knows which requests the client has cancelled; may be nil
	stopping     func() bool       // whether the server is stopping
	stripCaching bool              // the answer has fields that are newer than the client
	batch        bool              // finish writes an array
	messages     []json.RawMessage // answers; finish writes them

	mu       sync.Mutex
	status   int
	live     bool // the headers of an event stream were sent
	late     bool // the SDK set an error status after that; what it writes must become an event
	silent   bool // a response was dropped, because the request was cancelled
	answered bool // a response was sent on the event stream
	buf      bytes.Buffer
	ticker   *time.Timer // nil: no heartbeats
}

var (
	_ http.ResponseWriter = (*reply)(nil)
	_ http.Flusher        = (*reply)(nil)
)

func newReply(w http.ResponseWriter, streaming bool) *reply {
	return &reply{
		w: w, rc: http.NewResponseController(w), streaming: streaming, header: make(http.Header),
		stopping: func() bool { return false },
	}
}

func (r *reply) Header() http.Header { return r.header }

func (r *reply) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeaderLocked(status)
}

func (r *reply) writeHeaderLocked(status int) {
	switch {
	case r.live:
		r.late = r.late || status != http.StatusOK && r.status == 0
		r.status = status
	case r.status == 0:
		r.status = status
		if !r.call && r.isStreamLocked() {
			r.goLiveLocked()
		}
	}
}

// isStreamLocked reports whether the SDK has begun an event stream and the client asked for one.
func (r *reply) isStreamLocked() bool {
	return r.streaming && r.status == http.StatusOK && r.hasType("text/event-stream")
}

func (r *reply) hasType(mediaType string) bool {
	return strings.HasPrefix(r.header.Get("Content-Type"), mediaType)
}

func (r *reply) goLiveLocked() {
	h := r.w.Header()
	if r.status != 0 { // before that, the SDK may still be setting r.header
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
	var err error
	switch {
	case r.live && r.late:
		if err = r.sendEventLocked(p); err == nil {
			err = r.rc.Flush()
		}
	case r.live:
		if r.isWantedLocked(p) {
			err = r.sendLocked(p)
		}
	default:
		r.buf.Write(p)
		if r.hasType("text/event-stream") {
			r.collectLocked()
		}
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (r *reply) sendEventLocked(data []byte) error {
	return r.sendLocked([]byte("event: message\ndata: " + string(data) + "\n\n"))
}

func (r *reply) sendLocked(p []byte) error {
	r.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every ResponseWriter has one
	_, err := r.w.Write(p)
	return err
}

// Flush sends what was written to an event stream.
func (r *reply) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live {
		r.rc.Flush() // an error means that the client is gone, which the next Write reports
	}
}

// heartbeats sends a comment at every interval, so that no proxy or client gives up on a silent
// stream. The first one starts the stream. A client that did not ask for a stream gets none, since
// its status depends on the answer. After stop returns, no more comments are sent.
func (r *reply) heartbeats(interval time.Duration) (stop func()) {
	if !r.streaming {
		return func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ticker = time.AfterFunc(interval, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ticker != nil {
			r.beatLocked()
			r.ticker.Reset(interval)
		}
	})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ticker.Stop()
		r.ticker = nil
	}
}

func (r *reply) beatLocked() {
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

// collectLocked moves the responses of complete events from buf to messages. It drops
// notifications, which the client cannot receive.
func (r *reply) collectLocked() {
	for {
		event, rest, ok := bytes.Cut(r.buf.Bytes(), []byte("\n\n"))
		if !ok {
			return
		}
		data := eventData(event)
		if _, ok := responseID(data); ok && r.isWantedLocked(event) {
			r.messages = append(r.messages, bytes.Clone(data))
		}
		r.buf.Next(r.buf.Len() - len(rest))
	}
}

// isWantedLocked reports whether the client wants an event: any but the response to a cancelled
// request.
func (r *reply) isWantedLocked(event []byte) bool {
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

// eventData returns the data of an event, which the SDK writes in one line.
func eventData(event []byte) []byte {
	for line := range bytes.Lines(event) {
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			return bytes.TrimRight(data, "\n")
		}
	}
	return nil
}

// responseID returns the id of a response, and false for a notification. It does not parse a large
// result.
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

// finish sends what was kept, as the answer to m, after the SDK has returned.
func (r *reply) finish(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live {
		if r.call && !r.answered && !r.silent && r.stopping() {
			_ = r.sendEventLocked(encodeError(m.id, stoppingError())) // the client may be gone
		}
		r.rc.SetWriteDeadline(time.Time{}) // the connection may serve another request
		return
	}
	for _, name := range []string{sessionHeader, "Allow"} {
		if v := r.header.Get(name); v != "" {
			r.w.Header().Set(name, v)
		}
	}
	switch {
	case r.status >= 400 && !r.hasType("application/json"):
		writeError(r.w, r.status, m.id, textError(r.status, r.buf.String()))
	case r.batch && len(r.messages) > 0:
		data, err := json.Marshal(r.messages)
		if err != nil {
			data = encodeError(nil, rpcErrorf(jsonrpc.CodeInternalError, "internal error"))
		}
		writeJSON(r.w, http.StatusOK, data)
	case len(r.messages) > 0:
		answer := r.messages[0]
		if r.stripCaching {
			answer = withoutCaching(answer)
		}
		writeJSON(r.w, http.StatusOK, answer)
	case r.hasType("application/json"):
		writeJSON(r.w, r.status, r.buf.Bytes())
	case r.silent:
		r.w.WriteHeader(http.StatusAccepted) // no answer follows, but HTTP needs a status
	case m.isCall() && r.stopping():
		writeError(r.w, http.StatusServiceUnavailable, m.id, stoppingError())
	case m.isCall():
		writeError(r.w, http.StatusServiceUnavailable, m.id,
			rpcErrorf(codeUnavailable, "the session ended before the request was answered"))
	case r.status != 0:
		r.w.WriteHeader(r.status)
	default:
		r.w.WriteHeader(http.StatusAccepted)
	}
}

// stoppingError is the answer to a call that the server's shutdown has ended.
func stoppingError() *jsonrpc.Error {
	return rpcErrorf(codeUnavailable, "the server is stopping and has ended this call; connect again in a moment (files are kept)")
}

// withoutCaching removes the fields of the newest protocol version, which the SDK sends to every
// client.
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

// textError returns the JSON-RPC error for a text that the SDK writes with an HTTP status.
func textError(status int, text string) *jsonrpc.Error {
	text = untrusted.Clip(strings.TrimSpace(text), 300)
	if text == "" {
		text = http.StatusText(status)
	}
	code := int64(jsonrpc.CodeInvalidRequest)
	switch {
	case status == http.StatusNotFound:
		code = codeSessionNotFound
	case status >= 500:
		code = jsonrpc.CodeInternalError
	}
	return rpcErrorf(code, "%s", text)
}
