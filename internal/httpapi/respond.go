package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// codeServerError is JSON-RPC's code for a request that is refused before its message is read.
const codeServerError = -32000

const internalError = "internal error; the server's log has the details"

// writeError answers with message. It sends a JSON-RPC error at the MCP endpoint, where clients
// parse nothing else, and a line of text elsewhere.
func writeError(w http.ResponseWriter, r *http.Request, status int, message string) {
	w.Header().Set("Cache-Control", "no-store")
	if r.URL.Path != "/mcp" && !strings.HasPrefix(r.URL.Path, "/mcp/") {
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

// writeRetry is writeError that closes the connection and asks to try again in 10 seconds.
func writeRetry(w http.ResponseWriter, r *http.Request, status int, message string) {
	w.Header().Set("Retry-After", "10")
	w.Header().Set("Connection", "close")
	writeError(w, r, status, message)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.Encode(v) // an error means that the client is gone
}

// MCPBodyLimit is the size of the largest upload as a base64 argument, with line breaks and
// escapes.
func MCPBodyLimit(maxUpload int64) int64 { return maxUpload + maxUpload/2 + 1<<20 }

// limitBody refuses a body with a Content-Length above the limit, and stops reading other bodies at
// the limit.
func limitBody(limit int64, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > limit {
			writeError(w, r, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request is larger than %d bytes; "+
				"upload large files to the link that upload_file returns when it is called without content (SANDBOX_MAX_UPLOAD_BYTES)", limit))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
		next.ServeHTTP(w, r)
	})
}

// bodyTime is how long a small body, or one of an unknown sender, may take.
const bodyTime = 30 * time.Second

// withBodyTimeout bounds the time for a request's body. The server waits for a body before it
// closes the connection, so a client could hold one by never sending it. The result is a copy: the
// server looks at its own request to see whether the body was read.
func withBodyTimeout(w http.ResponseWriter, r *http.Request) *http.Request {
	if r.ContentLength == 0 {
		return r
	}
	setReadDeadline(w, time.Now().Add(bodyTime))
	timed := *r
	timed.Body = &timedBody{r.Body, w}
	return &timed
}

// withoutBodyTimeout lifts that bound.
func withoutBodyTimeout(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b, ok := r.Body.(*timedBody); ok {
			setReadDeadline(w, time.Time{})
			r.Body = b.ReadCloser
		}
		next.ServeHTTP(w, r)
	})
}

func setReadDeadline(w http.ResponseWriter, t time.Time) {
	_ = http.NewResponseController(w).SetReadDeadline(t) // a writer without deadlines has no connection
}

// timedBody lifts the bound at the end of the body: the server continues to read to notice that the
// client leaves, and would take a passed deadline for that.
type timedBody struct {
	io.ReadCloser
	w http.ResponseWriter
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		setReadDeadline(b.w, time.Time{})
	}
	return n, err
}
