package confine

import (
	"encoding/hex"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastSyscall is the highest system call number known to this list. Higher numbers, and those in
// the gap before firstShared, fail with ENOSYS, so a newer kernel does not widen the sandbox.
// SECURITY.md explains why the rest is a deny list.
const (
	lastSyscall = 469
	firstShared = unix.SYS_PIDFD_SEND_SIGNAL // from here on all architectures have the same numbers
)

// deniedSyscalls fail with EPERM: the calls that Docker's default profile denies to a container
// without capabilities, and calls with a large attack surface that code does not need.
var deniedSyscalls = append([]uint32{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_ADJTIMEX, unix.SYS_BPF, unix.SYS_CHROOT, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_CLOCK_SETTIME, unix.SYS_DELETE_MODULE, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK,
	unix.SYS_FINIT_MODULE, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK,
	unix.SYS_INIT_MODULE, unix.SYS_KCMP, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL,
	unix.SYS_LISTMOUNT, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_MBIND, unix.SYS_MIGRATE_PAGES, unix.SYS_MOUNT,
	unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT, unix.SYS_MOVE_PAGES, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_NFSSERVCTL, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_PIDFD_GETFD, unix.SYS_PIVOT_ROOT, unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_VM_READV,
	unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PTRACE, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_REBOOT,
	unix.SYS_REQUEST_KEY, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_SETNS, unix.SYS_SETTIMEOFDAY,
	unix.SYS_SET_MEMPOLICY, unix.SYS_SET_MEMPOLICY_HOME_NODE, unix.SYS_STATMOUNT, unix.SYS_SWAPOFF,
	unix.SYS_SWAPON, unix.SYS_SYSLOG, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}, deniedOnArch...)

// missingSyscalls fail with ENOSYS, so libraries use their fallbacks. clone3 keeps its flags in
// memory, where a filter cannot see them; io_setup has one limit for the whole host; cachestat
// reveals who reads the files that sandboxes share.
var missingSyscalls = []uint32{
	unix.SYS_CACHESTAT, unix.SYS_CLONE3, unix.SYS_IO_SETUP, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_MEMFD_SECRET, unix.SYS_PROCESS_MRELEASE, unix.SYS_REMAP_FILE_PAGES, unix.SYS_VMSPLICE,
}

// deniedFlags of clone make namespaces, or a sibling process, which a zygote would never wait for.
const deniedFlags = unix.CLONE_PARENT | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME

// setDelegation is F_SETDELEG, which makes a kind of lease in Linux 6.19 and later.
const setDelegation = 1024 + 16

// Offsets into struct seccomp_data, on little-endian machines.
const (
	offNR   = 0
	offArch = 4
	offArgs = 16
)

func arg(n uint32) uint32 { return offArgs + 8*n }

func errno(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// Filter is a seccomp program.
type Filter []unix.SockFilter

func (f *Filter) op(code uint16, k uint32, jt, jf uint8) {
	*f = append(*f, unix.SockFilter{Code: code, Jt: jt, Jf: jf, K: k})
}

func (f *Filter) load(off uint32) { f.op(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, off, 0, 0) }
func (f *Filter) ret(v uint32)    { f.op(unix.BPF_RET|unix.BPF_K, v, 0, 0) }

// skipUnless jumps over the next n instructions unless the loaded word equals v.
func (f *Filter) skipUnless(v uint32, n uint8) { f.op(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, v, 0, n) }

// skipIf jumps over the next n instructions if the loaded word equals v.
func (f *Filter) skipIf(v uint32, n uint8) { f.op(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, v, n, 0) }

// on makes a call return v, regardless of its arguments.
func (f *Filter) on(nr, v uint32) {
	f.skipUnless(nr, 1)
	f.ret(v)
}

// when adds a block that applies to call nr only. The block starts with nothing loaded. After it,
// the call number is loaded again.
func (f *Filter) when(nr uint32, block func(*Filter)) {
	var b Filter
	block(&b)
	b.load(offNR)
	f.skipUnless(nr, uint8(len(b)))
	*f = append(*f, b...)
}

// RunFilter returns the filter of every process of a run.
func RunFilter() Filter {
	var f Filter
	f.load(offArch)
	f.skipIf(auditArch, 1)
	f.ret(unix.SECCOMP_RET_KILL_PROCESS)
	f.load(offNR)
	f.op(unix.BPF_JMP|unix.BPF_JGT|unix.BPF_K, lastSyscall, 2, 0) // x32 calls are also above it
	f.op(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, firstShared, 2, 0)
	f.op(unix.BPF_JMP|unix.BPF_JGT|unix.BPF_K, lastOwn, 0, 1)
	f.ret(errno(unix.ENOSYS))

	for _, nr := range missingSyscalls {
		f.on(nr, errno(unix.ENOSYS))
	}
	for _, nr := range deniedSyscalls {
		f.on(nr, errno(unix.EPERM))
	}
	f.when(unix.SYS_CLONE, func(b *Filter) {
		b.load(arg(0))
		b.op(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, deniedFlags, 0, 1)
		b.ret(errno(unix.EPERM))
	})
	f.when(unix.SYS_SOCKET, socketBlock)
	f.when(unix.SYS_SOCKETPAIR, func(b *Filter) { // any other family only loads its kernel module
		b.load(arg(0))
		b.skipIf(unix.AF_UNIX, 1)
		b.ret(errno(unix.EAFNOSUPPORT))
	})
	f.when(unix.SYS_SETSOCKOPT, setsockoptBlock)
	// A program may install filters, but not answer calls from user space. EINVAL is the error of a
	// kernel that does not know the flag.
	f.when(unix.SYS_SECCOMP, func(b *Filter) {
		b.load(arg(1))
		b.op(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, 0, 1)
		b.ret(errno(unix.EINVAL))
	})
	// Typing into a terminal, and line disciplines, most of which are rarely audited kernel
	// modules.
	f.when(unix.SYS_IOCTL, func(b *Filter) {
		b.load(arg(1))
		b.skipIf(unix.TIOCSTI, 2)
		b.skipIf(unix.TIOCSETD, 1)
		b.skipUnless(unix.TIOCLINUX, 1)
		b.ret(errno(unix.EPERM))
	})
	f.when(unix.SYS_PERSONALITY, func(b *Filter) { // reading it and plain Linux are allowed, legacy emulation is not
		b.load(arg(0))
		b.skipIf(0, 2)
		b.skipIf(0xffffffff, 1)
		b.ret(errno(unix.EPERM))
	})
	f.when(unix.SYS_FCNTL, func(b *Filter) { // a lease would block the server from opening the file
		b.load(arg(1))
		b.skipIf(unix.F_SETLEASE, 1)
		b.skipUnless(setDelegation, 1)
		b.ret(errno(unix.EINVAL))
	})
	// Reserving blocks would fill a disk faster than the quota is checked; libraries write zeros
	// instead. Freeing blocks is allowed.
	f.when(unix.SYS_FALLOCATE, func(b *Filter) {
		b.load(arg(1))
		b.op(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_COLLAPSE_RANGE, 1, 0)
		b.ret(errno(unix.EOPNOTSUPP))
	})
	f.when(unix.SYS_SETRLIMIT, func(b *Filter) { // see earlyLimits: a limit of 0 would start the host's crash handler
		b.load(arg(0))
		b.skipUnless(unix.RLIMIT_CORE, 1)
		b.ret(errno(unix.EPERM))
	})
	f.when(unix.SYS_PRLIMIT64, func(b *Filter) { // the same, if it sets a limit
		b.load(arg(1))
		b.skipUnless(unix.RLIMIT_CORE, 5)
		b.load(arg(2))
		b.skipUnless(0, 2)
		b.load(arg(2) + 4)
		b.skipIf(0, 1)
		b.ret(errno(unix.EPERM))
	})
	f.ret(unix.SECCOMP_RET_ALLOW)
	return f
}

// Install sets the filter for the calling thread and what it forks. no_new_privs must be set.
func (f Filter) Install() error { return f.install(0) }

// InstallOnAllThreads is Install for every thread of the process. They must have the same filters.
func (f Filter) InstallOnAllThreads() error { return f.install(unix.SECCOMP_FILTER_FLAG_TSYNC) }

func (f Filter) install(flags uintptr) error {
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	refused, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return fmt.Errorf("install seccomp filter: %w", e)
	}
	if refused != 0 {
		return fmt.Errorf("install seccomp filter: thread %d has another one", refused)
	}
	return nil
}

// Hex returns the program as a zygote reads it.
func (f Filter) Hex() string {
	return hex.EncodeToString(unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), len(f)*int(unsafe.Sizeof(f[0]))))
}

// PeerFilter denies the calls that change the limits, priority, scheduling or CPUs of another
// process of the same user. Where runs share a pid namespace, the agent is such a process.
func PeerFilter() Filter {
	var f Filter
	f.load(offNR)
	f.when(unix.SYS_PRLIMIT64, func(b *Filter) { // reading is allowed
		b.load(arg(0))
		b.skipIf(0, 5)
		b.load(arg(2))
		b.skipUnless(0, 2)
		b.load(arg(2) + 4)
		b.skipIf(0, 1)
		b.ret(errno(unix.EPERM))
	})
	for _, call := range []struct{ nr, user uint32 }{{unix.SYS_SETPRIORITY, unix.PRIO_USER}, {unix.SYS_IOPRIO_SET, ioprioWhoUser}} {
		f.when(call.nr, func(b *Filter) {
			b.load(arg(0))
			b.skipIf(call.user, 2)
			b.load(arg(1))
			b.skipIf(0, 1)
			b.ret(errno(unix.EPERM))
		})
	}
	for _, call := range []uint32{
		unix.SYS_SCHED_SETAFFINITY, unix.SYS_SCHED_SETATTR, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER,
	} {
		f.when(call, func(b *Filter) {
			b.load(arg(0))
			b.skipIf(0, 1)
			b.ret(errno(unix.EPERM))
		})
	}
	f.ret(unix.SECCOMP_RET_ALLOW)
	return f
}

const ioprioWhoUser = 3
