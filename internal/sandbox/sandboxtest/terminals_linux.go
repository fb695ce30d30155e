package sandboxtest

import (
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
)

// testTerminals: a run has a few pseudo-terminals of its own. It cannot use them to type into
// another program or to load a line discipline.
func (s *suite) testTerminals(t *testing.T) {
	b := s.start(t, sandbox.Spec{Limits: sandbox.Limits{PIDs: 200}})
	const tools = `
import fcntl, pty, termios, threading
def controlled(code):
    """Runs code in a child whose controlling terminal is a new one, and returns what it printed there."""
    pid, master = pty.fork()
    if pid == 0:
        try: exec(code, dict(globals(), pty=pty))
        except BaseException as e: print("failed:", repr(e), flush=True)
        finally: os._exit(0)
    out = b""
    try:
        while part := os.read(master, 1000): out += part
    except OSError: pass  # the last process has closed it
    os.waitpid(pid, 0); os.close(master)
    return out.decode().split()
`
	t.Run("work", func(t *testing.T) {
		b.Probe(t, s.facts()+tools+`
master, slave = os.openpty()
if not os.isatty(slave) or not os.ttyname(slave).startswith("/dev/pts/"): breach("not a terminal", os.ttyname(slave))
os.write(master, b"typed\n")
if os.read(slave, 100) != b"typed\n": breach("the terminal does not carry input")
named = os.open(os.ttyname(slave), os.O_RDWR | os.O_NOCTTY)
os.write(named, b"out")
out = b""
while len(out) < 10: out += os.read(master, 100)
if out != b"typed\r\nout": breach("the terminal does not carry output", out)
fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
if os.get_terminal_size(slave) != (80, 24): breach("the size is", os.get_terminal_size(slave))
for fd in (named, master, slave): os.close(fd)
got = controlled("print(os.ttyname(0), os.getpgrp() == os.tcgetpgrp(0), flush=True); write('/dev/tty', b'direct')")
if got[1:] != ["True", "direct"]: breach("a controlling terminal gives", got)
fails("has a controlling terminal by itself", os.open, "/dev/tty", os.O_RDWR)
got = controlled("import subprocess; subprocess.run(['stty', 'size'])")
if got != ["0", "0"]: breach("a program on a terminal gives", got)
got = subprocess.run(["script", "-qc", "tty", "/dev/null"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
if not got.stdout.startswith("/dev/pts/"): breach("script gives", got)
pid, master = pty.fork()
if pid == 0:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would miss one that comes just before the pause
    print("ready", flush=True); signal.pause()
os.read(master, 100); os.write(master, b"\x03")  # ^C
if os.waitpid(pid, 0)[1] != signal.SIGINT: breach("^C does not interrupt")
`)
	})
	t.Run("calls", func(t *testing.T) {
		b.Probe(t, s.facts()+tools+`
def attack(fd):
    TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS = 0x5412, 0x541C, 0x5423, 0x541D
    for request in (TIOCSTI, TIOCLINUX): fails("types", fcntl.ioctl, fd, request, b"x")
    for discipline in range(0, 31): fails("sets the line discipline", fcntl.ioctl, fd, TIOCSETD, struct.pack("i", discipline))
    fails("takes the console", fcntl.ioctl, fd, TIOCCONS)
master, slave = os.openpty()
attack(master); attack(slave)
for line in controlled("attack(0)"): breach("with a controlling terminal:", line)
if HOST_KERNEL and struct.unpack("i", fcntl.ioctl(slave, 0x5424, bytes(4))) != (0,): breach("another line discipline")  # TIOCGETD
# A terminal that controls one session cannot be taken by another, nor its foreground be set from there.
pid, theirs = pty.fork()
if pid == 0: print("ready", flush=True); signal.pause()
os.read(theirs, 100)
fd = os.open("/dev/pts/%d" % struct.unpack("i", fcntl.ioctl(theirs, 0x80045430, bytes(4))), os.O_RDWR | os.O_NOCTTY)  # TIOCGPTN
for arg in (0, 1): fails("steals a terminal", fcntl.ioctl, fd, termios.TIOCSCTTY, arg)
fails("sets the foreground of another session", os.tcsetpgrp, fd, os.getpgrp())
os.kill(pid, 9)
`)
	})
	t.Run("apart", func(t *testing.T) {
		beside := b
		if !s.Has.Terminals {
			beside = s.start(t, sandbox.Spec{})
		}
		other := beside.BeginUntil(t, "/dev/pts/0\n", Python(`
master, slave = os.openpty()
os.write(master, b"secret\n")
print(os.ttyname(slave), flush=True)
if os.read(slave, 100) != b"secret\n": breach("somebody else read it")
signal.pause()
`))
		cell := beside.Begin(t, Cell(t, "python", "import os\nmaster, slave = os.openpty()\nprint(os.ttyname(slave), flush=True)"))
		if res := cell.Wait(t); !strings.HasPrefix(string(res.Stdout), "/dev/pts/") || res.Exit.Code != 0 {
			t.Errorf("an interpreter's terminal: %s %s", res.Stdout, res.Stderr)
		}
		b.Probe(t, `
if os.listdir("/dev/pts") != ["ptmx"]: breach("sees terminals", os.listdir("/dev/pts"))
for n in range(100):
    fails("opens", os.open, f"/dev/pts/{n}", os.O_RDWR | os.O_NOCTTY)
    fails("makes", os.mknod, f"/dev/pts/{n}", stat.S_IFCHR | 0o666, os.makedev(136, n))
    fails("makes", os.mknod, f"/data/pts{n}", stat.S_IFCHR | 0o666, os.makedev(136, n))
fails("removes", os.unlink, "/dev/pts/ptmx")
fails("replaces", os.symlink, "/data", "/dev/pts/x")
`)
		if res := other.Kill(t); string(res.Stdout) != "/dev/pts/0\n" || res.Exit.Signal != 9 {
			t.Errorf("the other run was not left alone: %+v %s %s", res.Exit, res.Stdout, res.Stderr)
		}
	})
	if !s.Has.Terminals || !s.Has.HostKernel {
		return // the engine, or the sandbox's own kernel, limits their number
	}
	t.Run("count", func(t *testing.T) {
		// The machine has 4096, and no limit counts their buffers: fill every one.
		const hoard = `
held = []
while len(held) < 1000:
    try: held.append(os.openpty())
    except OSError as e: break
if not 8 <= len(held) <= 32: breach("opens terminals:", len(held))
filled = 0
for pair in held:
    for fd in pair:
        os.set_blocking(fd, False)
        try:
            while True: filled += os.write(fd, bytes(4096))
        except OSError: pass
if filled > 4 << 20: breach("fills buffers with", filled)
print("full", flush=True)
`
		other := b.BeginUntil(t, "full\n", Python(hoard+"signal.pause()"))
		b.Probe(t, "os.openpty()\n")
		if res := other.Kill(t); string(res.Stdout) != "full\n" {
			t.Errorf("%s %s", res.Stdout, res.Stderr)
		}
		if res := b.Run(t, Python(hoard)); string(res.Stdout) != "full\n" || res.Exit.Code != 0 {
			t.Errorf("the next run: %s %s", res.Stdout, res.Stderr)
		}
		b.Alive(t)
	})
}
