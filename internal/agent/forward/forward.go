// Package forward carries connections that code makes inside a sandbox without a network to the
// server, as dial streams: those to the server's door, and those to the names that a run may reach.
//
// Every name has an address of the sandbox's own loopback, and a resolver gives it to code. The
// package decides nothing: the server checks every dial. It resolves no name outside and sends none
// but those of dials and of denied lookups.
package forward

import (
	"errors"
	"net"
	"time"

	"mcp-code-sandbox/internal/wire"
)

// retryAfter is the pause after a failed accept or read: descriptors or memory are short.
const retryAfter = 10 * time.Millisecond

// Forwarder carries the connections of one sandbox. A nil Forwarder carries none.
type Forwarder struct {
	door     net.Listener
	resolver resolver
	conn     *wire.Conn
	names    names
}

// Listen listens at the door. Serve must follow.
func Listen(door string) (*Forwarder, error) {
	l, err := net.Listen("tcp", door)
	if err != nil {
		return nil, err
	}
	return &Forwarder{door: l}, nil
}

// ListenNames makes the Forwarder a name server at an address, too. After an error it still serves
// the door. It must be called before Serve.
func (f *Forwarder) ListenNames(addr string) error { return f.resolver.listen(addr) }

// Serve starts to carry connections over conn. It returns at once.
func (f *Forwarder) Serve(conn *wire.Conn) {
	f.conn = conn
	go accept(f.door, func(c *net.TCPConn) {
		if s := f.dial(c, ""); s != nil {
			go carry(c, s)
		}
	})
	if f.resolver.udp != nil {
		go f.resolver.serveUDP(f.lookup)
		go f.resolver.serveTCP(f.lookup)
	}
}

// Close stops listening and ends the connections to names.
func (f *Forwarder) Close() {
	_ = f.door.Close()
	f.resolver.close()
	f.names.closeAll()
}

// accept hands every connection to serve until l is closed.
func accept(l net.Listener, serve func(*net.TCPConn)) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(retryAfter)
			continue
		}
		serve(c.(*net.TCPConn))
	}
}

// dial opens a stream for a connection, or closes the connection if there are too many. It runs in
// the goroutine that accepts, so connections beyond the limit cost no goroutine.
func (f *Forwarder) dial(c *net.TCPConn, host string) *wire.Stream {
	s, err := f.conn.Open(wire.Frame{Type: wire.TypeDial, Host: host})
	if err != nil {
		_ = c.Close()
		return nil
	}
	return s
}

// lastRead is how long code may take to read what the server sent before it closed a connection.
const lastRead = time.Minute

// halfConn is a connection whose directions end one by one, such as a *net.TCPConn.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// carry copies between c and s until both directions have ended, or the server has closed s: code
// that keeps its side open must not keep the stream.
func carry(c halfConn, s *wire.Stream) {
	defer c.Close()
	defer s.Close()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-s.Ended():
			_ = c.SetReadDeadline(time.Now())
			_ = c.SetWriteDeadline(time.Now().Add(lastRead))
		case <-done:
		}
	}()
	up := make(chan struct{})
	go func() {
		defer close(up)
		_, _ = s.ReadFrom(c)
		_ = s.CloseWrite()
	}()
	_, _ = s.WriteTo(c)
	_ = c.CloseWrite()
	<-up
}
