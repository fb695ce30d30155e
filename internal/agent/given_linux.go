package agent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// given is what a run-init hands to the agent when it has made everything ready, so that a zygote can start the
// program in its place: its namespaces, its output, and the driver's end of the channel for cells.
type given struct {
	pid, mount, ipc, stdout, stderr, driver *os.File
}

const givenFiles = 6

func (g *given) close() {
	if g == nil {
		return
	}
	for _, f := range []*os.File{g.pid, g.mount, g.ipc, g.stdout, g.stderr, g.driver} {
		_ = f.Close()
	}
}

// openNamespaces opens the descriptors of this process's namespaces. It must come before the process becomes unreadable.
func openNamespaces() ([]int, error) {
	var fds []int
	for _, name := range []string{"pid", "mnt", "ipc"} {
		fd, err := unix.Open("/proc/self/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open the %s namespace: %w", name, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// give sends them over the channel. Run-init keeps no namespace.
func give(namespaces []int, driver *os.File) error {
	fds := append(namespaces, 1, 2, int(driver.Fd()))
	err := unix.Sendmsg(channelFD, []byte{0}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
	for _, fd := range namespaces {
		_ = unix.Close(fd)
	}
	return err
}

// given waits until run-init is ready. It fails when run-init has ended.
func (p *initProcess) given() (given, error) {
	raw, err := p.channel.SyscallConn()
	if err != nil {
		return given{}, err
	}
	var word [1]byte
	control := make([]byte, unix.CmsgSpace(givenFiles*4))
	var n, oobn int
	var recvErr error
	err = raw.Read(func(fd uintptr) bool {
		n, oobn, _, _, recvErr = unix.Recvmsg(int(fd), word[:], control, unix.MSG_CMSG_CLOEXEC)
		return recvErr != unix.EAGAIN
	})
	if err = errors.Join(err, recvErr); err == nil && n == 0 {
		err = io.EOF
	}
	var fds []int
	if err == nil {
		var messages []unix.SocketControlMessage
		if messages, err = unix.ParseSocketControlMessage(control[:oobn]); err == nil && len(messages) == 1 {
			fds, err = unix.ParseUnixRights(&messages[0])
		}
	}
	if err == nil && len(fds) != givenFiles {
		err = fmt.Errorf("%d descriptors", len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return given{}, fmt.Errorf("run-init: %w", err)
	}
	files := make([]*os.File, givenFiles)
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "run-init")
	}
	return given{files[0], files[1], files[2], files[3], files[4], files[5]}, nil
}
