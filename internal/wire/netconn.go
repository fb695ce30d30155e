package wire

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// A dial is a net.Conn, so that net/http can serve it.
var _ net.Conn = (*Stream)(nil)

// Read implements io.Reader on a dial: it returns the peer's data, and io.EOF after its eof or
// close. Who calls Read must not call Recv.
func (s *Stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	for len(s.rest) == 0 {
		if s.eof {
			return 0, io.EOF
		}
		f, ok, err := s.next()
		switch {
		case err != nil:
			return 0, err
		case !ok && s.isLate(&s.readUntil):
			return 0, os.ErrDeadlineExceeded
		case !ok:
			<-s.arrived
		case f.Type == TypeData:
			s.rest = f.Data
		case f.Type == TypeEOF || f.Type == TypeClose:
			s.eof = true
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Write implements io.Writer on a dial.
func (s *Stream) Write(p []byte) (int, error) {
	if !s.carries(TypeData, s.conn.side) {
		return 0, fmt.Errorf("wire: cannot send %q on a %s stream", TypeData, s.kind)
	}
	return s.sendPayload(context.Background(), Frame{Type: TypeData, ID: s.id, Data: p})
}

// CloseWrite ends the data from this side of a dial. It is idempotent.
func (s *Stream) CloseWrite() error {
	return s.Send(context.Background(), Frame{Type: TypeEOF})
}

// SetDeadline sets the deadlines of Read and of Write.
func (s *Stream) SetDeadline(t time.Time) error {
	_ = s.SetReadDeadline(t)
	return s.SetWriteDeadline(t)
}

// SetReadDeadline sets when Read gives up, also one that waits. The zero time means never.
func (s *Stream) SetReadDeadline(t time.Time) error {
	return s.setDeadline(&s.readUntil, t, s.arrived)
}

// SetWriteDeadline sets when Write gives up waiting for the peer, also one that waits. The zero
// time means never.
func (s *Stream) SetWriteDeadline(t time.Time) error {
	return s.setDeadline(&s.writeUntil, t, s.credited)
}

// deadline is a time, with the timer that wakes who waits for it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) hasPassed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (s *Stream) isLate(d *deadline) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return d.hasPassed()
}

func (s *Stream) setDeadline(d *deadline, t time.Time, waiting chan struct{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	*d = deadline{at: t}
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() { wake(waiting) })
	}
	return nil
}

// LocalAddr and RemoteAddr name no place: a dial is part of a connection.
func (s *Stream) LocalAddr() net.Addr  { return addr{} }
func (s *Stream) RemoteAddr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "wire" }
func (addr) String() string  { return "sandbox" }
