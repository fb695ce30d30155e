package sandboxtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// testLimits: a run that takes all it can get is stopped. The sandbox and another run in it
// survive.
func (s *suite) testLimits(t *testing.T) {
	const MB = 1 << 20
	limits := sandbox.Limits{MemoryBytes: 256 * MB, PIDs: 64, CPUs: 1, TmpBytes: 16 * MB}
	if !s.Has.HostKernel {
		t.Run("memory of a kernel", s.testKernelMemory)
		limits.MemoryBytes *= 4 // there, a fork copies more memory; the tests below are about other limits
	}
	b := s.start(t, sandbox.Spec{Limits: limits})
	neighbour := b.BeginUntil(t, "here\n", Shell("echo here; exec sleep 1000"))
	meter, hasMeter := b.Sandbox.(sandbox.Meter)
	usage := func() sandbox.Usage {
		t.Helper()
		if !s.Has.Limits || !hasMeter {
			return sandbox.Usage{}
		}
		u, err := meter.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return u
	}

	if s.Has.HostKernel {
		s.testMemory(t, b, usage)
	}
	t.Run("socket buffers", s.testSocketMemory)
	t.Run("fork bomb", func(t *testing.T) {
		before := usage()
		bomb := b.BeginUntil(t, "refused\n", Python(`
print("start", flush=True)
refused = 0
for _ in range(100000):
    try:
        if os.fork() == 0: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    except OSError:
        refused += 1
        if refused == 3: os.write(1, b"refused\n")
        time.sleep(0.01)
`))
		after := usage()
		res := bomb.Kill(t)
		if res.Exit.Signal != 9 {
			t.Errorf("%+v", res.Exit)
		}
		if s.Has.Limits && after.PIDsRefused+res.Exit.PIDsRefused == before.PIDsRefused {
			t.Errorf("the process limit's doing does not show: %+v, %+v", res.Exit, after)
		}
		b.Alive(t)
	})
	t.Run("bomb in a new sandbox", func(t *testing.T) {
		// The agent has not yet started all its threads; the limit must not stop it from doing so.
		b := s.start(t, sandbox.Spec{Limits: sandbox.Limits{PIDs: 24}})
		bomb := b.BeginUntil(t, "refused\n", Python(`
refused = 0
while True:
    try:
        if os.fork() == 0: signal.pause()
    except OSError:
        refused += 1
        if refused == 3: os.write(1, b"refused\n")
        time.sleep(0.001)
`))
		var beside [60]*Running
		for i := range beside {
			beside[i] = b.Begin(t, Shell("echo"))
		}
		for _, r := range beside {
			if res := r.Wait(t); res.Exit.Code == 0 && string(res.Stdout) != "\n" {
				t.Errorf("a run that did not run reports success: %+v", res.Exit)
			}
		}
		if res := bomb.Kill(t); res.Exit.Signal != 9 {
			t.Errorf("%+v", res.Exit)
		}
		b.Alive(t)
	})
	t.Run("thread bomb", func(t *testing.T) {
		res := b.Run(t, Python(`
import threading
try:
    for _ in range(10000): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
except RuntimeError:
    os.write(1, b"refused\n")
    os._exit(8)
`))
		if string(res.Stdout) != "refused\n" || res.Exit.Code != 8 {
			t.Errorf("%q %s %+v", res.Stdout, res.Stderr, res.Exit)
		}
		b.Alive(t)
	})
	t.Run("exit beside a bomb", func(t *testing.T) {
		// Run-init reaps orphans and reports the exit, although it can start no thread.
		res := b.Run(t, Python(`
def breed():
    while True:
        try: os.fork()
        except OSError: pass
gate, opener = os.pipe()
for _ in range(9):
    if os.fork() == 0:
        if os.fork() == 0: # an orphan
            os.close(opener)
            os.read(gate, 1)
        os._exit(0)
    os.wait()
if os.fork() == 0:
    os.close(opener)
    breed()
try:
    while True:
        if os.fork() == 0:
            os.close(opener)
            time.sleep(1000)
except OSError: pass
time.sleep(0.1)
os.close(opener) # the orphans end
time.sleep(0.4)
os._exit(9)
`))
		if res.Exit.Code != 9 || res.Exit.Error != "" {
			t.Errorf("%+v", res.Exit)
		}
		b.Alive(t)
	})
	t.Run("shell fork bomb", func(t *testing.T) {
		bomb := b.BeginUntil(t, "start\n", wire.Run{Argv: []string{"/bin/bash", "-c", `echo start; f() { f | f & }; f; sleep 1000`}})
		for range 3 { // the sandbox answers meanwhile, even if no process is left for the run
			b.Run(t, Shell("true"))
		}
		bomb.Kill(t)
		b.Alive(t)
	})
	t.Run("descriptors on their way", func(t *testing.T) {
		// The kernel counts them by user, over all sandboxes.
		other := s.start(t, sandbox.Spec{})
		flood := b.BeginUntil(t, "full\n", Python(s.facts()+`
import array
many = array.array("i", [0] * 253)
held = []
try:
    while True:
        held.append(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
        for _ in range(8): held[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
except OSError as e:
    print("full" if e.errno == errno.ETOOMANYREFS or not HOST_KERNEL and e.errno == errno.EMFILE else e, flush=True)
    signal.pause()
`))
		for range 3 { // the first gets a prestarted process
			other.Alive(t)
			if res := other.Run(t, Python("print(1)")); string(res.Stdout) != "1\n" {
				t.Errorf("a run in another sandbox: %+v %s", res.Exit, res.Stderr)
			}
		}
		flood.Kill(t)
	})
	t.Run("file size", func(t *testing.T) {
		r := Python(`
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
f = open("/data/big", "wb", buffering=0)
try:
    for _ in range(100): f.write(bytes(1 << 20))
    breach("writes 100 MB")
except OSError as e:
    if e.errno != errno.EFBIG: breach(e)
fails("truncates to 1 TB", os.truncate, "/data/big", 1 << 40)
finish()
`)
		r.Limits.FileBytes = 10 * MB
		b.ProbeRun(t, r)
		if fi, err := os.Stat(filepath.Join(b.Workspace, "big")); err != nil || fi.Size() != 10*MB {
			t.Errorf("the file has %v bytes, %v", fi.Size(), err)
		}
	})
	t.Run("no room for the code", func(t *testing.T) { // the code itself is not the run's file
		r := Python("print('ran')")
		r.Limits.FileBytes = 1
		if res := b.Run(t, r); string(res.Stdout) != "ran\n" {
			t.Errorf("%+v: %s%s", res.Exit, res.Stdout, res.Stderr)
		}
	})
	t.Run("deleted files", func(t *testing.T) { s.testHeld(t, b) })
	t.Run("private files", func(t *testing.T) {
		r := Python(s.facts() + `
for d in {"/tmp", "/dev/shm", os.environ["TMPDIR"]}:
    n = 0
    try:
        with open(d + "/big", "wb", buffering=0) as f:
            for _ in range(100): n += f.write(bytes(1 << 20))
        breach("writes 100 MB to", d)
    except OSError as e:
        if e.errno != errno.ENOSPC: breach(d, e)
    if n > 17 << 20: breach(d, "holds", n)
    os.unlink(d + "/big")
    if not FILE_LIMIT: continue
    try:
        for i in range(100000): os.close(os.open(f"{d}/{i}", os.O_CREAT))
        breach(d, "holds any number of files")
    except OSError: pass
finish()
`)
		r.Limits.TmpBytes = 16 * MB
		b.ProbeRun(t, r)
	})

	if res := neighbour.Kill(t); string(res.Stdout) != "here\n" || res.Exit.Signal != 9 {
		t.Errorf("the other run was harmed: %+v", res.Exit)
	}
}

// testHeld: deleted files that a program keeps open are found, whatever the program.
func (s *suite) testHeld(t *testing.T, b *Sandbox) {
	for name, r := range map[string]wire.Run{
		"python": Python(`
f = os.open("/data/x", os.O_CREAT | os.O_WRONLY); os.unlink("/data/x")
g = os.dup(f)
for _ in range(8): os.write(f, bytes(1 << 20))
print("held", flush=True)
signal.pause()
`),
		"shell": Shell("exec 9>/data/x; rm /data/x; head -c 8388608 /dev/zero >&9; echo held; exec sleep 1000"),
	} {
		run := b.BeginUntil(t, "held\n", r)
		held := b.held(t)
		if held.Bytes < 8<<20 && !(!s.Has.HostKernel && held.Hidden) || held.Bytes > 9<<20 {
			t.Errorf("%s holds 8 MB: %+v", name, held)
		}
		run.Kill(t)
		if held := b.held(t); held.Bytes != 0 {
			t.Errorf("%s has ended: %+v", name, held)
		}
	}
}

// held asks the backend or, if it cannot tell, the agent.
func (b *Sandbox) held(t *testing.T) sandbox.Held {
	t.Helper()
	if m, ok := b.Sandbox.(sandbox.Meter); ok {
		held, err := m.Held()
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	exit := b.Run(t, wire.Run{Held: true}).Exit
	return sandbox.Held{Bytes: exit.HeldBytes, Hidden: exit.HeldMore}
}

// Programs that take too much memory: one process; many, each smaller than the agent, with its
// oom_score_adj; and memory that belongs to no process.
const (
	hog = `
held = []
for _ in range(100 << 10): held.append(bytearray(os.urandom(1024) * 1024))  # 100 GB
`
	manyHogs = `
kids = []
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        try: write("/proc/self/oom_score_adj", b"0")
        except OSError: pass
        x = bytearray(os.urandom(1024) * 10240)
        time.sleep(3)
        os._exit(0)
    kids.append(pid)
for k in kids: os.waitpid(k, 0)
`
	sharedHog = `
fd = os.memfd_create("x")
for _ in range(100 << 10): os.write(fd, bytes(1 << 20))
`
)

// testMemory: a run that takes too much ends, and the sandbox survives.
func (s *suite) testMemory(t *testing.T, b *Sandbox, usage func() sandbox.Usage) {
	t.Run("memory", func(t *testing.T) {
		before := usage()
		res := b.Run(t, Python(hog))
		if res.Exit.Code == 0 {
			t.Errorf("100 GB fit into 256 MB: %+v", res.Exit)
		}
		if s.Has.Limits && (usage().OOMKills+res.Exit.OOMKills == before.OOMKills || res.Exit.Signal != 9) {
			t.Errorf("the memory limit's doing does not show: %+v, %+v", res.Exit, usage())
		}
		b.Alive(t)
	})
	t.Run("memory of many", func(t *testing.T) {
		if !s.Has.Limits {
			t.Log("memory is limited process by process here")
			return
		}
		res := b.Run(t, Python(manyHogs))
		t.Logf("ended with %+v", res.Exit)
		b.Alive(t)
	})
	t.Run("shared memory", func(t *testing.T) {
		if !s.Has.Limits {
			t.Log("memory is limited process by process here")
			return
		}
		res := b.Run(t, Python(sharedHog))
		if res.Exit.Code == 0 {
			t.Errorf("100 GB of shared memory fit into 256 MB: %+v", res.Exit)
		}
		b.Alive(t)
	})
}

// socketHog fills connections to itself, in PROCESSES with CONNECTIONS each. It exits with 9 if
// they keep more than LIMIT bytes.
const socketHog = `
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
def fill():
    held, kept, data = 0, [], bytes(1 << 20)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    while held < 3 * LIMIT and len(kept) < CONNECTIONS:
        a = socket.create_connection(listener.getsockname())
        a.setblocking(False)
        kept.append((a, listener.accept()))
        try:
            while held < 3 * LIMIT: held += a.send(data)
        except OSError: pass
    return held, kept
def child(out):
    held, kept = fill()
    os.write(out, struct.pack("Q", held))
    signal.pause()
r, w = os.pipe()
for _ in range(PROCESSES):
    if os.fork() == 0:
        os.close(r)
        child(w)
os.close(w)
held = sum(struct.unpack("Q", os.read(r, 8))[0] for _ in range(PROCESSES))
if held > LIMIT: time.sleep(10)  # it must not last
os._exit(9 if held > LIMIT else 0)
`

// testSocketMemory: unread bytes in a run's TCP connections to itself stay within the memory limit,
// or end the run or the sandbox.
func (s *suite) testSocketMemory(t *testing.T) {
	if !s.Has.Limits || !s.Has.TCPMemory {
		t.Log("the memory limit leaves out the buffers of sockets here, as doctor says")
		return
	}
	for _, test := range []struct {
		name                          string
		limit, processes, connections int
	}{
		{"few connections", 128 << 20, 1, 500},
		{"many connections", 256 << 20, 6, 1900}, // each connection may hold a little, whatever the limit
	} {
		t.Run(test.name, func(t *testing.T) {
			b := s.start(t, sandbox.Spec{Limits: sandbox.Limits{MemoryBytes: int64(test.limit), PIDs: 64, CPUs: 1}})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			code := fmt.Sprintf("LIMIT, PROCESSES, CONNECTIONS = %d, %d, %d\n", test.limit, test.processes, test.connections)
			exit, err := b.Begin(t, Python(code+socketHog)).exit(ctx)
			switch {
			case err != nil:
				if err := b.Close(ctx); err != nil { // as the server does with a lost sandbox; the cause stays
					t.Error(err)
				}
				if end, werr := b.Wait(ctx); werr != nil || end.Cause != sandbox.CauseOutOfMemory {
					t.Errorf("the run: %v; the sandbox: %+v, %v", err, end, werr)
				}
			case exit.Code == 9:
				t.Errorf("TCP connections hold more than the limit of %d MB", test.limit>>20)
			case exit.Code != 0 && exit.Signal == 0:
				t.Errorf("%+v", exit)
			default:
				b.Alive(t)
			}
		})
	}
}

// testKernelMemory: with a kernel of its own, the limit ends the run or the sandbox, which reports
// it.
func (s *suite) testKernelMemory(t *testing.T) {
	for name, code := range map[string]string{"one": hog, "many": strings.ReplaceAll(manyHogs, "range(40)", "range(60)"), "shared": sharedHog} {
		t.Run(name, func(t *testing.T) {
			b := s.start(t, sandbox.Spec{Limits: sandbox.Limits{MemoryBytes: 256 << 20, PIDs: 64, CPUs: 1}})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			exit, err := b.Begin(t, Python(code)).exit(ctx)
			if err == nil {
				if exit.Code == 0 && name != "many" { // that one may lose only children
					t.Errorf("100 GB fit into 256 MB: %+v", exit)
				}
				b.Alive(t)
				return
			}
			if end, werr := b.Wait(ctx); werr != nil || end.Cause != sandbox.CauseOutOfMemory {
				t.Errorf("the run: %v; the sandbox: %+v, %v", err, end, werr)
			}
		})
	}
}
