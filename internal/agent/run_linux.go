package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/wire"
)

// maxLeftover bounds what is still read from a pipe after its run has ended. A pipe holds at most this
// much; more can only come from a process of another run that was handed the descriptor.
const maxLeftover = 1 << 20

// initSpec is what run-init reads from its descriptor 3.
type initSpec struct {
	Argv      []string          `json:"argv"`
	File      string            `json:"file"`
	Code      []byte            `json:"code"`
	Env       map[string]string `json:"env"`
	TmpBytes  int64             `json:"tmp_bytes"`
	FileBytes uint64            `json:"file_bytes"`
	DataBytes uint64            `json:"data_bytes"`
	Processes uint64            `json:"processes"`
}

// run serves one run stream: it starts run-init in namespaces of its own, carries its output, and sends
// the exit when nothing of the run is left.
func (a *agent) run(s *wire.Stream, f wire.Frame) {
	defer s.Close()
	exit, err := a.runToEnd(s, f.Run)
	if err != nil {
		exit = wire.Exit{Code: 126, Error: err.Error()}
	}
	_ = s.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
}

func (a *agent) runToEnd(s *wire.Stream, r *wire.Run) (wire.Exit, error) {
	spec, err := json.Marshal(initSpec{
		Argv: r.Argv, File: r.File, Code: r.Code, Env: r.Env,
		TmpBytes: r.Limits.TmpBytes, FileBytes: uint64(max(0, r.Limits.FileBytes)),
		DataBytes: a.cfg.DataBytes, Processes: a.cfg.Processes,
	})
	if err != nil {
		return wire.Exit{}, err
	}
	a.starting <- struct{}{}
	p, err := startInit()
	<-a.starting
	if err != nil {
		return wire.Exit{}, err
	}
	defer p.close()
	go func() { // ends when run-init has read it, or has ended
		_, _ = p.spec.Write(spec)
		_ = p.spec.Close()
	}()
	go p.obey(s)

	var pumps sync.WaitGroup
	pumps.Go(func() { pump(s, wire.TypeStdout, p.stdout) })
	pumps.Go(func() { pump(s, wire.TypeStderr, p.stderr) })

	// The status comes before run-init's end; its end means that the kernel has killed all the rest.
	status, statusErr := io.ReadAll(io.LimitReader(p.status, 4096))
	ended(p.proc.Pid)
	state, err := p.proc.Wait()
	if err != nil {
		return wire.Exit{}, err
	}
	now := time.Now()
	_ = p.stdout.SetReadDeadline(now)
	_ = p.stderr.SetReadDeadline(now)
	pumps.Wait()

	var exit wire.Exit
	if statusErr != nil || json.Unmarshal(status, &exit) != nil {
		if exit = exitOf(state); exit.Signal == 0 { // run-init was not killed, it broke down
			exit = wire.Exit{Code: 126, Error: "the run's init broke down; too few processes or too little memory were left, or the program attacked it"}
		}
	}
	exit.UserUS = state.UserTime().Microseconds()
	exit.SysUS = state.SystemTime().Microseconds()
	if ru, ok := state.SysUsage().(*syscall.Rusage); ok {
		exit.MaxRSSB = max(exit.MaxRSSB, ru.Maxrss<<10)
	}
	return exit, nil
}

func exitOf(state *os.ProcessState) wire.Exit {
	if ws := state.Sys().(syscall.WaitStatus); ws.Signaled() {
		return wire.Exit{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return wire.Exit{Code: state.ExitCode()}
}

// initProcess is a started run-init and the agent's ends of its pipes.
type initProcess struct {
	proc                         *os.Process
	spec, status, stdout, stderr *os.File
}

func startInit() (*initProcess, error) {
	var child, parent [4]*os.File // spec, status, stdout, stderr
	closeAll := func(files []*os.File) {
		for _, f := range files {
			if f != nil {
				_ = f.Close()
			}
		}
	}
	for i := range child {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(child[:])
			closeAll(parent[:])
			return nil, err
		}
		if i == 0 {
			child[i], parent[i] = r, w
		} else {
			child[i], parent[i] = w, r
		}
	}
	defer closeAll(child[:])
	null, err := os.Open(os.DevNull)
	if err != nil {
		closeAll(parent[:])
		return nil, err
	}
	defer null.Close()
	proc, err := os.StartProcess("/proc/self/exe", []string{"run-init"}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{},
		Files: []*os.File{null, child[2], child[3], child[0], child[1]},
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC},
	})
	if err != nil {
		closeAll(parent[:])
		return nil, fmt.Errorf("start run: %w", err)
	}
	return &initProcess{proc: proc, spec: parent[0], status: parent[1], stdout: parent[2], stderr: parent[3]}, nil
}

func (p *initProcess) close() {
	for _, f := range []*os.File{p.spec, p.status, p.stdout, p.stderr} {
		_ = f.Close()
	}
}

// obey carries out what the server asks of the run, until the stream ends.
func (p *initProcess) obey(s *wire.Stream) {
	for {
		f, err := s.Recv(context.Background())
		switch {
		case err != nil:
			return
		case f.Type == wire.TypeKill:
			_ = p.proc.Kill()
		case f.Type == wire.TypeInterrupt:
			_ = p.proc.Signal(syscall.SIGINT)
		}
	}
}

// pump carries one output stream until its end, or, once the reader's deadline has come, until it is empty.
func pump(s *wire.Stream, t wire.Type, r *os.File) {
	buf := make([]byte, wire.MaxData)
	for {
		n, err := r.Read(buf)
		if n > 0 && s.Send(context.Background(), wire.Frame{Type: t, Data: buf[:n]}) != nil {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drain(s, t, r, buf)
			return
		}
		if err != nil {
			return
		}
	}
}

func drain(s *wire.Stream, t wire.Type, r *os.File, buf []byte) {
	raw, err := r.SyscallConn()
	if err != nil {
		return
	}
	for left := maxLeftover; left > 0; {
		n := 0
		if err := raw.Control(func(fd uintptr) { n, _ = syscall.Read(int(fd), buf) }); err != nil || n <= 0 {
			return
		}
		if s.Send(context.Background(), wire.Frame{Type: t, Data: buf[:n]}) != nil {
			return
		}
		left -= n
	}
}
