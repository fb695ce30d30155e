package jail

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/cgroup"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
)

// killDelay bounds the wait for a bubblewrap that has not yet named its child, and for output pipes
// that some process still holds open after bubblewrap has ended.
const killDelay = 2 * time.Second

// bubblewrap is a started bwrap and its child: process 1 of a sandbox, or a shared zygote.
type bubblewrap struct {
	cmd    *exec.Cmd
	output sandbox.Tail // of bwrap and its child

	known chan struct{} // closed when child and pid are set, or never will be
	child *os.File      // pidfd; nil if unknown
	pid   int           // of the child
}

// startBubblewrap starts bwrap in the group, in the user namespace unless that is nil. It must run
// on the launcher's thread. conn becomes the child's descriptor 3, files those from 6 on, and ns
// the one after them. env must not be nil.
func (b *Backend) startBubblewrap(
	args, env []string, as *syscall.Credential, ns *os.File, group *cgroup.Group, conn *os.File, files ...*os.File,
) (*bubblewrap, error) {
	info, infoW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer infoW.Close()
	p := &bubblewrap{known: make(chan struct{})}
	argv := enter(ns, 6+len(files), b.ids.owner, append([]string{b.bwrap, "--info-fd", "4"}, args...)...)
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir = "/"
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.WaitDelay = killDelay
	// If bwrap died before it releases its child, the child would wait forever. So bwrap gets no
	// death signal, and holds both ends of its info pipe: it can write although the server has
	// died.
	p.cmd.ExtraFiles = append([]*os.File{conn, infoW, info}, files...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if ns != nil {
		p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, ns)
	}
	if err := group.Start(p.cmd.SysProcAttr, p.cmd.Start); err != nil {
		_ = info.Close()
		if p.cmd.Process != nil { // it has started, but the thread could not leave the group
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		return nil, err
	}
	go p.findChild(info)
	return p, nil
}

// findChild reads the child's pid from bwrap's --info-fd. bwrap reaps the child only when it exits
// itself, so the pid is valid until then.
func (p *bubblewrap) findChild(info *os.File) {
	defer close(p.known)
	defer info.Close()
	var message struct {
		ChildPID int `json:"child-pid"`
	}
	if json.NewDecoder(io.LimitReader(info, 4096)).Decode(&message) != nil {
		return
	}
	child, err := proc.OpenPidfd(message.ChildPID)
	if err != nil {
		time.Sleep(killDelay) // bwrap must not be killed before it has released its child
		return
	}
	p.child, p.pid = child, message.ChildPID
}

// kill kills the child, after which bwrap exits.
func (p *bubblewrap) kill() {
	select {
	case <-p.known:
		if p.child != nil {
			p.signalChild(unix.SIGKILL)
			return
		}
	case <-time.After(killDelay):
	}
	_ = p.cmd.Process.Kill()
}

// signalChild signals the child, which must be known, and reports whether it has not been reaped.
func (p *bubblewrap) signalChild(sig unix.Signal) bool {
	raw, err := p.child.SyscallConn()
	if err != nil {
		return false // closed: it has ended
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	return err == nil && sent == nil
}

// wait returns when bwrap and its child have ended. It holds no thread: a thousand idle sandboxes
// would hold a thousand. It is called once.
func (p *bubblewrap) wait() error {
	proc.AwaitExit(p.cmd.Process.Pid)
	err := p.cmd.Wait()
	<-p.known
	if p.child != nil {
		if p.signalChild(unix.SIGKILL) { // something may have killed bwrap alone
			proc.AwaitPidfd(p.child)
		}
		_ = p.child.Close()
	}
	return err
}
