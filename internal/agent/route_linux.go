package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// closeNetwork adds the routes and gives up what that takes: nothing else needs CAP_NET_ADMIN, and without it not
// even the agent can take them away again.
func closeNetwork(networks []string) error {
	if len(networks) > 0 {
		if err := addUnreachableRoutes(networks); err != nil {
			return err
		}
	}
	return dropCapability(unix.CAP_NET_ADMIN)
}

// addUnreachableRoutes makes packets to each network fail with EHOSTUNREACH.
func addUnreachableRoutes(networks []string) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer unix.Close(fd)
	for i, n := range networks {
		p, err := netip.ParsePrefix(n)
		if err != nil {
			return err
		}
		if err := unix.Sendto(fd, unreachableRoute(p.Masked(), uint32(i+1)), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return fmt.Errorf("block %s: %w", n, err)
		}
		if err := readAck(fd); err != nil {
			return fmt.Errorf("block %s: %w", n, err)
		}
	}
	return nil
}

// unreachableRoute is an RTM_NEWROUTE message: nlmsghdr, rtmsg, one RTA_DST attribute.
func unreachableRoute(p netip.Prefix, seq uint32) []byte {
	dst := p.Addr().AsSlice()
	family := byte(unix.AF_INET)
	if p.Addr().Is6() {
		family = unix.AF_INET6
	}
	ne := binary.NativeEndian
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg+unix.SizeofRtAttr+len(dst))
	ne.PutUint32(b[0:], uint32(len(b)))
	ne.PutUint16(b[4:], unix.RTM_NEWROUTE)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	ne.PutUint32(b[8:], seq)
	rt := b[unix.SizeofNlMsghdr:]
	rt[0] = family
	rt[1] = byte(p.Bits())
	rt[4] = unix.RT_TABLE_MAIN
	rt[5] = unix.RTPROT_STATIC
	rt[6] = unix.RT_SCOPE_UNIVERSE
	rt[7] = unix.RTN_UNREACHABLE
	at := rt[unix.SizeofRtMsg:]
	ne.PutUint16(at[0:], uint16(unix.SizeofRtAttr+len(dst)))
	ne.PutUint16(at[2:], unix.RTA_DST)
	copy(at[unix.SizeofRtAttr:], dst)
	return b
}

func readAck(fd int) error {
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("unexpected netlink answer of %d bytes", n)
	}
	if e := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); e != 0 {
		return unix.Errno(-e)
	}
	return nil
}
