package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// Side says which end of the connection this is.
type Side int

// The two ends. Run streams have even ids, dial streams odd ones.
const (
	ServerSide Side = iota
	AgentSide
)

// writeTimeout is how long the server waits for an agent that does not read. The agent waits
// without a limit, because the server always reads.
const writeTimeout = 10 * time.Second

// drainTimeout is how long this side still reads from a peer that has stopped reading.
const drainTimeout = time.Second

// maxPings limits the unanswered pings.
const maxPings = 64

// ErrClosed is the error of a connection or stream that this side closed.
var ErrClosed = errors.New("wire: closed")

// Conn multiplexes streams over one duplex stream. Its methods are safe for concurrent use.
type Conn struct {
	rw     io.ReadWriteCloser
	side   Side
	accept func(*Stream, Frame)

	// wmu is held while a frame is written, and while the state that decides what may be written
	// changes, so that no frame follows the last one of its stream. It is taken before any other
	// lock.
	wmu sync.Mutex
	enc encoder

	mu       sync.Mutex
	streams  map[uint64]*Stream
	nextID   uint64 // the id of the next stream this side opens
	lastPeer uint64 // the highest id the peer opened
	open     [2]int // how many streams are open, by parity of their id: dials must not crowd out runs
	pings    []chan struct{}
	err      error

	done chan struct{}
}

// NewConn starts a connection after the hello and owns rw. Closing rw must unblock its Read and
// Write. For each stream that the peer opens, it calls accept in a new goroutine with the frame
// that opened it; accept must close the stream. A nil accept closes every such stream.
func NewConn(rw io.ReadWriteCloser, side Side, accept func(*Stream, Frame)) *Conn {
	c := &Conn{rw: rw, side: side, accept: accept, streams: map[uint64]*Stream{}, done: make(chan struct{})}
	c.nextID = 2
	if side == AgentSide {
		c.nextID = 1
	}
	go c.readLoop()
	return c
}

// Done returns a channel that is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended, or nil. It is io.EOF if the peer hung up.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and every stream on it. It is idempotent.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	<-c.done
	return nil
}

// fail records the first error, ends every stream with it and unblocks the read loop.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	streams := c.streams
	c.streams = nil
	pings := c.pings
	c.pings = nil
	c.mu.Unlock()
	_ = c.rw.Close()
	for _, s := range streams {
		s.end(err)
	}
	for _, p := range pings {
		close(p)
	}
}

// Open opens a stream with f: a run on the server's side, a dial on the agent's. If f is too long
// or too many streams are open, it fails and the connection stays usable.
func (c *Conn) Open(f Frame) (*Stream, error) {
	if want := c.opens(c.side); f.Type != want {
		return nil, fmt.Errorf("wire: cannot open a stream with %q", f.Type)
	}
	// One lock for the id and the write: ids must arrive in increasing order.
	c.wmu.Lock()
	defer c.wmu.Unlock()
	f.ID = c.nextID
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("wire: cannot open a stream: %w", err)
	}
	b, err := c.encodeLocked(&f)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	if c.open[f.ID%2] >= maxStreams {
		c.mu.Unlock()
		return nil, errors.New("wire: too many streams")
	}
	s := newStream(c, f.ID, f.Type)
	c.nextID += 2
	c.addLocked(s)
	c.mu.Unlock()
	if err := c.writeLocked(b); err != nil {
		return nil, err
	}
	return s, nil
}

// Ping returns when the agent has answered. Only the server pings.
func (c *Conn) Ping(ctx context.Context) error {
	ch := make(chan struct{})
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	if len(c.pings) >= maxPings {
		c.mu.Unlock()
		return errors.New("wire: the agent has left too many pings unanswered")
	}
	c.pings = append(c.pings, ch)
	c.mu.Unlock()
	// A write that fails closes ch. It may take longer than ctx. The ping stays in the list when
	// ctx ends, because its answer may still come.
	go func() { _ = c.write(&Frame{Type: TypePing}) }()
	select {
	case <-ch:
		return c.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Conn) opens(side Side) Type {
	if side == ServerSide {
		return TypeRun
	}
	return TypeDial
}

func (c *Conn) write(f *Frame) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	b, err := c.encodeLocked(f)
	if err != nil {
		return err
	}
	return c.writeLocked(b)
}

// encodeLocked fails on a frame that the peer would not accept. The caller holds wmu.
func (c *Conn) encodeLocked(f *Frame) ([]byte, error) {
	if c.side == ServerSide {
		return c.enc.encode(f, maxToAgent)
	}
	return c.enc.encode(f, maxFromAgent)
}

// writeLocked writes one encoded frame or ends the connection. If the peer has hung up, its last
// frames are read before the end. The caller holds wmu.
func (c *Conn) writeLocked(b []byte) error {
	if c.side == ServerSide {
		t := time.AfterFunc(writeTimeout, func() {
			c.fail(fmt.Errorf("wire: the agent has not read for %v: %w", writeTimeout, os.ErrDeadlineExceeded))
		})
		defer t.Stop()
	}
	_, err := c.rw.Write(b)
	if err == nil {
		return nil
	}
	if err = hangUp(err); err == io.EOF && c.Err() == nil {
		time.AfterFunc(drainTimeout, func() { c.fail(io.EOF) })
		return io.EOF
	}
	c.fail(err)
	return c.Err()
}

// hangUp returns io.EOF for every error that means that the peer has hung up.
func hangUp(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrClosedPipe) {
		return io.EOF
	}
	return err
}

func (c *Conn) readLoop() {
	defer close(c.done)
	dec := decoder{r: bufio.NewReader(c.rw), limit: maxFromAgent} // reads several short frames at once
	if c.side == AgentSide {
		dec.limit = maxToAgent
	}
	for {
		f, err := dec.decode()
		if err == nil {
			err = c.dispatch(f)
		}
		if err != nil {
			c.fail(hangUp(err))
			return
		}
	}
}

// dispatch never blocks on a stream's consumer, because the window limits a stream's queue. On the
// server's side it does not write either, so an agent that does not read cannot block it.
func (c *Conn) dispatch(f *Frame) error {
	switch {
	case f.Type == TypePing && c.side == AgentSide:
		return c.write(&Frame{Type: TypePong})
	case f.Type == TypePong && c.side == ServerSide:
		return c.pong()
	case f.Type == c.opens(1-c.side):
		return c.acceptStream(f)
	}
	c.mu.Lock()
	s := c.streams[f.ID]
	c.mu.Unlock()
	if s == nil {
		if c.side == AgentSide {
			return nil // it crossed with the end of the stream; the server is trusted
		}
		return fmt.Errorf("%w: %q on stream %d, which is not open", ErrProtocol, f.Type, f.ID)
	}
	return s.deliver(f)
}

func (c *Conn) pong() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pings) == 0 {
		return fmt.Errorf("%w: pong without ping", ErrProtocol)
	}
	close(c.pings[0])
	c.pings = c.pings[1:]
	return nil
}

func (c *Conn) acceptStream(f *Frame) error {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	if f.ID <= c.lastPeer || f.ID%2 == c.nextID%2 {
		c.mu.Unlock()
		return fmt.Errorf("%w: stream id %d", ErrProtocol, f.ID)
	}
	if c.open[f.ID%2] >= maxStreams {
		c.mu.Unlock()
		return fmt.Errorf("%w: more than %d streams", ErrProtocol, maxStreams)
	}
	c.lastPeer = f.ID
	s := newStream(c, f.ID, f.Type)
	c.addLocked(s)
	c.mu.Unlock()
	if c.accept == nil {
		go func() { _ = s.Close() }()
		return nil
	}
	go c.accept(s, *f)
	return nil
}

func (c *Conn) addLocked(s *Stream) {
	c.streams[s.id] = s
	c.open[s.id%2]++
}

func (c *Conn) remove(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.streams[id]; ok {
		delete(c.streams, id)
		c.open[id%2]--
	}
}
