package proxy

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/closednet"
)

// grace is what a connection whose call was cut has left to take the answer.
const grace = 2 * time.Second

const maxResponseHeader = 256 << 10

// flushInterval is how long a part of an answer of known length waits for more of it. Streams do not wait: ReverseProxy passes on at once
// what is text/event-stream or of unknown length.
const flushInterval = 5 * time.Millisecond

// newTransport returns a service's own transport: no proxy from the environment, no compression of its own, no address but those allowed.
func newTransport(closed *closednet.List, allowed []netip.Prefix) *http.Transport {
	return &http.Transport{
		DialContext:            newDialer(closed, allowed).DialContext,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    dialTimeout,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
		ReadBufferSize:         64 << 10,
		WriteBufferSize:        64 << 10,
	}
}

// plainTransport hides the values of a request's context. Among them is the hook by which ReverseProxy passes on interim (1xx) answers
// and their header fields, which nobody would have scrubbed.
type plainTransport struct{ *http.Transport }

func (t plainTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.Transport.RoundTrip(r.WithContext(plainContext{r.Context()}))
}

type plainContext struct{ context.Context }

func (plainContext) Value(any) any { return nil }

// AfterFunc spares package context a goroutine for every call.
func (c plainContext) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(c.Context, f) }

// answerError is a service's answer that is not passed on.
type answerError struct{ text string }

func (e *answerError) Error() string { return e.text }

// forward passes the call on and its answer back.
func (c *call) forward(w http.ResponseWriter) {
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // HTTP/2 always is
	c.watch = newWatchdog(c.service.Timeout, c.cancel)
	defer c.watch.stop()

	// A client that neither reads nor sends must not outlive its right to.
	fired := make(chan struct{})
	stop := context.AfterFunc(c.ctx, func() {
		defer close(fired)
		now := time.Now() // nothing more is wanted of the client; the answer it may still have
		_ = errors.Join(rc.SetReadDeadline(now), rc.SetWriteDeadline(now.Add(grace)))
	})
	body := &watchedBody{c: c}
	body.ended.Store(c.r.ContentLength == 0)
	defer func() {
		if !stop() {
			<-fired
		}
		if c.err == nil { // a complete answer: the next one on this connection is not to suffer
			_ = rc.SetWriteDeadline(time.Time{})
		}
		if !body.ended.Load() { // the server is going to read the rest; it sets deadlines of its own afterwards
			_ = rc.SetReadDeadline(time.Now().Add(grace))
		}
	}()

	w.Header().Del("X-Content-Type-Options") // the answer has its own
	out := &statusWriter{ResponseWriter: w, c: c}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			c.rewrite(pr)
			if pr.Out.Body != nil {
				body.ReadCloser = pr.Out.Body
				pr.Out.Body = body
			}
		},
		Transport:      plainTransport{c.service.transport},
		FlushInterval:  flushInterval,
		BufferPool:     &c.p.buffers,
		ErrorLog:       log.New(io.Discard, "", 0),
		ModifyResponse: c.modify,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			c.err = c.failure(err, body.failed.Load())
			w.Header().Set("Connection", "close") // a deadline may be set on it, or a body half read
			writeError(w, c.err)
		},
	}
	proxy.ServeHTTP(out, c.r.WithContext(c.ctx))
	if c.err == nil { // the client need not wait for the audit trail
		c.passed = rc.Flush() == nil // an error is the client's going away
	}
}

// rewrite makes the request that the service sees, of nothing but what is meant for it.
func (c *call) rewrite(pr *httputil.ProxyRequest) {
	base := c.service.BaseURL
	out := pr.Out
	out.URL = &url.URL{
		Scheme:   base.Scheme,
		Host:     base.Host,
		Path:     strings.TrimSuffix(base.Path, "/") + c.path.plain,
		RawPath:  strings.TrimSuffix(base.EscapedPath(), "/") + c.path.escaped,
		RawQuery: c.r.URL.RawQuery,
	}
	out.Host = base.Host
	out.Trailer, out.TransferEncoding = nil, nil
	header := http.Header{}
	for name, values := range out.Header { // ReverseProxy has removed what Connection names
		if forwarded(name) || c.service.headers[name] {
			header[name] = values
		}
	}
	header.Set("Accept-Encoding", "identity")
	header.Set(c.cred.Header, c.cred.Value)
	out.Header = header
}

// modify makes the answer fit for the caller.
func (c *call) modify(res *http.Response) error {
	c.watch.answered(c.service.IdleTimeout)
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		return &answerError{"the service switched protocols without being asked"}
	case res.StatusCode < 200: // which net/http would panic about
		return &answerError{"the service answered with a status that is none"}
	}
	if err := c.rewriteLocation(res); err != nil {
		return err
	}
	answer, changed, err := decodeBody(&watchedAnswer{Reader: res.Body, watch: c.watch}, res.Header["Content-Encoding"])
	if err != nil {
		return &answerError{"the service's answer is packed in a way that cannot be searched for secrets"}
	}
	if changed {
		res.Header.Del("Content-Encoding")
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	}
	if c.scrub != nil {
		answer = newScrubReader(answer, c.scrub)
	}
	c.cleanHeader(res.Header)
	res.Header.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	res.Header.Set("X-Content-Type-Options", "nosniff")
	res.Header.Set("Cache-Control", privately(res.Header["Cache-Control"]))
	c.cleanHeader(res.Trailer) // their names, which are told first
	res.Body = &answerBody{Reader: answer, Closer: res.Body, end: func() { c.cleanHeader(res.Trailer) }}
	return nil
}

// cleanHeader removes what is not for the caller, and the secret from the rest.
func (c *call) cleanHeader(h http.Header) {
	for name := range h {
		if dropped(name) {
			delete(h, name)
		}
	}
	if c.scrub != nil {
		c.scrub.header(h)
	}
}

// answerBody calls end, once, when the body is read and its trailers are known.
type answerBody struct {
	io.Reader
	io.Closer
	end func()
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		b.end()
	}
	return n, err
}

// rewriteLocation points a redirect within the service to the proxy. One that leads elsewhere is refused: nobody is to be talked into
// taking the token, or the credential, there.
func (c *call) rewriteLocation(res *http.Response) error {
	locations := res.Header["Location"]
	if len(locations) == 0 {
		return nil
	}
	redirect := res.StatusCode >= 300 && res.StatusCode < 400
	if len(locations) == 1 {
		if here, ok := c.throughProxy(res.Request.URL, locations[0]); ok {
			res.Header.Set("Location", here)
			return nil
		}
	}
	if redirect {
		return &answerError{"the service redirects to another place, which is not followed"}
	}
	res.Header.Del("Location")
	return nil
}

// throughProxy returns the path under which a URL of the service is reached through the proxy.
func (c *call) throughProxy(from *url.URL, location string) (string, bool) {
	u, err := from.Parse(location)
	base := c.service.BaseURL
	if err != nil || u.Opaque != "" || u.User != nil || !strings.EqualFold(u.Scheme, base.Scheme) || !strings.EqualFold(hostPort(u), hostPort(base)) {
		return "", false
	}
	root := strings.TrimSuffix(base.EscapedPath(), "/")
	rest, ok := strings.CutPrefix(u.EscapedPath(), root)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	if rest != "" {
		// What the proxy would refuse, a browser might clean, and end up elsewhere on this server.
		path, err := parsePath(rest, true)
		if err != nil {
			return "", false
		}
		rest = path.escaped
	}
	outer := ""
	if c.sandboxID == "" {
		outer = strings.TrimSuffix(c.p.baseURL.Load().EscapedPath(), "/")
	}
	here := outer + prefix + c.service.Name + rest
	if u.RawQuery != "" {
		here += "?" + u.RawQuery
	}
	if u.Fragment != "" {
		here += "#" + u.EscapedFragment()
	}
	return here, true
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// failure is the answer when the service's cannot be had.
func (c *call) failure(err error, clientBroke bool) *Error {
	cause := context.Cause(c.ctx)
	reason := err.Error() // may quote what the service sent
	if c.scrub != nil {
		reason = c.scrub.text(reason)
	}
	var answer *answerError
	var network net.Error
	switch {
	case errors.Is(cause, errRevoked), errors.Is(cause, errExpired):
		return invalidToken().because("%v", cause)
	case errors.Is(cause, errYielded):
		return busy("the request was ended to make room for another caller's, since you had more than your share of them").because("%v", cause)
	case errors.Is(cause, errSlowClient):
		return refuse(http.StatusRequestTimeout, CodeInvalidRequest, "the request did not come in time").because("%v", cause)
	case errors.Is(cause, errTimeout):
		return refuse(http.StatusGatewayTimeout, CodeTimeout, "Backend service unavailable").because("%v", cause)
	case c.r.Context().Err() != nil:
		return (&Error{Status: statusClientGone, Code: CodeInvalidRequest, Message: "the client went away"}).because("the client went away")
	case clientBroke:
		return refuse(http.StatusBadRequest, CodeInvalidRequest, "the request's body is broken").because("%s", reason)
	case errors.As(err, &answer):
		return refuse(http.StatusBadGateway, CodeUnavailable, "%s", answer.text).because("%s", reason)
	case errors.As(err, &network) && network.Timeout():
		return refuse(http.StatusGatewayTimeout, CodeTimeout, "Backend service unavailable").because("%s", reason)
	}
	return refuse(http.StatusBadGateway, CodeUnavailable, "Backend service unavailable").because("%s", reason)
}

// statusWriter knows what was answered.
type statusWriter struct {
	http.ResponseWriter
	c *call
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *statusWriter) WriteHeader(status int) {
	if w.c.status == 0 {
		w.c.status = status
	}
	if status != statusClientGone { // there is nobody to tell
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.c.status == statusClientGone {
		return len(p), nil
	}
	n, err := w.ResponseWriter.Write(p)
	w.c.received += int64(n)
	return n, err
}

// bufferPool lends the buffers in which bodies are copied.
type bufferPool struct{ pool sync.Pool }

const copyBuffer = 256 << 10

func (b *bufferPool) Get() []byte {
	if p, ok := b.pool.Get().(*[copyBuffer]byte); ok {
		return p[:]
	}
	return make([]byte, copyBuffer)
}

func (b *bufferPool) Put(p []byte) { b.pool.Put((*[copyBuffer]byte)(p)) }
