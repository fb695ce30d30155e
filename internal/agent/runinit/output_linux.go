package runinit

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/wire"
)

// maxLeftover limits what is read from a pipe after its run has ended. A pipe holds at most this
// much; more can only come from a process of another run that got the descriptor.
const maxLeftover = 1 << 20

// Output sends what a run prints and shows, in order: it reads and sends in one step, and a display
// comes after what was in the pipes before it.
type Output struct {
	stream *wire.Stream

	turn  sync.Mutex // held from reading to sending
	pipes []*outputPipe
	last  *outputPipe // the one that was read last
}

type outputPipe struct {
	kind  wire.Type
	raw   syscall.RawConn
	buf   []byte
	reads int // without a longer pause, while the other pipe was empty
	since time.Time
}

// A program that prints many short lines is read every readPause after the first quickReads reads:
// a frame for each line would take more time than the line. When it changes between its pipes, and
// may wait for the reader, it is read at once.
const (
	quickReads = 50
	readPause  = time.Millisecond
)

// NewOutput returns the output of the run on that stream. It knows both pipes before the first
// display, which may come before Pump has started.
func NewOutput(s *wire.Stream, stdout, stderr *os.File) *Output {
	o := &Output{stream: s}
	o.add(wire.TypeStdout, stdout)
	o.add(wire.TypeStderr, stderr)
	return o
}

func (o *Output) add(t wire.Type, r *os.File) {
	if raw, err := r.SyscallConn(); err == nil {
		o.pipes = append(o.pipes, &outputPipe{kind: t, raw: raw, buf: make([]byte, wire.MaxData)})
	}
}

// Pump sends what comes from the pipes, from each until its end or, once the read deadline has
// passed, until it is empty.
func (o *Output) Pump() {
	var pumps sync.WaitGroup
	for _, p := range o.pipes {
		pumps.Go(func() { o.pump(p) })
	}
	pumps.Wait()
}

func (o *Output) pump(p *outputPipe) {
	for more, many := true, false; more; {
		if many {
			time.Sleep(readPause)
		}
		err := p.raw.Read(func(fd uintptr) bool {
			o.turn.Lock()
			defer o.turn.Unlock()
			if p.kind == wire.TypeStderr { // of what is in both pipes, output probably came before the error
				o.drainOthers(p)
			}
			n, again := o.pass(p, fd)
			more, many = n > 0, p.reads > quickReads
			return !again
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			o.turn.Lock()
			defer o.turn.Unlock()
			o.drain(p)
			return
		}
		if err != nil {
			return
		}
	}
}

// Show sends a display, after what was printed before it.
func (o *Output) Show(d Display) error {
	o.turn.Lock()
	defer o.turn.Unlock()
	o.drainAll()
	return o.stream.Send(context.Background(), wire.Frame{Type: wire.TypeDisplay, MIME: d.MIME, File: d.File, Data: d.Data})
}

// Settle sends what has been printed.
func (o *Output) Settle() {
	o.turn.Lock()
	defer o.turn.Unlock()
	o.drainAll()
}

func (o *Output) drainAll() { o.drainOthers(nil) }

// drainOthers passes on what is in all pipes but one.
func (o *Output) drainOthers(not *outputPipe) {
	for _, p := range o.pipes {
		if p != not {
			o.drain(p)
		}
	}
}

// drain passes on what is in a pipe, without waiting for more.
func (o *Output) drain(p *outputPipe) {
	for left := maxLeftover; left > 0; {
		n := 0
		if err := p.raw.Control(func(fd uintptr) { n, _ = o.pass(p, fd) }); err != nil || n == 0 {
			return
		}
		left -= n
	}
}

// pass reads from a pipe once and sends what it has read. It returns 0 at the pipe's end or if
// nobody receives, and again if the pipe is empty.
func (o *Output) pass(p *outputPipe, fd uintptr) (n int, again bool) {
	n, err := syscall.Read(int(fd), p.buf)
	for err == syscall.EINTR {
		n, err = syscall.Read(int(fd), p.buf)
	}
	switch {
	case err == syscall.EAGAIN:
		return 0, true
	case err != nil || n <= 0:
		return 0, false
	}
	if o.stream.Send(context.Background(), wire.Frame{Type: p.kind, Data: p.buf[:n]}) != nil {
		return 0, false
	}
	if now := time.Now(); o.last == p && n < len(p.buf)/2 && now.Sub(p.since) < 4*readPause {
		p.reads, p.since = p.reads+1, now
	} else {
		p.reads, p.since, o.last = 0, now, p
	}
	return n, false
}

// Drain reads what is in a pipe, without waiting for more, until f returns false.
func Drain(r *os.File, buf []byte, f func([]byte) bool) {
	raw, err := r.SyscallConn()
	if err != nil {
		return
	}
	for left := maxLeftover; left > 0; {
		n := 0
		if err := raw.Control(func(fd uintptr) { n, _ = syscall.Read(int(fd), buf) }); err != nil || n <= 0 || !f(buf[:n]) {
			return
		}
		left -= n
	}
}

// ForwardSignals calls kill or interrupt when the server asks for it, until the stream ends.
func ForwardSignals(s *wire.Stream, kill, interrupt func()) {
	for {
		f, err := s.Recv(context.Background())
		switch {
		case err != nil:
			return
		case f.Type == wire.TypeKill:
			kill()
		case f.Type == wire.TypeInterrupt:
			interrupt()
		}
	}
}
