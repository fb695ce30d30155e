package wrapper

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/userns"
	"mcp-code-sandbox/internal/wire"
)

const (
	// path is the PATH of wrappers.
	path = "/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin"
	// cookie marks a wrapper's processes in their environment, for hosts without cgroups.
	cookie = "MCP_CODE_SANDBOX_WRAPPER="

	// drainGrace bounds how long a pipe is read after its processes were killed.
	drainGrace = 500 * time.Millisecond
	// sweepTime bounds the search for processes that left their session.
	sweepTime = 2 * time.Second
)

// launch sets the limits of a process, in kilobytes and in blocks of 512 bytes, and executes the
// program.
const launch = `ulimit -c 0
if [ -n "$1" ]; then ulimit -d "$1" || exit 126; fi
if [ -n "$2" ]; then ulimit -f "$2" || exit 126; fi
exec "$0"`

// process is a started program of a wrapper, with everything that it starts.
type process struct {
	id    string
	cmd   *exec.Cmd
	group Group // nil if the processes are found by their cookie

	stdin, stdout, stderr *os.File

	mu     sync.Mutex
	reaped bool

	done chan struct{} // closed when nothing of it is left
}

// start starts a program of the sandbox.
func (b *Backend) start(spec sandbox.Spec, number int, program string) (_ *process, err error) {
	p := &process{id: spec.ID + "-" + strconv.Itoa(number), done: make(chan struct{})}
	defer func() {
		if err != nil {
			p.close()
			if p.group != nil {
				p.group.Close()
			}
		}
	}()
	if b.cfg.NewGroup != nil {
		if p.group, err = b.cfg.NewGroup(p.id, spec.Limits); err != nil {
			return nil, fmt.Errorf("make a cgroup: %w", err)
		}
	}
	var data, file string
	if l := spec.Limits; p.group == nil && l.MemoryBytes > 0 {
		data = strconv.FormatInt(l.MemoryBytes>>10, 10)
	}
	if l := spec.Limits; l.FileBytes > 0 {
		file = strconv.FormatInt(l.FileBytes>>9+1, 10)
	}
	p.cmd = exec.Command("/bin/sh", "-c", launch, program, data, file)
	p.cmd.Dir = "/"
	p.cmd.Env = []string{"PATH=" + path, cookie + p.id}
	if b.cfg.ProjectDir != "" {
		p.cmd.Env = append(p.cmd.Env, "PROJECT_DIR="+b.cfg.ProjectDir, "PROJECT_MOUNT="+b.cfg.ProjectMount)
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if userns.UID() == 0 {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: UID, Gid: UID}
	}
	theirs, err := p.connect()
	defer closeAll(theirs)
	if err != nil {
		return nil, err
	}
	err = b.thread.Do(func() error {
		if p.group == nil {
			return p.cmd.Start()
		}
		return p.group.Start(p.cmd.SysProcAttr, p.cmd.Start)
	})
	if err != nil && p.cmd.Process != nil { // started, but the thread could not leave its group
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// connect makes pipes for the program and returns its ends of them. These are not os/exec's pipes:
// the output may be read after Wait, and reads and writes have deadlines.
func (p *process) connect() (theirs []*os.File, err error) {
	ends := make([]*os.File, 3)
	for i, ours := range []**os.File{&p.stdin, &p.stdout, &p.stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return ends, err
		}
		if *ours, ends[i] = r, w; i == 0 {
			*ours, ends[i] = w, r
		}
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = ends[0], ends[1], ends[2]
	return ends, nil
}

func (p *process) close() { closeAll([]*os.File{p.stdin, p.stdout, p.stderr}) }

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a nil file returns an error
	}
}

// kill kills the process and its session. wait kills everything else.
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
	proc.AwaitExit(pid)
	proc.AwaitExitBlocking(pid) // on kernels that cannot watch it
	p.kill()                    // its session; the pid cannot be reused before Wait
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	used := p.usage()
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

// sweep kills the processes with the cookie until none is left.
func sweep(id string) {
	mark := []byte(cookie + id)
	for deadline := time.Now().Add(sweepTime); time.Now().Before(deadline); {
		found := false
		environs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, name := range environs {
			text, err := os.ReadFile(name)
			pid, perr := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			if err == nil && perr == nil && pid != os.Getpid() && hasVariable(text, mark) {
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

func hasVariable(environ, variable []byte) bool {
	return slices.ContainsFunc(bytes.Split(environ, []byte{0}), func(v []byte) bool { return bytes.Equal(v, variable) })
}

func (p *process) usage() sandbox.Usage {
	if p.group == nil {
		return sandbox.Usage{}
	}
	u, _ := p.group.Usage()
	return u
}

// exit reports how the program ended. It is valid after done.
func (p *process) exit() wire.Exit {
	state := p.cmd.ProcessState
	e := wire.Exit{
		Code: state.ExitCode(), UserUS: state.UserTime().Microseconds(), SysUS: state.SystemTime().Microseconds(),
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		e.Signal = int(status.Signal())
		e.Code = 128 + e.Signal
	}
	if ru, ok := state.SysUsage().(*syscall.Rusage); ok {
		e.MaxRSSB = ru.Maxrss << 10
	}
	return e
}
