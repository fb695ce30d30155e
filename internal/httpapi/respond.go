package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
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
