package sandboxtest

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// numbers maps the system calls that the attacks try to their numbers on this machine.
var numbers = map[string]int{
	"acct": unix.SYS_ACCT, "add_key": unix.SYS_ADD_KEY, "bpf": unix.SYS_BPF, "cachestat": unix.SYS_CACHESTAT, "chroot": unix.SYS_CHROOT, "clock_settime": unix.SYS_CLOCK_SETTIME,
	"clone": unix.SYS_CLONE, "clone3": unix.SYS_CLONE3, "delete_module": unix.SYS_DELETE_MODULE, "fanotify_init": unix.SYS_FANOTIFY_INIT,
	"finit_module": unix.SYS_FINIT_MODULE, "fsconfig": unix.SYS_FSCONFIG, "fsmount": unix.SYS_FSMOUNT, "fsopen": unix.SYS_FSOPEN,
	"fspick": unix.SYS_FSPICK, "init_module": unix.SYS_INIT_MODULE, "io_setup": unix.SYS_IO_SETUP, "io_uring_enter": unix.SYS_IO_URING_ENTER,
	"io_uring_register": unix.SYS_IO_URING_REGISTER, "io_uring_setup": unix.SYS_IO_URING_SETUP, "ioprio_set": unix.SYS_IOPRIO_SET, "kcmp": unix.SYS_KCMP,
	"kexec_load": unix.SYS_KEXEC_LOAD, "keyctl": unix.SYS_KEYCTL, "listmount": unix.SYS_LISTMOUNT, "memfd_secret": unix.SYS_MEMFD_SECRET, "mount": unix.SYS_MOUNT,
	"mount_setattr": unix.SYS_MOUNT_SETATTR, "move_mount": unix.SYS_MOVE_MOUNT, "move_pages": unix.SYS_MOVE_PAGES,
	"name_to_handle_at": unix.SYS_NAME_TO_HANDLE_AT, "open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT, "open_tree": unix.SYS_OPEN_TREE,
	"open_tree_attr": unix.SYS_OPEN_TREE_ATTR, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "personality": unix.SYS_PERSONALITY,
	"pidfd_getfd": unix.SYS_PIDFD_GETFD, "pidfd_open": unix.SYS_PIDFD_OPEN, "pivot_root": unix.SYS_PIVOT_ROOT,
	"prlimit64": unix.SYS_PRLIMIT64, "process_madvise": unix.SYS_PROCESS_MADVISE, "process_mrelease": unix.SYS_PROCESS_MRELEASE, "process_vm_readv": unix.SYS_PROCESS_VM_READV,
	"process_vm_writev": unix.SYS_PROCESS_VM_WRITEV, "ptrace": unix.SYS_PTRACE, "quotactl": unix.SYS_QUOTACTL,
	"reboot": unix.SYS_REBOOT, "remap_file_pages": unix.SYS_REMAP_FILE_PAGES, "request_key": unix.SYS_REQUEST_KEY, "sched_setattr": unix.SYS_SCHED_SETATTR, "seccomp": unix.SYS_SECCOMP, "sethostname": unix.SYS_SETHOSTNAME,
	"setns": unix.SYS_SETNS, "settimeofday": unix.SYS_SETTIMEOFDAY, "socketpair": unix.SYS_SOCKETPAIR, "statmount": unix.SYS_STATMOUNT,
	"swapon": unix.SYS_SWAPON, "syslog": unix.SYS_SYSLOG, "umount2": unix.SYS_UMOUNT2, "unshare": unix.SYS_UNSHARE,
	"userfaultfd": unix.SYS_USERFAULTFD, "vhangup": unix.SYS_VHANGUP, "vmsplice": unix.SYS_VMSPLICE,
}

// prelude is the beginning of every Python program.
func prelude() string {
	var b strings.Builder
	for name, nr := range numbers {
		fmt.Fprintf(&b, "%q:%d,", name, nr)
	}
	return `import ctypes, errno, glob, json, os, resource, signal, socket, stat, struct, subprocess, sys, time
NR = {` + b.String() + `}
libc = ctypes.CDLL(None, use_errno=True)

def breach(*what):
    print("BREACH:", *what, flush=True)

def call(name, *args):
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(NR.get(name, name)), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    return r, errno.errorcode.get(ctypes.get_errno(), 0) if r == -1 else 0

def refused(name, *args, by=("EPERM", "ENOSYS")):
    r, e = call(name, *args)
    if r != -1 or e not in by:
        breach("system call", name, args, "gave", r, e)

def fails(what, f, *args):
    """f must fail with an OSError."""
    try:
        r = f(*args)
    except OSError as e:
        return e
    breach(what, *args, "gave", repr(r)[:200])

def write(path, text):
    """One write, whose error is not lost in a buffer."""
    fd = os.open(path, os.O_WRONLY)
    try: return os.write(fd, text)
    finally: os.close(fd)

def status(pid="self"):
    return dict(l.rstrip("\n").split(":\t", 1) for l in open(f"/proc/{pid}/status") if ":\t" in l)

def finish():
    print("finished", flush=True)

`
}
