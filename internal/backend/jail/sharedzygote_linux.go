package jail

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/prestart"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
)

// forkTimeout bounds a fork. A shared zygote that takes longer is stuck. It then delays the end of
// every sandbox that has a fork of it, since only it can reap its forks.
const forkTimeout = 3 * time.Second

// sharedZygote is an interpreter outside all sandboxes that has imported libraries and has seen no
// caller's code. It forks a zygote into each sandbox, which then shares its memory. How it is
// confined and how a fork enters a sandbox is in docs/warm-start.md.
type sharedZygote struct {
	spec    sandbox.Zygote
	key     string
	started time.Time
	proc    *bubblewrap
	conn    *os.File

	ready  chan struct{} // closed when it has imported, or ended
	gone   chan struct{} // closed when nothing of it is left
	dead   atomic.Bool   // it forks no more
	ending atomic.Bool   // end was called

	mu    sync.Mutex     // one request at a time
	users sync.WaitGroup // sandboxes that want a fork; none comes after it has ended or been replaced
}

// zygoteKey identifies what a shared zygote is made of. A reinstalled directory is a different one.
func zygoteKey(spec sandbox.Spec, z sandbox.Zygote) string {
	var sources []string
	for _, m := range spec.Mounts {
		var st unix.Stat_t
		_ = unix.Stat(m.Source, &st)
		sources = append(sources, fmt.Sprint(st.Dev, st.Ino, st.Mtim))
	}
	text, _ := json.Marshal(struct {
		Mounts  []sandbox.Mount
		Sources []string
		Zygote  sandbox.Zygote
	}{spec.Mounts, sources, z}) // plain data
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

func (b *Backend) startSharedZygote(spec sandbox.Spec, z sandbox.Zygote, key string) (*sharedZygote, error) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(prestart.ZygoteConfig(z.Preload))
	if err != nil {
		return nil, err
	}
	source := filepath.Join(b.files, "zygote-"+key)
	if err := os.WriteFile(source, z.Source, 0o644); err != nil {
		return nil, err
	}
	conn, theirs, err := proc.SocketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	shared := &sharedZygote{
		spec: z, key: key, started: time.Now(), conn: conn,
		ready: make(chan struct{}), gone: make(chan struct{}),
	}
	err = b.launch.Do(func() error {
		args, err := b.sharedZygoteArgs(spec, z.Argv, source, setpriv)
		if err != nil {
			return err
		}
		shared.proc, err = b.startBubblewrap(args, environ(z.Env), nil, nil, nil, theirs)
		return err
	})
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_, _ = conn.Write(config) // if it has ended already, awaitReady fails
	go shared.wait()
	return shared, nil
}

// environ is the environment of a shared zygote.
func environ(vars map[string]string) []string {
	env := []string{"HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8", "USER=sandbox", "SANDBOX_DISPLAY=/tmp/.display"}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name])
	}
	return env
}

// wait returns when nothing of the shared zygote is left.
func (z *sharedZygote) wait() {
	_ = z.proc.wait()
	_ = z.conn.Close()
	z.dead.Store(true)
	close(z.gone)
}

// awaitReady waits until the shared zygote has imported its libraries.
func (z *sharedZygote) awaitReady() error {
	pid, err := z.readPID("ready %d")
	if err == nil {
		// The shared zygote lowered its priority for the imports, and in some containers it may not
		// raise it again.
		_ = unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
	}
	return err
}

// readPID reads an answer that holds a pid.
func (z *sharedZygote) readPID(format string) (pid int, err error) {
	answer := make([]byte, 32)
	n, err := z.conn.Read(answer)
	if err == nil {
		_, err = fmt.Sscanf(string(answer[:n]), format, &pid)
	}
	return pid, err
}

func (z *sharedZygote) isReady() bool {
	select {
	case <-z.ready:
		return !z.dead.Load()
	default:
		return false
	}
}

// isOutdated reports whether the interpreter's program was replaced on disk, as an upgrade does.
func (z *sharedZygote) isOutdated() bool {
	select {
	case <-z.proc.known:
	default:
		return false
	}
	var st unix.Stat_t
	return z.proc.child != nil && !z.dead.Load() &&
		unix.Stat(fmt.Sprintf("/proc/%d/exe", z.proc.pid), &st) == nil && st.Nlink == 0
}

// fork makes the shared zygote fork a process that gets the files and waits at the gate, the first
// of them. It returns the process's pid.
func (z *sharedZygote) fork(files []*os.File) (int, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.dead.Load() {
		return 0, errCannotFork
	}
	err := proc.SendFiles(z.conn, "fork", files...)
	if err == nil {
		err = z.conn.SetReadDeadline(time.Now().Add(forkTimeout))
	}
	var pid int
	if err == nil {
		pid, err = z.readPID("forked %d")
	}
	switch {
	case err != nil:
		z.dead.Store(true)
		z.kill()
	case pid <= 0:
		return 0, errCannotFork
	}
	return pid, err
}

var errCannotFork = errors.New("the shared zygote cannot fork")

func (z *sharedZygote) kill() { z.proc.kill() }

// end ends the shared zygote and returns when nothing of it is left. Its forks stay in their
// sandboxes.
func (z *sharedZygote) end() {
	z.ending.Store(true)
	z.dead.Store(true)
	z.mu.Lock() // it answers a request first: tryAdopt awaits only forks that it knows
	z.kill()
	z.mu.Unlock()
	<-z.gone
}

// adopt moves a fork of the shared zygote into a started sandbox. link is the server's end of a
// socket to the agent. Closing it tells the agent that no zygote comes.
func (s *jailed) adopt(a adoption, link *os.File) {
	defer link.Close()
	z := a.sharedZygote
	if a.onRequest {
		z.users.Done() // the request may come long after z was replaced
		if _, err := link.Read(make([]byte, 1)); err != nil {
			return // the sandbox has ended
		}
		if z = s.backend.zygotes.reacquire(z); z == nil {
			return
		}
	}
	defer z.users.Done()
	select {
	case <-z.ready:
	case <-s.ended:
		return
	}
	if err := s.tryAdopt(z, link); err != nil && !s.isOver() {
		s.backend.log.Debug("a sandbox imports libraries itself", "sandbox", s.id, "error", err)
	}
}

// namespaces lists the agent's namespaces in the order in which a fork enters them.
var namespaces = []string{"user", "net", "ipc", "uts", "cgroup", "mnt", "pid"}

func (s *jailed) tryAdopt(z *sharedZygote, link *os.File) error {
	gate, open, err := os.Pipe()
	if err != nil {
		return err
	}
	defer gate.Close()
	defer open.Close()
	if err := unix.SetNonblock(int(link.Fd()), false); err != nil { // the zygote expects that
		return err
	}
	files := []*os.File{gate, link}
	for _, name := range namespaces {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", s.proc.pid, name))
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	entries, err := s.group.Entries()
	if err != nil {
		return err
	}
	defer closeAll(entries)
	if !s.proc.signalChild(0) { // the pid may have been another process's
		return errors.New("the sandbox has ended")
	}
	child, err := z.fork(append(files, entries...))
	if err != nil {
		return err
	}
	fork, err := proc.OpenPidfd(child)
	if err != nil {
		return err // the fork finds the gate closed, and exits
	}
	defer fork.Close()
	if len(entries) == 0 {
		err = s.group.Add(child)
	}
	if err == nil {
		_, err = open.Write([]byte("1"))
	}
	_ = open.Close()
	proc.AwaitPidfd(fork) // it leaves a zygote in the sandbox, or nothing
	return err
}
