package sandboxtest

import (
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// covered lists, in Python, the entries of /proc that no run may read.
const covered = `
COVERED = ["acpi", "asound", "bus", "cmdline", "config.gz", "diskstats", "driver", "fs", "interrupts", "iomem", "ioports", "irq", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup",
           "kpagecount", "kpageflags", "latency_stats", "locks", "modules", "mtrr", "partitions", "pressure", "sched_debug", "scsi", "slabinfo", "swaps", "sysrq-trigger", "timer_list",
           "timer_stats", "vmallocinfo", "zoneinfo"]
`

// testCovers: what was covered in /proc stays covered if a run sends a descriptor of it to another
// run or to an interpreter, and ends.
func (s *suite) testCovers(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	receive := func(name string) string {
		return prelude() + s.facts() + covered + `
inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); inbox.bind("/data/` + name + `")
def look(senders):
    for _ in range(senders):
        _, fds, _, _ = socket.recv_fds(inbox, 1, 3)
        proc, settings, root = fds
        while NAMESPACES and any(name.isdigit() for name in os.listdir(proc)): time.sleep(0.001)  # its processes are ending
        for name in COVERED:
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=proc)
                if got := os.listdir(fd) if stat.S_ISDIR(os.fstat(fd).st_mode) else os.read(fd, 100): breach("uncovers", name, got[:100])
            except OSError: pass
        for fd in (settings, os.open("sys", os.O_RDONLY, dir_fd=proc)):
            if not os.fstatvfs(fd).f_flag & os.ST_RDONLY: breach("can write to /proc/sys")
        for fd in fds:
            above = os.stat("..", dir_fd=fd)
            if not any(os.path.samestat(above, os.fstat(f)) for f in (fd, proc, root)): breach("goes up to", os.listdir(os.open("..", os.O_RDONLY, dir_fd=fd)))
        for fd in fds: os.close(fd)
    finish()
`
	}
	const send = `
import os, socket
for name in ("run", "interpreter"):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.connect("/data/" + name)
        socket.send_fds(out, [b"x"], [os.open(path, os.O_RDONLY) for path in ("/proc", "/proc/sys", "/")])
`
	run := Python("")
	run.Code = []byte(receive("run") + `
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("bound", flush=True)
signal.sigwait([signal.SIGINT])
look(4)
`)
	receiver := b.BeginUntil(t, "bound\n", run)
	if res := b.Run(t, Cell(t, "python", receive("interpreter"))); res.Exit.Code != 0 {
		t.Fatalf("%+v %s", res.Exit, res.Stderr)
	}

	for range 2 { // the second is prestarted
		if res := b.Run(t, Python(send)); res.Exit.Code != 0 {
			t.Fatalf("%+v %s", res.Exit, res.Stderr)
		}
	}
	b.BeginUntil(t, "sent\n", Python(send+"print('sent', flush=True)\nsignal.pause()")).Kill(t)
	sender := Cell(t, "python", send+"os._exit(3)")
	sender.Interpreter = "sender"
	if res := b.Run(t, sender); res.Exit.Code != 3 || !res.Exit.Lost {
		t.Fatalf("%+v %s", res.Exit, res.Stderr)
	}

	receiver.Send(t, wire.TypeInterrupt)
	if res := receiver.Wait(t); string(res.Stdout) != "bound\nfinished\n" || res.Exit.Code != 0 {
		t.Errorf("a run: %+v %s%s", res.Exit, res.Stdout, res.Stderr)
	}
	if res := b.Run(t, Cell(t, "python", "look(4)")); string(res.Stdout) != "finished\n" || res.Exit.Code != 0 {
		t.Errorf("an interpreter: %+v %s%s", res.Exit, res.Stdout, res.Stderr)
	}
}
