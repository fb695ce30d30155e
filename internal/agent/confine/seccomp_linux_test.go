package confine

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestFilter runs the filter on calls that the kernel of a test machine may not have, or that a
// test must not make.
func TestFilter(t *testing.T) {
	const (
		allow = unix.SECCOMP_RET_ALLOW
		kill  = unix.SECCOMP_RET_KILL_PROCESS
	)
	eperm, enosys, noFamily := errno(unix.EPERM), errno(unix.ENOSYS), errno(unix.EAFNOSUPPORT)
	noType, noProtocol, noOption, invalid := errno(unix.ESOCKTNOSUPPORT), errno(unix.EPROTONOSUPPORT), errno(unix.ENOPROTOOPT), errno(unix.EINVAL)
	prog := RunFilter()
	if len(prog) > 4096 {
		t.Fatalf("%d instructions; the kernel takes 4096", len(prog))
	}
	run := func(arch, nr uint32, args ...uint64) uint32 {
		t.Helper()
		data := make([]byte, 64)
		binary.LittleEndian.PutUint32(data[offNR:], nr)
		binary.LittleEndian.PutUint32(data[offArch:], arch)
		for i, a := range args {
			binary.LittleEndian.PutUint64(data[offArgs+8*i:], a)
		}
		got, err := sandboxtest.RunBPF(prog, binary.LittleEndian, data)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, nr := range deniedSyscalls {
		if got := run(auditArch, nr); got != eperm {
			t.Errorf("call %d: %#x, want EPERM", nr, got)
		}
	}
	for _, nr := range missingSyscalls {
		if got := run(auditArch, nr); got != enosys {
			t.Errorf("call %d: %#x, want ENOSYS", nr, got)
		}
	}
	const junk = 0xdeadbeef << 32 // the kernel looks at the low half of an int
	for _, test := range []struct {
		name string
		arch uint32
		nr   uint32
		args []uint64
		want uint32
	}{
		{"another architecture", unix.AUDIT_ARCH_I386, unix.SYS_GETPID, nil, kill},
		{"32-bit arm", unix.AUDIT_ARCH_ARM, unix.SYS_GETPID, nil, kill},
		{"x32", auditArch, 0x40000000 | unix.SYS_GETPID, nil, enosys},
		{"a call of the future", auditArch, lastSyscall + 1, nil, enosys},
		{"the last call before the gap", auditArch, lastOwn, nil, allow},
		{"the first number of the gap", auditArch, lastOwn + 1, nil, enosys},
		{"the last number of the gap", auditArch, firstShared - 1, nil, enosys},
		{"the first call after the gap", auditArch, firstShared, nil, allow},
		{"the last number", auditArch, 0xffffffff, nil, enosys},
		{"read", auditArch, unix.SYS_READ, nil, allow},
		{"openat", auditArch, unix.SYS_OPENAT, []uint64{unix.SYS_MOUNT}, allow},
		{"fork", auditArch, unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, allow},
		{"thread", auditArch, unix.SYS_CLONE, []uint64{0x3d0f00}, allow},
		{"clone into a user namespace", auditArch, unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER}, eperm},
		{"clone into a network namespace", auditArch, unix.SYS_CLONE, []uint64{junk | unix.CLONE_NEWNET | unix.CLONE_VM}, eperm},
		{"unix socket", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, allow},
		{"TCP", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, 0}, allow},
		{"TCP by name", auditArch, unix.SYS_SOCKET, []uint64{junk | unix.AF_INET6, junk | unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, junk | unix.IPPROTO_TCP}, allow},
		{"UDP", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_DGRAM | unix.SOCK_NONBLOCK, 0}, allow},
		{"UDP by name", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, allow},
		{"MPTCP", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, unix.IPPROTO_MPTCP}, noProtocol},
		{"SMC", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_STREAM, 256}, noProtocol},
		{"SCTP", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, noProtocol},
		{"SCTP packets", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP}, noType},
		{"UDP-Lite", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, junk | unix.IPPROTO_UDPLITE}, noProtocol},
		{"L2TP", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_L2TP}, noProtocol},
		{"ping", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, noProtocol},
		{"ping IPv6", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6}, noProtocol},
		{"UDP as a stream", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_UDP}, noProtocol},
		{"TCP as datagrams", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_TCP}, noProtocol},
		{"DCCP", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_DCCP, unix.IPPROTO_DCCP}, noType},
		{"raw", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_INET, unix.SOCK_RAW | unix.SOCK_CLOEXEC, unix.IPPROTO_TCP}, eperm},
		{"unix packets", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET, 1}, allow},
		{"packet socket", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_PACKET}, noFamily},
		{"vsock", auditArch, unix.SYS_SOCKET, []uint64{junk | unix.AF_VSOCK}, noFamily},
		{"crypto socket", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_ALG}, noFamily},
		{"route netlink", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, allow},
		{"netfilter netlink", auditArch, unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, noFamily},
		{"unix pair", auditArch, unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX}, allow},
		{"TIPC pair", auditArch, unix.SYS_SOCKETPAIR, []uint64{unix.AF_TIPC}, noFamily},
		{"socket option", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_REUSEADDR}, allow},
		{"the same number at another level", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, unix.IPPROTO_TCP, unix.SO_BINDTODEVICE}, allow},
		{"bind to a device", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.SO_BINDTODEVICE}, eperm},
		{"bind to an interface", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, junk | unix.SOL_SOCKET, junk | unix.SO_BINDTOIFINDEX}, eperm},
		{"TCP option", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, unix.IPPROTO_TCP, unix.TCP_NODELAY}, allow},
		{"TLS in the kernel", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, junk | unix.IPPROTO_TCP, junk | unix.TCP_ULP}, noOption},
		{"the number of TCP_ULP at another level", auditArch, unix.SYS_SETSOCKOPT, []uint64{3, unix.SOL_SOCKET, unix.TCP_ULP}, allow},
		{"a filter", auditArch, unix.SYS_SECCOMP, []uint64{unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, 1 << 40}, allow},
		{"a filter with a listener", auditArch, unix.SYS_SECCOMP, []uint64{unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | 1, 1 << 40}, invalid},
		{"typing", auditArch, unix.SYS_IOCTL, []uint64{0, junk | unix.TIOCSTI}, eperm},
		{"pasting", auditArch, unix.SYS_IOCTL, []uint64{0, unix.TIOCLINUX}, eperm},
		{"another line discipline", auditArch, unix.SYS_IOCTL, []uint64{0, junk | unix.TIOCSETD}, eperm},
		{"window size", auditArch, unix.SYS_IOCTL, []uint64{0, unix.TIOCGWINSZ}, allow},
		{"lower the core limit", auditArch, unix.SYS_SETRLIMIT, []uint64{unix.RLIMIT_CORE, 1 << 40}, eperm},
		{"lower another limit", auditArch, unix.SYS_SETRLIMIT, []uint64{unix.RLIMIT_NOFILE, 1 << 40}, allow},
		{"read the core limit", auditArch, unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_CORE, 0, 1 << 40}, allow},
		{"lower the core limit of any process", auditArch, unix.SYS_PRLIMIT64, []uint64{7, junk | unix.RLIMIT_CORE, 1 << 40}, eperm},
		{"the same from low memory", auditArch, unix.SYS_PRLIMIT64, []uint64{7, unix.RLIMIT_CORE, 0x1000}, eperm},
		{"lower another limit by prlimit", auditArch, unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_NOFILE, 1 << 40}, allow},
		{"lease", auditArch, unix.SYS_FCNTL, []uint64{3, junk | unix.F_SETLEASE, unix.F_WRLCK}, errno(unix.EINVAL)},
		{"delegation", auditArch, unix.SYS_FCNTL, []uint64{3, setDelegation}, errno(unix.EINVAL)},
		{"lock", auditArch, unix.SYS_FCNTL, []uint64{3, unix.F_SETLK}, allow},
		{"reserve blocks", auditArch, unix.SYS_FALLOCATE, []uint64{3, 0, 0, 1 << 30}, errno(unix.EOPNOTSUPP)},
		{"reserve blocks beyond the end", auditArch, unix.SYS_FALLOCATE, []uint64{3, junk | unix.FALLOC_FL_KEEP_SIZE}, errno(unix.EOPNOTSUPP)},
		{"reserve zeros", auditArch, unix.SYS_FALLOCATE, []uint64{3, unix.FALLOC_FL_ZERO_RANGE}, errno(unix.EOPNOTSUPP)},
		{"punch a hole", auditArch, unix.SYS_FALLOCATE, []uint64{3, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE}, allow},
		{"read the personality", auditArch, unix.SYS_PERSONALITY, []uint64{0xffffffff}, allow},
		{"legacy personality", auditArch, unix.SYS_PERSONALITY, []uint64{0x0400000}, eperm},
	} {
		if got := run(test.arch, test.nr, test.args...); got != test.want {
			t.Errorf("%s: %#x, want %#x", test.name, got, test.want)
		}
	}
}

// TestPeerFilter: limits and priorities are a process's own business, and nothing else is the
// filter's.
func TestPeerFilter(t *testing.T) {
	const allow = unix.SECCOMP_RET_ALLOW
	eperm := errno(unix.EPERM)
	prog := PeerFilter()
	for _, test := range []struct {
		name string
		nr   uint32
		args []uint64
		want uint32
	}{
		{"set an own limit", unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_NOFILE, 1 << 40}, allow},
		{"read another's limit", unix.SYS_PRLIMIT64, []uint64{1, unix.RLIMIT_NOFILE, 0, 1 << 40}, allow},
		{"set another's limit", unix.SYS_PRLIMIT64, []uint64{1, unix.RLIMIT_NOFILE, 1 << 40}, eperm},
		{"set another's limit from low memory", unix.SYS_PRLIMIT64, []uint64{1, unix.RLIMIT_NOFILE, 0x1000}, eperm},
		{"own priority", unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PROCESS, 0, 5}, allow},
		{"own group's priority", unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PGRP, 0, 5}, allow},
		{"another's priority", unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PROCESS, 1, 5}, eperm},
		{"everybody's priority", unix.SYS_SETPRIORITY, []uint64{unix.PRIO_USER, 0, 5}, eperm},
		{"own disk priority", unix.SYS_IOPRIO_SET, []uint64{1, 0, 5}, allow},
		{"another's disk priority", unix.SYS_IOPRIO_SET, []uint64{1, 1, 5}, eperm},
		{"everybody's disk priority", unix.SYS_IOPRIO_SET, []uint64{ioprioWhoUser, 0, 5}, eperm},
		{"something else", unix.SYS_KILL, []uint64{1, 9}, allow},
	} {
		data := make([]byte, 64)
		binary.LittleEndian.PutUint32(data[offNR:], test.nr)
		for i, a := range test.args {
			binary.LittleEndian.PutUint64(data[offArgs+8*i:], a)
		}
		if got, err := sandboxtest.RunBPF(prog, binary.LittleEndian, data); err != nil || got != test.want {
			t.Errorf("%s: %#x, %v, want %#x", test.name, got, err, test.want)
		}
	}
}
