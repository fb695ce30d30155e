// Package httpconn serves HTTP/1.1 on one connection that comes from hostile code. It knows nothing
// of what the connection carries.
package httpconn

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a connection.
const (
	HeaderTimeout = 10 * time.Second
	IdleTimeout   = time.Minute
	headerBytes   = 32 << 10
)

// Serve serves requests on conn until the connection or ctx ends. By then it has closed conn, also
// one that a handler hijacked, and its handlers have returned.
func Serve(ctx context.Context, conn net.Conn, handler http.Handler, log *slog.Logger) {
	defer conn.Close()
	listener := &oneConn{conn: conn, closed: make(chan struct{})}
	served := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(served)
		listener.Close()
	})
	var hijacked atomic.Bool
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if hijacked.Load() {
					end()
				}
			}()
			handler.ServeHTTP(w, r)
		}),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateHijacked:
				hijacked.Store(true)
			case http.StateClosed: // the last handler has returned
				end()
			}
		},
		ReadHeaderTimeout:            HeaderTimeout,
		IdleTimeout:                  IdleTimeout,
		MaxHeaderBytes:               headerBytes,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() {
		_ = server.Close()
		_ = conn.Close()
	})()
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
