package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// maxLeftover bounds what is still read from a pipe after its run has ended. A pipe holds at most this
// much; more can only come from a process of another run that was handed the descriptor.
const maxLeftover = 1 << 20

// maxStatus bounds what run-init reports: the displays, in base64.
const maxStatus = 2 * maxDisplay

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
	Driver    []byte            `json:"driver"`
	Channel   bool              `json:"channel"` // the program is an interpreter that lives on
	Displays  bool              `json:"displays"`
	Dir       string            `json:"dir"`              // private to the run
	Shared    *sharedSpec       `json:"shared,omitempty"` // nil where the run has namespaces of its own
	// Adopted is the program's process, which a zygote has started. Its exit follows the spec.
	Adopted int `json:"adopted,omitempty"`
	// Boot says that this is not the run yet: the program is to be started, and to wait for it.
	Boot bool `json:"boot,omitempty"`

	zygote *wire.Zygote
	ahead  bool // there is no run yet
}

// initStatus is what run-init writes to its descriptor 4 when the program has ended.
type initStatus struct {
	wire.Exit
	Displays []shown `json:"displays,omitempty"`
	Alone    bool    `json:"alone,omitempty"` // nothing of the run is left but run-init
}

// shown is something that a program left to be displayed.
type shown struct {
	MIME string `json:"mime"`
	Data []byte `json:"data"`
}

func (a *agent) spec(r *wire.Run) initSpec {
	spec := initSpec{
		Argv: r.Argv, File: r.File, Code: r.Code, Env: r.Env, Driver: r.Driver, Displays: r.Displays,
		TmpBytes: r.Limits.TmpBytes, FileBytes: uint64(max(0, r.Limits.FileBytes)),
		DataBytes: a.cfg.DataBytes, Processes: a.cfg.Processes, Dir: "/tmp", zygote: r.Zygote,
	}
	if a.shared != nil {
		spec.Dir, spec.Shared = privateDir(), &sharedSpec{Landlock: a.shared.landlock}
	}
	return spec
}

// run serves one run stream: it starts run-init in namespaces of its own, carries its output, and sends
// the exit when nothing of the run is left.
func (a *agent) run(s *wire.Stream, f wire.Frame) {
	defer s.Close()
	if f.Run.Held {
		exit := a.heldFiles()
		_ = s.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
		return
	}
	runOne := a.runToEnd
	if f.Run.Interpreter != "" {
		runOne = a.runCell
	}
	before := a.shared.limitsHit()
	done := a.spare.begin(f.Run.Interpreter != "")
	exit, err := runOne(s, f.Run)
	done()
	if err != nil {
		exit = wire.Exit{Code: 126, Error: err.Error()}
	}
	after := a.shared.limitsHit()
	exit.OOMKills, exit.PIDsRefused = after.oomKills-before.oomKills, after.pidsRefused-before.pidsRefused
	_ = s.Send(context.Background(), wire.Frame{Type: wire.TypeExit, Exit: &exit})
	if !a.cfg.NoZygote && (a.shared == nil || a.shared.landlock > 0) {
		a.zygotes.prepare(f.Run.Zygote)
	}
	if f.Run.Zygote != nil && a.shared == nil && !a.hasInterpreters() {
		a.zygotes.grow(f.Run.Zygote.Name, f.Run.Code)
	}
	if spec := a.spec(f.Run); f.Run.Interpreter == "" {
		if z := a.forkingZygote(spec); a.shared == nil || z != nil && a.shared.landlock >= landlockSignals {
			a.spare.prepare(a.bootOf(f.Run), func() (*initProcess, error) { return a.newSpare(spec, z) })
		}
	}
}

func (a *agent) runToEnd(s *wire.Stream, r *wire.Run) (wire.Exit, error) {
	p, err := a.startInit(a.spec(r))
	if err != nil {
		return wire.Exit{}, err
	}
	defer p.close()
	go p.obey(s)

	var pumps sync.WaitGroup
	pumps.Go(func() { pump(s, wire.TypeStdout, p.stdout) })
	pumps.Go(func() { pump(s, wire.TypeStderr, p.stderr) })

	status, err := p.wait()
	now := time.Now()
	_ = p.stdout.SetReadDeadline(now)
	_ = p.stderr.SetReadDeadline(now)
	pumps.Wait()
	for _, d := range status.Displays {
		if s.Send(context.Background(), wire.Frame{Type: wire.TypeDisplay, MIME: d.MIME, Data: d.Data}) != nil {
			break
		}
	}
	return status.Exit, err
}

// wait returns how the program ended, when nothing of the run is left.
func (p *initProcess) wait() (initStatus, error) {
	text, statusErr := io.ReadAll(io.LimitReader(p.status, maxStatus))
	var exit initStatus
	told := statusErr == nil && json.Unmarshal(text, &exit) == nil
	if told && exit.Alone && p.leave() {
		exit.Forked = p.forked
		return exit, nil
	}
	// Else run-init's end means that the kernel has killed all the rest.
	proc.AwaitExit(p.proc.Pid)
	state, err := p.reap()
	if err != nil {
		return initStatus{}, err
	}
	if !told {
		if exit.Exit = exitOf(state.Sys().(syscall.WaitStatus)); exit.Signal == 0 { // run-init was not killed, it broke down
			exit.Exit = wire.Exit{Code: 126, Error: "the run's init broke down; too few processes or too little memory were left, or the program attacked it"}
		}
	}
	exit.Forked = p.forked
	if !exit.Alone { // else it has told that itself
		exit.UserUS += state.UserTime().Microseconds()
		exit.SysUS += state.SystemTime().Microseconds()
	}
	if ru, ok := state.SysUsage().(*syscall.Rusage); ok && p.fork == nil { // else it has counted the zygote's
		exit.MaxRSSB = max(exit.MaxRSSB, ru.Maxrss<<10)
	}
	return exit, nil
}

// leave reports whether nobody needs to wait for run-init's end: the kernel takes its time with the namespaces. That goes for one at a time, for
// a run-init has threads, and the next run may need them.
func (p *initProcess) leave() bool {
	select {
	case p.leaving <- struct{}{}:
	default:
		return false
	}
	go func() {
		proc.AwaitExit(p.proc.Pid)
		_, _ = p.reap()
		<-p.leaving
	}()
	return true
}

func exitOf(ws syscall.WaitStatus) wire.Exit {
	if ws.Signaled() {
		return wire.Exit{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return wire.Exit{Code: ws.ExitStatus()}
}

// initProcess is a started run-init and the agent's ends of its pipes.
type initProcess struct {
	proc                         *os.Process
	spec, status, stdout, stderr *os.File
	channel                      *os.File // for cells
	tree                         *os.File // the mounts of the run, which must not go before its processes; nil if the channel has it

	tmpBytes int64
	reap     func() (*os.ProcessState, error) // waits for the end of everything of the run
	forked   bool                             // a zygote started the program
	fork     *fork                            // nil unless run-init itself came from one
	booted   *boot                            // the program it has started for the run to come
	ahead    *ahead                           // the program that a zygote has started for it; nil once the run is there
	leaving  chan struct{}                    // the agent's
}

// startInit hands the spec to a run-init, the one that waits for it if there is one, and the program's start to a zygote,
// if there is one for it.
func (a *agent) startInit(spec initSpec) (*initProcess, error) {
	if z := a.forkingZygote(spec); z != nil {
		if p, err := a.startForked(spec, z); err == nil {
			return p, nil
		}
	}
	var p *initProcess
	if a.shared == nil {
		p = a.spare.take(&spec)
	}
	if p == nil {
		var err error
		if p, err = a.newInit(spec, nil); err != nil {
			return nil, err
		}
	}
	waiting := p.ahead
	p.ahead = nil
	g := waiting.take()
	if g == nil && a.shared == nil && (spec.Channel || spec.zygote != nil) {
		got, err := p.given()
		if err != nil {
			_ = p.spec.Close() // if it lives, it ends
			return p, nil      // its status says why
		}
		g = &got
	}
	if g != nil {
		p.tree, g.tree = g.tree, nil
	}
	defer g.close()
	tell := json.NewEncoder(p.spec)
	if f, ok := a.forkProgram(spec, g, waiting); ok {
		p.forked = true
		go func() { // ends when run-init has read it, or has ended
			_ = tell.Encode(initSpec{Adopted: f.inner, Channel: spec.Channel, Displays: spec.Displays, Dir: spec.Dir})
			_ = tell.Encode(<-f.exit)
			_ = p.spec.Close()
		}()
		return p, nil
	}
	go func() {
		_ = tell.Encode(spec)
		_ = p.spec.Close()
	}()
	return p, nil
}

// forkProgram has the program of a run forked by its zygote, unless that has been done already.
func (a *agent) forkProgram(spec initSpec, g *given, waiting *ahead) (forked, bool) {
	if waiting.hand(spec, a.zygotes.suiting(spec)) {
		return waiting.forked, true
	}
	if g == nil {
		return forked{}, false
	}
	return a.zygotes.fork(spec, *g)
}

// newSpare is newInit for a run to come, whose program is forked, too, if there is a zygote for it.
func (a *agent) newSpare(spec initSpec, z *zygote) (*initProcess, error) {
	spec.ahead = true
	p, err := a.newInit(spec, z)
	if err == nil && a.shared == nil && spec.zygote != nil {
		p.ahead = a.zygotes.forkAhead(p, spec.zygote.Name)
	}
	return p, err
}

// newInit starts a run-init in a place of its own, which makes everything ready and waits for its spec. Of the spec it needs
// the place alone. Where runs share a pid namespace it may come from a zygote, with the program and its spec.
func (a *agent) newInit(spec initSpec, z *zygote) (_ *initProcess, err error) {
	a.starting <- struct{}{}
	defer func() { <-a.starting }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	theirs := []*os.File{null}
	p := &initProcess{tmpBytes: spec.TmpBytes, leaving: a.leaving}
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
		if err != nil {
			p.close()
		}
	}()
	// Their ends, in the order of run-init's descriptors from 1 on.
	for _, ours := range []**os.File{&p.stdout, &p.stderr, &p.spec, &p.status} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		if ours == &p.spec {
			r, w = w, r
		}
		*ours = r
		theirs = append(theirs, w)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	p.channel = os.NewFile(uintptr(fds[0]), "interpreter")
	theirs = append(theirs, os.NewFile(uintptr(fds[1]), "agent"))
	attr := &os.ProcAttr{Dir: "/", Env: []string{}, Files: theirs}
	switch {
	case z != nil:
		err = a.shared.fork(p, z, theirs, spec)
	case a.shared != nil:
		err = a.shared.start(p, attr, spec.Dir)
	default:
		err = startApart(p, attr, a.empty)
	}
	if err != nil {
		return nil, fmt.Errorf("start run: %w", err)
	}
	return p, nil
}

// startApart starts run-init as process 1 of namespaces of its own: its end is the end of all in them. empty is
// where it hides its mounts, if it is to.
func startApart(p *initProcess, attr *os.ProcAttr, empty *os.File) (err error) {
	attr.Sys = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC}
	argv := []string{"run-init", strconv.FormatInt(p.tmpBytes, 10)}
	if empty != nil {
		argv, attr.Files = append(argv, hiddenMounts), append(attr.Files, empty)
	}
	if p.proc, err = os.StartProcess("/proc/self/exe", argv, attr); err == nil {
		p.reap = p.proc.Wait
	}
	return err
}

func (p *initProcess) close() {
	p.closePipes()
	if p.fork != nil {
		p.fork.close()
	}
	p.ahead.drop()
	_ = p.tree.Close() // a nil file says so and does nothing
	_ = p.channel.Close()
}

func (p *initProcess) closePipes() {
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
