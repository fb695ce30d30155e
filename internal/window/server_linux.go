package window

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// writeTimeout is how long a window may read nothing while the server has a line for it. Then
	// the server drops it, and the window joins again when its client reads.
	writeTimeout = 30 * time.Second
	// writeChunk is how much a window must read within that time.
	writeChunk = 64 << 10
	maxHello   = 1 << 10
	maxKept    = 16 << 10 // bytes of log lines kept for windows that join later
	maxWindows = 256
	// checkInterval is how often a server without windows checks that it can still be joined.
	checkInterval = time.Second
	// queueTime is how long a server that cannot start answers windows in its queue.
	queueTime = 200 * time.Millisecond
)

// ServeFunc serves one client until in ends or ctx does, and closes in and out.
type ServeFunc func(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error

// Server accepts windows. It ends when nobody needs it.
type Server struct {
	dir          *Dir
	id           string
	listener     *net.UnixListener
	socket       os.FileInfo
	writeTimeout time.Duration
	started      chan struct{} // closed when Serve or Fail says how the start ended

	serve  ServeFunc // set before started
	failed string    // why the server cannot start; set before started

	mu       sync.Mutex
	windows  map[*serverConn]bool
	stoppers []net.Conn    // processes that wait for the end
	changed  chan struct{} // capacity 1: windows or stoppers have changed
	kept     []byte        // log lines of the start
	ctx      context.Context
	cancel   context.CancelFunc
	handlers sync.WaitGroup
}

// NewServer accepts windows on the listener that [Dir.Join] made for the server with that id. They
// wait until Serve or Fail is called. It takes over dir and l.
func NewServer(dir *Dir, id string, l *os.File) (*Server, error) {
	return newServer(dir, id, l, writeTimeout)
}

func newServer(dir *Dir, id string, l *os.File, writeTimeout time.Duration) (*Server, error) {
	listener, err := net.FileListener(l)
	l.Close() // listener is a copy that programs do not inherit
	if err != nil {
		return nil, err
	}
	unix, ok := listener.(*net.UnixListener)
	if !ok {
		listener.Close()
		return nil, errors.New("the listener is not a Unix socket")
	}
	unix.SetUnlinkOnClose(false)
	s := &Server{
		dir: dir, id: id, listener: unix, writeTimeout: writeTimeout,
		started: make(chan struct{}), windows: map[*serverConn]bool{}, changed: make(chan struct{}, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if s.socket, err = os.Lstat(s.dir.place(id + socketSuffix)); err != nil {
		listener.Close()
		return nil, err
	}
	s.handlers.Go(s.accept)
	return s, nil
}

// Write sends a log line to every window, without waiting for them.
func (s *Server) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.started:
	default:
		if len(s.kept)+len(line) <= maxKept {
			s.kept = append(s.kept, line...)
		}
	}
	for c := range s.windows {
		_, _ = c.logs.Write(line)
	}
	return len(line), nil
}

// Fail tells the windows why the server cannot start, and ends it.
func (s *Server) Fail(reason error) {
	s.failed = reason.Error()
	close(s.started)
	s.removeSocket()
	time.AfterFunc(queueTime, func() { s.listener.Close() })
	s.handlers.Wait()
	s.end()
}

// Serve serves windows until none has been there for linger, until a process asks the server to
// stop, or until ctx ends. Serve then accepts no more windows, and tells those that are left. The
// caller closes its own parts, and then calls Close.
func (s *Server) Serve(ctx context.Context, linger time.Duration, serve ServeFunc) {
	s.serve = serve
	close(s.started)
	s.awaitEnd(ctx, linger)
	s.stopAccepting()
	s.sayStopped()
}

// sayStopped tells the windows that the server ends. It does not wait long for one that is stuck.
func (s *Server) sayStopped() {
	var told sync.WaitGroup
	s.mu.Lock()
	for c := range s.windows {
		told.Go(func() { _ = c.say(status{Stopped: true}) })
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		told.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(flushTime):
	}
}

// flushLogs sends the windows the log lines that wait for them. It does not wait long either.
func (s *Server) flushLogs() {
	var flushed sync.WaitGroup
	s.mu.Lock()
	for c := range s.windows {
		flushed.Go(c.logs.Close)
	}
	s.mu.Unlock()
	flushed.Wait()
}

// awaitEnd returns when nobody needs the server.
func (s *Server) awaitEnd(ctx context.Context, linger time.Duration) {
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	idle := time.NewTimer(linger)
	defer idle.Stop()
	for alone := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			return
		case <-check.C:
			if alone && !s.canBeJoined() {
				return
			}
		case <-s.changed:
			s.mu.Lock()
			windows, stop := len(s.windows), len(s.stoppers) > 0
			s.mu.Unlock()
			if stop {
				return
			}
			if alone = windows == 0; alone {
				idle.Reset(linger)
			} else {
				idle.Stop()
			}
		}
	}
}

// canBeJoined reports whether the socket is still at its place. A deleted data directory, for
// example, takes it away.
func (s *Server) canBeJoined() bool {
	fi, err := os.Lstat(s.dir.place(s.id + socketSuffix))
	return err == nil && os.SameFile(fi, s.socket)
}

// stopAccepting removes the socket, unless it is that of another server, and closes it. Windows in
// its queue get an error and start another server.
func (s *Server) stopAccepting() {
	s.removeSocket()
	s.listener.Close()
}

// removeSocket makes the next window start another server. The window that has started this one is
// in the queue by then, since it holds the lock until it is.
func (s *Server) removeSocket() {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if unlock, err := s.dir.lock(ctx); err == nil {
		defer unlock()
	}
	if s.canBeJoined() {
		_ = os.Remove(s.dir.place(s.id + socketSuffix))
	}
}

// Close ends the connections of all windows, after the last log lines.
func (s *Server) Close() error {
	s.flushLogs()
	s.cancel()
	s.handlers.Wait()
	s.end()
	return nil
}

// end lets those that wait for the end of the server continue.
func (s *Server) end() {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.stoppers {
		c.Close()
	}
	s.dir.Close()
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(100 * time.Millisecond) // too many open files, for example
			continue
		}
		s.handlers.Go(func() { s.handle(conn) })
	}
}

// handle serves one connection.
func (s *Server) handle(conn *net.UnixConn) {
	c := &serverConn{socket: conn, reader: bufio.NewReaderSize(conn, 64<<10), timeout: s.writeTimeout}
	detach := context.AfterFunc(s.ctx, func() { conn.Close() })
	h, err := c.hello()
	if err == nil && h.Stop && detach() {
		s.addStopper(c)
		return
	}
	defer conn.Close()
	defer detach()
	if err != nil || !s.add(c) {
		return
	}
	defer s.remove(c)
	if c.sayHello() != nil {
		return
	}
	select {
	case <-s.started:
	case <-s.ctx.Done():
		return
	}
	if s.failed != "" {
		c.logs.Close() // they come first
		_ = c.say(status{Failed: s.failed})
		return
	}
	c.logs.Flush() // a window may leave at once, and its client wants to know how the server started
	if c.say(status{Ready: true}) == nil {
		_ = s.serve(s.ctx, c, c)
	}
}

// addStopper ends the server. The connection is closed when it has ended.
func (s *Server) addStopper(c *serverConn) {
	_ = c.sayHello()
	s.mu.Lock()
	s.stoppers = append(s.stoppers, c.socket)
	s.mu.Unlock()
	s.signal()
}

// add makes the connection a window: it gets the log from now on, after that of the start. It
// returns false if there are too many.
func (s *Server) add(c *serverConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.windows) >= maxWindows {
		return false
	}
	c.logs = NewLogs(logLines{c})
	for line := range bytes.Lines(s.kept) {
		_, _ = c.logs.Write(line)
	}
	s.windows[c] = true
	s.signal()
	return true
}

func (s *Server) remove(c *serverConn) {
	s.mu.Lock()
	delete(s.windows, c)
	s.mu.Unlock()
	c.socket.Close()
	c.logs.Close()
	s.signal()
}

func (s *Server) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// serverConn is a server's connection to a window. It reads the client's lines and writes messages.
type serverConn struct {
	socket  *net.UnixConn
	reader  *bufio.Reader
	timeout time.Duration // of writes
	logs    *Logs

	mu sync.Mutex // of writes
}

// hello checks who the peer is and returns its first line.
func (c *serverConn) hello() (h hello, err error) {
	if err := checkPeer(c.socket); err != nil {
		return h, err
	}
	_ = c.socket.SetReadDeadline(time.Now().Add(answerTimeout))
	defer c.socket.SetReadDeadline(time.Time{})
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	if len(line) > maxHello {
		return h, errors.New("the first line is too long")
	}
	return h, json.Unmarshal(line, &h)
}

func (c *serverConn) sayHello() error { return c.say(status{}) }

// say sends a status.
func (c *serverConn) say(s status) error { return c.line(kindStatus, encode(s)) }

func (c *serverConn) Read(p []byte) (int, error) { return c.reader.Read(p) }

// Write sends a message, which must be a whole line.
func (c *serverConn) Write(line []byte) (int, error) {
	if err := c.line(kindMessage, line); err != nil {
		return 0, err
	}
	return len(line), nil
}

func (c *serverConn) Close() error { return c.socket.Close() }

// SyscallConn lets the reader of the messages check whether the window is still there.
func (c *serverConn) SyscallConn() (syscall.RawConn, error) { return c.socket.SyscallConn() }

// line sends a line of a kind, in chunks that must each be read in time.
func (c *serverConn) line(kind byte, line []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for first := true; len(line) > 0; first = false {
		chunk := line[:min(len(line), writeChunk)]
		line = line[len(chunk):]
		_ = c.socket.SetWriteDeadline(time.Now().Add(c.timeout))
		buffers := net.Buffers{chunk}
		if first {
			buffers = net.Buffers{{kind}, chunk}
		}
		if _, err := buffers.WriteTo(c.socket); err != nil {
			c.socket.Close() // half a line is of no use
			return err
		}
	}
	return nil
}

// logLines sends log lines to a window.
type logLines struct{ *serverConn }

func (l logLines) Write(line []byte) (int, error) {
	if err := l.line(kindLog, line); err != nil {
		return 0, err
	}
	return len(line), nil
}
