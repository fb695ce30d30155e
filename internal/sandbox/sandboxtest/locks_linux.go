package sandboxtest

import (
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// testLocks: a session's locks and watches do not affect another session's files, nor system files
// that come from an image. The jail's sandboxes share the host's system files: see SECURITY.md.
func (s *suite) testLocks(t *testing.T) {
	holder, other := s.start(t, sandbox.Spec{}), s.start(t, sandbox.Spec{})
	held := holder.BeginUntil(t, "held\n", Python(s.facts()+`
import fcntl
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
watch = libc.inotify_init1(os.O_NONBLOCK)
locks = [open(p, mode) for p, mode in (("/data/flock", "w"), ("/data/lockf", "w"), ("/usr/bin/env", "rb"))]
fcntl.flock(locks[0], fcntl.LOCK_EX); fcntl.lockf(locks[1], fcntl.LOCK_EX); fcntl.flock(locks[2], fcntl.LOCK_EX)
for path in [b"/data"] + [b"/usr/bin"] * IMAGE:
    if libc.inotify_add_watch(watch, path, 0xfff) < 0: breach("the test cannot watch", path)
open("/data/own", "w").close()
if b"own" not in os.read(watch, 4096): breach("the test sees no event of its own")
print("held", flush=True)
signal.sigwait([signal.SIGINT])
try: breach("sees", os.read(watch, 4096))
except BlockingIOError: print("nothing")
`))
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
