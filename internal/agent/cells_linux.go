package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/wire"
)

// cellsDir holds a directory for each cell, in the run's private directory: the files code and env, the pipes stdout and
// stderr, and what the driver puts there to be displayed. It is the user code's to spoil, for itself alone.
const cellsDir = ".cells"

const maxLine = 4 << 10

var errLongLine = fmt.Errorf("the interpreter was ended: a line that it sent to the agent has more than %d bytes. Code must not write to descriptors that it has not opened", maxLine)

// cells is run-init's side of a living interpreter. The driver, the interpreter's own program, reads lines
// from its descriptor 3,
//
//	execute <n> <dir>
//
// runs <dir>/code with its output going to the pipes <dir>/stdout and <dir>/stderr, and, while it does, with the variables of the file
// <dir>/env, if there is one ("NAME=value", each ended by a NUL); and answers
//
//	ready                            once, when it has started
//	display <n> <MIME type> <name>   the file <dir>/<name> holds something to show
//	result <n> <exit code>           when the cell has ended and its output is flushed
//	exit <exit code>                 before it kills itself, where it cannot end in another way
//
// Lines that make no sense are ignored: user code may have written them. A line of more than maxLine bytes ends the interpreter,
// for what follows it cannot be told from what it holds; its cell fails with errLongLine.
type cells struct {
	pid    int // of the interpreter, and of its process group
	driver *os.File
	dir    *os.Root // private to the run
	conn   *wire.Conn
	turn   sync.Mutex
	n      int

	mu      sync.Mutex
	current *cell
	over    bool  // the interpreter has ended
	exit    *int  // what it said before it killed itself
	broken  error // the driver broke the protocol, so that the interpreter was killed
	idle    sync.WaitGroup
	heard   chan struct{} // closed when the last line has been read
	late    late
}

type cell struct {
	n        int
	dir      *os.Root
	stream   *wire.Stream
	result   chan int // capacity 1: the exit code
	displays int
	// displayed counts the bytes of all displays.
	displayed int64
}

// driverSocket makes the connection whose other end is the interpreter's descriptor 3.
func driverSocket() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "driver"), os.NewFile(uintptr(fds[1]), "run-init"), nil
}

// serveCells serves the agent from when the interpreter is ready until it has ended.
func serveCells(p *program) *cells {
	c := &cells{pid: p.pid, driver: p.driver, dir: p.dir, heard: make(chan struct{})}
	go c.listen()
	return c
}

func (c *cells) listen() {
	defer close(c.heard)
	lines := bufio.NewScanner(c.driver)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	defer func() {
		if errors.Is(lines.Err(), bufio.ErrTooLong) {
			c.mu.Lock()
			c.broken = errLongLine
			c.mu.Unlock()
			_ = syscall.Kill(-c.pid, syscall.SIGKILL)
		}
	}()
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 1 && f[0] == "ready":
			c.ready()
		case len(f) == 3 && f[0] == "result":
			if cell, code := c.named(f[1]), atoi(f[2]); cell != nil && code >= 0 && code <= 255 {
				select {
				case cell.result <- code:
				default:
				}
			}
		case len(f) == 2 && f[0] == "exit":
			if code := atoi(f[1]); code >= 0 && code <= 255 {
				c.mu.Lock()
				c.exit = &code
				c.mu.Unlock()
			}
		case len(f) == 4 && f[0] == "display":
			if cell := c.named(f[1]); cell != nil {
				cell.display(f[2], f[3])
			}
		}
	}
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

// named is the cell that runs, if that is its number.
func (c *cells) named(n string) *cell {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && c.current.n == atoi(n) {
		return c.current
	}
	return nil
}

func (c *cells) ready() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil || c.over {
		return
	}
	channel := os.NewFile(channelFD, "agent")
	if wire.WriteHello(channel, "interpreter") == nil {
		c.conn = wire.NewConn(channel, wire.AgentSide, c.serve)
	}
}

// end is called when the interpreter has ended: the cell that ran gets its output, and the agent the news. It returns how the
// interpreter meant to end.
func (c *cells) end(exit wire.Exit) wire.Exit {
	select {
	case <-c.heard:
	case <-time.After(100 * time.Millisecond): // a child of the interpreter has the descriptor
	}
	c.mu.Lock()
	if c.exit != nil && exit.Signal == int(syscall.SIGKILL) {
		exit.Code, exit.Signal = *c.exit, 0
	}
	if c.broken != nil {
		exit.Code, exit.Signal, exit.Error = 126, 0, c.broken.Error()
	}
	c.over = true
	if c.current != nil {
		close(c.current.result)
	}
	conn := c.conn
	c.mu.Unlock()
	c.idle.Wait()
	c.late.close()
	if conn != nil {
		_ = conn.Close()
	}
	return exit
}

func (c *cells) serve(s *wire.Stream, f wire.Frame) {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return // the end of the connection says it
	}
	c.idle.Add(1)
	c.mu.Unlock()
	defer c.idle.Done()
	forgetPeak(c.pid)
	code, err := c.run(s, f.Run)
	if errors.Is(err, errInterpreterEnded) {
		return
	}
	exit := wire.Exit{Code: code, MaxRSSB: peakMemory(c.pid)}
	if err != nil {
		exit = wire.Exit{Code: 126, Error: err.Error()}
	}
	_ = s.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
}

var errInterpreterEnded = errors.New("the interpreter has ended")

func (c *cells) run(s *wire.Stream, r *wire.Run) (int, error) {
	c.n++
	path := cellsDir + "/" + strconv.Itoa(c.n)
	if err := c.dir.MkdirAll(path, 0o700); err != nil {
		return 0, err
	}
	defer c.dir.RemoveAll(path)
	dir, err := c.dir.OpenRoot(path + "/.") // not a pipe in its place
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	if err := dir.WriteFile("code", r.Code, 0o600); err != nil {
		return 0, err
	}
	if len(r.CellEnv) > 0 {
		var env []byte
		for name, value := range r.CellEnv {
			env = fmt.Appendf(env, "%s=%s\x00", name, value)
		}
		if err := dir.WriteFile("env", env, 0o600); err != nil {
			return 0, err
		}
	}
	cell := &cell{n: c.n, dir: dir, stream: s, result: make(chan int, 1)}
	stdout, stdoutEnd, err := fifo(dir, "stdout")
	if err != nil {
		return 0, err
	}
	stderr, stderrEnd, err := fifo(dir, "stderr")
	if err != nil {
		_ = stdout.Close()
		_ = stdoutEnd.Close()
		return 0, err
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { pump(s, wire.TypeStdout, stdout) })
	pumps.Go(func() { pump(s, wire.TypeStderr, stderr) })

	c.mu.Lock()
	if c.over {
		close(cell.result)
	} else {
		c.current = cell
	}
	c.mu.Unlock()
	go c.obey(s)
	if late := c.late.take(); len(late) > 0 {
		_ = s.Send(context.Background(), wire.Frame{Type: wire.TypeStdout, Data: late})
	}
	fmt.Fprintf(c.driver, "execute %d %s\n", c.n, c.dir.Name()+"/"+path)
	exit, ok := <-cell.result
	c.mu.Lock()
	c.current = nil
	c.mu.Unlock()

	now := time.Now()
	_ = stdout.SetReadDeadline(now)
	_ = stderr.SetReadDeadline(now)
	pumps.Wait()
	_ = stdoutEnd.Close() // not before: the pipe would end before the cell does
	_ = stderrEnd.Close()
	c.late.keep(cell.n, stdout)
	c.late.keep(cell.n, stderr)
	if !ok {
		return 0, errInterpreterEnded
	}
	return exit, nil
}

// obey interrupts the interpreter, and what it has started in the foreground, when the server asks.
func (c *cells) obey(s *wire.Stream) {
	for {
		f, err := s.Recv(context.Background())
		if err != nil {
			return
		}
		if f.Type == wire.TypeInterrupt {
			_ = syscall.Kill(-c.pid, syscall.SIGINT)
		}
	}
}

// fifo makes a named pipe and opens both ends. Somebody may have put something else in its place.
func fifo(dir *os.Root, name string) (r, w *os.File, err error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, nil, err
	}
	err = unix.Mknodat(int(d.Fd()), name, unix.S_IFIFO|0o600, 0)
	_ = d.Close()
	if err != nil {
		return nil, nil, err
	}
	const flags = unix.O_NONBLOCK | unix.O_NOFOLLOW
	if r, err = dir.OpenFile(name, os.O_RDONLY|flags, 0); err != nil {
		return nil, nil, err
	}
	if w, err = dir.OpenFile(name, os.O_WRONLY|flags, 0); err == nil {
		var fi os.FileInfo
		if fi, err = r.Stat(); err == nil && fi.Mode()&os.ModeNamedPipe == 0 {
			err = errors.New("the cell's pipe was replaced")
		}
	}
	if err != nil {
		_ = r.Close()
		_ = w.Close()
		return nil, nil, err
	}
	return r, w, nil
}

// display sends a file of the cell's directory.
func (c *cell) display(mime, name string) {
	if c.displays++; c.displays > maxDisplays {
		return
	}
	if data := readDisplay(c.dir, name, maxDisplay-c.displayed); data != nil {
		c.displayed += int64(len(data))
		_ = c.stream.Send(context.Background(), wire.Frame{Type: wire.TypeDisplay, MIME: mime, Data: data})
	}
}
