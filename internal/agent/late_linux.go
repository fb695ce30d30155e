package agent

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	maxLate      = 8 << 10 // bytes of late output that are kept, as in the drivers
	maxLateCells = 16      // cells whose pipes are read after their end
	lateRead     = 64 << 10
	latePause    = 50 * time.Millisecond
)

// late reads the pipes of cells that have ended for as long as a process that a cell left behind has them open: such a process
// neither blocks nor gets a SIGPIPE. Each pipe is read at most once in latePause, so a process that floods it waits.
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

// keep takes over the read end of a pipe of cell n. At most maxLateCells cells have pipes: those of the oldest are closed.
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
		_ = old.f.Close() // not under the lock: Close waits for a read, which takes it
	}
	go l.follow(p)
}

// insert adds a pipe and returns those to be closed.
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

// follow reads a pipe until nobody has it open for writing, or it is closed.
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
	for i := range l.pipes {
		if l.pipes[i] == p {
			l.pipes = append(l.pipes[:i:i], l.pipes[i+1:]...)
			break
		}
	}
	l.mu.Unlock()
	_ = p.f.Close()
}

// read reads what is in the pipe and reports whether somebody has it open for writing.
func (l *late) read(p *latePipe) (open bool) {
	err := p.raw.Control(func(fd uintptr) { _, open = l.readOnce(p.n, fd) })
	return open && err == nil
}

// readOnce reads and adds in one: what take does not find has not been read.
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
	l.texts = append(l.texts, lateText{cell, append([]byte(nil), kept...)})
}

// take returns what has come since the last time, cell by cell, between the lines that the drivers put around late output.
func (l *late) take() (out []byte) {
	l.mu.Lock()
	pipes := append([]*latePipe(nil), l.pipes...)
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

// close closes all pipes, also those that are kept from now on.
func (l *late) close() {
	l.mu.Lock()
	pipes := l.pipes
	l.pipes, l.over = nil, true
	l.mu.Unlock()
	for _, p := range pipes {
		_ = p.f.Close()
	}
}
