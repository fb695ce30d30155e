package runinit

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/wire"
)

// readyTimeout limits the wait for a booted program. It is longer than a new start takes.
const readyTimeout = 10 * time.Second

// The lines that a booted program writes to its standard input, which is a socket. See
// docs/warm-start.md.
const (
	readyLine = "ready\n"
	takenLine = "taken\n"
)

// booted is a program that was started before its run.
type booted struct {
	pid        int
	helper     int      // the process on its descriptor 3; 0 if none
	conn       *os.File // its standard input
	name, path string   // of the code, as its arguments say
}

// boot starts the program for the run to come. If it cannot, the run starts it.
func (init *process) boot(spec *Spec) {
	argv, files, err := spec.argv()
	if err != nil || len(files) != 1 || init.booted != nil {
		return
	}
	ours, theirs, err := DriverSocket()
	if err != nil {
		return
	}
	defer theirs.Close()
	fds := []uintptr{theirs.Fd(), 1, 2}
	helper, conn := init.startHelper(spec)
	if helper != 0 {
		defer conn.Close()
		fds = append(fds, conn.Fd())
	}
	pid, _ := init.exec(argv, spec.variables(), fds)
	if pid == 0 {
		_ = ours.Close()
		return
	}
	init.booted = &booted{pid, helper, ours, spec.File, files[0].path}
}

// startHelper starts the helper of a program and returns the program's end of their socket. The
// helper ends when the program closes it. The pid is 0 if there is no helper: a program must not
// depend on it.
func (init *process) startHelper(spec *Spec) (pid int, conn *os.File) {
	if len(spec.Helper) == 0 {
		return 0, nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil
	}
	conn, its := os.NewFile(uintptr(fds[0]), "helper"), os.NewFile(uintptr(fds[1]), "program")
	defer its.Close()
	if pid, _ = init.exec(spec.Helper, spec.variables(), []uintptr{its.Fd(), its.Fd(), 0}); pid == 0 {
		_ = conn.Close()
	}
	return pid, conn
}

// handOver gives the run to the booted program. If the program has died, it launches another one.
func (init *process) handOver(spec *Spec) (*program, wire.Exit, error) {
	b := init.booted
	defer b.conn.Close()
	dir, err := os.OpenRoot(spec.Dir)
	if err != nil {
		return nil, wire.Exit{}, err
	}
	code := programFile{b.path, spec.Code}
	if spec.File != b.name {
		code.path = spec.privatePath(spec.File)
	}
	if err := b.handOver(spec, code); err != nil {
		_ = dir.Close()
		_ = syscall.Kill(b.pid, syscall.SIGKILL)
		_ = os.Remove(code.path)
		return init.launch(spec)
	}
	p := &program{pid: b.pid, dir: dir}
	p.wait = p.awaitStop
	return p, wire.Exit{}, nil
}

// handOver gives the program its code and environment. After an error, none of the code has run.
func (b *booted) handOver(spec *Spec, code programFile) error {
	if err := b.expect(readyLine, time.Now().Add(readyTimeout)); err != nil {
		return err
	}
	if err := code.write(); err != nil {
		return err
	}
	if err := b.limit(spec); err != nil {
		return err
	}
	err := json.NewEncoder(b.conn).Encode(struct {
		File string            `json:"file"`
		Env  map[string]string `json:"env"`
		Stop bool              `json:"stop"` // the program may stop instead of exiting: see awaitStop
	}{code.path, spec.variables(), true})
	if err != nil {
		return err
	}
	raw, err := b.conn.SyscallConn()
	if err != nil {
		return err
	}
	var shut error
	err = raw.Control(func(fd uintptr) { shut = unix.Shutdown(int(fd), unix.SHUT_WR) })
	if err = errors.Join(err, shut); err != nil {
		return err
	}
	return b.expect(takenLine, time.Time{}) // without a timeout: it has the code, and no other may run it
}

// limit sets the run's limits on both processes. The helper may have ended, which costs nothing.
func (b *booted) limit(spec *Spec) error {
	if b.helper != 0 {
		err := confine.SetLimitsOf(b.helper, spec.limits()...)
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return confine.SetLimitsOf(b.pid, spec.limits()...)
}

// expect waits for the program to write a line.
func (b *booted) expect(line string, until time.Time) error {
	if err := b.conn.SetReadDeadline(until); err != nil {
		return err
	}
	got := make([]byte, len(line))
	if _, err := io.ReadFull(b.conn, got); err != nil {
		return err
	}
	if string(got) != line {
		return errors.New("the program breaks the protocol")
	}
	return nil
}
