package sandboxtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// testApart: runs that share a pid namespace cannot read or change each other, the agent or their
// own init, nor signal them if the kernel can forbid it.
func (s *suite) testApart(t *testing.T) {
	b := s.start(t, sandbox.Spec{Limits: sandbox.Limits{PIDs: 200}})
	r := Python(`
private = os.environ["TMPDIR"]
open(private + "/secret", "w").write("of the other run")
os.chdir(private)
sock = socket.socket(socket.AF_UNIX); sock.bind("\0other-run"); sock.listen()
held = open(private + "/secret")
open("/data/other", "w").write(json.dumps([os.getpid(), private]))
print("here", flush=True)
signal.pause()
`)
	r.Env = map[string]string{"MARK": "other-run"}
	other := b.BeginUntil(t, "here\n", r)
	// An interpreter with a cell: its pipes and its code.
	cell := b.BeginUntil(t, "in\n", Cell(t, "python", "print('in', flush=True)\nimport time\nwhile True: time.sleep(0.1)"))

	const look = `
other, private = json.load(open("/data/other"))
others = [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]
if other not in others or 1 not in others: breach("the test sees no processes", others)
`
	for _, test := range []struct {
		name, code string
		skip       bool
	}{
		{"memory and descriptors", `
for p in others:
    for f in ("environ", "maps", "mem", "auxv", "stack", "syscall", "io", "pagemap", "root", "cwd", "exe", "fd/0", "fd/1", "fd/3", "fdinfo", "map_files",
              f"task/{p}/mem", f"task/{p}/fd/0", f"task/{p}/environ", "ns/mnt", "ns/net"):
        path = f"/proc/{p}/{f}"
        try:
            if stat.S_ISLNK(os.lstat(path).st_mode): breach("follows", path, os.readlink(path))
            elif os.path.isdir(path): breach("lists", path, os.listdir(path))
            else:
                fd = os.open(path, os.O_RDONLY)
                if f in ("mem", f"task/{p}/mem") or os.read(fd, 1): breach("reads", path)
        except OSError: pass
    for f in ("mem", "oom_score_adj", "clear_refs", "comm", "timerslack_ns", "coredump_filter", "fd/1", "fd/3"):
        try: os.open(f"/proc/{p}/{f}", os.O_WRONLY); breach("opens for writing", p, f)
        except OSError: pass
`, !s.landlock(2)},
		{"limits", `
for p in others:
    fails("changes the limits of", lambda p: resource.prlimit(p, resource.RLIMIT_NOFILE, (1, 1)), p)
    fails("changes the priority of", lambda p: os.setpriority(os.PRIO_PROCESS, p, 19), p)
    for task in os.listdir(f"/proc/{p}/task"):
        fails("chooses the processors of", lambda p: os.sched_setaffinity(p, os.sched_getaffinity(p)), int(task))
        fails("changes the scheduling of", lambda p: os.sched_setscheduler(p, os.SCHED_OTHER, os.sched_param(0)), int(task))
        fails("changes the scheduling of", lambda p: os.sched_setparam(p, os.sched_param(0)), int(task))
        refused("sched_setattr", int(task), struct.pack("=IIQiIQQQ", 48, 0, 0, 0, 0, 0, 0, 0), 0)
fails("changes everybody's priority", lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))
fails("changes everybody's priority", lambda: os.setpriority(os.PRIO_USER, 0, 19))
refused("ioprio_set", 1, 1, 3 << 13)
os.setpriority(os.PRIO_PROCESS, 0, 1)
os.sched_setaffinity(0, os.sched_getaffinity(0)); os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
`, false},
		{"files", `
cells = [d for d in glob.glob("/.runs/*/.cells/*")]
if len(cells) != 1: breach("the test sees no cell", cells)
for path in [private + "/secret", cells[0] + "/code", cells[0] + "/stdout", cells[0] + "/../../../" + os.path.basename(private) + "/secret", f"/proc/{os.getppid()}/root{private}/secret"]:
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
        fails("opens", os.open, path, flags | os.O_NONBLOCK)
    fails("removes", os.unlink, path)
    fails("renames", os.rename, path, os.environ["TMPDIR"] + "/taken")
    fails("links", os.link, path, os.environ["TMPDIR"] + "/taken")
    fails("truncates", os.truncate, path, 0)
for d in ("/.runs", private, cells[0]):
    fails("creates in", lambda d: open(d + "/x", "w"), d)
    fails("makes a directory in", lambda d: os.mkdir(d + "/x"), d)
    fails("links in", lambda d: os.symlink("/data", d + "/x"), d)
fails("renames", os.rename, private, "/.runs/x")
fails("renames", os.rename, os.environ["TMPDIR"], "/.runs/x")
# What a program does with its own files still works.
for d in ("/tmp", "/data", os.environ["TMPDIR"]):
    os.makedirs(d + "/a/b"); open(d + "/a/f", "w").write("x"); os.rename(d + "/a/f", d + "/a/b/g"); os.link(d + "/a/b/g", d + "/h")
    os.truncate(d + "/h", 0); os.mkfifo(d + "/a/p")
    import shutil; shutil.copy("/usr/bin/true", d + "/true"); subprocess.run([d + "/true"], check=True)
    shutil.rmtree(d + "/a"); os.unlink(d + "/h"); os.unlink(d + "/true")
`, !s.landlock(2)},
		{"signals", `
def blocked(what, f, *args):
    e = fails(what, f, *args)
    if e and e.errno != errno.EPERM: breach(what, *args, "fails with", e)
for p in others:
    for sig in (0, signal.SIGUSR1, signal.SIGSTOP, signal.SIGKILL):
        blocked("kills", os.kill, p, sig)
    for task in os.listdir(f"/proc/{p}/task"):
        blocked("kills by thread", os.kill, int(task), 0)
        if libc.tgkill(p, int(task), 9) == 0: breach("kills a thread of", p)
    fd = os.pidfd_open(p)
    blocked("kills by descriptor", signal.pidfd_send_signal, fd, 9)
    info = struct.pack("=iii", 11, 0, -1) + bytes(116)
    if libc.syscall(129 if os.uname().machine == "x86_64" else 138, p, 11, info) == 0: breach("queues a signal to", p)
    import fcntl
    r, w = os.pipe()
    fcntl.fcntl(r, 10, 9); fcntl.fcntl(r, fcntl.F_SETOWN, p); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)  # 10: F_SETSIG
    os.write(w, b"x")
c = socket.socket(socket.AF_UNIX)
fails("connects to the other run's socket", c.connect, "\0other-run")
child = subprocess.Popen(["sleep", "1000"]); child.kill(); child.wait()  # one's own can be signalled
`, !s.landlock(6)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.skip {
				Skip(t, "this kernel's Landlock cannot forbid this")
			}
			b.Probe(t, look+test.code)
		})
	}
	if res := other.Kill(t); string(res.Stdout) != "here\n" || res.Exit.Signal != 9 {
		t.Errorf("the other run was not left alone: %+v %s", res.Exit, res.Stderr)
	}
	cell.Send(t, wire.TypeInterrupt)
	if res := cell.Wait(t); string(res.Stdout) != "in\n" || res.Exit.Code != 130 || res.Exit.Lost {
		t.Errorf("the interpreter was not left alone: %q %+v %s", res.Stdout, res.Exit, res.Stderr)
	}
	b.Alive(t)
}

// Survival tests that no process survives its run on a kernel that cannot keep runs apart, so that
// code can kill its own init.
func Survival(t *testing.T, h Harness) {
	s := &suite{Harness: h}
	t.Run("Signals", s.testDeafAgent)
	t.Run("Alone", func(t *testing.T) { s.testDaemons(t, false) })
	t.Run("Beside", func(t *testing.T) { s.testDaemons(t, true) })
}

// testDeafAgent: no signal, however code sends it, ends the agent or another run.
func (s *suite) testDeafAgent(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	other := b.BeginUntil(t, "here\n", Shell("echo here; exec sleep 1000"))
	b.Probe(t, `
import fcntl
queue = 129 if os.uname().machine == "x86_64" else 138
sent = 0
for _ in range(20):
    for sig in range(1, 65):
        for task in [1] + [int(x) for x in os.listdir("/proc/1/task")]:
            try: os.kill(task, sig); sent += 1
            except OSError: pass
            libc.tgkill(1, task, sig)
            for code in (-1, -6, -2, -60):
                libc.syscall(queue, task, sig, struct.pack("=iii", sig, 0, code) + bytes(116))
    # A signal of the code's choice, which the kernel sends and says so.
    for sig in (4, 5, 7, 8, 11, 31, 32, 34):
        r, w = os.pipe()
        try:
            fcntl.fcntl(r, 10, sig); fcntl.fcntl(r, fcntl.F_SETOWN, 1); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
            os.write(w, b"x")
        except OSError: pass
        os.close(r); os.close(w)
`)
	b.Alive(t)
	if res := other.Kill(t); string(res.Stdout) != "here\n" || res.Exit.Signal != 9 {
		t.Errorf("the other run was harmed: %+v %s", res.Exit, res.Stderr)
	}
}

// testDaemons: processes that fork, hide and multiply do not outlive their run, and do not harm
// another run.
func (s *suite) testDaemons(t *testing.T, beside bool) {
	b := s.start(t, sandbox.Spec{Limits: sandbox.Limits{PIDs: 60}})
	var other *Running
	if beside {
		other = b.BeginUntil(t, "here\n", Python(`
print("here", flush=True)
while True:
    try: subprocess.run(["sleep", "0.01"])
    except OSError: pass  # there may be no process left to start, for a moment
`))
	}
	const daemon = `
alive = os.open("/data/alive", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def scribble():
    while True: os.write(alive, b"x"); time.sleep(0.005)
def daemon(f):
    """Forks twice, with a session of its own, no descriptor, no environment and no name."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in range(0, 3): os.close(fd)
            libc.clearenv(); libc.prctl(15, b"run-init")
            for n in range(1, 65):
                try: signal.signal(n, signal.SIG_IGN)
                except (OSError, ValueError): pass
            f()
        os._exit(0)
    os.wait()
def hop():
    """Never the same process for long."""
    while True:
        os.write(alive, b"x")
        if os.fork(): os._exit(0)
        os.setsid()
def breed():
    """As many as there can be, that wake each other."""
    while True:
        try: os.fork()
        except OSError: os.kill(-1, signal.SIGCONT)
        os.write(alive, b"x")
def ready():
    while os.fstat(alive).st_size < 50: time.sleep(0.001)
`
	const killInit = `
def kill_init():
    init = os.getppid()
    for task in os.listdir(f"/proc/{init}/task"):
        libc.tgkill(init, int(task), 9)
    os.kill(init, 9)
`
	for _, test := range []struct{ name, code string }{
		{"daemons", "for _ in range(10): daemon(scribble)\nready()\n"},
		{"subreaper", "libc.prctl(36, 1, 0, 0, 0)\nfor _ in range(5): daemon(scribble)\nready()\n"},
		{"leader gone", "import threading\ndef f():\n    threading.Thread(target=scribble).start()\n    libc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)\ndaemon(f)\nready()\n"},
		{"hoppers", "for _ in range(3): daemon(hop)\nready()\n"},
		{"bomb of daemons", "daemon(breed)\nready()\nos._exit(0)\n"},
		{"init killed", killInit + "for _ in range(5): daemon(scribble)\nready()\nkill_init()\nscribble()\n"},
		{"init killed by a bomb", killInit + "daemon(breed)\nready()\nkill_init()\nscribble()\n"},
		{"init stopped", "for _ in range(5): daemon(scribble)\nready()\nos.kill(os.getppid(), signal.SIGSTOP)\nprint('stopped', flush=True)\nscribble()\n"},
	} {
		if strings.HasPrefix(test.name, "init") && s.landlock(6) {
			continue // code cannot signal it: see testApart
		}
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(b.Workspace, "alive")
			_ = os.Remove(path)
			r := b.Begin(t, Python(daemon+test.code))
			if test.name == "init stopped" {
				r.Until(t, "stopped\n")
				r.Send(t, wire.TypeKill)
			}
			res := r.WaitFor(t, 20*time.Second)
			if strings.HasPrefix(test.name, "init") != (res.Exit.Signal == 9) || res.Exit.Error != "" {
				t.Errorf("%+v %s", res.Exit, res.Stderr)
			}
			before, err := os.Stat(path)
			if err != nil || before.Size() == 0 {
				t.Fatalf("the daemons never ran: %v", err)
			}
			b.Run(t, Shell("sleep 0.05"))
			if after, err := os.Stat(path); err != nil || after.Size() != before.Size() {
				t.Errorf("a process of the run lives on: it wrote %d bytes after the exit", after.Size()-before.Size())
			}
		})
	}
	if beside {
		if res := other.Kill(t); string(res.Stdout) != "here\n" || res.Exit.Signal != 9 || len(res.Stderr) > 0 {
			t.Errorf("the other run was harmed: %+v %s", res.Exit, res.Stderr)
		}
	}
	b.Alive(t)
}
