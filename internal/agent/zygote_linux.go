package agent

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// zygote is an interpreter that has imported its libraries and forks a process for each run. It shares the agent's
// namespaces and capabilities, runs nobody's code, and nothing of a run passes through its memory: a request is a set of
// descriptors. It is a process of the runner's that reads from its descriptor 3, a packet socket,
//
//	ZygoteConfig, as JSON         once
//	run                           with the descriptors of the run's pid, mount and ipc namespaces, its root, the pipe with its
//	                              forkSpec, its stdout and stderr, and for an interpreter that lives on its channel
//	ahead                         the same, for a run that is yet to come
//	grow <module> …               with a socket like this one: fork a zygote that imports them, too, and speaks on it
//
// and answers
//
//	grown <pid>                                  first, if it was forked that way
//	ready                                        when it has imported
//	started <pid> <pid in the run's namespace>   or: failed; in the order of the requests
//	ended <pid> <wait status> <user µs> <system µs> <memory of its own>
type zygote struct {
	start startEnv
	proc  *os.Process // nil if the agent has not started it
	conn  *os.File
	soon  bool

	shared *shared // nil where runs have namespaces of their own
	dir    string  // private to it, where they have not

	lone  bool            // it has memory of its own: without work it ends
	extra map[string]bool // what it was told to import later
	idle  *time.Timer     // nil unless lone

	ready chan struct{} // closed when it can fork, or is gone

	mu       sync.Mutex
	pid      int // as grown tells
	started  bool
	gone     bool
	asked    []chan forked          // for each request that has not been answered
	children map[int]chan wire.Exit // by pid
}

// zygoteLife is how long one that has its memory for itself alone waits for the next run.
const zygoteLife = time.Minute

// soonEnough bounds the wait for a zygote that is on its way. On a busy machine, importing the libraries would take longer.
const soonEnough = 5 * time.Second

// forked is the answer to a request. pid is zero when there is none.
type forked struct {
	pid, inner int
	exit       <-chan wire.Exit
}

// forkSpec is what the run's process reads for itself.
type forkSpec struct {
	Path    string            `json:"path"`
	Code    string            `json:"code"` // hex
	Env     map[string]string `json:"env"`
	Limits  map[string]uint64 `json:"limits"`
	Display bool              `json:"display"`
}

// zygotes are those of a sandbox, by name. The zero value is ready.
type zygotes struct {
	shared *shared // nil where runs have namespaces of their own

	mu       sync.Mutex
	known    map[string]*wire.Zygote
	living   map[string][]*zygote // those that were grown from others come after them
	hopeless map[string]bool      // modules that a zygote could not be grown by
	next     map[string]time.Time // when one that did not come up is tried again
}

// zygotePause is the least time between two tries to start a zygote that does not come up: what made it fail would make it fail again.
const zygotePause = time.Minute

// prepare starts the one that is described or known by that name, unless it lives. A failure means that runs start
// their own interpreters.
func (zs *zygotes) prepare(w *wire.Zygote) {
	if w == nil {
		return
	}
	zs.mu.Lock()
	defer zs.mu.Unlock()
	if zs.known == nil {
		zs.known = map[string]*wire.Zygote{}
	}
	if len(w.Source) > 0 {
		zs.known[w.Name] = w
	}
	if w = zs.known[w.Name]; w == nil || len(zs.living[w.Name]) > 0 || time.Now().Before(zs.next[w.Name]) {
		return
	}
	if z, err := newZygote(w, zs.shared); err == nil {
		zs.addLocked(w.Name, z)
	}
}

// add is for a zygote that comes from outside.
func (zs *zygotes) add(name string, z *zygote) {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	zs.addLocked(name, z)
}

func (zs *zygotes) addLocked(name string, z *zygote) {
	if zs.living == nil {
		zs.living = map[string][]*zygote{}
	}
	z.children, z.ready = map[int]chan wire.Exit{}, make(chan struct{})
	zs.living[name] = append(zs.living[name], z)
	if z.lone {
		z.idle = time.AfterFunc(zygoteLife, z.letGo)
	}
	go func() {
		z.listen()
		zs.mu.Lock()
		zs.removeLocked(name, z)
		zs.mu.Unlock()
		z.end()
	}()
}

// suiting is the living zygote from which that run may come; nil if there is none.
func (zs *zygotes) suiting(spec initSpec) *zygote {
	if spec.zygote == nil {
		return nil
	}
	if z := zs.best(spec.zygote.Name); z != nil && z.start.allows(spec.Env) {
		return z
	}
	return nil
}

// fork starts the program of a run from its zygote, in the run's namespaces. It does not if there is none that suits it.
func (zs *zygotes) fork(spec initSpec, g given) (forked, bool) {
	z := zs.suiting(spec)
	if z == nil || z.shared != nil {
		return forked{}, false
	}
	if z.soon {
		select {
		case <-z.ready:
		case <-time.After(soonEnough):
		}
	}
	f, w, err := z.forkInto(g, requestRun, spec.Channel)
	if err != nil {
		return forked{}, false
	}
	go func() { _ = spec.tellFork(w) }()
	return f, true
}

// tellFork writes the forkSpec. It ends when the process has read it, or there is none.
func (spec *initSpec) tellFork(w *os.File) error {
	name, code := spec.File, spec.Code
	if spec.Channel {
		name, code = driverFile, spec.Driver
	}
	run := forkSpec{Path: spec.privatePath(name), Code: hex.EncodeToString(code), Env: spec.variables(), Limits: byName(spec.limits()),
		Display: spec.Displays}
	defer w.Close()
	return json.NewEncoder(w).Encode(run)
}

// best is the zygote that has imported the most, or the one that is on its way; nil if there is none.
func (zs *zygotes) best(name string) *zygote {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	living := zs.living[name]
	for _, z := range slices.Backward(living) {
		if z.isStarted() {
			return z
		}
	}
	if len(living) == 0 {
		return nil
	}
	return living[0]
}

func newZygote(w *wire.Zygote, s *shared) (*zygote, error) {
	ours, theirs, err := packetSocket()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	z := &zygote{start: startEnv{w.Env, w.Reads, w.PerRun}, shared: s, conn: ours, lone: true}
	if err := z.exec(w, theirs); err != nil {
		_ = z.conn.Close()
		if z.shared != nil && z.proc != nil {
			z.shared.endZygote(z)
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
	told := ZygoteConfig(w.Preload)
	vars := maps.Clone(baseEnv)
	maps.Copy(vars, w.Env)
	vars[displayVariable] = "/tmp/" + displayDir
	attr := &os.ProcAttr{
		Dir: "/", Files: []*os.File{null, null, null, theirs, source}, Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS},
	}
	start := startZygote
	if z.shared != nil {
		if told["shared"], err = z.keepApart(vars); err != nil {
			return err
		}
		attr.Sys, start = nil, z.shared.startZygote
	}
	config, err := json.Marshal(told)
	if err != nil {
		return err
	}
	var env []string
	for k, v := range vars {
		env = append(env, k+"="+v)
	}
	argv := append(slices.Clone(w.Argv), "/proc/self/fd/4")
	path, err := findProgram(argv[0], env)
	if err != nil {
		return err
	}
	argv[0], attr.Env = path, env
	if err = start(z, argv, attr); err != nil {
		return err
	}
	_, err = z.conn.Write(config)
	return err
}

func startZygote(z *zygote, argv []string, attr *os.ProcAttr) (err error) {
	z.proc, err = os.StartProcess("/proc/self/exe", append([]string{"zygote"}, argv...), attr)
	return err
}

// ZygoteConfig is what a zygote that imports those modules is told first: what all runs inherit from it, and the filter that they enter.
func ZygoteConfig(preload []string) map[string]any {
	return map[string]any{"preload": preload, "limits": byName(settable(fixedLimits)), "filter": runFilter().hex()}
}

func byName(limits []rlimit) map[string]uint64 {
	named := map[string]uint64{}
	for _, l := range limits {
		named[l.name] = l.max
	}
	return named
}

func (f filter) hex() string {
	return hex.EncodeToString(unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), len(f)*int(unsafe.Sizeof(f[0]))))
}

// BecomeZygote gives a zygote the one thing that libraries want of a file system while they are imported, a /tmp of its own, and
// becomes it.
func BecomeZygote(argv []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700,size=16m"); err != nil {
		return fmt.Errorf("mount /tmp: %w", err)
	}
	return syscall.Exec(argv[0], argv, os.Environ())
}

// listen takes the zygote's answers until it has hung up.
func (z *zygote) listen() {
	buf := make([]byte, 256)
	for {
		n, err := z.conn.Read(buf)
		if n <= 0 || err != nil {
			return
		}
		line := string(buf[:n])
		if line == "ready" && z.shared != nil {
			z.shared.removeDir(z)
		}
		z.hear(line)
	}
}

func (z *zygote) hear(line string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	var word string
	var pid, inner, status int
	var exit wire.Exit
	switch _, _ = fmt.Sscan(line, &word); word {
	case "grown":
		_, _ = fmt.Sscan(line, &word, &z.pid)
	case "ready":
		if !z.started {
			z.started = true
			close(z.ready)
		}
	case "started", "failed":
		if len(z.asked) == 0 {
			return
		}
		var answer forked
		if n, _ := fmt.Sscan(line, &word, &pid, &inner); n == 3 {
			answer = forked{pid: pid, inner: inner}
			if z.shared == nil {
				end := make(chan wire.Exit, 1)
				z.children[pid], answer.exit = end, end
			}
		}
		z.asked[0] <- answer
		z.asked = z.asked[1:]
	case "ended":
		if n, _ := fmt.Sscan(line, &word, &pid, &status, &exit.UserUS, &exit.SysUS, &exit.MaxRSSB); n != 6 || z.children[pid] == nil {
			return
		}
		how := exitOf(syscall.WaitStatus(status))
		exit.Code, exit.Signal = how.Code, how.Signal
		z.children[pid] <- exit
		delete(z.children, pid)
	}
}

// end is called when the zygote has hung up. What it has forked is the agent's to wait for, now.
func (z *zygote) end() {
	z.mu.Lock()
	z.gone = true
	if z.idle != nil {
		z.idle.Stop()
	}
	if !z.started {
		z.started = true
		close(z.ready)
	}
	asked, children := z.asked, maps.Clone(z.children)
	z.asked, z.children = nil, nil
	z.mu.Unlock()
	_ = z.conn.Close()
	switch {
	case z.shared != nil:
		z.shared.endZygote(z)
	case z.proc != nil:
		_ = z.proc.Kill()
		proc.AwaitExit(z.proc.Pid)
		_, _ = z.proc.Wait()
	}
	z.reap()
	for _, c := range asked {
		c <- forked{}
	}
	for pid, c := range children {
		go func() {
			proc.AwaitExit(pid)
			exit := wire.Exit{Code: 137, Signal: 9} // where the zygote took the answer along
			var ws syscall.WaitStatus
			if _, err := syscall.Wait4(pid, &ws, 0, nil); err == nil {
				exit = exitOf(ws)
			}
			c <- exit
		}()
	}
}

// letGo ends a zygote that has nothing to do.
func (z *zygote) letGo() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if len(z.children) > 0 || len(z.asked) > 0 || !z.started {
		z.idle.Reset(zygoteLife)
		return
	}
	_ = z.conn.SetReadDeadline(time.Now()) // listen ends
}

// What a zygote is asked for.
const (
	requestRun   = "run"
	requestAhead = "ahead"
)

// fork starts a run's process in the namespaces of its run-init.
func (z *zygote) fork(request string, fds ...*os.File) (forked, error) {
	answer := make(chan forked, 1)
	z.mu.Lock()
	if z.gone || !z.started {
		z.mu.Unlock()
		return forked{}, errNoZygote
	}
	err := z.send(request, fds...)
	if err == nil {
		z.asked = append(z.asked, answer)
		if z.idle != nil {
			z.idle.Reset(zygoteLife)
		}
	}
	z.mu.Unlock()
	if err != nil {
		return forked{}, err
	}
	var late <-chan time.Time
	if z.shared != nil {
		late = time.After(answerTimeout)
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

// send sends a request with descriptors.
func (z *zygote) send(request string, files ...*os.File) error {
	rights := make([]int, len(files))
	for i, f := range files {
		rights[i] = int(f.Fd())
	}
	raw, err := z.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), []byte(request), unix.UnixRights(rights...), nil, unix.MSG_NOSIGNAL)
		return sendErr != unix.EAGAIN
	})
	return errors.Join(err, sendErr)
}

var errNoZygote = errors.New("the zygote cannot fork")
