package closednet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// addressEvents sends after addresses of this host's interfaces have changed, until ctx ends. It
// ignores the content of the kernel's messages, because some may be lost.
func addressEvents(ctx context.Context, log *slog.Logger) <-chan struct{} {
	events := make(chan struct{}, 1)
	socket, err := addressSocket()
	if err != nil {
		log.Warn("cannot watch this host's addresses; changes are noticed late", "error", err)
		return events
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		defer stop()
		defer socket.Close()
		buf := make([]byte, 64<<10)
		for ctx.Err() == nil {
			if _, err := socket.Read(buf); err != nil && !isOverflow(err) {
				return
			}
			select {
			case events <- struct{}{}:
			default: // one is pending
			}
		}
	}()
	return events
}

// addressSocket returns a socket that receives a message for each changed address.
func addressSocket() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	groups := uint32(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen to netlink: %w", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// isOverflow reports whether the kernel dropped messages because the socket was full.
func isOverflow(err error) bool { return errors.Is(err, unix.ENOBUFS) }
