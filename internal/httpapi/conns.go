package httpapi

import (
	"bufio"
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
)

const (
	// mostConnections is enough for any use, however many descriptors the process may have.
	mostConnections = 16 << 10
	// writeTime is how long a client may take to read progress bytes. It replaces a limit on the
	// whole response, which streams and large downloads cannot have.
	writeTime = 30 * time.Second
	progress  = 64 << 10
	// strangerIdle is how long a connection without a valid token so far may wait between requests.
	strangerIdle = 10 * time.Second
	// refusalTime and mostRefusals bound the cost of refusing connections with an answer.
	refusalTime  = 2 * time.Second
	mostRefusals = 64
)

// MaxConnections returns how many connections this process can have: half of its descriptors. The
// rest is for downloads, sandboxes and the server's own files.
func MaxConnections() int {
	return int(min(descriptors()/2, mostConnections))
}

// Limit returns a listener with at most max connections, on which a client that does not read
// cannot hold a connection for long. For a new one beyond max it closes an idle connection of the
// address or caller that has the most, or else answers 503. Serve on it with [NewServer].
func Limit(l net.Listener, max int) *Listener {
	pool := share.New(share.Config{Capacity: int64(max), Exempt: session.Local.ID})
	return &Listener{Listener: l, pool: pool, refusing: make(chan struct{}, mostRefusals)}
}

// Listener is the result of [Limit].
type Listener struct {
	net.Listener
	pool     *share.Pool
	refusing chan struct{}
}

// Shares returns the pool of connections, for metrics.
func (l *Listener) Shares() *share.Pool { return l.pool }

// Accept waits for the next connection within the limit.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		lease, err := l.pool.TryAcquire(remote(nc), 1)
		if err != nil {
			l.refuse(nc)
			continue
		}
		c := &conn{Conn: nc, lease: lease}
		c.release()
		return c, nil
	}
}

// remote names the client's network. An IPv6 client usually has a whole /64.
func remote(c net.Conn) string {
	addr, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return "address unknown"
	}
	ip, bits := addr.Addr().Unmap(), 32
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits) // an address has at least that many bits
	return "address " + prefix.String()
}

const tooManyConnections = "the server has too many connections; try again later\n"

// refuse answers 503 after the client has sent its request. While it refuses mostRefusals others,
// it only closes the connection.
func (l *Listener) refuse(c net.Conn) {
	select {
	case l.refusing <- struct{}{}:
	default:
		c.Close()
		return
	}
	go func() {
		defer func() {
			c.Close()
			<-l.refusing
		}()
		c.SetDeadline(time.Now().Add(refusalTime))
		if _, err := http.ReadRequest(bufio.NewReader(io.LimitReader(c, 32<<10))); err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n"+
			"Content-Type: text/plain; charset=utf-8\r\n\r\n"+tooManyConnections)
		if half, ok := c.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			io.Copy(io.Discard, io.LimitReader(c, 1<<20)) // closing with unread bytes would reset the answer
		}
	}()
}

// conn is a connection that the pool may close. It counts as idle until a request on it has a valid
// token or a signed link.
type conn struct {
	net.Conn
	lease   *share.Lease
	known   atomic.Bool // a request on it had a valid token
	waiting atomic.Bool // for the next request
	head    head

	mu    sync.Mutex
	until time.Time // the handler's own write deadline; zero: none
}

var _ io.ReaderFrom = (*conn)(nil)

type connKey struct{}

// withConn is http.Server's ConnContext. It lets handlers find the connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns the request's connection, or nil if the listener has no limit.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// followState is http.Server's ConnState. A connection is idle again after the answer.
func followState(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	c.waiting.Store(state == http.StateIdle)
	if state == http.StateIdle {
		c.head.reset()
		c.release()
	}
}

// claim assigns the connection to a caller and marks it as in use for this request.
func (c *conn) claim(caller string) {
	if c == nil {
		return
	}
	c.known.Store(true)
	c.lease.Assign(caller)
	c.hold()
}

// hold marks the connection as in use: the pool closes it only for somebody with fewer.
func (c *conn) hold() {
	if c != nil {
		c.lease.Yield(c.cut)
	}
}

// release lets the pool close the connection for anybody.
func (c *conn) release() {
	if c != nil {
		c.lease.Idle(c.cut)
	}
}

// cut closes the connection while a handler uses it.
func (c *conn) cut() {
	if c != nil {
		c.Conn.Close()
	}
}

func (c *conn) Close() error {
	c.lease.Release()
	return c.Conn.Close()
}

// CloseWrite lets net/http wait until the client has read the end of an answer.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	if c.waiting.Load() && !c.known.Load() && !t.IsZero() {
		t = earlier(t, time.Now().Add(strangerIdle))
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetWriteDeadline(t); err != nil {
		return err
	}
	return c.SetReadDeadline(t)
}

// extend moves the write deadline forward, but never beyond the handler's own.
func (c *conn) extend() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Now().Add(writeTime)
	if !c.until.IsZero() {
		t = earlier(t, c.until)
	}
	return c.Conn.SetWriteDeadline(t)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.head.write(p[:n])
	return n, err
}

func (c *conn) Write(p []byte) (n int, err error) {
	for {
		if err := c.extend(); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:min(len(p), n+progress)])
		n += m
		if err != nil || n >= len(p) {
			return n, err
		}
	}
}

// ReadFrom uses sendfile for files. Other sources may be slow, which is not the client's fault.
func (c *conn) ReadFrom(src io.Reader) (n int64, err error) {
	all, ok := src.(*io.LimitedReader)
	if !ok {
		all = &io.LimitedReader{R: src, N: math.MaxInt64}
	}
	if _, ok := all.R.(*os.File); !ok {
		return io.Copy(struct{ io.Writer }{c}, src)
	}
	for all.N > 0 {
		if err := c.extend(); err != nil {
			return n, err
		}
		part := &io.LimitedReader{R: all.R, N: min(all.N, progress)}
		m, err := io.Copy(c.Conn, part)
		n += m
		all.N -= m
		if err != nil || part.N > 0 {
			return n, err
		}
	}
	return n, nil
}
