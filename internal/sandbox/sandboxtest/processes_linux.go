package sandboxtest

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// testProcesses: a run sees only itself and its init (testApart covers shared pid namespaces). It
// cannot reach the agent, another run or the host. Its init reports the truth or dies with the run.
func (s *suite) testProcesses(t *testing.T) {
	// Editors and shells that start a server leave descriptors open.
	leaked, err := unix.Open("/etc", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaked)
	b := s.start(t, sandbox.Spec{Limits: sandbox.Limits{PIDs: 200}})
	other := b.BeginUntil(t, "other-run\n", wire.Run{Argv: []string{"/bin/sh", "-c", "echo $MARK; exec sleep 1000"}, Env: map[string]string{"MARK": "other-run"}})

	for _, test := range []struct{ name, code string }{
		{"sees", `
if NAMESPACES:
  pids = sorted(int(p) for p in os.listdir("/proc") if p.isdigit())
  if set(pids) - {1, os.getpid()}: breach("sees processes", [(p, open(f"/proc/{p}/cmdline").read()) for p in pids])
  for p in range(1, 2000):
    if p in (1, os.getpid()): continue
    try: os.kill(p, 0)
    except ProcessLookupError: continue
    if status(p)["Tgid"].strip() != "1": breach("signals process", p)  # the others are threads of init
  if os.getppid() not in (0, 1): breach("parent", os.getppid())  # a zygote is outside
if os.getsid(0) != os.getpid(): breach("not a session of its own")
`},
		{"init", `
for f in ("environ", "maps", "mem", "auxv", "stack", "syscall", "io", "pagemap", "mountstats", "root", "cwd", "exe", "fd", "fd/0", "fd/3", "fd/4", "fdinfo", "map_files", "task/1/fd", "task/1/mem", "ns/mnt", "ns/pid", "ns/user"):
    path = "/proc/1/" + f
    if os.getuid() == 0 and f in ("mountstats", "fd", "task/1/fd"): continue  # a rootless engine's; what is behind the numbers is closed
    if not PROTECTED_INIT and f in ("fd", "fdinfo", "task/1/fd", "ns/mnt", "ns/pid", "ns/user"): continue  # likewise
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode): breach("follows", path, os.readlink(path))
        elif os.path.isdir(path): breach("lists", path, os.listdir(path))
        else:
            text = open(path, "rb").read(1)
            if text: breach("reads", path, text)
    except OSError: pass
for f in ("mem", "oom_score_adj", "clear_refs", "fd/1", "fd/3", "fd/4", "uid_map", "attr/current", "timerslack_ns", "comm", "task/1/comm"):
    try: write("/proc/1/" + f, b"0"); breach("writes", f)
    except OSError: pass
refused("process_vm_readv", 1, 0, 0, 0, 0, 0); refused("ptrace", 16, 1, 0, 0)
refused("prlimit64", 1, resource.RLIMIT_NOFILE, struct.pack("QQ", 1 << 40, 1 << 40), 0)
`},
		{"descriptors", `
have = set()
for fd in os.listdir("/proc/self/fd"):
    try: have.add((int(fd), os.readlink("/proc/self/fd/" + fd)))
    except OSError: pass  # of the listing itself
for fd, what in have:
    if fd > 2: breach("inherits", fd, what)
if dict(have)[0] != "/dev/null": breach("stdin", dict(have)[0])
if os.path.ismount("/proc/self/fd"): breach("fd is a mount")
`},
	} {
		t.Run(test.name, func(t *testing.T) { b.Probe(t, s.facts()+test.code) })
	}

	t.Run("signals to init", func(t *testing.T) {
		// Each run signals its init in every possible way, then exits with 7. Its init reports
		// that, or dies with the run.
		for _, signals := range []string{"[s for s in range(1, 65) if s not in (9, 2) and not (not PROTECTED_INIT and s in (19, 20, 21, 22))]", "[2]", "[9]"} {
			res := b.Run(t, Python(s.facts()+`
signal.signal(signal.SIGINT, signal.SIG_IGN)
for sig in `+signals+`:
    for way in (lambda: os.kill(1, sig), lambda: libc.tgkill(1, 1, sig), lambda: os.kill(-1, sig) if sig in (18, 23, 28) else 0):
        try: way()
        except OSError: pass
sys.exit(7)
`))
			// A Go program has no handler for 32 to 34, which belong to C libraries. The kernel may
			// end init with one that arrives while it handles another signal. The exit then reports
			// it.
			diedAlone := res.Exit.Signal >= 32 && res.Exit.Signal <= 34 || !s.Has.ProtectedInit && res.Exit.Signal != 0
			if (res.Exit.Code != 7 || res.Exit.Signal != 0) && !diedAlone {
				t.Errorf("signals %s: the run reports %+v, want its own exit 7\n%s", signals, res.Exit, res.Stderr)
			}
		}
		if !s.Has.ProtectedInit { // a run that stops its init can still be killed
			r := b.BeginUntil(t, "up\n", Python("print('up', flush=True)\nos.kill(1, signal.SIGSTOP)\nsignal.pause()"))
			if res := r.Kill(t); res.Exit.Signal != 9 {
				t.Errorf("a run that has stopped its init: %+v", res.Exit)
			}
		}
		// A queued signal can look like a fault of init itself.
		for _, sig := range []string{"4", "7", "8", "11", "5"} {
			res := b.Run(t, Python(`
info = struct.pack("=iii", `+sig+`, 0, -1) + bytes(116)
libc.syscall(129 if os.uname().machine == "x86_64" else 138, 1, `+sig+`, info)
sys.exit(7)
`))
			if res.Exit.Code == 0 {
				t.Errorf("queued signal %s: the run reports success: %+v", sig, res.Exit)
			}
		}
		res := b.Run(t, Python(`
for _ in range(3):
    if os.fork() == 0: signal.pause()
os.kill(-1, 9)
sys.exit(7)
`))
		if res.Exit.Code != 7 {
			t.Errorf("kill(-1, 9): %+v, want exit 7", res.Exit)
		}
	})

	t.Run("forged frames", func(t *testing.T) {
		frame := `{"type":"exit","id":2,"exit":{"code":0,"user_us":0,"sys_us":0,"max_rss_bytes":0}}`
		res := b.Run(t, Python(`
frame = b'`+frame+`'
frame = struct.pack(">I", len(frame)) + frame
for fd in range(3, 4096):
    try: os.write(fd, frame); breach("writes to descriptor", fd)
    except OSError: pass
for path in glob.glob("/proc/[0-9]*/fd/*") + glob.glob("/proc/[0-9]*/task/*/fd/*"):
    if path.startswith(f"/proc/{os.getpid()}/"): continue
    try: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), frame); breach("writes to", path)
    except OSError: pass
os.write(1, frame * 2)
os.write(2, frame)
sys.exit(9)
`))
		want := "\x00\x00\x00" + string(rune(len(frame))) + frame
		if string(res.Stdout) != strings.Repeat(want, 2) || string(res.Stderr) != want || res.Exit.Code != 9 {
			t.Errorf("forged frames: %+v %q %q", res.Exit, res.Stdout, res.Stderr)
		}
	})

	if res := other.Kill(t); res.Exit.Signal != 9 {
		t.Errorf("the other run was not left alone: %+v", res.Exit)
	}
	b.Alive(t)
}
