package jail

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/sandbox"
)

// slirp4netns's own network: its name server is the only private address a sandbox reaches.
const (
	slirpCIDR = "10.0.2.0/24"
	slirpDNS  = "10.0.2.3"
)

// userNet is the slirp4netns process that carries a sandbox's packets. A nil one is no network.
type userNet struct {
	cmd  *exec.Cmd
	exit *os.File // slirp4netns ends when this is closed, also by the server's death
	done chan struct{}
	nets *userNets
	tap  int // a descriptor of slirp4netns's tap, to change its filter; -1: none
}

// userNets are the networks of live sandboxes. Their filters follow the list of what is closed.
type userNets struct {
	mu          sync.Mutex
	live        map[*userNet]struct{}
	unsubscribe func()
}

// add filters what leaves n, now and after each change of the list.
func (u *userNets) add(n *userNet, closed *closednet.List) (err error) {
	u.mu.Lock() // a list that was read before must not replace one that was read after
	defer u.mu.Unlock()
	if n.tap, err = takeTap(n.cmd.Process.Pid); err != nil {
		return fmt.Errorf("find the tap of slirp4netns: %w", err)
	}
	blocked, err := closed.ForSandbox()
	if err != nil {
		return err
	}
	if err := filterTap(n.tap, tapFilter(blocked)); err != nil {
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

// refilter closes to live sandboxes what has been added to the list. Their packets are dropped: the routes inside, by which a
// forbidden connection fails at once, stay those of their start.
func (b *Backend) refilter() {
	u := &b.nets
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.live) == 0 {
		return
	}
	blocked, err := b.cfg.Closed.ForSandbox()
	if err != nil { // no network rather than one that is open
		blocked = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
		b.log.Error("cannot tell what to close; sandboxes lose their network until that is known", "error", err)
	}
	for n := range u.live {
		if err := filterTap(n.tap, tapFilter(blocked)); err != nil {
			b.log.Error("cannot close a new address to a sandbox; it loses its network", "error", err)
			_ = n.exit.Close()
		}
	}
}

// attachNetwork gives the network namespace of a process a way out, to all but what is closed, and returns when it works.
func (b *Backend) attachNetwork(pid int) (*userNet, error) {
	fail := func(err error) (*userNet, error) {
		fix := "apt-get install slirp4netns"
		switch {
		case strings.Contains(err.Error(), "/dev/net/tun"):
			fix = "modprobe tun && chmod 666 /dev/net/tun"
		case errors.Is(err, syscall.EPERM):
			fix = "sysctl kernel.yama.ptrace_scope=1; in a container, add the capability SYS_PTRACE"
		}
		return nil, &sandbox.Error{Op: "connect the sandbox to the network", Err: err, Fix: fix, NetworkOnly: true}
	}
	path, err := exec.LookPath("slirp4netns")
	if err != nil {
		return fail(errors.New("slirp4netns is not installed"))
	}
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	defer readyR.Close()
	exitR, exitW, err := os.Pipe()
	if err != nil {
		readyW.Close()
		return fail(err)
	}
	var said sandbox.Tail
	n := &userNet{exit: exitW, done: make(chan struct{}), tap: -1, nets: &b.nets}
	n.cmd = exec.Command(path, "--configure", "--enable-seccomp", "--mtu=65520", "--disable-host-loopback", "--cidr="+slirpCIDR,
		"--ready-fd=3", "--exit-fd=4",
		fmt.Sprintf("--userns-path=/proc/%d/ns/user", pid), "--netns-type=path", fmt.Sprintf("/proc/%d/ns/net", pid), "tap0")
	n.cmd.Env = []string{}
	n.cmd.Stdout, n.cmd.Stderr = &said, &said
	n.cmd.ExtraFiles = []*os.File{readyW, exitR}
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.credential(), Setpgid: true}
	err = b.launch.do(n.cmd.Start) // it sees the launcher's /dev/net/tun
	readyW.Close()
	exitR.Close()
	if err != nil {
		exitW.Close()
		return fail(err)
	}
	go func() {
		defer close(n.done)
		_ = n.cmd.Wait()
	}()
	_ = readyR.SetReadDeadline(time.Now().Add(startTimeout))
	if _, err := readyR.Read(make([]byte, 1)); err != nil {
		n.close()
		return fail(fmt.Errorf("slirp4netns: %s", strings.TrimSpace(said.String())))
	}
	if err := b.nets.add(n, b.cfg.Closed); err != nil {
		n.close()
		return fail(err)
	}
	return n, nil
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
