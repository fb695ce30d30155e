package agent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// given is what a run-init hands to the agent when it has made everything ready, so that a zygote can start the
// program in its place: its namespaces, its root, its output, and the driver's end of the channel for cells.
type given struct {
	pid, mount, ipc *os.File
	root            *os.File
	tree            *os.File // the mount namespace that the root is in, whose mounts live as long as this is open
	stdout, stderr  *os.File
	driver          *os.File
}

const givenFiles = 8

func (g *given) close() {
	if g == nil {
		return
	}
	for _, f := range []*os.File{g.pid, g.mount, g.ipc, g.root, g.tree, g.stdout, g.stderr, g.driver} {
		_ = f.Close()
	}
}

// place is where a run is: the descriptors of its namespaces, and of its root.
type place struct {
	pid, mount, ipc int
	root, tree      int // as in given
}

// openPlace opens the descriptors of this process's namespaces. It must come before the process becomes unreadable.
func openPlace() (place, error) {
	p := place{root: -1}
	for name, fd := range map[string]*int{"pid": &p.pid, "mnt": &p.tree, "ipc": &p.ipc} {
		var err error
		if *fd, err = unix.Open("/proc/self/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return place{}, fmt.Errorf("open the %s namespace: %w", name, err)
		}
	}
	p.mount = p.tree
	return p, nil
}

// enterRoot opens the root, whose mounts are made, and hides them if there is a namespace for that.
func (p *place) enterRoot(hidden bool) (err error) {
	if p.root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil || !hidden {
		return err
	}
	p.mount = emptyFD
	return hideMounts(p.mount, p.root)
}

// give sends them over the channel. Run-init keeps none but the one that its own mounts live by.
func (p *place) give(driver *os.File) error {
	rights := unix.UnixRights(p.pid, p.mount, p.ipc, p.root, p.tree, 1, 2, int(driver.Fd()))
	err := unix.Sendmsg(channelFD, []byte{0}, rights, nil, unix.MSG_NOSIGNAL)
	for _, fd := range []int{p.pid, p.mount, p.ipc, p.root} {
		if fd != p.tree {
			_ = unix.Close(fd)
		}
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
	return given{files[0], files[1], files[2], files[3], files[4], files[5], files[6], files[7]}, nil
}
