package httpapi

import (
	"bytes"
	"net/http"
	"sync"
)

// closeAmbiguous closes the connection after the answer to a request with both Transfer-Encoding
// and Content-Length: a proxy may see two requests where this server sees one (RFC 9112, 6.1).
// net/http drops Content-Length silently, so head keeps the bytes as they arrive.
func closeAmbiguous(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connOf(r); c != nil && len(r.TransferEncoding) > 0 && !c.head.isPlain(r) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// head keeps the bytes of a request's head.
type head struct {
	mu   sync.Mutex
	kept []byte
	done bool // the head has ended, or is longer than any that the server accepts
}

// maxHead is more than the server reads of a head.
const maxHead = maxHeaderBytes + 8<<10

func (h *head) write(p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.done {
		from := max(0, len(h.kept)-3)
		h.kept = append(h.kept, p...)
		h.done = bytes.Contains(h.kept[from:], []byte("\r\n\r\n")) || len(h.kept) > maxHead
	}
}

// reset starts the next request.
func (h *head) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept, h.done = nil, false
}

// isPlain reports whether the bytes are the request's head and have no Content-Length. A pipelined
// request, sent before the last answer, was not kept and is not plain.
func (h *head) isPlain(r *http.Request) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := []byte(r.Method + " " + r.RequestURI + " " + r.Proto + "\r\n")
	// The server reads one byte before the request, to notice that a client leaves.
	if !bytes.HasPrefix(h.kept, first) && !bytes.HasPrefix(h.kept, first[1:]) {
		return false
	}
	lines, _, ended := bytes.Cut(h.kept, []byte("\r\n\r\n"))
	for line := range bytes.SplitSeq(lines, []byte("\n")) {
		name, _, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(bytes.TrimSpace(name), []byte("Content-Length")) {
			return false
		}
	}
	return ended
}
