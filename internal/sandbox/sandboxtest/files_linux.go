package sandboxtest

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// testFiles: a run cannot read the host's files, and can write only to the workspace and its own
// /tmp.
func (s *suite) testFiles(t *testing.T) {
	host := t.TempDir() // represents everything of the host that the sandbox must not see
	secret := filepath.Join(host, "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o666); err != nil {
		t.Fatal(err)
	}
	lent := t.TempDir()
	if err := os.WriteFile(filepath.Join(lent, "tool"), []byte("read me"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(lent, 0o777); err != nil {
		t.Fatal(err)
	}
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	workspace := Workspace(t, s.Owner)
	b := s.start(t, sandbox.Spec{Workspace: workspace, Mounts: []sandbox.Mount{{Source: lent, Target: "/opt/runners/lent"}}})

	for _, test := range []struct{ name, code string }{
		{"read", `
for path in [SECRET, "/proc/1/root" + SECRET, "/proc/self/root" + SECRET, "/proc/self/cwd/../../.." + SECRET, "/etc/shadow", "/etc/gshadow",
             "/etc/hostname", "/etc/machine-id", "/etc/sudoers", "/etc/ssh/ssh_config", "/etc/fstab", "/etc/crontab", "/etc/ssl/private",
             "/root", "/home", "/var", "/run", "/srv", "/boot", "/sys", "/media", "/mnt/cdrom",
             "/var/run/docker.sock", "/proc/kcore", "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/net/tun", "/dev/fuse", "/dev/tty"]:
    if IMAGE and SECRET not in path and not path.startswith(("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/net", "/dev/fuse", "/proc", "/var/run/")): continue
    try:
        if os.path.isdir(path):
            breach("lists", path, os.listdir(path)[:5])
        elif open(path, "rb").read(10):
            breach("reads", path)
    except OSError:
        pass
allowed = {"bin", "data", "dev", "etc", "lib", "lib32", "lib64", "libx32", "mnt", "opt", "proc", "sbin", "tmp", "usr", "workspace", ".sandbox-agent"} | ({".runs"} if not NAMESPACES else set())
if set(os.listdir("/")) - allowed and not IMAGE: breach("/ has", set(os.listdir("/")) - allowed)
if os.listdir("/mnt") != ["data"]: breach("/mnt has", os.listdir("/mnt"))
for user in open("/etc/passwd"):
    if user.split(":")[0] not in ("root", "sandbox", "nobody") and not IMAGE: breach("account of the host", user)
if os.uname().nodename == HOSTNAME: breach("hostname of the host", HOSTNAME)
if open("/opt/runners/lent/tool").read() != "read me": breach("a mount cannot be read")
`},
		{"write", `
for top in ["/", "/usr", "/usr/bin", "/usr/local", "/usr/lib", "/etc", "/etc/ssl", "/dev", "/opt", "/opt/runners", "/opt/runners/lent", "/mnt", "/proc", "/proc/self", "/bin", "/lib"]:
    fails("creates in", lambda d: open(d + "/x", "w"), top)
    fails("makes a directory in", lambda d: os.mkdir(d + "/y"), top)
    fails("changes the mode of", os.chmod, top, 0o777)
for path in ["/etc/passwd", "/etc/hosts", "/.sandbox-agent", "/opt/runners/lent/tool", "/usr/bin/python3", "/dev/null", "/dev/zero"]:
    fails("changes the mode of", os.chmod, path, 0o777)
    fails("removes", os.unlink, path)
    fails("renames", os.rename, path, "/data/taken")
    if not path.startswith("/dev"): fails("writes", lambda p: open(p, "r+b"), path)
for root, dirs, files in os.walk("/proc/sys"):
    for f in files:
        fails("opens for writing", os.open, root + "/" + f, os.O_WRONLY)
for link in ["/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/user/max_user_namespaces", "/proc/self/setgroups", "/proc/self/uid_map"]:
    try:
        fd = os.open(link, os.O_WRONLY)
        if os.fstat(fd).st_rdev != os.makedev(1, 3):  # /dev/null put in its place swallows anything
            os.write(fd, b"b")
            breach("writes", link)
    except OSError:
        pass
mounts = {mount.split()[4]: mount for mount in open("/proc/self/mountinfo")}  # the last one at a place covers the others
for point, mount in mounts.items():
    if not os.path.lexists(point): continue  # covered by another mount
    left, right = mount.split(" - ")
    options = left.split()[5].split(",")
    if "rw" in options and point not in ("/data", "/mnt/data", "/workspace", "/tmp", "/dev/shm", "/proc") and not (not NAMESPACES and point == "/.runs") and not ((not NAMESPACES or not HOST_KERNEL) and not os.access(point, os.W_OK)) and not point.startswith("/dev/") and right.split()[0] != "proc" and "devtmpfs" not in right:
        st = os.stat(point)
        if stat.S_ISDIR(st.st_mode) or not stat.S_ISCHR(st.st_mode): breach("mounted writable", mount)
    if IMAGE and point not in ("/tmp", "/dev/shm", "/.runs"): continue  # an engine cannot say so of the root and of binds; no_new_privs and the device group take its place
    if "nosuid" not in options: breach("mounted with setuid", mount)
    if "nodev" not in options and not point.startswith(("/dev/", "/proc/")): breach("mounted with devices", mount)
if not mounts:  # hidden: the kernel still tells what holds at a place
    places = [p for pattern in ("/", "/*", "/dev/*", "/etc/*", "/opt/*/*", "/mnt/*", "/proc/[a-z]*", "/usr/*") for p in glob.glob(pattern) if not os.path.islink(p)]
    if len(places) < 50: breach("the test sees few places", places)
    for p in places:
        flags = os.statvfs(p).f_flag
        if not flags & os.ST_NOSUID: breach("mounted with setuid", p)
        if not flags & os.ST_NODEV and not p.startswith(("/dev/", "/proc/")): breach("mounted with devices", p)
        writable = not flags & os.ST_RDONLY
        if writable and p not in ("/data", "/mnt/data", "/workspace", "/tmp", "/dev/shm", "/dev/pts") and not p.startswith("/proc"):
            if not stat.S_ISCHR(os.stat(p).st_mode): breach("mounted writable", p)
for d in ["/data", "/mnt/data", "/workspace", "/tmp", "/dev/shm"]:
    open(d + "/mine", "w").write("x")
os.unlink("/mnt/data/mine")
if os.path.exists("/data/mine") or os.path.exists("/workspace/mine"): breach("three workspaces")
`},
		{"devices", `
allowed = {"null", "zero", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "shm", "tty", "ptmx", "pts", "mqueue", "core"}
for name in set(os.listdir("/dev")) - allowed:
    path = "/dev/" + name
    empty = os.stat(path).st_rdev == os.makedev(1, 3) or os.path.isdir(path) and not os.listdir(path)  # put over what the kernel has there
    if not (not HOST_KERNEL and empty): breach("/dev has", name)
for where in ["/data/node", "/tmp/node", "/dev/shm/node"]:
    for mode, dev in [(stat.S_IFCHR, os.makedev(1, 1)), (stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFBLK, os.makedev(254, 0)), (stat.S_IFCHR, os.makedev(10, 200)), (stat.S_IFCHR, os.makedev(1, 3))]:
        fails("makes a device", os.mknod, where, mode | 0o666, dev)
`},
		{"masks", covered + `
for name in COVERED:
    path = "/proc/" + name
    try:
        if os.path.isdir(path):
            if os.listdir(path): breach("lists", path)
        elif os.path.exists(path) and open(path, "rb").read(1):
            breach("reads", path)
    except OSError:
        pass
if CGROUP_NAMESPACE and HOST_KERNEL and any(l.split(":", 2)[2].strip() not in ("/", "") for l in open("/proc/self/cgroup")): breach("sees its cgroup", open("/proc/self/cgroup").read())
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b.Probe(t, s.facts()+"SECRET, HOSTNAME = "+quote(secret)+", "+quote(hostname)+test.code)
		})
	}

	t.Run("owner", func(t *testing.T) {
		b.Probe(t, `SECRET = `+quote(secret)+`
open("/data/plain", "w").write("x")
os.symlink(SECRET, "/data/link")
for uid in {0, 1, 65534, 61000} - {os.getuid()}: fails("gives a file away to", os.chown, "/data/plain", uid, uid)
try:
    open("/data/link").read(); breach("reads through a link")
except OSError: pass
`)
		fi, err := os.Lstat(filepath.Join(workspace, "plain"))
		if err != nil {
			t.Fatal(err)
		}
		owner := s.Owner
		if dir, err := os.Lstat(workspace); err == nil && s.Gives {
			owner = int(dir.Sys().(*syscall.Stat_t).Uid)
		}
		if st := fi.Sys().(*syscall.Stat_t); int(st.Uid) != owner || int(st.Gid) != owner && os.Geteuid() == 0 || s.Gives && owner == s.Owner {
			t.Errorf("what a run wrote belongs to %d:%d on the host, want %d", st.Uid, st.Gid, owner)
		}
	})

	t.Run("environment", func(t *testing.T) {
		t.Setenv("SERVER_SECRET", "of the server")
		b := s.start(t, sandbox.Spec{})
		res := b.Run(t, wire.Run{Argv: []string{"/usr/bin/env"}, Env: map[string]string{"ASKED": "a b\n=c", "HOME": "/data"}})
		got := map[string]bool{}
		for _, l := range strings.Split(strings.ReplaceAll(string(res.Stdout), "\n=c", "=c"), "\n") {
			if !s.Has.Namespaces && strings.HasPrefix(l, "TMPDIR=/.runs/") {
				l = "TMPDIR=/tmp"
			}
			if l != "" {
				got[l] = true
			}
		}
		for _, want := range []string{"ASKED=a b=c", "HOME=/data", "PATH=/usr/local/bin:/usr/bin:/bin", "TMPDIR=/tmp", "LANG=C.UTF-8", "USER=sandbox"} {
			if !got[want] {
				t.Errorf("environment lacks %s", want)
			}
			delete(got, want)
		}
		if len(got) > 0 {
			t.Errorf("environment also has %v", got)
		}
		// The next run does not see the variables of the last one, in any process.
		b.Probe(t, `
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        if b"ASKED" in open(path, "rb").read(): breach("reads the environment of an earlier run", path)
    except OSError: pass
`)
	})
}

// quote returns a Python literal of a string.
func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`).Replace(s) + "'"
}
