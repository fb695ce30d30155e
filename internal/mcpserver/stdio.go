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

// hangUpInterval is the interval at which the server checks, after the end of input, whether the
// client still reads.
const hangUpInterval = 250 * time.Millisecond

// maxOpenCalls bounds the open requests of one stdio client, which shares its server with others.
const maxOpenCalls = 1000

// ServeStdio serves one client until in ends, ctx ends or the server is closed. Messages are lines.
// After the end of in, it still answers open requests while the client reads. It closes in and out.
// If Close does not unblock in, as with a terminal, one goroutine stays until in ends.
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
		in.Close() // also cancels the calls
		session.Close()
		<-ended
		if !errors.Is(context.Cause(ctx), errShutdown) {
			return ctx.Err()
		}
		return nil
	}
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) {
		return nil // the client left before the last answer
	}
	return err
}

// stdioTransport differs from the SDK's line transport: it answers invalid and too long messages
// instead of ending the session, gives every error a code, does not answer cancelled requests, and
// answers open requests after the end of input.
type stdioTransport struct {
	server *Server
	in     io.ReadCloser
	out    io.WriteCloser
	stop   <-chan struct{} // ends awaitAnswers
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
	failed  bool          // a write has failed; guarded by writeMu
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

// readLine returns the next line. It answers a line over the limit at its end, since the client may
// not read before it has written all of it.
func (c *stdioConn) readLine(r *bufio.Reader) ([]byte, error) {
	limit := c.server.cfg.MaxBodyBytes
	line, tooLong, err := readLine(r, limit)
	if tooLong {
		c.reply(nil, tooLongError(limit))
	}
	return line, err
}

// readLine returns the next line. It skips a line over the limit, and reports that as tooLong.
func readLine(r *bufio.Reader, limit int64) (line []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if int64(len(line)+len(part)) > limit {
			tooLong, line = true, nil
		}
		if !tooLong {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, tooLong, err
		}
	}
}

func tooLongError(limit int64) *jsonrpc.Error {
	return rpcErrorf(jsonrpc.CodeInvalidRequest, "the message is larger than %d bytes", limit)
}

// Read returns the next valid message and answers invalid ones.
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

// awaitAnswers waits until all requests are answered or cannot be. The SDK cancels open requests
// when Read returns an error.
func (c *stdioConn) awaitAnswers(ctx context.Context) {
	ticker := time.NewTicker(hangUpInterval)
	defer ticker.Stop()
	for answered := c.calls.answered(); !hungUp(c.out); {
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
		case <-ticker.C:
		}
	}
}

// decode returns nil if the SDK must not see the message. It has been answered if necessary.
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
		case m.isCall() && c.calls.count() >= maxOpenCalls:
			c.reply(m.id, rpcErrorf(codeUnavailable, "%d requests are open; wait for an answer", maxOpenCalls))
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

// Write sends a message from the SDK.
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
	if ok && resp.Error != nil && !hasCode(resp.Error) {
		// Errors of handlers have codes, so this is the SDK's refusal of a request before
		// initialize.
		return c.send(encodeError(encodeID(resp.ID), rpcErrorf(jsonrpc.CodeInvalidRequest, "%s", printable(resp.Error.Error()))))
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

// reply answers a message that the SDK does not see. The next Write reports a client that no longer
// reads.
func (c *stdioConn) reply(id json.RawMessage, e *jsonrpc.Error) { _ = c.send(encodeError(id, e)) }

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
