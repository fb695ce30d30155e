package jail

import (
	"os"

	"golang.org/x/sys/unix"
)

// awaitEnd returns when a child that has not been waited for has ended. Unlike a wait it holds no thread meanwhile, of which a thousand
// idle sandboxes would hold a thousand. Where it cannot be had it returns at once.
func awaitEnd(pid int) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), "bubblewrap")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n != 0 || err != nil && err != unix.EINTR
	})
}
