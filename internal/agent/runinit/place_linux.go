package runinit

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/proc"
)

// Place holds the descriptors by which a zygote forks a program into a run-init: its namespaces,
// root and output, and the driver's end of the channel for cells.
type Place struct {
	PID, Mount, IPC *os.File
	Root            *os.File
	Tree            *os.File // the mount namespace of Root; open, it keeps the mounts alive
	Stdout, Stderr  *os.File
	Driver          *os.File
}

// ReceivePlace waits until a run-init is ready. It fails when run-init has ended.
func ReceivePlace(channel *os.File) (*Place, error) {
	f, err := proc.ReceiveFiles(channel, 8)
	if err != nil {
		return nil, fmt.Errorf("run-init: %w", err)
	}
	return &Place{f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]}, nil
}

// Close closes the descriptors. A nil Place has none.
func (p *Place) Close() {
	if p == nil {
		return
	}
	for _, f := range []*os.File{p.PID, p.Mount, p.IPC, p.Root, p.Tree, p.Stdout, p.Stderr, p.Driver} {
		_ = f.Close()
	}
}

// place is run-init's side of a Place, as descriptor numbers.
type place struct {
	pid, mount, ipc int
	root, tree      int
}

// openPlace opens the process's namespaces. Call it before the process becomes unreadable.
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

// enterRoot opens the root after the mounts are made. With hidden, it also hides them.
func (p *place) enterRoot(hidden bool) (err error) {
	if p.root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil || !hidden {
		return err
	}
	p.mount = emptyFD
	return confine.HideMounts(p.mount, p.root)
}

// send sends the descriptors to the agent. Run-init keeps only tree, which keeps its own mounts
// alive.
func (p *place) send(driver *os.File) error {
	rights := unix.UnixRights(p.pid, p.mount, p.ipc, p.root, p.tree, 1, 2, int(driver.Fd()))
	err := unix.Sendmsg(channelFD, []byte{0}, rights, nil, unix.MSG_NOSIGNAL)
	for _, fd := range []int{p.pid, p.mount, p.ipc, p.root} {
		if fd != p.tree {
			_ = unix.Close(fd)
		}
	}
	return err
}
