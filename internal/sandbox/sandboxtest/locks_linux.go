package sandboxtest

import (
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// testLocks: a session's locks and watches reach no file of another session's. The same holds for the system's files
// where they come from an image; the jail shows everybody the host's own, see SECURITY.md.
func (s *suite) testLocks(t *testing.T) {
	holder, other := s.start(t, sandbox.Spec{}), s.start(t, sandbox.Spec{})
	held := holder.Begin(t, Python(s.facts()+`
import fcntl
signal.signal(signal.SIGINT, lambda *_: None)
watch = libc.inotify_init1(os.O_NONBLOCK)
locks = [open(p, mode) for p, mode in (("/data/flock", "w"), ("/data/lockf", "w"), ("/usr/bin/env", "rb"))]
fcntl.flock(locks[0], fcntl.LOCK_EX); fcntl.lockf(locks[1], fcntl.LOCK_EX); fcntl.flock(locks[2], fcntl.LOCK_EX)
for path in [b"/data"] + [b"/usr/bin"] * IMAGE:
    if libc.inotify_add_watch(watch, path, 0xfff) < 0: breach("the test cannot watch", path)
open("/data/own", "w").close()
if b"own" not in os.read(watch, 4096): breach("the test sees no event of its own")
print("held", flush=True)
signal.pause()
try: breach("sees", os.read(watch, 4096))
except BlockingIOError: print("nothing")
`))
	held.Until(t, "held\n")
	other.Probe(t, s.facts()+`
import fcntl
for path, mode, lock in [("/data/flock", "w", fcntl.flock), ("/data/lockf", "w", fcntl.lockf)] + [("/usr/bin/env", "rb", fcntl.flock)] * IMAGE:
    try: lock(open(path, mode), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e: breach("is kept from a lock on", path, e)
`)
	held.Send(t, wire.TypeInterrupt)
	if res := held.Wait(t); string(res.Stdout) != "held\nnothing\n" {
		t.Errorf("%+v %s%s", res.Exit, res.Stdout, res.Stderr)
	}
}
