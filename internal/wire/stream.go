package wire

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// Stream is one run or one dial. One goroutine may receive while others send.
type Stream struct {
	conn *Conn
	id   uint64
	kind Type // TypeRun or TypeDial

	mu       sync.Mutex
	queue    []Frame
	arrived  chan struct{} // capacity 1: the queue or err changed
	credit   int           // what this side may still send
	credited chan struct{} // capacity 1: credit or err changed
	room     int           // what the peer may still send
	consumed int           // taken from the queue, not yet returned to the peer

	abandoned  bool // this side no longer receives
	closedHere bool // this side sent its last frame
	closedPeer bool // the peer sent its last frame
	eofPeer    bool
	err        error // io.EOF after the peer's last frame

	rest []byte // of the data frame that Read took last
}

func newStream(c *Conn, id uint64, kind Type) *Stream {
	return &Stream{conn: c, id: id, kind: kind, credit: Window, room: Window,
		arrived: make(chan struct{}, 1), credited: make(chan struct{}, 1)}
}

// Recv returns the next frame. After the stream's last frame (exit, close) it returns io.EOF; when the
// connection ends before that, the connection's error.
func (s *Stream) Recv(ctx context.Context) (Frame, error) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			f := s.queue[0]
			s.queue = s.queue[1:]
			back := s.consumeLocked(len(f.Data))
			s.mu.Unlock()
			if back > 0 {
				_ = s.conn.write(&Frame{Type: TypeWindow, ID: s.id, Credit: back})
			}
			return f, nil
		}
		err := s.err
		s.mu.Unlock()
		if err != nil {
			return Frame{}, err
		}
		select {
		case <-s.arrived:
		case <-ctx.Done():
			return Frame{}, ctx.Err()
		}
	}
}

// consumeLocked accounts for n payload bytes and returns the credit to send back, if it is worth a frame.
func (s *Stream) consumeLocked(n int) int {
	s.consumed += n
	if s.consumed < Window/2 || s.closedPeer {
		return 0
	}
	back := s.consumed
	s.consumed = 0
	s.room += back
	return back
}

// Send sends f on the stream. Payload waits for the peer's credit; f.Data may be of any length and is
// split as needed.
func (s *Stream) Send(ctx context.Context, f Frame) error {
	f.ID = s.id
	if !f.Type.payload() {
		return s.sendControl(f)
	}
	data, more := f.Data, f.More
	for len(data) > 0 {
		n, err := s.takeCredit(ctx, min(len(data), MaxData))
		if err != nil {
			return err
		}
		f.Data, data = data[:n], data[n:]
		f.More = more || (f.Type == TypeDisplay && len(data) > 0)
		if err := s.conn.write(&f); err != nil {
			return err
		}
	}
	return nil
}

// sendControl sends a frame without payload, and keeps the books if it is this side's last one.
func (s *Stream) sendControl(f Frame) error {
	last := f.Type == TypeExit || f.Type == TypeClose
	s.mu.Lock()
	if s.closedHere || s.err != nil && s.err != io.EOF {
		defer s.mu.Unlock()
		if s.err != nil && s.err != io.EOF {
			return s.err
		}
		return ErrClosed
	}
	if last {
		s.closedHere = true
	}
	gone := last && (s.kind == TypeRun || s.closedPeer)
	s.mu.Unlock()
	err := s.conn.write(&f)
	if gone {
		s.conn.forget(s.id)
		s.end(ErrClosed)
	}
	return err
}

func (s *Stream) takeCredit(ctx context.Context, want int) (int, error) {
	for {
		s.mu.Lock()
		switch {
		case s.closedHere:
			s.mu.Unlock()
			return 0, ErrClosed
		case s.err != nil:
			defer s.mu.Unlock()
			return 0, s.err
		case s.credit > 0:
			n := min(want, s.credit)
			s.credit -= n
			left := s.credit
			s.mu.Unlock()
			if left > 0 {
				wake(s.credited) // another sender may be waiting
			}
			return n, nil
		}
		s.mu.Unlock()
		select {
		case <-s.credited:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Close says that this side is done with the stream: what still arrives is dropped. On a run it does not
// end the program (send TypeKill for that); on a dial it sends the last frame. It is idempotent.
func (s *Stream) Close() error {
	s.mu.Lock()
	dropped := 0
	for _, f := range s.queue {
		dropped += len(f.Data)
	}
	s.queue = nil
	s.abandoned = true
	back := s.consumeLocked(dropped)
	done := s.closedHere || s.conn.side == ServerSide && s.kind == TypeRun
	s.mu.Unlock()
	if back > 0 {
		_ = s.conn.write(&Frame{Type: TypeWindow, ID: s.id, Credit: back})
	}
	if done {
		return nil
	}
	return s.Send(context.Background(), Frame{Type: TypeClose})
}

// deliver takes a frame from the peer. It does not block.
func (s *Stream) deliver(f *Frame) error {
	if err := s.allowed(f); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closedPeer {
		s.mu.Unlock()
		return fmt.Errorf("%w: %q after the stream's end", ErrProtocol, f.Type)
	}
	var back int
	switch {
	case f.Type == TypeWindow:
		if f.Credit <= 0 || f.Credit > Window || s.credit+f.Credit > Window {
			s.mu.Unlock()
			return fmt.Errorf("%w: credit of %d", ErrProtocol, f.Credit)
		}
		s.credit += f.Credit
		s.mu.Unlock()
		wake(s.credited)
		return nil
	case f.Type.payload():
		if n := len(f.Data); n == 0 || n > MaxData || n > s.room || s.eofPeer {
			s.mu.Unlock()
			return fmt.Errorf("%w: %d bytes of %q with %d allowed", ErrProtocol, n, f.Type, s.room)
		}
		s.room -= len(f.Data)
		if s.abandoned {
			back = s.consumeLocked(len(f.Data))
		}
	case f.Type == TypeEOF:
		if s.eofPeer {
			s.mu.Unlock()
			return fmt.Errorf("%w: eof twice", ErrProtocol)
		}
		s.eofPeer = true
	case f.Type == TypeExit || f.Type == TypeClose:
		s.closedPeer = true
	}
	if !s.abandoned {
		s.queue = append(s.queue, *f)
	}
	if s.closedPeer && s.err == nil {
		s.err = io.EOF
	}
	gone := s.closedPeer && (s.kind == TypeRun || s.closedHere)
	s.mu.Unlock()
	wake(s.arrived)
	wake(s.credited)
	if back > 0 {
		go func() { _ = s.conn.write(&Frame{Type: TypeWindow, ID: s.id, Credit: back}) }()
	}
	if gone {
		s.conn.forget(s.id)
	}
	return nil
}

// allowed checks that the peer may send such a frame on such a stream.
func (s *Stream) allowed(f *Frame) error {
	ok := false
	switch f.Type {
	case TypeWindow:
		ok = true
	case TypeData, TypeEOF, TypeClose:
		ok = s.kind == TypeDial
	case TypeStdout, TypeStderr, TypeDisplay:
		ok = s.kind == TypeRun && s.conn.side == ServerSide
	case TypeExit:
		ok = s.kind == TypeRun && s.conn.side == ServerSide && f.Exit != nil
	case TypeInterrupt, TypeKill:
		ok = s.kind == TypeRun && s.conn.side == AgentSide
	}
	if !ok {
		return fmt.Errorf("%w: %q on a %s stream", ErrProtocol, f.Type, s.kind)
	}
	return nil
}

// end is called when the connection has failed, or the stream is over on this side.
func (s *Stream) end(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	wake(s.arrived)
	wake(s.credited)
}

// Read makes a dial stream an io.Reader: it returns the peer's data, io.EOF after its eof or close.
// One goroutine may read, and it must not mix Read and Recv.
func (s *Stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		f, err := s.Recv(context.Background())
		if err != nil {
			return 0, err
		}
		switch f.Type {
		case TypeData:
			s.rest = f.Data
		case TypeEOF, TypeClose:
			return 0, io.EOF
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Write makes a dial stream an io.Writer.
func (s *Stream) Write(p []byte) (int, error) {
	if err := s.Send(context.Background(), Frame{Type: TypeData, Data: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CloseWrite says that no more data comes from this side of a dial.
func (s *Stream) CloseWrite() error {
	return s.Send(context.Background(), Frame{Type: TypeEOF})
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
