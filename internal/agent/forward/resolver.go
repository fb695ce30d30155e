package forward

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"mcp-code-sandbox/internal/wire"
)

const (
	// maxReports is how many denied names the agent tells the server after a run has begun.
	maxReports = 64
	// reportTimeout bounds how long a denied lookup waits for the server to note it.
	reportTimeout = time.Second
	// maxTCP is how many lookups over TCP there may be at a time.
	maxTCP = 16
	// tcpTimeout is how long a connection for lookups may last.
	tcpTimeout = 5 * time.Second
)

// resolver is a name server. Its zero value serves nothing.
type resolver struct {
	udp *net.UDPConn
	tcp net.Listener
}

// listen listens on one address for both protocols, or for none.
func (r *resolver) listen(addr string) error {
	at, err := net.ResolveUDPAddr("udp4", addr)
	if err != nil {
		return err
	}
	udp, err := net.ListenUDP("udp4", at)
	if err != nil {
		return err
	}
	tcp, err := net.Listen("tcp4", addr)
	if err != nil {
		_ = udp.Close()
		return err
	}
	r.udp, r.tcp = udp, tcp
	return nil
}

func (r *resolver) close() {
	if r.udp != nil {
		_ = r.udp.Close()
		_ = r.tcp.Close()
	}
}

func (r *resolver) serveUDP(look lookup) {
	buf := make([]byte, maxQuery)
	for {
		n, from, err := r.udp.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(retryAfter)
			continue
		}
		if a := answer(buf[:n], look); a != nil {
			_, _ = r.udp.WriteToUDPAddrPort(a, from)
		}
	}
}

func (r *resolver) serveTCP(look lookup) {
	free := make(chan struct{}, maxTCP)
	accept(r.tcp, func(c *net.TCPConn) {
		select {
		case free <- struct{}{}:
			go func() {
				defer func() { _ = c.Close(); <-free }()
				answerTCP(c, look)
			}()
		default:
			_ = c.Close()
		}
	})
}

// answerTCP answers queries, each after its length, until one is malformed.
func answerTCP(c *net.TCPConn, look lookup) {
	_ = c.SetDeadline(time.Now().Add(tcpTimeout))
	var buf [maxQuery]byte
	for {
		if _, err := io.ReadFull(c, buf[:2]); err != nil {
			return
		}
		length := binary.BigEndian.Uint16(buf[:2])
		if length > maxQuery {
			return
		}
		if _, err := io.ReadFull(c, buf[:length]); err != nil {
			return
		}
		a := answer(buf[:length], look)
		if a == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
			return
		}
	}
}

// lookup resolves a name for a query, and reports a denied one to the server.
func (f *Forwarder) lookup(host string, isHost bool) (netip.Addr, rcode) {
	addr, allowed, err := f.resolve(host)
	switch {
	case err != nil:
		return addr, serverFailure
	case allowed:
		return addr, noError
	case isHost:
		f.report(host)
	}
	return addr, nameError
}

// report tells the server a name that code may not reach, once in a run, by a dial to port 0. It
// returns when the server has closed that dial, so the report comes before the run's end.
func (f *Forwarder) report(host string) {
	n := &f.names
	n.mu.Lock()
	known := n.reported[host] || len(n.reported) >= maxReports
	if !known {
		if n.reported == nil {
			n.reported = map[string]bool{}
		}
		n.reported[host] = true
	}
	n.mu.Unlock()
	if known {
		return
	}
	s, err := f.conn.Open(wire.Frame{Type: wire.TypeDial, Host: host + ":0"})
	if err != nil {
		return
	}
	defer s.Close()
	_ = s.CloseWrite()
	_ = s.SetReadDeadline(time.Now().Add(reportTimeout))
	_, _ = s.Read(make([]byte, 1))
}
