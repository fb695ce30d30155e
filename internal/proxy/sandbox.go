package proxy

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of a connection from a sandbox.
const (
	sandboxHeaderTimeout = 10 * time.Second
	sandboxIdleTimeout   = time.Minute
	sandboxHeaderBytes   = 32 << 10
)

// ServeSandbox serves HTTP/1.1 on a connection that comes from a sandbox, to tokens bound to that sandbox alone. It returns, with conn closed and
// nothing left behind, when the connection or ctx ends. Closing conn must unblock its Read and Write.
func (p *Proxy) ServeSandbox(ctx context.Context, sandboxID string, conn io.ReadWriteCloser) {
	if sandboxID == "" {
		conn.Close()
		return
	}
	// A stream has no deadlines; a pipe does.
	inner, outer := net.Pipe()
	read, written := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		defer outer.Close()
		_, _ = io.Copy(outer, conn) // either side's end ends the other's
	}()
	go func() {
		defer close(written)
		defer conn.Close()
		_, _ = io.Copy(conn, outer)
	}()

	served := make(chan struct{})
	listener := &oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	listener.conn <- &closingConn{Conn: inner, closed: listener.end}
	server := &http.Server{
		Handler:     http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, sandboxID) }),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed { // after the last handler has returned
				close(served)
			}
		},
		ReadHeaderTimeout:            sandboxHeaderTimeout,
		IdleTimeout:                  sandboxIdleTimeout,
		MaxHeaderBytes:               sandboxHeaderBytes,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	_ = server.Serve(listener) // until the connection is closed
	_ = server.Close()
	_ = inner.Close()
	if len(listener.conn) == 0 { // it was accepted
		<-served
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case <-written: // the last answer is out
	case <-ctx.Done():
	case <-late.C: // the sandbox does not take it
	}
	_ = conn.Close()
	<-read
	<-written
}

// oneConn is a listener with one connection to accept. It ends with that.
type oneConn struct {
	conn   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	default:
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) end() { l.once.Do(func() { close(l.closed) }) }

func (l *oneConn) Close() error {
	l.end()
	return nil
}

func (l *oneConn) Addr() net.Addr { return sandboxAddr{} }

type sandboxAddr struct{}

func (sandboxAddr) Network() string { return "sandbox" }
func (sandboxAddr) String() string  { return "sandbox" }

// closingConn tells when it is closed.
type closingConn struct {
	net.Conn
	closed func()
}

func (c *closingConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
