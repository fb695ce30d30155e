package proxy

import (
	"context"
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

// ServeSandbox serves HTTP/1.1 on a connection from a sandbox, for tokens bound to that sandbox. It
// returns when the connection or ctx ends. By then it has closed conn and ended its goroutines.
func (p *Proxy) ServeSandbox(ctx context.Context, sandboxID string, conn net.Conn) {
	defer conn.Close()
	if sandboxID == "" {
		return
	}
	served := make(chan struct{})
	listener := &oneConn{conn: conn, closed: make(chan struct{})}
	server := &http.Server{
		Handler:     http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, sandboxID) }),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed { // the last handler has returned
				close(served)
				listener.Close()
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
	_ = server.Serve(listener) // until listener is closed
	_ = server.Close()
	if listener.conn == nil {
		<-served
	}
}

// oneConn is a listener that accepts one connection.
type oneConn struct {
	conn   net.Conn // nil after Accept; used by the goroutine that calls Serve only
	closed chan struct{}
	once   sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return sandboxAddr{} }

type sandboxAddr struct{}

func (sandboxAddr) Network() string { return "sandbox" }
func (sandboxAddr) String() string  { return "sandbox" }
