package sandboxtest

import (
	"runtime"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
)

// testSystemCalls: system calls that would weaken the sandbox, or whose kernel code is risky, are
// refused.
func (s *suite) testSystemCalls(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	for _, test := range []struct{ name, code string }{
		{"denied", `
buf = ctypes.create_string_buffer(4096)
none, here = b"none", b"/data"
for args in [("mount", b"none", b"/data", b"tmpfs", 0, 0), ("mount", b"/usr", b"/data", 0, 4096, 0), ("mount", 0, b"/usr", 0, 32 | 4096, 0),
             ("umount2", b"/proc", 2), ("umount2", b"/proc/sys", 0), ("umount2", b"/tmp", 2), ("umount2", b"/", 2), ("pivot_root", b"/data", b"/data"), ("chroot", b"/data"),
             ("open_tree", -100, b"/", 1), ("open_tree_attr", -100, b"/", 1, 0, 0), ("fsopen", b"tmpfs", 0), ("fspick", -100, b"/", 0), ("fsmount", 0, 0, 0), ("fsconfig", 0, 6, 0, 0, 0),
             ("move_mount", -100, b"/usr", -100, b"/data", 0), ("mount_setattr", -100, b"/", 0, buf, 32), ("listmount", buf, buf, 1, 0), ("statmount", buf, buf, 100, 0),
             ("setns", 0, 0), ("ptrace", 16, 1, 0, 0), ("ptrace", 0, 0, 0, 0), ("process_vm_readv", 1, buf, 1, buf, 1, 0), ("process_vm_writev", 1, buf, 1, buf, 1, 0),
             ("process_madvise", 0, buf, 1, 4, 0), ("pidfd_getfd", 0, 0, 0), ("kcmp", 1, os.getpid(), 0, 0, 0), ("move_pages", 0, 0, 0, 0, 0, 0), ("userfaultfd", 0), ("userfaultfd", 1),
             ("io_uring_setup", 8, buf), ("io_uring_enter", 0, 0, 0, 0, 0, 0), ("io_uring_register", 0, 0, 0, 0), ("io_setup", 1, buf), ("bpf", 0, buf, 120), ("bpf", 5, buf, 120),
             ("perf_event_open", buf, 0, -1, -1, 0), ("keyctl", 0, -3, 1), ("keyctl", 1, 0), ("add_key", b"user", b"x", b"y", 1, -3), ("request_key", b"user", b"x", 0, -3),
             ("name_to_handle_at", -100, b"/", buf, buf, 0), ("open_by_handle_at", -100, buf, 0), ("fanotify_init", 0, 0), ("quotactl", 0, 0, 0, 0), ("acct", 0),
             ("swapon", b"/data/x", 0), ("reboot", 0xfee1dead, 672274793, 0x89abcdef, 0), ("kexec_load", 0, 0, 0, 0), ("init_module", buf, 1, b""), ("finit_module", 0, b"", 0),
             ("delete_module", b"x", 0), ("syslog", 3, buf, 100), ("sethostname", b"x", 1), ("settimeofday", buf, 0), ("clock_settime", 0, buf), ("vhangup",),
             ("personality", 0x0040000), ("personality", 8)]:
    refused(*args)
r, w = os.pipe()
page = ctypes.create_string_buffer(8192)
for args in [("vmsplice", w, struct.pack("2P", ctypes.addressof(page), 4096), 1, 0), ("memfd_secret", 0), ("process_mrelease", -1, 0),
             ("remap_file_pages", 0, 0, 0, 0, 0), ("cachestat", r, buf, buf, 0)]:
    refused(*args, by=("ENOSYS",))
# A program may filter its own calls, but not answer them: that is for who watches it.
allow = struct.pack("HBBI", 6, 0, 0, 0x7fff0000)
keep = ctypes.create_string_buffer(allow)
prog = struct.pack("H6xP", 1, ctypes.addressof(keep))
r, e = call("seccomp", 1, 8, prog)
if r != -1 or e != "EINVAL": breach("seccomp with a listener gave", r, e)
r, e = call("seccomp", 1, 0, prog)
if r != 0: breach("a program cannot filter its own calls:", e)
`},
		{"files", `
import fcntl
with open("/data/leased", "w+b") as f:
    for cmd in (1024, 1040):  # F_SETLEASE, F_SETDELEG
        for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
            try: breach("lease", cmd, kind, fcntl.fcntl(f.fileno(), cmd, kind))
            except OSError as e:
                if e.errno not in (errno.EINVAL, errno.EPERM): breach("lease", cmd, kind, e)
    r = libc.fallocate(f.fileno(), 0, ctypes.c_long(0), ctypes.c_long(1 << 30))
    if r != -1 or ctypes.get_errno() != errno.EOPNOTSUPP: breach("fallocate", r, ctypes.get_errno())
    os.posix_fallocate(f.fileno(), 0, 100000)  # libraries go another way
    if os.fstat(f.fileno()).st_size != 100000: breach("posix_fallocate")
os.unlink("/data/leased")
`},
		{"namespaces", `
SIGCHLD = 17
for name, flag in {"PARENT": 0x8000, "NEWNS": 0x20000, "NEWCGROUP": 0x2000000, "NEWUTS": 0x4000000, "NEWIPC": 0x8000000, "NEWUSER": 0x10000000, "NEWPID": 0x20000000, "NEWNET": 0x40000000, "NEWTIME": 0x80}.items():
    refused("unshare", flag)
    refused("unshare", flag | 0x10000000)
    if name == "NEWTIME": continue  # part of the exit signal in clone
    for flags in (flag | SIGCHLD, flag | 0x10000000 | SIGCHLD, flag | SIGCHLD | 1 << 32, flag | 0x4100):
        r, e = call("clone", flags, 0, 0, 0, 0)
        if r == 0: os._exit(0)
        if r != -1 or e != "EPERM": breach("clone", name, r, e)
for args in (struct.pack("8Q", 0x10000000, 0, 0, 0, SIGCHLD, 0, 0, 0), struct.pack("8Q", 0, 0, 0, 0, SIGCHLD, 0, 0, 0)):
    r, e = call("clone3", args, 64)
    if r == 0: os._exit(0)
    if r != -1 or e != "ENOSYS": breach("clone3", r, e)
for ns in os.listdir("/proc/self/ns"):
    try: fd = os.open("/proc/self/ns/" + ns, os.O_RDONLY)
    except OSError: continue
    refused("setns", fd, 0)
    import fcntl
    try: breach("opens the parent of", ns, fcntl.ioctl(fd, 0xb702))  # NS_GET_PARENT: the way up
    except OSError: pass
    try: owner = fcntl.ioctl(fd, 0xb701)  # NS_GET_USERNS
    except OSError: continue
    if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino: breach("opens the namespace that owns", ns)
    refused("setns", owner, 0)
if NAMESPACES and HOST_KERNEL and open("/proc/sys/user/max_user_namespaces").read().strip() != "0": breach("user namespaces may be made")
subprocess.run(["true"], check=True)  # what programs need still works
import threading
threads = [threading.Thread(target=time.monotonic) for _ in range(4)]
[x.start() for x in threads]; [x.join() for x in threads]
`},
		{"sockets", `
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
for family in range(0, 50):
    for kind in (1, 2, 3, 5, 10):
        if family in (UNIX, INET, INET6) and kind in (1, 2, 5): continue
        if family == NETLINK: continue
        try: socket.socket(family, kind, 0).close(); 
        except OSError: continue
        if (family, kind) == (UNIX, 3): continue  # the kernel takes it for a datagram socket
        breach("socket", family, kind)
for family in (INET, INET6):
    for proto in (1, 6, 17, 58, 255):
        try: socket.socket(family, socket.SOCK_RAW, proto); breach("raw socket", family, proto)
        except OSError: pass
# Streams by TCP and datagrams by UDP; what else a kernel has is refused as by one that has it not.
for family in (INET, INET6):
    for kind, own in ((socket.SOCK_STREAM, 6), (socket.SOCK_DGRAM, 17)):
        for proto in [*range(256), 256, 262]:  # SMC, MPTCP
            for flags in (0, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
                fd = libc.socket(family, kind | flags, proto)
                e = ctypes.get_errno()
                if fd >= 0: os.close(fd)
                if proto in (0, own) and fd < 0: breach("no socket", family, kind, proto, e)
                if proto not in (0, own) and (fd >= 0 or e != errno.EPROTONOSUPPORT): breach("socket", family, kind, proto, fd, e)
tcp = socket.socket()
try: tcp.setsockopt(socket.IPPROTO_TCP, 31, b"tls"); breach("sets TCP_ULP")
except OSError as e:
    if e.errno != errno.ENOPROTOOPT: breach("TCP_ULP", e)
tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for proto in range(1, 23):
    try: socket.socket(NETLINK, socket.SOCK_RAW, proto); breach("netlink", proto)
    except OSError: pass
fds = (ctypes.c_int * 2)()
for family in range(0, 50):
    if family == UNIX: continue
    r, e = call("socketpair", family, 5, 0, fds)
    if r != -1 or e != "EAFNOSUPPORT": breach("socketpair", family, r, e)
a, b = socket.socketpair(); a.send(b"x")
# The routes and links of the sandbox cannot be changed.
for kind, body in ((24, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 4, 0, 1, 0)), (25, struct.pack("=BBBBBBBBI", 2, 8, 0, 0, 254, 4, 0, 7, 0)), (20, struct.pack("=BBBBI", 2, 8, 0, 0, 1) + struct.pack("=HHI", 8, 2, 0x0100000a)), (16, struct.pack("=BxHiII", 0, 0, 1, 0, 1))):
    n = socket.socket(NETLINK, socket.SOCK_RAW, 0)
    n.bind((0, 0))
    n.send(struct.pack("=IHHII", 16 + len(body), kind, 5 | 0x400, 1, 0) + body)
    r = n.recv(4096)
    if struct.unpack_from("=Hxxxxxxxxxxi", r, 4)[1] != -errno.EPERM: breach("netlink message", kind, r)
`},
	} {
		t.Run(test.name, func(t *testing.T) { b.Probe(t, s.facts()+test.code) })
	}
	if runtime.GOARCH == "amd64" {
		t.Run("32 bits", func(t *testing.T) {
			// getpid by int 0x80: a filter that checks only the number takes it for another call.
			res := b.Run(t, Python(`
import mmap
m = mmap.mmap(-1, 4096, prot=7)
m.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
print("before", flush=True)
print(-ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))() == errno.ENOSYS, flush=True)
`))
			unknown := !s.Has.HostKernel && string(res.Stdout) == "before\nTrue\n" // that kernel has no 32-bit calls
			if (string(res.Stdout) != "before\n" || res.Exit.Signal == 0) && !unknown {
				t.Errorf("a 32-bit system call went through: %q, %+v", res.Stdout, res.Exit)
			}
			b.Probe(t, `
for nr in (0x40000000 + 39, 0x40000000 + 520, 0x3fffffff, 337, 400, 423, 470, 1000):
    r, e = call(nr, 0, 0, 0)
    if r != -1 or e != "ENOSYS": breach("number", nr, r, e)
`)
		})
	}
}
