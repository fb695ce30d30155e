package confine

import "golang.org/x/sys/unix"

// sockTypeMask masks the flags out of a socket's type.
const sockTypeMask = 0xf

// socketBlock allows unix sockets, TCP, UDP, and routing sockets, by which a program learns its
// addresses. Others would reach, and often load, a rarely audited protocol. Programs get the error
// of a kernel without that protocol, and fall back (Go's listeners try MPTCP first).
func socketBlock(b *Filter) {
	inet := inetBlock()
	n := uint8(len(inet))
	b.load(arg(0))
	b.skipIf(unix.AF_UNIX, n+6)
	b.skipIf(unix.AF_INET, 5)
	b.skipIf(unix.AF_INET6, 4)
	b.skipUnless(unix.AF_NETLINK, 2)
	b.load(arg(2))
	b.skipIf(unix.NETLINK_ROUTE, n+1)
	b.ret(errno(unix.EAFNOSUPPORT))
	*b = append(*b, inet...)
}

// inetBlock returns an error, or falls through for TCP streams and UDP datagrams.
func inetBlock() Filter {
	var b Filter
	b.load(arg(1))
	b.op(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, sockTypeMask, 0, 0)
	b.skipIf(unix.SOCK_STREAM, 4)
	b.skipIf(unix.SOCK_DGRAM, 7)
	b.skipUnless(unix.SOCK_RAW, 1)
	b.ret(errno(unix.EPERM)) // the kernel's error for a process without the right
	b.ret(errno(unix.ESOCKTNOSUPPORT))
	b.load(arg(2))
	b.skipIf(0, 6)
	b.skipIf(unix.IPPROTO_TCP, 5)
	b.ret(errno(unix.EPROTONOSUPPORT))
	b.load(arg(2))
	b.skipIf(0, 2)
	b.skipIf(unix.IPPROTO_UDP, 1)
	b.ret(errno(unix.EPROTONOSUPPORT))
	return b
}

// setsockoptBlock denies binding to a device, which bypasses unreachable routes, and putting
// another protocol (TLS, SMC) on top of a TCP connection in the kernel.
func setsockoptBlock(b *Filter) {
	b.load(arg(1))
	b.skipUnless(unix.SOL_SOCKET, 4)
	b.load(arg(2))
	b.skipIf(unix.SO_BINDTODEVICE, 1)
	b.skipUnless(unix.SO_BINDTOIFINDEX, 5)
	b.ret(errno(unix.EPERM))
	b.skipUnless(unix.IPPROTO_TCP, 3)
	b.load(arg(2))
	b.skipUnless(unix.TCP_ULP, 1)
	b.ret(errno(unix.ENOPROTOOPT))
}
