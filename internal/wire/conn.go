package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Side says which end of the connection this is.
type Side int

// The two ends. Run streams have even ids, dial streams odd ones.
const (
	ServerSide Side = iota
	AgentSide
)

// writeTimeout bounds a write to a peer that has stopped reading.
const writeTimeout = 10 * time.Second

// ErrClosed is the error of a connection or stream that this side closed.
var ErrClosed = errors.New("wire: closed")

// Conn multiplexes streams over one duplex stream. Its methods are safe for concurrent use.
type Conn struct {
	rw     io.ReadWriteCloser
	side   Side
	accept func(*Stream, Frame)

	wmu sync.Mutex // one frame at a time on the wire

	mu       sync.Mutex
	streams  map[uint64]*Stream
	nextID   uint64 // the id of the next stream this side opens
	lastPeer uint64 // the highest id the peer opened
	open     [2]int // how many streams are open, by parity of their id: dials must not crowd out runs
	pings    []chan struct{}
	err      error

	done chan struct{}
}

// NewConn starts a connection after the hello. accept is called in a goroutine of its own for each stream
// that the peer opens, with the frame that opened it; it must close the stream. With a nil accept on the
// server's side every dial is closed at once.
func NewConn(rw io.ReadWriteCloser, side Side, accept func(*Stream, Frame)) *Conn {
	c := &Conn{rw: rw, side: side, accept: accept, streams: map[uint64]*Stream{}, done: make(chan struct{})}
	c.nextID = 2
	if side == AgentSide {
		c.nextID = 1
	}
	go c.readLoop()
	return c
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the connection ended; nil while it has not. A peer that hung up gives io.EOF.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and every stream on it.
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

// Open starts a stream with f, which is a run on the server's side and a dial on the agent's.
func (c *Conn) Open(f Frame) (*Stream, error) {
	if want := c.opens(c.side); f.Type != want {
		return nil, fmt.Errorf("wire: cannot open a stream with %q", f.Type)
	}
	// The id is taken and the frame written under one lock: ids arrive in increasing order.
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	if c.open[c.nextID%2] >= maxStreams {
		c.mu.Unlock()
		return nil, errors.New("wire: too many streams")
	}
	s := newStream(c, c.nextID, f.Type)
	c.nextID += 2
	c.rememberLocked(s)
	c.mu.Unlock()
	f.ID = s.id
	if err := c.writeLocked(&f); err != nil {
		return nil, err
	}
	return s, nil
}

// Ping returns when the agent has answered.
func (c *Conn) Ping(ctx context.Context) error {
	ch := make(chan struct{})
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.pings = append(c.pings, ch)
	c.mu.Unlock()
	if err := c.write(&Frame{Type: TypePing}); err != nil {
		return err
	}
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
	return c.writeLocked(f)
}

func (c *Conn) writeLocked(f *Frame) error {
	if d, ok := c.rw.(interface{ SetWriteDeadline(time.Time) error }); ok && c.side == ServerSide {
		_ = d.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
	if err := writeFrame(c.rw, f); err != nil {
		c.fail(err)
		return c.Err()
	}
	return nil
}

func (c *Conn) readLoop() {
	defer close(c.done)
	limit := maxFromAgent
	if c.side == AgentSide {
		limit = maxToAgent
	}
	for {
		f, err := readFrame(c.rw, limit)
		if err == nil {
			err = c.dispatch(f)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// dispatch never blocks on a stream's consumer: the window bounds what a stream can have queued.
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
			return nil // crossed with the end of the stream; the server is trusted
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
	if f.Type == TypeRun && f.Run == nil {
		return fmt.Errorf("%w: run without a run", ErrProtocol)
	}
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
	c.rememberLocked(s)
	c.mu.Unlock()
	if c.accept == nil {
		go func() { _ = s.Close() }()
		return nil
	}
	go c.accept(s, *f)
	return nil
}

func (c *Conn) rememberLocked(s *Stream) {
	c.streams[s.id] = s
	c.open[s.id%2]++
}

func (c *Conn) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.streams[id]; ok {
		delete(c.streams, id)
		c.open[id%2]--
	}
}
