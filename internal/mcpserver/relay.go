package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"runtime/debug"
	"sync"
	"time"
)

// Upstream is a [Relay]'s connection to a server in another process. Close unblocks the other
// methods.
type Upstream interface {
	Send(line []byte) error          // sends a message of the client, with its newline
	Receive() (line []byte, _ error) // returns the server's next message, with its newline
	CloseSend() error                // says that the client sends no more
	Close() error
	// Stopped reports whether the server was stopped on purpose. It is valid after an error of
	// Receive.
	Stopped() bool
}

// Relay carries the messages of one stdio client to a server in another process. If that server
// ends, the Relay joins another one and replays what the client has set up. It answers the requests
// that were open with an error: code must not run twice.
type Relay struct {
	// Join connects to a server that is ready, and starts one if there is none.
	Join func(context.Context) (Upstream, error)
	// MaxLineBytes limits a message of the client.
	MaxLineBytes int64

	out struct {
		sync.Mutex
		io.Writer
	}
	broken chan struct{} // closed when the client no longer reads

	mu       sync.Mutex
	link     *link // replaced by Run only
	finished bool  // the client sends no more
	client   replay
}

// link is one connection.
type link struct {
	Upstream
	joined time.Time
	lost   bool          // guarded by Relay.mu
	rejoin bool          // join another server at once; set before ended is closed
	ended  chan struct{} // closed when the client's open requests are answered
}

const (
	// minLife is how long a connection must have lasted for the Relay to join again before the
	// client asks for something, so that a server that crashes at once is not started in a loop.
	minLife = 10 * time.Second
	// largeLine is the size of a message after which the Relay returns memory to the system.
	largeLine = 1 << 20
)

// Run serves the client until in ends and its requests are answered, or ctx ends. If the first Join
// fails, Run returns its error and has read and written nothing.
func (r *Relay) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	r.out.Writer, r.broken = out, make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.join(ctx); err != nil {
		return err
	}
	defer r.close()
	defer context.AfterFunc(ctx, r.close)()

	lines := make(chan []byte)
	go r.readLines(ctx, in, lines)
	var over *link // its end has been handled
	for {
		ended := r.link.ended
		if r.link == over {
			ended = nil // the client's next message joins another server
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.broken:
			return nil
		case <-ended:
			over = r.link
			if over.rejoin && r.join(ctx) != nil {
				over.rejoin = false
				r.answerOpen(over)
			}
		case line, ok := <-lines:
			if !ok {
				r.finish(ctx)
				return nil
			}
			r.forward(ctx, line)
		}
	}
}

// readLines reads the client's messages until ctx ends.
func (r *Relay) readLines(ctx context.Context, in io.Reader, lines chan<- []byte) {
	defer close(lines)
	buffered := bufio.NewReaderSize(in, 64<<10)
	for {
		line, tooLong, err := readLine(buffered, r.MaxLineBytes)
		if tooLong {
			r.send(encodeError(nil, tooLongError(r.MaxLineBytes)))
		}
		if len(bytes.TrimSpace(line)) > 0 {
			if line[len(line)-1] != '\n' { // the last one
				line = append(line, '\n')
			}
			select {
			case lines <- line:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// forward sends a message to the server, and joins one if there is none.
func (r *Relay) forward(ctx context.Context, line []byte) {
	m := parseLight(line)
	for {
		wanted, ok := r.record(m, line)
		if !ok {
			if err := r.join(ctx); err != nil {
				r.refuse(m, err)
				return
			}
			continue
		}
		if wanted && r.link.Send(line) != nil {
			r.link.Close() // receive answers what is open
		}
		if len(line) > largeLine {
			debug.FreeOSMemory()
		}
		return
	}
}

// record notes a message of the client, and reports whether the server wants it. It returns false
// if the connection is lost.
func (r *Relay) record(m lightMessage, line []byte) (wanted, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.link.lost {
		return false, false
	}
	return r.client.sent(m, line), true
}

func (r *Relay) refuse(m lightMessage, err error) {
	if m.isCall() {
		r.send(encodeError(m.ID, rpcErrorf(codeUnavailable, "the server has ended, and no other can be started: %s", printable(err.Error()))))
	}
}

// join connects to a server, replays the client's state to it, and starts to receive from it.
func (r *Relay) join(ctx context.Context) error {
	up, err := r.Join(ctx)
	if err != nil {
		return err
	}
	l := &link{Upstream: up, joined: time.Now(), ended: make(chan struct{})}
	r.mu.Lock()
	lines := r.client.replay()
	r.link = l
	r.mu.Unlock()
	if ctx.Err() != nil { // r.close may have missed it
		up.Close()
	}
	go r.receive(l)
	for _, line := range lines {
		if up.Send(line) != nil {
			up.Close()
			break
		}
	}
	return nil
}

// receive passes the server's messages to the client until the connection ends. Then it answers the
// client's open requests.
func (r *Relay) receive(l *link) {
	defer close(l.ended)
	defer l.Close()
	for {
		line, err := l.Receive()
		if err != nil {
			break
		}
		m := parseLight(line)
		r.mu.Lock()
		wanted := r.client.received(m)
		r.mu.Unlock()
		if wanted && r.write(line) != nil {
			break
		}
		if len(line) > largeLine {
			debug.FreeOSMemory()
		}
	}
	l.rejoin = !l.Stopped() && time.Since(l.joined) >= minLife
	r.answerOpen(l)
}

// answerOpen answers the requests that a lost connection leaves open.
func (r *Relay) answerOpen(l *link) {
	r.mu.Lock()
	l.lost = true
	l.rejoin = l.rejoin && !r.finished
	unanswered := r.client.fail(l.rejoin, r.finished)
	r.mu.Unlock()
	for _, id := range unanswered {
		r.send(encodeError(id, errServerEnded))
	}
}

var errServerEnded = rpcErrorf(codeUnavailable,
	"the server ended while it worked on this request, and it is not known how far it got; "+
		"files are kept, variables are lost, and the next request goes to a new server")

// finish lets the server answer what is open after the end of input, while the client reads.
func (r *Relay) finish(ctx context.Context) {
	r.mu.Lock()
	r.finished = true
	r.mu.Unlock()
	if r.link.CloseSend() != nil {
		r.link.Close()
	}
	ticker := time.NewTicker(hangUpInterval)
	defer ticker.Stop()
	for !hungUp(r.out.Writer) {
		select {
		case <-r.link.ended: // everything is answered, or the server has ended
			r.answerOpen(r.link)
			return
		case <-ctx.Done():
			return
		case <-r.broken:
			return
		case <-ticker.C:
		}
	}
}

func (r *Relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.link.Close()
}

// send sends a message of the Relay's own.
func (r *Relay) send(message json.RawMessage) { _ = r.write(append(message, '\n')) }

func (r *Relay) write(line []byte) error {
	r.out.Lock()
	defer r.out.Unlock()
	select {
	case <-r.broken:
		return io.ErrClosedPipe
	default:
	}
	_, err := r.out.Write(line)
	if err != nil {
		close(r.broken)
	}
	return err
}
