package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// codeServerError is JSON-RPC's code for what an implementation refuses before it has read the message.
const codeServerError = -32000

// writeError answers with message: as a JSON-RPC error on the MCP endpoint, whose clients parse
// nothing else, and as one line of text elsewhere.
func writeError(w http.ResponseWriter, r *http.Request, status int, message string) {
	w.Header().Set("Cache-Control", "no-store")
	if !isMCP(r) {
		http.Error(w, message, status)
		return
	}
	type rpcError struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	writeJSON(w, status, struct {
		JSONRPC string   `json:"jsonrpc"`
		ID      any      `json:"id"`
		Error   rpcError `json:"error"`
	}{"2.0", nil, rpcError{codeServerError, message}})
}

func isMCP(r *http.Request) bool {
	return r.URL.Path == "/mcp" || strings.HasPrefix(r.URL.Path, "/mcp/")
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.Encode(v) // an error is the client's going away
}

// MCPBodyLimit is what the largest upload needs as a base64 argument, line breaks and escapes included.
func MCPBodyLimit(maxUpload int64) int64 { return maxUpload + maxUpload/2 + 1<<20 }

// limitBody refuses a body that says it is too large before reading any of it, and stops one that does not say.
func limitBody(limit int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > limit {
			writeError(w, r, http.StatusRequestEntityTooLarge, fmt.Sprintf(
				"the request is larger than %d bytes; put large files up by the link that upload_file gives when it is called without content (SANDBOX_MAX_UPLOAD_BYTES)", limit))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		next.ServeHTTP(w, r)
	})
}

// bodyTime is how long the body of a request may take whose sender nobody knows yet, or which is a few fields.
const bodyTime = 30 * time.Second

// hurry bounds the time for a request's body. Without it, who announces one and never sends it holds on to a connection for good, be
// the request refused or not: the server waits for the body before it lets go. It returns the request to go on with: the server looks at
// the one it has made, to see how much of its body is left.
func hurry(w http.ResponseWriter, r *http.Request) *http.Request {
	if r.ContentLength == 0 {
		return r
	}
	setBodyTime(w, time.Now().Add(bodyTime))
	timed := *r
	timed.Body = &timedBody{r.Body, w}
	return &timed
}

// takeTime lifts hurry's bound for those who may send as long as it takes.
func takeTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b, ok := r.Body.(*timedBody); ok {
			setBodyTime(w, time.Time{})
			r.Body = b.ReadCloser
		}
		next.ServeHTTP(w, r)
	})
}

func setBodyTime(w http.ResponseWriter, until time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(until) // where it is not supported there is no connection to hold
}

// timedBody lifts the bound when the body is there: the server goes on reading, to notice that the client leaves, and would take the
// end of the time for that.
type timedBody struct {
	io.ReadCloser
	w http.ResponseWriter
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		setBodyTime(b.w, time.Time{})
	}
	return n, err
}
