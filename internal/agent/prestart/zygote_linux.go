package prestart

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// zygote is an interpreter with libraries imported, that forks a process for each run. It runs no
// user code, and nothing of a run passes through its memory: a request is a set of descriptors.
// docs/warm-start.md has the protocol of its connection.
type zygote struct {
	host zygoteHost // nil if it comes from outside
	env  startEnv
	proc *os.Process // nil if the agent has not started it
	conn *os.File
	soon bool   // it has imported and is about to arrive: a run may wait for it
	dir  string // private to it, with Landlock

	onRequest atomic.Bool // it arrives when request is called

	reportsExits  bool          // the zygote is the parent of its forks and reports their exits
	answerTimeout time.Duration // how long it may take to fork; 0: forever

	lone  bool            // no other sandbox shares its memory, so it ends when idle
	extra map[string]bool // modules that it imported later
	idle  *time.Timer     // nil unless lone

	ready chan struct{} // closed when it can fork, or is gone

	mu       sync.Mutex
	pid      int // of a successor, as it reports
	gone     bool
	asked    []chan forked          // one for each unanswered request
	children map[int]chan wire.Exit // by pid
}

// zygoteHost starts and ends zygotes in the way that the launcher's confinement needs.
type zygoteHost interface {
	startZygote(z *zygote, command zygoteCommand) error
	zygoteReady(z *zygote) // it has imported its libraries
	endZygote(z *zygote)   // returns when it has ended
}

// zygoteCommand is the command line of a zygote, and its first message.
type zygoteCommand struct {
	argv   []string
	vars   map[string]string
	files  []*os.File
	config map[string]any
}

// start starts the program through the agent's own binary, with name as its first argument.
func (c *zygoteCommand) start(name string, sys *syscall.SysProcAttr) (*os.Process, error) {
	path, err := runinit.FindProgram(c.argv[0], c.vars, "/")
	if err != nil {
		return nil, err
	}
	argv := append([]string{name, path}, c.argv[1:]...)
	return os.StartProcess("/proc/self/exe", argv, &os.ProcAttr{Dir: "/", Env: runinit.Environ(c.vars), Files: c.files, Sys: sys})
}

// execZygote replaces the process that start started by the program.
func execZygote(argv []string) error { return syscall.Exec(argv[0], argv, os.Environ()) }

// Requests to a zygote.
const (
	requestRun      = "run"
	requestPrestart = "prestart" // the fork also rehearses
	requestGrow     = "grow "    // and the names of modules
)

// requestFor returns the request that prestarts a process after r. While other runs wait for a
// processor, the process does not rehearse.
func requestFor(r *wire.Run) string {
	if r.Ahead {
		return requestPrestart
	}
	return requestRun
}

// arrivalTimeout limits the wait for a zygote that is about to arrive. Importing the libraries
// again would take longer on a busy machine.
const arrivalTimeout = 5 * time.Second

var errNoZygote = errors.New("the zygote cannot fork")

// startZygote starts a zygote.
func startZygote(host zygoteHost, w *wire.Zygote) (*zygote, error) {
	ours, theirs, err := proc.SocketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	z := &zygote{host: host, env: startEnvOf(w), conn: ours, lone: true}
	if err := z.exec(w, theirs); err != nil {
		_ = z.conn.Close()
		if z.proc != nil {
			host.endZygote(z)
		}
		return nil, err
	}
	return z, nil
}

func (z *zygote) exec(w *wire.Zygote, theirs *os.File) error {
	fd, err := unix.MemfdCreate("zygote", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	source := os.NewFile(uintptr(fd), "source")
	defer source.Close()
	if _, err := source.Write(w.Source); err != nil {
		return err
	}
	if _, err := source.Seek(0, 0); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	vars := runinit.BaseEnv()
	maps.Copy(vars, w.Env)
	vars[runinit.DisplayVariable] = "/tmp/" + runinit.DisplayDir
	command := zygoteCommand{
		argv: append(slices.Clone(w.Argv), "/proc/self/fd/4"), vars: vars,
		files: []*os.File{null, null, null, theirs, source}, config: ZygoteConfig(w.Preload),
	}
	if err := z.host.startZygote(z, command); err != nil {
		return err
	}
	config, err := json.Marshal(command.config)
	if err != nil {
		return err
	}
	_, err = z.conn.Write(config)
	return err
}

// ZygoteConfig returns the first message to a zygote: the modules to import, and the limits and the
// filter of all its forks.
func ZygoteConfig(preload []string) map[string]any {
	return map[string]any{
		"preload": preload, "limits": confine.LimitsByName(confine.FixedLimits), "filter": confine.RunFilter().Hex(),
	}
}

// listen handles the zygote's messages until it hangs up.
func (z *zygote) listen() {
	buf := make([]byte, 256)
	for {
		n, err := z.conn.Read(buf)
		if n <= 0 || err != nil {
			return
		}
		message := string(buf[:n])
		if message == "ready" && z.host != nil {
			z.host.zygoteReady(z)
		}
		z.handle(message)
	}
}

func (z *zygote) handle(message string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	var word string
	var pid, inner, status int
	var exit wire.Exit
	switch _, _ = fmt.Sscan(message, &word); word {
	case "grown":
		_, _ = fmt.Sscan(message, &word, &z.pid)
	case "ready":
		z.markReadyLocked()
	case "started", "failed":
		if len(z.asked) == 0 {
			return
		}
		var answer forked
		if n, _ := fmt.Sscan(message, &word, &pid, &inner); n == 3 {
			answer = forked{pid: pid, inner: inner}
			if z.reportsExits {
				end := make(chan wire.Exit, 1)
				z.children[pid], answer.exit = end, end
			}
		}
		z.asked[0] <- answer
		z.asked = z.asked[1:]
	case "ended":
		n, _ := fmt.Sscan(message, &word, &pid, &status, &exit.UserUS, &exit.SysUS, &exit.MaxRSSB)
		if n != 6 || z.children[pid] == nil {
			return
		}
		how := runinit.ExitOf(syscall.WaitStatus(status))
		exit.Code, exit.Signal = how.Code, how.Signal
		z.children[pid] <- exit
		delete(z.children, pid)
	}
}

func (z *zygote) markReadyLocked() {
	if !z.isReady() {
		close(z.ready)
	}
}

// end cleans up after a zygote that has hung up. The agent is the parent of its forks now.
func (z *zygote) end() {
	z.mu.Lock()
	z.gone = true
	if z.idle != nil {
		z.idle.Stop()
	}
	z.markReadyLocked()
	asked, children := z.asked, maps.Clone(z.children)
	z.asked, z.children = nil, nil
	z.mu.Unlock()
	_ = z.conn.Close()
	if z.host != nil {
		z.host.endZygote(z)
	}
	z.reapSuccessor()
	for _, answer := range asked {
		answer <- forked{}
	}
	for pid, end := range children {
		go func() {
			proc.AwaitExit(pid)
			exit := wire.Exit{Code: 137, Signal: 9} // if the zygote has reaped it, but not reported
			var ws syscall.WaitStatus
			if _, err := syscall.Wait4(pid, &ws, 0, nil); err == nil {
				exit = runinit.ExitOf(ws)
			}
			end <- exit
		}()
	}
}

// reapSuccessor reaps a zygote that another one forked and left to the agent, as process 1.
func (z *zygote) reapSuccessor() {
	if z.pid <= 0 {
		return
	}
	_ = unix.Kill(z.pid, unix.SIGKILL)
	proc.AwaitExit(z.pid)
	_, _ = syscall.Wait4(z.pid, nil, 0, nil)
}

// endIfIdle ends a zygote without work.
func (z *zygote) endIfIdle() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if len(z.children) > 0 || len(z.asked) > 0 || !z.isReady() {
		z.idle.Reset(zygoteLife)
		return
	}
	_ = z.conn.SetReadDeadline(time.Now()) // listen ends
}

// touch postpones the end of an idle zygote.
func (z *zygote) touch() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if !z.gone {
		z.idle.Reset(zygoteLife)
	}
}

// request makes a zygote arrive that comes on request.
func (z *zygote) request() {
	if z.onRequest.CompareAndSwap(true, false) {
		_, _ = z.conn.Write([]byte{1}) // an error means that it is gone
	}
}

// fork asks for a process and waits for the answer.
func (z *zygote) fork(request string, files ...*os.File) (forked, error) {
	answer := make(chan forked, 1)
	if err := z.ask(request, answer, files...); err != nil {
		return forked{}, err
	}
	var late <-chan time.Time
	if z.answerTimeout > 0 {
		late = time.After(z.answerTimeout)
	}
	select {
	case f := <-answer:
		if f.pid == 0 {
			return f, errNoZygote
		}
		return f, nil
	case <-late:
		_ = z.proc.Kill()
		return forked{}, errNoZygote
	}
}

func (z *zygote) ask(request string, answer chan forked, files ...*os.File) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.gone || !z.isReady() {
		return errNoZygote
	}
	if err := proc.SendFiles(z.conn, request, files...); err != nil {
		return err
	}
	z.asked = append(z.asked, answer)
	if z.idle != nil {
		z.idle.Reset(zygoteLife)
	}
	return nil
}

// forkInto forks a program into the namespaces of a run-init. The program waits for its spec on the
// returned pipe.
func (z *zygote) forkInto(place *runinit.Place, request string, channel bool) (forked, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return forked{}, nil, err
	}
	defer r.Close()
	files := []*os.File{place.PID, place.Mount, place.IPC, place.Root, r, place.Stdout, place.Stderr}
	if channel {
		files = append(files, place.Driver)
	}
	f, err := z.fork(request, files...)
	if err != nil {
		_ = w.Close() // if the fork exists after all, it gets no spec and ends
		return forked{}, nil, err
	}
	return f, w, nil
}

func (z *zygote) isReady() bool {
	select {
	case <-z.ready:
		return true
	default:
		return false
	}
}

// isIdle reports whether the zygote is ready and none of its children is alive.
func (z *zygote) isIdle() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.isReady() && !z.gone && len(z.children) == 0 && len(z.asked) == 0
}
