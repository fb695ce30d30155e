package jail

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/sandbox"
)

// The network that slirp4netns makes. Its name server is the only private address a sandbox
// reaches.
const (
	slirpCIDR = "10.0.2.0/24"
	slirpDNS  = "10.0.2.3"
)

const tun = "/dev/net/tun"

// userNet is the slirp4netns process that carries a sandbox's packets. A nil userNet is no network.
type userNet struct {
	cmd    *exec.Cmd
	output sandbox.Tail
	exit   *os.File      // slirp4netns ends when this is closed, also by the server's death
	done   chan struct{} // closed when it has ended; guards err
	err    error
	nets   *userNets
	tap    int // a descriptor of slirp4netns's tap, to change its filter; -1: none
}

// The failures of startSlirp that have a specific fix.
var (
	errNoSlirp     = errors.New("slirp4netns is not installed")
	errSlirpFailed = errors.New("slirp4netns")
)

// attachNetwork connects the network namespace of a process to everything but the closed networks.
// It returns when the network works.
func (b *Backend) attachNetwork(pid int, ns *os.File) (*userNet, error) {
	n, err := b.startSlirp(pid, ns)
	if err == nil {
		if err = b.nets.add(n, b.cfg.Closed); err == nil {
			return n, nil
		}
		n.close()
	}
	fix := seeDoctor
	switch {
	case errors.Is(err, errNoSlirp):
		fix = "apt-get install slirp4netns"
	case errors.Is(err, errSlirpFailed):
		fix = "modprobe tun && chmod 666 " + tun + ", unless slirp4netns names another reason"
	case errors.Is(err, syscall.EPERM):
		fix = "sysctl kernel.yama.ptrace_scope=1; in a container, add the capability SYS_PTRACE"
	}
	return nil, &sandbox.Error{Op: "connect the sandbox to the network", Err: err, Fix: fix, NetworkOnly: true}
}

func (b *Backend) startSlirp(pid int, ns *os.File) (*userNet, error) {
	path, err := exec.LookPath("slirp4netns")
	if err != nil {
		return nil, errNoSlirp
	}
	ready, readyW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	exitR, exit, err := os.Pipe()
	if err != nil {
		readyW.Close()
		return nil, err
	}
	n := &userNet{exit: exit, done: make(chan struct{}), tap: -1, nets: &b.nets}
	args := []string{path, "--configure", "--enable-seccomp", "--mtu=65520", "--disable-host-loopback",
		"--cidr=" + slirpCIDR, "--ready-fd=3", "--exit-fd=4", fmt.Sprintf("--userns-path=/proc/%d/ns/user", pid),
		"--netns-type=path", fmt.Sprintf("/proc/%d/ns/net", pid), "tap0"}
	if ns != nil { // it becomes root there, makes a root directory of its own and drops its capabilities
		args = slices.Insert(args, 1, "--enable-sandbox")
		args = enter(ns, 5, 0, append([]string{"/bin/sh", "-c", `exec "$@" 5<&-`, "sh"}, args...)...)
		n.cmd = exec.Command(args[0], args[1:]...)
	} else {
		n.cmd = b.unprivileged(args[0], args[1:]...)
	}
	n.cmd.Env = []string{}
	n.cmd.Stdout, n.cmd.Stderr = &n.output, &n.output
	n.cmd.ExtraFiles = []*os.File{readyW, exitR, ns}
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.ids.credential(), Setsid: true}
	err = b.launch.Do(n.cmd.Start) // it sees the launcher's /dev/net/tun
	readyW.Close()
	exitR.Close()
	if err != nil {
		exit.Close()
		return nil, err
	}
	go func() {
		defer close(n.done)
		n.err = n.cmd.Wait()
	}()
	_ = ready.SetReadDeadline(time.Now().Add(startTimeout))
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		n.close()
		return nil, fmt.Errorf("%w: %s", errSlirpFailed, cmp.Or(strings.TrimSpace(n.output.String()), err.Error()))
	}
	return n, nil
}

// watchNetwork ends the sandbox if slirp4netns ends before it, so that the session gets a new one.
// Another slirp4netns would let packets out before it has a filter.
func (s *jailed) watchNetwork(n *userNet) {
	<-n.done
	if s.isOver() {
		return
	}
	reason := "exit status 0"
	if n.err != nil {
		reason = n.err.Error()
	}
	s.backend.log.Warn("slirp4netns has ended, so its sandbox ends, too", "sandbox", s.id, "error", reason,
		"output", strings.TrimSpace(n.output.String()))
	s.mu.Lock()
	s.netLost = "its network ended: slirp4netns: " + reason
	s.mu.Unlock()
	s.end()
}

func (n *userNet) close() {
	if n == nil {
		return
	}
	n.nets.remove(n)
	_ = n.exit.Close()
	select {
	case <-n.done:
	case <-time.After(time.Second):
		_ = n.cmd.Process.Kill()
		<-n.done
	}
}

// userNets are the networks of live sandboxes. Their filters follow the list of closed networks.
type userNets struct {
	mu          sync.Mutex
	live        map[*userNet]struct{}
	unsubscribe func()
}

// add filters the packets that leave n, now and after each change of the list.
func (u *userNets) add(n *userNet, list *closednet.List) (err error) {
	u.mu.Lock() // an older list must not replace a newer one
	defer u.mu.Unlock()
	if n.tap, err = takeTap(n.cmd.Process.Pid); err != nil {
		return fmt.Errorf("find the tap of slirp4netns: %w", err)
	}
	closed, err := list.ForSandbox()
	if err != nil {
		return err
	}
	if err := filterTap(n.tap, tapFilter(closed)); err != nil {
		return err
	}
	u.live[n] = struct{}{}
	return nil
}

func (u *userNets) remove(n *userNet) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.live, n)
	if n.tap >= 0 {
		_ = unix.Close(n.tap)
		n.tap = -1
	}
}

// refilter closes newly listed networks to live sandboxes. Their packets are dropped. The
// unreachable routes inside, which make a forbidden connection fail at once, stay as they were at
// the start.
func (b *Backend) refilter() {
	u := &b.nets
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.live) == 0 {
		return
	}
	closed, err := b.cfg.Closed.ForSandbox()
	if err != nil { // no network is safer than an open one
		closed = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
		b.log.Error("cannot list the closed networks; sandboxes lose their network until it can", "error", err)
	}
	for n := range u.live {
		if err := filterTap(n.tap, tapFilter(closed)); err != nil {
			b.log.Error("cannot close a new address to a sandbox; it ends", "error", err)
			_ = n.exit.Close()
		}
	}
}
