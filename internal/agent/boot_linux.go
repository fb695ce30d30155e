package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/wire"
)

// boot is a program that is started before there is a run for it, where its start is most of what a run takes. It is the run's own
// program with the run's own arguments, confined as every program is, but its code is not there yet and its standard input is a
// socket, on which it says
//
//	ready
//
// when it can do no more without code, and reads until the end
//
//	{"file": …, "env": …}
//
// the path of the code, which may have another name than was said, and the environment. It says
//
//	taken
//
// and goes on as if it had been started now, with its standard input from /dev/null. One that dies without that word has run nothing.
//
// It serves one run, and nothing of any run has been near it: its first environment is the runner's own.
type boot struct {
	spec  initSpec
	reads []string
}

// maxBoot is what fits into a pipe that nobody reads yet.
const maxBoot = 32 << 10

// readyToRun bounds the wait for a program that has been started ahead; a new one would hardly take as long.
const readyToRun = 10 * time.Second

const (
	readyLine = "ready\n"
	takenLine = "taken\n"
)

// bootOf is the program that can wait for the next run like this one; nil if it cannot, or runs could reach it.
func (a *agent) bootOf(r *wire.Run) *boot {
	if r.Prestart == nil || a.shared != nil {
		return nil
	}
	return &boot{spec: initSpec{Boot: true, Argv: r.Argv, File: r.File, Env: r.Prestart.Env, Dir: "/tmp"}, reads: r.Prestart.Reads}
}

// suits reports whether the program is that of the run, and nothing in the run's environment would have had to be there earlier.
func (b *boot) suits(spec *initSpec) bool {
	if spec.Channel || spec.Displays || spec.Dir != b.spec.Dir || !slices.Equal(spec.Argv, b.spec.Argv) {
		return false
	}
	start := startEnv{env: b.spec.Env, reads: b.reads}
	if !strings.Contains(spec.Argv[0], "/") {
		start.reads = append(slices.Clone(b.reads), "PATH")
	}
	return start.allows(spec.Env)
}

// boot has a run-init that waits start the program.
func (p *initProcess) boot(b *boot) bool {
	text, err := json.Marshal(b.spec)
	if err != nil || len(text) > maxBoot {
		return false
	}
	p.booted = b
	_, err = p.spec.Write(append(text, '\n'))
	return err == nil
}

// dropOutput forgets what a program has printed that waits for a run: that it cannot.
func (p *initProcess) dropOutput() {
	buf := make([]byte, 4<<10)
	for _, f := range []*os.File{p.stdout, p.stderr} {
		raw, err := f.SyscallConn()
		if err != nil {
			continue
		}
		_ = raw.Control(func(fd uintptr) {
			for left := maxLeftover; left > 0; {
				n, err := syscall.Read(int(fd), buf)
				if n <= 0 || err != nil {
					return
				}
				left -= n
			}
		})
	}
}

// waiting is run-init's side of a booted program.
type waiting struct {
	pid        int
	conn       *os.File // its standard input
	name, path string   // of the code, as it was told
}

// handedOver is what it reads.
type handedOver struct {
	File string            `json:"file"`
	Env  map[string]string `json:"env"`
}

// boot starts a program for the run that is to come. If it cannot, the run will.
func (init *runInitProcess) boot(spec *initSpec) {
	argv, files, err := spec.argv()
	if err != nil || len(files) != 1 || init.waiting != nil {
		return
	}
	ours, theirs, err := driverSocket()
	if err != nil {
		return
	}
	defer theirs.Close()
	pid, _ := init.start(argv, spec.environ(), []uintptr{theirs.Fd(), 1, 2})
	if pid == 0 {
		_ = ours.Close()
		return
	}
	init.waiting = &waiting{pid, ours, spec.File, files[0].path}
}

// launchWaiting is launch for a run whose program has been started. If that has died, another is.
func (init *runInitProcess) launchWaiting(spec *initSpec) (*program, wire.Exit, error) {
	w := init.waiting
	defer w.conn.Close()
	dir, err := os.OpenRoot(spec.Dir)
	if err != nil {
		return nil, wire.Exit{}, err
	}
	code := programFile{w.path, spec.Code}
	if spec.File != w.name {
		code.path = spec.privatePath(spec.File)
	}
	if err := w.handOver(spec, code); err != nil {
		_ = dir.Close()
		_ = syscall.Kill(w.pid, syscall.SIGKILL)
		_ = os.Remove(code.path)
		return init.launch(spec)
	}
	return &program{pid: w.pid, dir: dir}, wire.Exit{}, nil
}

// handOver gives a run to the program. After an error, none of the run's code has run.
func (w *waiting) handOver(spec *initSpec, code programFile) error {
	if err := w.hear(readyLine, time.Now().Add(readyToRun)); err != nil {
		return err
	}
	if err := code.write(); err != nil {
		return err
	}
	for _, l := range spec.limits() {
		var old unix.Rlimit
		err := unix.Prlimit(w.pid, l.resource, nil, &old)
		if err == nil {
			v := min(l.max, old.Max)
			err = unix.Prlimit(w.pid, l.resource, &unix.Rlimit{Cur: v, Max: v}, nil)
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", l.name, err)
		}
	}
	if err := json.NewEncoder(w.conn).Encode(handedOver{code.path, spec.variables()}); err != nil {
		return err
	}
	raw, err := w.conn.SyscallConn()
	if err != nil {
		return err
	}
	var shut error
	err = raw.Control(func(fd uintptr) { shut = unix.Shutdown(int(fd), unix.SHUT_WR) })
	if err = errors.Join(err, shut); err != nil {
		return err
	}
	return w.hear(takenLine, time.Time{}) // for as long as it takes: it has the code, and no other may run it
}

// hear waits for the program to say a line.
func (w *waiting) hear(line string, until time.Time) error {
	if err := w.conn.SetReadDeadline(until); err != nil {
		return err
	}
	said := make([]byte, len(line))
	if _, err := io.ReadFull(w.conn, said); err != nil {
		return err
	}
	if string(said) != line {
		return errors.New("the program says something else")
	}
	return nil
}
