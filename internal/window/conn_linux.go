package window

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// errGone means that the server ended before it answered, and another one may be started.
var errGone = errors.New("the server has ended")

// Conn is a window's connection to its server.
type Conn struct {
	socket  *net.UnixConn
	reader  *bufio.Reader
	logs    io.Writer
	detach  func() bool
	stopped atomic.Bool
}

// newConn makes a connection that ends with ctx. Log lines of the server go to logs.
func newConn(ctx context.Context, socket *net.UnixConn, logs io.Writer) *Conn {
	c := &Conn{socket: socket, reader: bufio.NewReaderSize(socket, 64<<10), logs: logs}
	c.detach = context.AfterFunc(ctx, func() { socket.Close() })
	return c
}

// open says hello, and waits for the answer.
func (c *Conn) open(h hello) error {
	_ = c.socket.SetDeadline(time.Now().Add(answerTimeout))
	defer c.socket.SetDeadline(time.Time{})
	if _, err := c.socket.Write(encode(h)); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	s, err := c.status()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return unavailable("the shared server does not answer")
	case err != nil:
		return fmt.Errorf("%w: %w", errGone, err)
	case s.Stopped:
		return errGone
	}
	return nil
}

func (c *Conn) awaitReady() error {
	for {
		switch s, err := c.status(); {
		case err != nil:
			return io.ErrUnexpectedEOF
		case s.Failed != "":
			return &StartError{s.Failed}
		case s.Stopped:
			return errGone
		case s.Ready:
			return nil
		}
	}
}

// status returns the next status. A server that has not said that it is ready sends no messages.
func (c *Conn) status() (s status, err error) {
	for {
		kind, line, err := c.next()
		if err != nil {
			return s, err
		}
		if kind == kindStatus {
			return s, json.Unmarshal(line, &s)
		}
	}
}

// Receive returns the next message of the server.
func (c *Conn) Receive() ([]byte, error) {
	for {
		kind, line, err := c.next()
		switch {
		case err != nil:
			return nil, err
		case kind == kindMessage:
			return line, nil
		case kind == kindStatus:
			var s status
			if json.Unmarshal(line, &s) == nil && s.Stopped {
				c.stopped.Store(true)
			}
		}
	}
}

// next returns the next line that is not a log line.
func (c *Conn) next() (kind byte, line []byte, err error) {
	for {
		if kind, err = c.reader.ReadByte(); err != nil {
			return 0, nil, err
		}
		if line, err = c.reader.ReadBytes('\n'); err != nil {
			return 0, nil, io.ErrUnexpectedEOF
		}
		if kind != kindLog {
			return kind, line, nil
		}
		_, _ = c.logs.Write(line)
	}
}

// Send sends a line to the server.
func (c *Conn) Send(line []byte) error {
	_, err := c.socket.Write(line)
	return err
}

// CloseSend says that no more lines come.
func (c *Conn) CloseSend() error { return c.socket.CloseWrite() }

// Stopped reports whether the server has said that it ends on purpose.
func (c *Conn) Stopped() bool { return c.stopped.Load() }

// Close closes the connection.
func (c *Conn) Close() error {
	c.detach()
	return c.socket.Close()
}
