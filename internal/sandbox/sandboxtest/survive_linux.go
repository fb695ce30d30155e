package sandboxtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// testNothingSurvives: when a run's exit arrives, none of its processes is left, and the next run
// finds no trace of it.
func (s *suite) testNothingSurvives(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	// A process that survives would keep writing to the file.
	const scribble = `exec 9>>/data/alive; while :; do echo x >&9; sleep 0.005; done`
	for _, test := range []struct{ name, script string }{
		{"background child", `sh -c '` + scribble + `' & `},
		{"nohup", `nohup sh -c '` + scribble + `' >/dev/null 2>&1 & `},
		{"session of its own", `setsid sh -c '` + scribble + `' & `},
		{"double fork", `(setsid sh -c '(` + scribble + `) &' &); `},
		{"ignores signals", `sh -c 'trap "" HUP INT TERM QUIT; ` + scribble + `' & `},
		{"holds the output", `sh -c '` + scribble + `' 1>&1 2>&2 & `},
		{"stopped", `setsid sh -c 'echo x >>/data/alive; kill -STOP $$; ` + scribble + `' & `},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(b.Workspace, "alive")
			_ = os.Remove(path)
			start := time.Now()
			res := b.Run(t, Shell(test.script+`while [ ! -s /data/alive ]; do sleep 0.005; done; echo main`))
			if string(res.Stdout) != "main\n" || res.Exit.Code != 0 {
				t.Fatalf("%q %s %+v", res.Stdout, res.Stderr, res.Exit)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("the exit came after %v", took)
			}
			before, err := os.ReadFile(path)
			if err != nil || len(before) == 0 {
				t.Fatalf("the child never ran: %v", err)
			}
			// Long enough for a survivor to write ten times.
			b.Run(t, Shell("sleep 0.05"))
			after, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(after) != len(before) {
				t.Errorf("a process of the run lives on: it wrote %d bytes after the exit", len(after)-len(before))
			}
		})
	}
	t.Run("traces", func(t *testing.T) {
		const leave = `
open("/data/left", "a").write(os.path.basename(os.environ["TMPDIR"]) + "\n")
open("/tmp/trace", "w").write("x")
open("/dev/shm/trace", "w").write("x")
os.chdir(os.environ["TMPDIR"])
for _ in range(1000): os.mkdir("deep"); os.chdir("deep")  # longer than a path can be
open("file", "w").close(); os.chmod("file", 0); os.chmod(".", 0)
os.chdir(os.environ["TMPDIR"]); os.chmod(".", 0)
libc.shmget.restype = libc.msgget.restype = libc.semget.restype = ctypes.c_int
ids = [libc.shmget(0x5eed, 4096, 0o1666), libc.msgget(0x5eed, 0o1666), libc.semget(0x5eed, 1, 0o1666)]
if -1 in ids: breach("SysV objects cannot be made", ids)
libc.mq_open(b"/trace", os.O_CREAT | os.O_RDWR, 0o666, None)
`
		look := s.facts() + `
for p in ("/tmp/trace", "/dev/shm/trace"):
    if os.path.exists(p): breach("finds", p)
if not NAMESPACES:
    others = lambda: set(os.listdir("/.runs")) - {os.path.basename(os.environ["TMPDIR"])}
    if others() & set(open("/data/left").read().split()): breach("finds an earlier run's", others())
    for _ in range(1000):  # a zygote has one, too, until it has started
        if not others(): break
        time.sleep(0.01)
    else: breach("/.runs has", others())
if [f for f in os.listdir("/tmp") if not f.startswith("probe-")]: breach("/tmp has", os.listdir("/tmp"))
if os.listdir("/dev/shm"): breach("/dev/shm has", os.listdir("/dev/shm"))
for f in (libc.shmget, libc.semget):
    if f(0x5eed, 1, 0) != -1: breach("finds a SysV object", f)
if libc.msgget(0x5eed, 0) != -1: breach("finds a message queue")
if libc.mq_open(b"/trace", os.O_RDWR) != -1: breach("finds a POSIX queue")
`
		r := b.BeginUntil(t, "left\n", Python(leave+`
print("left", flush=True)
time.sleep(1000)
`))
		if !s.Has.Namespaces { // overlapping runs share these: see Capabilities
			r.Kill(t)
		} else {
			b.Probe(t, look)
		}
		b.Probe(t, leave)
		b.Probe(t, look)
		if s.Has.Namespaces {
			r.Kill(t)
		}
		b.Probe(t, `
if open("/data/alive").read(1) != "x": breach("the workspace has not been kept")
`)
	})
}
