//go:build unix

package mcpserver

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// hungUp reports whether w is a pipe or socket that has lost its reader, or a file that is closed.
func hungUp(w io.Writer) bool {
	file, ok := w.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return false
	}
	fds := []unix.PollFd{{}}
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		_, _ = unix.Poll(fds, 0) // on error it reports no event
	})
	return err != nil || fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
