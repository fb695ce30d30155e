package runinit

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	maxLate      = 8 << 10 // bytes of late output to keep, as in the drivers
	maxLateCells = 16      // ended cells that are still read
	lateRead     = 64 << 10
	latePause    = 50 * time.Millisecond
)

// late reads the pipes of ended cells while a background process of the cell has them open, so that
// the process neither blocks nor gets SIGPIPE. It reads each pipe once per latePause: a process
// that floods the pipe has to wait.
type late struct {
	mu      sync.Mutex
	pipes   []*latePipe // in the order of their cells
	texts   []lateText
	size    int
	omitted int
	buf     []byte
	over    bool
}

type latePipe struct {
	n   int // of the cell
	f   *os.File
	raw syscall.RawConn
}

type lateText struct {
	n    int
	data []byte
}

// keep takes over the read end of a pipe of cell n. Beyond maxLateCells it closes the oldest cell's
// pipes.
func (l *late) keep(n int, r *os.File) {
	raw, err := r.SyscallConn()
	if err != nil || r.SetReadDeadline(time.Time{}) != nil {
		_ = r.Close()
		return
	}
	p := &latePipe{n, r, raw}
	if !l.read(p) {
		_ = r.Close()
		return
	}
	for _, old := range l.insert(p) {
		_ = old.f.Close() // without the lock: Close waits for a read, which needs it
	}
	go l.follow(p)
}

// insert adds a pipe and returns those to close.
func (l *late) insert(p *latePipe) (closed []*latePipe) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return []*latePipe{p}
	}
	l.pipes = append(l.pipes, p)
	cells := map[int]bool{}
	for _, p := range l.pipes {
		cells[p.n] = true
	}
	for oldest := l.pipes[0].n; len(cells) > maxLateCells && l.pipes[0].n == oldest; l.pipes = l.pipes[1:] {
		closed = append(closed, l.pipes[0])
	}
	return closed
}

// follow reads a pipe until it is closed, or no process has it open for writing.
func (l *late) follow(p *latePipe) {
	for open := true; open; {
		err := p.raw.Read(func(fd uintptr) bool {
			var n int
			n, open = l.readOnce(p.n, fd)
			return n > 0 || !open
		})
		if err != nil {
			return // closed
		}
		if open {
			time.Sleep(latePause)
		}
	}
	l.mu.Lock()
	l.pipes = slices.DeleteFunc(slices.Clone(l.pipes), func(other *latePipe) bool { return other == p })
	l.mu.Unlock()
	_ = p.f.Close()
}

// read empties the pipe and reports whether a process has it open for writing.
func (l *late) read(p *latePipe) (open bool) {
	err := p.raw.Control(func(fd uintptr) { _, open = l.readOnce(p.n, fd) })
	return open && err == nil
}

// readOnce reads and adds under one lock, so that take misses nothing that was read.
func (l *late) readOnce(cell int, fd uintptr) (n int, open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf == nil {
		l.buf = make([]byte, lateRead)
	}
	n, err := syscall.Read(int(fd), l.buf)
	if n > 0 {
		l.add(cell, l.buf[:n])
	}
	return n, n > 0 || err == syscall.EAGAIN
}

func (l *late) add(cell int, data []byte) {
	kept := data[:min(len(data), maxLate-l.size)]
	l.size += len(kept)
	l.omitted += len(data) - len(kept)
	if len(kept) == 0 {
		return
	}
	for i := range l.texts {
		if l.texts[i].n == cell {
			l.texts[i].data = append(l.texts[i].data, kept...)
			return
		}
	}
	l.texts = append(l.texts, lateText{cell, bytes.Clone(kept)})
}

// take returns the output since the last call, by cell, between the lines that drivers use for late
// output.
func (l *late) take() (out []byte) {
	l.mu.Lock()
	pipes := slices.Clone(l.pipes)
	l.mu.Unlock()
	for _, p := range pipes {
		l.read(p)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.texts {
		out = fmt.Appendf(out, "[late output of cell %d]\n%s", t.n, t.data)
		if t.data[len(t.data)-1] != '\n' {
			out = append(out, '\n')
		}
	}
	if l.omitted > 0 {
		out = fmt.Appendf(out, "[%d bytes of late output were left out]\n", l.omitted)
	}
	if len(out) > 0 {
		out = append(out, "[end of late output]\n"...)
	}
	l.texts, l.size, l.omitted = nil, 0, 0
	return out
}

// close closes all pipes, including those kept from now on.
func (l *late) close() {
	l.mu.Lock()
	pipes := l.pipes
	l.pipes, l.over = nil, true
	l.mu.Unlock()
	for _, p := range pipes {
		_ = p.f.Close()
	}
}
