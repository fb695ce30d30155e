package wire

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// Stream is one run or one dial. One goroutine may receive while others send.
type Stream struct {
	conn *Conn
	id   uint64
	kind Type // TypeRun or TypeDial

	mu        sync.Mutex
	queue     []Frame
	arrived   chan struct{} // capacity 1: the queue or the state changed
	ended     chan struct{} // of a dial: closed when the peer or the connection has ended it
	credit    int           // what this side may still send
	credited  chan struct{} // capacity 1: credit or the state changed
	room      int           // what the peer may still send
	consumed  int           // taken from the queue, not yet returned to the peer
	returning bool          // a goroutine is about to return what was consumed

	abandoned  bool // this side no longer receives
	eofHere    bool // this side sent eof; changes with Conn.wmu held
	closedHere bool // this side sent its last frame; changes with Conn.wmu held
	eofPeer    bool
	closedPeer bool  // the peer sent its last frame
	err        error // why the connection ended, if it did before the stream

	readUntil, writeUntil deadline // of a dial

	reading sync.Mutex // held by Read and WriteTo
	last    Frame      // the data frame that Read returns in parts
	eof     bool
}

func newStream(c *Conn, id uint64, kind Type) *Stream {
	s := &Stream{conn: c, id: id, kind: kind, credit: Window, room: Window,
		arrived: make(chan struct{}, 1), credited: make(chan struct{}, 1)}
	if kind == TypeDial {
		s.ended = make(chan struct{})
	}
	return s
}

// Ended returns a channel that is closed when the peer has closed a dial, or the connection has
// ended: nothing more arrives, and nothing that is sent is read. What has arrived can be read.
func (s *Stream) Ended() <-chan struct{} { return s.ended }

// endLocked closes ended, once.
func (s *Stream) endLocked() {
	if s.ended != nil && !s.closedPeer && s.err == nil {
		close(s.ended)
	}
}

// Recv returns the next frame. It returns io.EOF after the stream's last frame (exit, close), the
// connection's error if that ends first, and ErrClosed after this side has closed the stream.
func (s *Stream) Recv(ctx context.Context) (Frame, error) {
	for {
		f, ok, err := s.next()
		if ok || err != nil {
			return f, err
		}
		select {
		case <-s.arrived:
		case <-ctx.Done():
			return Frame{}, ctx.Err()
		}
	}
}

// next takes a frame from the queue, if there is one.
func (s *Stream) next() (Frame, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.queue) > 0:
		f := s.queue[0]
		s.queue[0] = Frame{}
		s.queue = s.queue[1:]
		if f.Type.payload() {
			s.consumeLocked(cost(len(f.Data)))
		}
		return f, true, nil
	case s.abandoned:
		return Frame{}, false, ErrClosed
	case s.closedPeer:
		return Frame{}, false, io.EOF
	}
	return Frame{}, false, s.err
}

// cost returns how much of the window n bytes of payload take.
func cost(n int) int { return n + frameCost }

// consumeLocked counts consumed payload. It returns the credit to the peer when it is worth a
// frame.
func (s *Stream) consumeLocked(n int) {
	s.consumed += n
	if s.consumed >= Window/2 && !s.returning && s.wantsMoreLocked() {
		s.returning = true
		go s.returnCredit() // at most one: neither Recv nor the read loop may block on a write
	}
}

// wantsMoreLocked reports whether payload may still arrive.
func (s *Stream) wantsMoreLocked() bool {
	return !s.closedPeer && !s.eofPeer && !s.closedHere && s.err == nil
}

// returnCredit returns credit to the peer. The room grows only when the frame is being written, so
// a peer that sends without reading runs out of it.
func (s *Stream) returnCredit() {
	c := s.conn
	c.wmu.Lock()
	defer c.wmu.Unlock()
	s.mu.Lock()
	s.returning = false
	back := s.consumed
	if !s.wantsMoreLocked() {
		s.mu.Unlock()
		return
	}
	s.consumed = 0
	s.room += back
	s.mu.Unlock()
	if b, err := c.encodeLocked(&Frame{Type: TypeWindow, ID: s.id, Credit: back}); err == nil {
		_ = c.writeLocked(b)
	}
}

// Send sends f. It splits payload into frames, which wait for the peer's credit until ctx ends. It
// returns ErrClosed after this side closed the stream or sent eof, io.ErrClosedPipe for payload
// after the peer closed it, and drops interrupts and kills for an ended run.
func (s *Stream) Send(ctx context.Context, f Frame) error {
	f.ID = s.id
	if f.Type == TypeWindow || !s.carries(f.Type, s.conn.side) {
		return fmt.Errorf("wire: cannot send %q on a %s stream", f.Type, s.kind)
	}
	if f.Type.payload() {
		_, err := s.sendPayload(ctx, f)
		return err
	}
	if f.Exit != nil {
		exit := *f.Exit
		exit.Error = strings.ToValidUTF8(exit.Error[:min(len(exit.Error), maxExitError)], "?") // JSON would make it longer
		f.Exit = &exit
	}
	return s.write(&f)
}

// sendPayload returns how much of f.Data it sent.
func (s *Stream) sendPayload(ctx context.Context, f Frame) (int, error) {
	data, more := f.Data, f.More
	sent := 0
	for sent < len(data) {
		n, err := s.takeCredit(ctx, min(len(data)-sent, MaxData))
		if err != nil {
			return sent, err
		}
		f.Data = data[sent : sent+n]
		f.More = more || f.Type == TypeDisplay && sent+n < len(data)
		if err := s.write(&f); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

// write sends one frame and updates the state. It decides with wmu held whether the frame may be
// sent, so that nothing follows the last frame.
func (s *Stream) write(f *Frame) error {
	if err := f.check(); err != nil {
		return fmt.Errorf("wire: cannot send: %w", err)
	}
	c := s.conn
	c.wmu.Lock()
	defer c.wmu.Unlock()
	b, err := c.encodeLocked(f)
	if err != nil {
		return err
	}
	last := f.Type == TypeExit || f.Type == TypeClose
	s.mu.Lock()
	switch {
	case s.closedPeer && s.kind == TypeRun: // an interrupt or kill that crossed with the exit
		s.mu.Unlock()
		return nil
	case s.eofHere && f.Type == TypeEOF:
		s.mu.Unlock()
		return nil
	case s.sendErrLocked(f.Type) != nil:
		defer s.mu.Unlock()
		return s.sendErrLocked(f.Type)
	}
	s.eofHere = s.eofHere || f.Type == TypeEOF
	s.closedHere = s.closedHere || last
	s.abandoned = s.abandoned || last
	gone := last && (s.kind == TypeRun || s.closedPeer)
	s.mu.Unlock()
	if gone { // before the peer knows: it may open another stream at once
		c.remove(s.id)
	}
	err = c.writeLocked(b)
	if last || f.Type == TypeEOF {
		s.changed()
	}
	return err
}

// sendErrLocked returns why a frame of type t can no longer be sent.
func (s *Stream) sendErrLocked(t Type) error {
	switch {
	case s.closedHere:
		return ErrClosed
	case s.err != nil:
		return s.err
	case !t.payload():
		return nil
	case s.abandoned || s.eofHere:
		return ErrClosed
	case s.closedPeer:
		return io.ErrClosedPipe
	}
	return nil
}

// takeCredit waits until a frame may be sent, and returns how much of want it may carry.
func (s *Stream) takeCredit(ctx context.Context, want int) (int, error) {
	for {
		s.mu.Lock()
		err := s.sendErrLocked(TypeData)
		if err == nil && s.writeUntil.hasPassed() {
			err = os.ErrDeadlineExceeded
		}
		n := 0
		if err == nil && s.credit > frameCost {
			n = min(want, s.credit-frameCost)
			s.credit -= cost(n)
		}
		pass := err != nil || n > 0 && s.credit > frameCost
		s.mu.Unlock()
		if pass {
			wake(s.credited) // other senders may be waiting
		}
		if err != nil || n > 0 {
			return n, err
		}
		select {
		case <-s.credited:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Close ends this side of the stream: it drops what still arrives, and Recv and Send return. The
// server's Close does not end the program of a run (TypeKill does); the agent's sends an exit if
// there was none. On a dial it sends the last frame. It is idempotent.
func (s *Stream) Close() error {
	s.mu.Lock()
	dropped := 0
	for _, f := range s.queue {
		if f.Type.payload() {
			dropped += cost(len(f.Data))
		}
	}
	s.queue = nil
	s.abandoned = true
	silent := s.closedHere || s.conn.side == ServerSide && s.kind == TypeRun
	if s.kind == TypeRun {
		s.consumeLocked(dropped)
	}
	s.mu.Unlock()
	s.changed()
	if silent {
		return nil
	}
	f := Frame{Type: TypeClose, ID: s.id}
	if s.kind == TypeRun {
		f = Frame{Type: TypeExit, ID: s.id, Exit: &Exit{Code: 126, Error: "the agent gave up the run"}}
	}
	err := s.write(&f)
	if err == ErrClosed { // by another Close
		return nil
	}
	return err
}

// deliver handles a frame from the peer. It does not block.
func (s *Stream) deliver(f *Frame) error {
	if !s.carries(f.Type, 1-s.conn.side) {
		return fmt.Errorf("%w: %q on a %s stream", ErrProtocol, f.Type, s.kind)
	}
	gone, err := s.take(f)
	if err != nil {
		return err
	}
	if gone {
		s.conn.remove(s.id)
	}
	s.changed()
	return nil
}

// take updates the state for a frame from the peer. It reports whether that was the last of the
// stream.
func (s *Stream) take(f *Frame) (gone bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closedPeer:
		return false, fmt.Errorf("%w: %q after the stream's end", ErrProtocol, f.Type)
	case f.Type == TypeWindow:
		if f.Credit < 0 || f.Credit > Window-s.credit {
			return false, fmt.Errorf("%w: credit of %d with %d outstanding", ErrProtocol, f.Credit, Window-s.credit)
		}
		s.credit += f.Credit
		return false, nil
	case s.eofPeer && (f.Type.payload() || f.Type == TypeEOF):
		return false, fmt.Errorf("%w: %q after eof", ErrProtocol, f.Type)
	case f.Type.payload():
		n := cost(len(f.Data))
		if n > s.room {
			return false, fmt.Errorf("%w: %d bytes of %q overrun the window", ErrProtocol, len(f.Data), f.Type)
		}
		s.room -= n
		if s.abandoned {
			s.consumeLocked(n)
		}
	case f.Type == TypeEOF:
		s.eofPeer = true
	case f.Type == TypeExit || f.Type == TypeClose:
		s.endLocked()
		s.closedPeer = true
	}
	if !s.abandoned {
		s.queue = append(s.queue, *f)
	}
	return s.closedPeer && (s.kind == TypeRun || s.closedHere), nil
}

// carries reports whether the side may send a frame of type t on the stream.
func (s *Stream) carries(t Type, from Side) bool {
	switch t {
	case TypeWindow:
		return true
	case TypeData, TypeEOF, TypeClose:
		return s.kind == TypeDial
	case TypeStdout, TypeStderr, TypeDisplay, TypeExit:
		return s.kind == TypeRun && from == AgentSide
	case TypeInterrupt, TypeKill:
		return s.kind == TypeRun && from == ServerSide
	}
	return false
}

// end is called when the connection has failed.
func (s *Stream) end(err error) {
	s.mu.Lock()
	s.endLocked()
	s.err = err
	s.mu.Unlock()
	s.changed()
}

// changed wakes the waiting goroutines to look at the state again.
func (s *Stream) changed() {
	wake(s.arrived)
	wake(s.credited)
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
