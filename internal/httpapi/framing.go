package httpapi

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
)

// A request with both Transfer-Encoding and Content-Length may be two requests to a proxy and one
// to this server, or the reverse. net/http takes the first and drops the second without a word, so
// the head is looked at as it arrives, and the connection of such a request is closed after the
// answer (RFC 9112, 6.1).

// headConn keeps what arrives until the end of a request's head.
type headConn struct {
	net.Conn

	mu   sync.Mutex
	head []byte
	done bool // with this head: it has ended, or is longer than any that is served
}

// maxHead is more than the server reads of a head.
const maxHead = maxHeaderBytes + 8<<10

func (c *headConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.done {
		from := max(0, len(c.head)-3)
		c.head = append(c.head, p[:n]...)
		c.done = bytes.Contains(c.head[from:], []byte("\r\n\r\n")) || len(c.head) > maxHead
	}
	return n, err
}

// next begins with the next request.
func (c *headConn) next() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.head, c.done = nil, false
}

// ReadFrom keeps sendfile.
func (c *headConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// CloseWrite is for the server, which lets clients read the answer to the end before it closes.
func (c *headConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// isPlain reports whether the head that was kept is the request's, and has no Content-Length. What
// was sent ahead of time, before the last answer, was not kept and is not plain.
func (c *headConn) isPlain(r *http.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := []byte(r.Method + " " + r.RequestURI + " " + r.Proto + "\r\n")
	// The server reads a byte ahead, to notice that a client leaves.
	if !bytes.HasPrefix(c.head, first) && !bytes.HasPrefix(c.head, first[1:]) {
		return false
	}
	head, _, ended := bytes.Cut(c.head, []byte("\r\n\r\n"))
	for line := range bytes.SplitSeq(head, []byte("\n")) {
		name, _, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(bytes.TrimSpace(name), []byte("Content-Length")) {
			return false
		}
	}
	return ended
}

// closeAmbiguous closes the connection after the answer to a request whose length could be read in
// two ways.
func closeAmbiguous(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := connOf(r); c != nil && len(r.TransferEncoding) > 0 && !c.head.isPlain(r) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}
