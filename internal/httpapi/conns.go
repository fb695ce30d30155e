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
	// mostConnections is enough for any use, where descriptors are not what is scarce.
	mostConnections = 16 << 10
	// writeTime is how long a client may take to read progress bytes. It takes the place of a limit
	// on the whole response, which streams and large downloads cannot have.
	writeTime = 30 * time.Second
	progress  = 64 << 10
	// strangerIdle is how long a connection that has shown no valid token may stay between requests.
	strangerIdle = 10 * time.Second
	// refusalTime and mostRefusals bound what it costs to refuse a connection politely.
	refusalTime  = 2 * time.Second
	mostRefusals = 64
)

// MaxConnections is how many connections this process can have: half of its descriptors. The rest is
// for the files that clients download, for sandboxes and for the server's own files.
func MaxConnections() int {
	return int(min(descriptors()/2, mostConnections))
}

// Limit returns a listener whose connections are at most max, and on which no client that does not
// read can hold a connection for long. When there are max, the pool closes an idle connection of the
// address or caller that has the most, and if there is none answers 503. Serve on it by [NewServer].
func Limit(l net.Listener, max int) *Listener {
	pool := share.New(share.Config{Capacity: int64(max), Exempt: session.Local.ID})
	return &Listener{Listener: l, pool: pool, refusing: make(chan struct{}, mostRefusals)}
}

// Listener is what [Limit] returns.
type Listener struct {
	net.Listener
	pool     *share.Pool
	refusing chan struct{}
}

// Shares returns the pool of connections, for metrics.
func (l *Listener) Shares() *share.Pool { return l.pool }

// Accept waits for the next connection that there is room for.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		lease, err := l.pool.TryAcquire(remote(c), 1)
		if err != nil {
			l.refuse(c)
			continue
		}
		head := &headConn{Conn: c}
		limited := &conn{Conn: head, head: head, lease: lease}
		limited.release()
		return limited, nil
	}
}

// remote names the network that a client comes from; whoever has one IPv6 address has a /64 of them.
func remote(c net.Conn) string {
	addr, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return "address unknown"
	}
	ip, bits := addr.Addr().Unmap(), 32
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits) // it has as many
	return "address " + prefix.String()
}

const tooManyConnections = "the server has too many connections; try again later\n"

// refuse answers 503 once the client has sent its request, or closes the connection at once when
// many are being refused.
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
			io.Copy(io.Discard, io.LimitReader(c, 1<<20)) // closing with bytes unread would reset the answer
		}
	}()
}

// conn is a connection that the pool may close. It is idle, whatever it sends, until the request on
// it has shown a right: a valid token or a signed link.
type conn struct {
	net.Conn // head
	head     *headConn
	lease    *share.Lease
	known    atomic.Bool // a request on it had a valid token
	waiting  atomic.Bool // for the next request

	mu    sync.Mutex
	until time.Time // the handler's own write deadline; zero: none
}

var _ io.ReaderFrom = (*conn)(nil)

type connKey struct{}

// withConn lets handlers find the connection. It is http.Server's ConnContext.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns the request's connection, nil where none is limited.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// followState is http.Server's ConnState: a connection is idle again when its request is answered.
func followState(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	c.waiting.Store(state == http.StateIdle)
	if state == http.StateIdle {
		c.head.next()
		c.release()
	}
}

// claim counts the connection as caller's from now on, and as in use for this request.
func (c *conn) claim(caller string) {
	if c == nil {
		return
	}
	c.known.Store(true)
	c.lease.Assign(caller)
	c.hold()
}

// hold counts the connection as in use: the pool closes it only for somebody who has fewer.
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

// cut ends the connection under the handler that uses it.
func (c *conn) cut() {
	if c != nil {
		c.Conn.Close()
	}
}

func (c *conn) Close() error {
	c.lease.Release()
	return c.Conn.Close()
}

// CloseWrite is what net/http uses to let the client read the end of an answer.
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

// extend moves the write deadline forward, never beyond the handler's own.
func (c *conn) extend() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Now().Add(writeTime)
	if !c.until.IsZero() {
		t = earlier(t, c.until)
	}
	return c.Conn.SetWriteDeadline(t)
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

// ReadFrom keeps sendfile for files. Other sources may be slow, which is not the client's fault.
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

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
