package agent

import "golang.org/x/sys/unix"

// sockTypeMask is what the kernel takes for a socket's type, beside the flags.
const sockTypeMask = 0xf

// socketBlock allows unix sockets, TCP and UDP, and routing sockets, which tell a program its addresses. What
// it refuses would reach, and often load, the code of a rarely audited protocol. Programs see the errors of a
// kernel without it, on which they fall back (Go's listeners ask for MPTCP first).
func socketBlock(b *filter) {
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

// inetBlock returns an error or falls through: for streams by TCP and datagrams by UDP.
func inetBlock() filter {
	var b filter
	b.load(arg(1))
	b.op(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, sockTypeMask, 0, 0)
	b.skipIf(unix.SOCK_STREAM, 4)
	b.skipIf(unix.SOCK_DGRAM, 7)
	b.skipUnless(unix.SOCK_RAW, 1)
	b.ret(errno(unix.EPERM)) // as the kernel says to whom it is not allowed
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

// setsockoptBlock denies to bind to a device, which goes past unreachable routes, and to put another protocol
// (TLS, SMC) on top of a TCP connection in the kernel.
func setsockoptBlock(b *filter) {
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
