package sandboxtest

import (
	"testing"

	"mcp-code-sandbox/internal/sandbox"
)

// testPrivileges: a run has no privileges and cannot get any.
func (s *suite) testPrivileges(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	for _, test := range []struct{ name, code string }{
		{"credentials", `
want = {"CapInh": "0" * 16, "CapPrm": "0" * 16, "CapEff": "0" * 16, "CapBnd": "0" * 16, "CapAmb": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
for task in glob.glob("/proc/self/task/*"):
    st = status("self/task/" + os.path.basename(task))
    for k, v in want.items():
        if st[k].strip() != v: breach(k, st[k])
for task in os.listdir("/proc/1/task"):
    st = status("1/task/" + task)
    if int(st["CapEff"], 16) or int(st["CapPrm"], 16): breach("a thread of init has capabilities", st["CapPrm"])
uid, gid = (os.getuid(), os.getgid()) if not NAMESPACES else (1000, 1000)  # an engine gives any
if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3: breach("ids", os.getresuid(), os.getresgid())
if set(os.getgroups()) - {gid, 65534}: breach("groups", os.getgroups())
maps = open("/proc/self/uid_map").read().split()
if NAMESPACES and (len(maps) != 3 or maps[0] != "1000" or maps[2] != "1"): breach("uid_map", maps)
for f in (os.setuid, os.setgid):
    if uid != 0: fails("becomes root", f, 0)  # a rootless engine's code is: the user outside is not
fails("sets groups", os.setgroups, [0])
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECUREBITS, PR_CAP_AMBIENT = 24, 38, 28, 47
if libc.prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0: breach("clears no_new_privs")
if libc.prctl(PR_SET_SECUREBITS, 0, 0, 0, 0) == 0: breach("sets securebits")
for cap in range(41):
    if libc.prctl(PR_CAP_AMBIENT, 2, cap, 0, 0) == 0: breach("raises ambient capability", cap)
`},
		{"setuid programs", `
# Whatever they print, nothing they start has another uid or a capability.
for argv in (["su", "-c", "id -u"], ["mount", "-t", "tmpfs", "none", "/tmp"], ["umount", "/tmp"], ["newgrp", "root"], ["passwd", "-d", "root"], ["sudo", "-n", "id", "-u"],
             ["pkexec", "id", "-u"], ["ping", "-c1", "-W1", "127.0.0.1"], ["newuidmap", str(os.getpid()), "0", "0", "1"], ["chsh", "-s", "/bin/sh"], ["fusermount3", "/data"]):
    try: r = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    except OSError: continue
    if argv == ["newgrp", "root"] and os.getgid() == 0: continue
    if r.returncode == 0 and argv[0] != "ping" or b"0" == r.stdout.strip(): breach(argv, r.stdout)
import shutil
shutil.copy("/usr/bin/id", "/data/id"); os.chmod("/data/id", 0o6755)
if subprocess.run(["/data/id", "-u"], capture_output=True).stdout != b"%d\n" % os.getuid(): breach("a setuid copy changes the uid")
os.unlink("/data/id")
try: os.setxattr("/usr/bin/id", "security.capability", b"x"); breach("sets file capabilities")
except OSError: pass
`},
		{"limits", `
for name in [n for n in dir(resource) if n.startswith("RLIMIT_")]:
    soft, hard = resource.getrlimit(getattr(resource, name))
    if hard == resource.RLIM_INFINITY: continue
    try: resource.setrlimit(getattr(resource, name), (hard + 1, hard + 1)); breach("raises", name)
    except (ValueError, OSError): pass
    try: resource.setrlimit(getattr(resource, name), (soft, resource.RLIM_INFINITY)); breach("lifts", name)
    except (ValueError, OSError): pass
# 1, not 0: the kernel starts the host's crash handler for a process with 0, and not for one with 1.
try: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ValueError, OSError): pass
if resource.getrlimit(resource.RLIMIT_CORE) != (1, 1): breach("may reach the host's crash handler", resource.getrlimit(resource.RLIMIT_CORE))
held = []
try:
    while len(held) < 64:
        fd = libc.inotify_init()
        if fd == -1: break
        held.append(fd)
except OSError: pass
if len(held) == 64 and NAMESPACES and HOST_KERNEL: breach("takes all of the host's inotify instances")
for fd in held: os.close(fd)
if resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 65536: breach("opens any number of files")
if open("/proc/self/oom_score_adj").read() != "1000\n": breach("oom_score_adj", open("/proc/self/oom_score_adj").read())
if HOST_KERNEL:
    for v in (b"-1000", b"-1"):
        fails("lowers oom_score_adj", write, "/proc/self/oom_score_adj", v)
    fails("nice below 0", os.setpriority, os.PRIO_PROCESS, 0, -5)
fails("real-time scheduling", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
`},
	} {
		t.Run(test.name, func(t *testing.T) { b.Probe(t, s.facts()+test.code) })
	}
}
