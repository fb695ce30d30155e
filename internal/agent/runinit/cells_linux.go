package runinit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// cellsDir holds a directory for each cell, in the run's private directory: the files code and env,
// the pipes stdout and stderr, and files to display. User code can damage it, but only for itself.
const cellsDir = ".cells"

const maxLine = 4 << 10

var errLongLine = fmt.Errorf("the interpreter was killed: it sent the agent a line of more than %d bytes. "+
	"Code must not write to descriptors that it has not opened", maxLine)

// cells is run-init's side of a live interpreter. docs/agent.md has the driver's protocol. User
// code can also write to the driver's socket, so malformed lines are ignored, and a line of more
// than maxLine bytes ends the interpreter with errLongLine.
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
	exit    *int  // the exit code that it announced before it killed itself
	broken  error // why the interpreter was killed: the driver broke the protocol
	repeats bool  // the driver wants interrupts to be repeated
	idle    sync.WaitGroup
	heard   chan struct{} // closed after the last line
	late    late
}

type cell struct {
	n        int
	out      *Output
	result   chan int // capacity 1: the exit code
	displays displays
}

// DriverSocket returns the ends of the connection between run-init and a driver.
func DriverSocket() (ours, theirs *os.File, err error) { return proc.SocketPair(unix.SOCK_STREAM) }

// cellThreads is how many threads run-init starts before the first cell.
const cellThreads = 5

// serveCells serves the agent once the interpreter is ready, until it has ended.
func serveCells(p *program) *cells {
	proc.ReserveThreads(cellThreads)
	debug.SetGCPercent(25)
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
		case len(f) >= 1 && f[0] == "ready":
			c.ready(len(f) == 2 && f[1] == "repeat")
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
		case len(f) == 3 && f[0] == "settle":
			if cell := c.named(f[1]); cell != nil {
				cell.out.Settle()
				cell.displays.settle(f[2])
			}
		case len(f) >= 4 && f[0] == "display":
			if cell := c.named(f[1]); cell != nil {
				if d, ok := cell.displays.read(f[2:]); ok {
					_ = cell.out.Show(d)
				}
				cell.displays.settle(f[3])
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

// named returns the running cell if it has this number.
func (c *cells) named(n string) *cell {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && c.current.n == atoi(n) {
		return c.current
	}
	return nil
}

func (c *cells) ready(repeats bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil || c.over {
		return
	}
	c.repeats = repeats
	channel := os.NewFile(channelFD, "agent")
	if wire.WriteHello(channel, "interpreter") == nil {
		c.conn = wire.NewConn(channel, wire.AgentSide, c.serve)
	}
}

// end is called when the interpreter has ended. It finishes the running cell, hangs up, and returns
// the exit that the interpreter announced.
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
		return // the agent sees the end of the connection
	}
	c.idle.Add(1)
	c.mu.Unlock()
	defer c.idle.Done()
	resetPeak(c.pid)
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

// interruptAgain is when an interrupt is repeated for a driver that asks for it: bash and its new
// child lose one that comes while bash forks. The server ends the interpreter later.
const interruptAgain = time.Second

// interrupt sends SIGINT to the interpreter and its children if the cell has not ended. It reports
// whether to repeat that: in most interpreters, a second one would end what handles the first.
func (c *cells) interrupt(cell *cell) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == cell {
		_ = syscall.Kill(-c.pid, syscall.SIGINT)
	}
	return c.repeats
}

var errInterpreterEnded = errors.New("the interpreter has ended")

func (c *cells) run(s *wire.Stream, r *wire.Run) (int, error) {
	c.n++
	path := cellsDir + "/" + strconv.Itoa(c.n)
	if err := c.dir.MkdirAll(path, 0o700); err != nil {
		return 0, err
	}
	defer c.dir.RemoveAll(path)
	dir, err := c.dir.OpenRoot(path + "/.") // "/." fails on a pipe
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
	cell := &cell{
		n: c.n, out: NewOutput(s, stdout, stderr), result: make(chan int, 1),
		displays: displays{dir: dir, clears: wire.MaxClears},
	}
	var pump sync.WaitGroup
	pump.Go(cell.out.Pump)

	c.mu.Lock()
	if c.over {
		close(cell.result)
	} else {
		c.current = cell
	}
	c.mu.Unlock()
	go ForwardSignals(s, func() {}, func() {
		// For a driver that cannot be interrupted yet. O_EXCL: code may have put a pipe there.
		if f, err := dir.OpenFile("interrupted", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_ = f.Close()
		}
		if c.interrupt(cell) {
			time.AfterFunc(interruptAgain, func() { c.interrupt(cell) })
		}
	})
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
	pump.Wait()
	_ = stdoutEnd.Close() // not earlier: the pipe would end before the cell does
	_ = stderrEnd.Close()
	c.late.keep(cell.n, stdout)
	c.late.keep(cell.n, stderr)
	if !ok {
		return 0, errInterpreterEnded
	}
	return exit, nil
}

// fifo makes a named pipe and opens both ends. It fails if code has replaced the pipe.
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
