package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// lookInterval is how often a server that only has answers left to give looks whether anybody reads them.
const lookInterval = 250 * time.Millisecond

// ServeStdio serves one client, whose messages come line by line from in and are answered on out, until in ends, ctx ends
// or the server is closed. At the end of in it answers the requests it has got first, unless nobody reads out any more. It
// closes both. An in that does not unblock on Close, such as a terminal, may keep one goroutine until it ends.
func (s *Server) ServeStdio(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errShutdown) })()

	session, err := s.mcp.Connect(ctx, &stdioTransport{server: s, in: in, out: out, stop: ctx.Done()}, nil)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		in.Close() // ends the calls, too
		session.Close()
		<-ended
		if !errors.Is(context.Cause(ctx), errShutdown) {
			return ctx.Err()
		}
		return nil
	}
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) {
		return nil // the client left without waiting for the last answer
	}
	return err
}

// stdioTransport is the SDK's line transport but for these things: a message that is not JSON-RPC is answered instead of
// ending the session, as is one that is too long; every error has a code; a cancelled request is not answered; and at the
// end of input the requests that are under way are.
type stdioTransport struct {
	server *Server
	in     io.ReadCloser
	out    io.WriteCloser
	stop   <-chan struct{} // ends the wait for answers
}

func (t *stdioTransport) Connect(context.Context) (mcp.Connection, error) {
	c := &stdioConn{stdioTransport: t, lines: make(chan []byte), closed: make(chan struct{}), broken: make(chan struct{})}
	go c.readLines()
	return c, nil
}

type stdioConn struct {
	*stdioTransport
	lines   chan []byte // closed at the end of input
	readErr error       // set before lines is closed

	calls   calls
	writeMu sync.Mutex
	failed  bool          // guarded by writeMu: a write has failed
	broken  chan struct{} // closed when failed is set

	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

var _ mcp.Connection = (*stdioConn)(nil)

func (c *stdioConn) SessionID() string { return "" }

func (c *stdioConn) readLines() {
	defer close(c.lines)
	r := bufio.NewReaderSize(c.in, 64<<10)
	for {
		line, err := c.readLine(r)
		if len(bytes.TrimSpace(line)) > 0 {
			select {
			case c.lines <- line:
			case <-c.closed:
				return
			}
		}
		if err != nil {
			c.readErr = err
			return
		}
	}
}

// readLine returns the next line. One over the limit is skipped, and answered when its end has come: the client may not read
// before it has written.
func (c *stdioConn) readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for tooLong := false; ; {
		part, err := r.ReadSlice('\n')
		if int64(len(line)+len(part)) > c.server.cfg.MaxBodyBytes {
			tooLong, line = true, nil
		}
		if !tooLong {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if tooLong {
			c.reply(nil, rpcErrorf(jsonrpc.CodeInvalidRequest, "the message is larger than %d bytes", c.server.cfg.MaxBodyBytes))
		}
		return line, err
	}
}

// Read returns the next message that the SDK can deal with, and answers the others.
func (c *stdioConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.closed:
			return nil, io.EOF
		case line, ok := <-c.lines:
			if !ok {
				if c.readErr == io.EOF {
					c.awaitAnswers(ctx)
				}
				return nil, c.readErr
			}
			if msg := c.decode(line); msg != nil {
				return msg, nil
			}
		}
	}
}

// awaitAnswers returns when the requests that have been read are answered, or cannot be: the SDK cancels them when Read
// says that there is no more.
func (c *stdioConn) awaitAnswers(ctx context.Context) {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for answered := c.calls.answered(); ; {
		select {
		case <-answered:
			return
		case <-ctx.Done():
			return
		case <-c.stop:
			return
		case <-c.closed:
			return
		case <-c.broken:
			return
		case <-look.C:
			if hungUp(c.out) {
				return
			}
		}
	}
}

func (c *stdioConn) decode(line []byte) jsonrpc.Message {
	msgs, batch, rerr := parse(line)
	if rerr == nil && batch {
		rerr = rpcErrorf(jsonrpc.CodeInvalidRequest, "batches are not supported here; send one message per line")
	}
	if rerr != nil {
		c.reply(nil, rerr)
		return nil
	}
	m := msgs[0]
	c.server.logIncoming(m)
	if m.err == nil {
		msg, err := jsonrpc.DecodeMessage(m.raw)
		switch {
		case err != nil:
		case c.calls.cancel(m):
			return nil
		default:
			c.calls.begin(m)
			return msg
		}
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, "invalid request")
	}
	if !m.isNotification() {
		c.reply(m.id, m.err)
	}
	return nil
}

// Write sends one message of the SDK's.
func (c *stdioConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	resp, ok := msg.(*jsonrpc.Response)
	if ok {
		wanted, sent := c.calls.answer(encodeID(resp.ID))
		defer sent()
		if !wanted {
			return nil
		}
	}
	if ok && resp.Error != nil {
		var coded *jsonrpc.Error
		if !errors.As(resp.Error, &coded) || coded.Code == 0 {
			// Errors of handlers have codes. What is left is the SDK's refusal of a request that came too early.
			return c.send(encodeError(encodeID(resp.ID), rpcErrorf(jsonrpc.CodeInvalidRequest, "%s", printable(resp.Error.Error()))))
		}
	}
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	return c.send(data)
}

func encodeID(id jsonrpc.ID) json.RawMessage {
	data, err := json.Marshal(id.Raw())
	if err != nil {
		return nil
	}
	return data
}

// reply answers a message that the SDK does not see. That the client no longer reads is noticed by the next Write.
func (c *stdioConn) reply(id json.RawMessage, e *rpcError) { _ = c.send(encodeError(id, e)) }

func (c *stdioConn) send(data []byte) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	_, err := c.out.Write(append(data, '\n'))
	if err != nil && !c.failed {
		c.failed = true
		close(c.broken)
	}
	return err
}

// Close ends Read and closes both streams.
func (c *stdioConn) Close() error {
	c.closeOnce.Do(func() {
		close(c.closed)
		c.closeErr = errors.Join(c.in.Close(), c.out.Close())
	})
	return c.closeErr
}
