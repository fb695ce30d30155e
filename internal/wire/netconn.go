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
// close. A caller of Read must not call Recv.
func (s *Stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	if err := s.await(); err != nil {
		return 0, err
	}
	n := copy(p, s.last.Data)
	if s.last.Data = s.last.Data[n:]; len(s.last.Data) == 0 {
		s.last.free()
	}
	return n, nil
}

// WriteTo implements io.WriterTo on a dial: Read without a copy.
func (s *Stream) WriteTo(w io.Writer) (sum int64, err error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		switch err := s.await(); {
		case err == io.EOF:
			return sum, nil
		case err != nil:
			return sum, err
		}
		n, err := w.Write(s.last.Data)
		sum += int64(n)
		s.last.free()
		if err != nil {
			return sum, err
		}
	}
}

// await returns when last has data. The caller holds reading.
func (s *Stream) await() error {
	for len(s.last.Data) == 0 {
		if s.eof {
			return io.EOF
		}
		f, ok, err := s.next()
		switch {
		case err != nil:
			return err
		case !ok && s.isLate(&s.readUntil):
			return os.ErrDeadlineExceeded
		case !ok:
			<-s.arrived
		case f.Type == TypeData:
			s.last = f
		case f.Type == TypeEOF || f.Type == TypeClose:
			s.eof = true
		}
	}
	return nil
}

// Write implements io.Writer on a dial.
func (s *Stream) Write(p []byte) (int, error) {
	if !s.carries(TypeData, s.conn.side) {
		return 0, fmt.Errorf("wire: cannot send %q on a %s stream", TypeData, s.kind)
	}
	return s.sendPayload(context.Background(), Frame{Type: TypeData, ID: s.id, Data: p})
}

// ReadFrom implements io.ReaderFrom on a dial, with frames as large as they may be.
func (s *Stream) ReadFrom(r io.Reader) (sum int64, err error) {
	memory := payloads.Get().(*[payloadHead + MaxData]byte)
	defer payloads.Put(memory)
	for {
		n, err := r.Read(memory[:MaxData])
		if n > 0 {
			sent, err := s.Write(memory[:n])
			if sum += int64(sent); err != nil {
				return sum, err
			}
		}
		switch {
		case err == io.EOF:
			return sum, nil
		case err != nil:
			return sum, err
		}
	}
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

// deadline is a time, with the timer that wakes the waiting Read or Write.
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
