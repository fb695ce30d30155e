package jail

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/sandbox"
)

// slirp4netns's own network: its name server is the only private address a sandbox reaches.
const (
	slirpCIDR = "10.0.2.0/24"
	slirpDNS  = "10.0.2.3"
)

// unreachable lists what the agent must block: private and special networks and this host's own addresses,
// less what the operator allows.
func (b *Backend) unreachable() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this host's addresses: %w", err)
	}
	blocked := closednet.Networks()
	for _, a := range addrs {
		ipnet, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if ip, ok := netip.AddrFromSlice(ipnet.IP); ok && ip.Unmap().Is4() && !ip.IsLoopback() {
			blocked = append(blocked, netip.PrefixFrom(ip.Unmap(), 32))
		}
	}
	return closednet.Subtract(blocked, b.cfg.AllowNetworks), nil
}

// userNet is the slirp4netns process that carries a sandbox's packets. A nil one is no network.
type userNet struct {
	cmd  *exec.Cmd
	exit *os.File // slirp4netns ends when this is closed, also by the server's death
	done chan struct{}
}

// attachNetwork gives the network namespace of a process a way out, to all but the blocked networks, and
// returns when it works.
func (b *Backend) attachNetwork(pid int, blocked []netip.Prefix) (*userNet, error) {
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
	n := &userNet{exit: exitW, done: make(chan struct{})}
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
	if err := filterTap(n.cmd.Process.Pid, tapFilter(blocked)); err != nil {
		n.close()
		return fail(err)
	}
	return n, nil
}

func (n *userNet) close() {
	if n == nil {
		return
	}
	_ = n.exit.Close()
	select {
	case <-n.done:
	case <-time.After(time.Second):
		_ = n.cmd.Process.Kill()
		<-n.done
	}
}
