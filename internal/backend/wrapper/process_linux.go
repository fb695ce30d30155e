package wrapper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// path is the PATH of wrappers.
const path = "/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin"

// cookie marks the processes of a wrapper in their environment, for hosts without control groups.
const cookie = "MCP_CODE_SANDBOX_WRAPPER="

const (
	// drainGrace is how long output may still come of a pipe after everything that we know of has been killed.
	drainGrace = 500 * time.Millisecond
	// sweepTime bounds the search for processes that left their session.
	sweepTime = 2 * time.Second
)

// thread is the OS thread that starts every wrapper. It lives as long as the backend, because a process is told of the death
// of the thread that started it.
type thread struct {
	jobs chan func()
	quit chan struct{}
	done chan struct{}
}

func newThread() *thread {
	t := &thread{jobs: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for {
			select {
			case job := <-t.jobs:
				job()
			case <-t.quit:
				return
			}
		}
	}()
	return t
}

var errClosed = errors.New("the backend is closed")

// do calls f on the thread and waits for it.
func (t *thread) do(f func() error) error {
	errc := make(chan error, 1)
	select {
	case t.jobs <- func() { errc <- f() }:
		return <-errc
	case <-t.done:
		return errClosed
	}
}

// close ends the thread. It is called once.
func (t *thread) close() {
	close(t.quit)
	<-t.done
}

// process is a started program of a wrapper, with all that it starts.
type process struct {
	id    string
	cmd   *exec.Cmd
	group Group

	stdin          *os.File
	stdout, stderr *os.File

	mu     sync.Mutex
	reaped bool

	done chan struct{} // closed when nothing is left of it
}

// launch sets the limits that a process carries itself, in kilobytes and blocks of 512 bytes.
const launch = `ulimit -c 0; if [ -n "$1" ]; then ulimit -d "$1" || exit 126; fi; if [ -n "$2" ]; then ulimit -f "$2" || exit 126; fi; exec "$0"`

func (b *Backend) start(id string, l sandbox.Limits, program string) (_ *process, err error) {
	p := &process{id: id, done: make(chan struct{})}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
		if err != nil {
			p.close()
			if p.group != nil {
				p.group.Close()
			}
		}
	}()
	pipe := func(ours **os.File, writing bool) (*os.File, error) {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		if writing {
			*ours, theirs = w, append(theirs, r)
			return r, nil
		}
		*ours, theirs = r, append(theirs, w)
		return w, nil
	}
	if b.cfg.NewGroup != nil {
		if p.group, err = b.cfg.NewGroup(id, l); err != nil {
			return nil, fmt.Errorf("make a cgroup: %w", err)
		}
	}
	var data, file string
	if p.group == nil && l.MemoryBytes > 0 {
		data = strconv.FormatInt(l.MemoryBytes>>10, 10)
	}
	if l.FileBytes > 0 {
		file = strconv.FormatInt(l.FileBytes>>9+1, 10)
	}
	cmd := exec.Command("/bin/sh", "-c", launch, program, data, file)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + path, cookie + id}
	if b.cfg.ProjectDir != "" {
		cmd.Env = append(cmd.Env, "PROJECT_DIR="+b.cfg.ProjectDir, "PROJECT_MOUNT="+b.cfg.ProjectMount)
	}
	for _, end := range []struct {
		set     func(*os.File)
		ours    **os.File
		writing bool
	}{
		{func(f *os.File) { cmd.Stdin = f }, &p.stdin, true},
		{func(f *os.File) { cmd.Stdout = f }, &p.stdout, false},
		{func(f *os.File) { cmd.Stderr = f }, &p.stderr, false},
	} {
		f, err := pipe(end.ours, end.writing)
		if err != nil {
			return nil, err
		}
		end.set(f)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: UID, Gid: UID}
	}
	p.cmd = cmd
	err = b.thread.do(func() error {
		if p.group == nil {
			return cmd.Start()
		}
		return p.group.Start(cmd.SysProcAttr, cmd.Start)
	})
	if err != nil && cmd.Process != nil { // started, but the thread could not leave its group
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// kill ends the process and its session. wait does the rest.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		_ = p.cmd.Process.Kill()
	}
}

// wait returns when the program has ended and everything it started has been killed.
func (p *process) wait() sandbox.Usage {
	pid := p.cmd.Process.Pid
	// Not reaped yet: until then nobody else gets the number.
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			break
		}
	}
	p.kill()
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	used, _ := p.usage()
	if p.group != nil {
		p.group.Close()
	} else {
		sweep(p.id)
	}
	_ = p.cmd.Wait() // its error is in ProcessState
	late := time.Now().Add(drainGrace)
	_ = p.stdout.SetReadDeadline(late)
	_ = p.stderr.SetReadDeadline(late)
	_ = p.stdin.SetWriteDeadline(late)
	return used
}

// sweep kills the processes that carry the cookie, until there are none.
func sweep(id string) {
	mark := []byte(cookie + id)
	for deadline := time.Now().Add(sweepTime); time.Now().Before(deadline); {
		found := false
		environs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, name := range environs {
			text, err := os.ReadFile(name)
			pid, perr := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			if err == nil && perr == nil && pid != os.Getpid() && hasLine(text, mark) {
				found = true
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if !found {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func hasLine(text, want []byte) bool {
	for v := range bytes.SplitSeq(text, []byte{0}) {
		if bytes.Equal(v, want) {
			return true
		}
	}
	return false
}

func (p *process) usage() (sandbox.Usage, error) {
	if p.group == nil {
		return sandbox.Usage{}, nil
	}
	return p.group.Usage()
}

func (p *process) close() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// exit says how the program ended. It is valid after done.
func (p *process) exit() wire.Exit {
	st, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	e := wire.Exit{
		Code:   p.cmd.ProcessState.ExitCode(),
		UserUS: p.cmd.ProcessState.UserTime().Microseconds(),
		SysUS:  p.cmd.ProcessState.SystemTime().Microseconds(),
	}
	if ok && st.Signaled() {
		e.Signal = int(st.Signal())
		e.Code = 128 + e.Signal
	}
	if ru, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		e.MaxRSSB = ru.Maxrss << 10
	}
	return e
}
