package sandboxtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/closednet"
)

// The world of network tests: the "host" is the network namespace of the test's process. It has an
// uplink to another namespace with every address that a sandbox must not reach, and one that it
// may.
const (
	Public   = "23.51.100.7"
	Resolver = "10.9.9.9"
	// Denied, PublicBase and New are public. The first two are on the list of closed networks; the
	// host gets the last one later.
	Denied, PublicBase, New = "24.0.0.5", "25.0.0.5", "26.0.0.5"
)

var (
	Closed = []string{
		Resolver, "10.9.9.10", "10.0.2.2", "10.0.2.5", "172.16.5.5", "192.168.77.1", "192.168.78.1", "169.254.169.254", "100.64.1.1",
		"192.0.0.8", "198.18.0.1", "240.0.0.1", "168.63.129.16", "192.0.2.1", "192.88.99.1", "198.51.100.1", "203.0.113.1", Denied, PublicBase,
	}
	HostOwn = []string{"21.0.113.2", "22.0.2.10", "10.77.0.1"}
)

// check checks that the host reaches what sandboxes must not.
func (w *World) check(t *testing.T) {
	t.Helper()
	for _, addr := range append(append([]string{Public, "127.0.0.1"}, Closed...), HostOwn...) {
		if addr == "240.0.0.1" {
			continue // Linux itself does not route it
		}
		c, err := net.DialTimeout("tcp", addr+":80", 5*time.Second)
		if err != nil {
			t.Fatalf("the test's world is broken: the host itself does not reach %s: %v", addr, err)
		}
		c.Close()
	}
	for _, to := range []string{"239.1.2.3:5002", Resolver + ":5001"} {
		c, err := net.Dial("udp", to)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "control %s", to)
		c.Close()
		if got := w.Packet(t); got != "control "+to {
			t.Fatalf("the test's world is broken: the host sent to %s, there came %q", to, got)
		}
	}
}

// WorldLists defines the addresses in Python.
func WorldLists() string {
	return fmt.Sprintf("PUBLIC, CLOSED, OWN = '%s', '%s'.split(), '%s'.split()\n", Public, strings.Join(Closed, " "), strings.Join(HostOwn, " "))
}

// Reach defines a Python function that connects to port 80 of an address and returns the server's
// greeting or the error.
const Reach = `
def reach(addr, way=None):
    s = socket.socket(socket.AF_INET6 if ":" in addr else socket.AF_INET)
    s.settimeout(1 if way is None else 0.3)
    try:
        if way: way(s)
        s.connect((addr, 80))
        return s.recv(100)
    except OSError as e:
        return e
    finally: s.close()
`

// Attack defines the Python functions send, which sends a packet that must not arrive, and option,
// which returns a function that sets a socket option.
const Attack = `
def send(to, port, set=None, control=[]):
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try:
        if set: set(u)
        u.sendmsg([b"attack on " + to.encode()], control, 0, (to, port))
    except OSError: pass
def option(level, name, value):
    def f(s): s.setsockopt(level, name, value)
    return f
`

// ClosedNetworks is the list of closed networks of the world. It follows the host's addresses.
func ClosedNetworks(t *testing.T, allow ...netip.Prefix) *closednet.List {
	t.Helper()
	list := closednet.New(t.Context(), closednet.Config{
		Allow: allow, Deny: []netip.Prefix{netip.MustParsePrefix(Denied + "/32")}, PublicHost: "sandbox.test",
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(PublicBase)}, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); list.Follow(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return list
}

// TestNewAddress gives the host another address while b, a sandbox with network, runs. It must be
// closed to b.
func TestNewAddress(t *testing.T, b *Sandbox) {
	t.Helper()
	b.Probe(t, Reach+"if (got := reach('"+New+"')) != b'world': breach('the world is broken:', got)")
	if out, err := exec.Command("ip", "addr", "add", New+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.Probe(t, Reach+`
end = time.monotonic() + 30
while not isinstance(got := reach("`+New+`"), OSError):
    if time.monotonic() > end:
        breach("reaches an address that the host got later:", got)
        break
if (got := reach("`+Public+`")) != b"world": breach("the internet is out of reach:", got)
`)
}

// World is the other namespace.
type World struct{ packets <-chan string }

// WantOnly fails the test for each packet that comes before the wanted one.
func (w *World) WantOnly(t *testing.T, packet string) {
	t.Helper()
	for got := w.Packet(t); got != packet; got = w.Packet(t) {
		t.Errorf("came through: %q", got)
	}
}

// Packet returns the next packet.
func (w *World) Packet(t *testing.T) string {
	t.Helper()
	select {
	case p, ok := <-w.packets:
		if !ok {
			t.Fatal("the world has ended")
		}
		return p
	case <-time.After(10 * time.Second):
		t.Fatal("no packet came")
	}
	return ""
}

// roleWorld is the role of a process that is the world of a test.
const roleWorld = "world"

// envWorld is set in a process that EnterWorld has started.
const envWorld = "SANDBOXTEST_WORLD"

// EnterWorld runs the test again in a process with network and mount namespaces of its own. In that
// process it makes the world, checks that the host reaches it, and returns it; otherwise it reports
// how the test went and returns nil.
func EnterWorld(t *testing.T) *World {
	t.Helper()
	if os.Getenv(envWorld) != "" {
		w := makeWorld(t)
		w.check(t)
		return w
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=150s", "-test.run=^"+t.Name()+"$")
	cmd.Env = Env("", envWorld+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	switch {
	case strings.Contains(string(out), "--- SKIP: "+t.Name()):
		Skip(t, "in a network namespace")
	case err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("in a network namespace: %v", err)
	}
	return nil
}

func makeWorld(t *testing.T) *World {
	t.Helper()
	do := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = Env(roleWorld)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	packets := make(chan string, 1000)
	go func() {
		defer close(packets)
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			packets <- sc.Text()
		}
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		for range packets {
		}
		_ = cmd.Wait()
	})

	pid := strconv.Itoa(cmd.Process.Pid)
	there := func(args ...string) { t.Helper(); do("nsenter", append([]string{"-t", pid, "-n", "ip"}, args...)...) }
	do("ip", "link", "set", "lo", "up")
	do("ip", "link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", pid)
	do("ip", "addr", "add", "21.0.113.2/24", "dev", "up0")
	do("ip", "link", "set", "up0", "up")
	do("ip", "addr", "add", "22.0.2.10/32", "dev", "lo")
	do("ip", "addr", "add", "10.77.0.1/32", "dev", "lo")
	do("ip", "route", "add", "default", "via", "21.0.113.1")
	there("link", "set", "lo", "up")
	there("link", "set", "down0", "up")
	there("addr", "add", "21.0.113.1/24", "dev", "down0")
	for _, addr := range append([]string{Public, New}, Closed...) {
		there("addr", "add", addr+"/32", "dev", "lo")
	}

	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+Resolver+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "0.0.0.0:80")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); answer(l, "host") }()
	t.Cleanup(func() { l.Close(); <-done })

	if _, err := io.WriteString(stdin, "go\n"); err != nil {
		t.Fatal(err)
	}
	w := &World{packets: packets}
	if got := w.Packet(t); got != "ready" {
		t.Fatalf("the world says %q", got)
	}
	return w
}

func answer(l net.Listener, text string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	}
}

// serveWorld serves on all addresses of its namespace until its stdin ends. It prints each packet
// it gets.
func serveWorld() {
	fatal := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "world:", err)
			os.Exit(1)
		}
	}
	in := bufio.NewReader(os.Stdin)
	_, err := in.ReadString('\n')
	fatal(err)
	l, err := net.Listen("tcp4", "0.0.0.0:80")
	fatal(err)
	go answer(l, "world")
	down, err := net.InterfaceByName("down0")
	fatal(err)
	lines := make(chan string)
	for i, group := range []net.IP{net.IPv4(239, 1, 2, 3), net.IPv4(224, 0, 0, 251)} {
		multicast, err := net.ListenMulticastUDP("udp4", down, &net.UDPAddr{IP: group, Port: 5002 + i})
		fatal(err)
		go report(multicast, lines)
	}
	unicast, err := net.ListenPacket("udp4", "0.0.0.0:5001")
	fatal(err)
	go report(unicast, lines)
	dns, err := net.ListenPacket("udp4", Resolver+":53") // its answers must come from this address
	fatal(err)
	go serveDNS(dns)
	go func() { _, _ = io.Copy(io.Discard, in); close(lines) }()
	fmt.Println("ready")
	for line := range lines {
		fmt.Println(line)
	}
}

func report(c net.PacketConn, lines chan<- string) {
	buf := make([]byte, 1500)
	for {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		lines <- string(buf[:n])
	}
}

// serveDNS answers every question with the public address.
func serveDNS(c net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		q := buf[:n]
		end := 12
		for end < n && q[end] != 0 {
			end += int(q[end]) + 1
		}
		if end+5 > n {
			continue
		}
		a := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}, q[12:end+5]...)
		a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
		a = append(a, net.ParseIP(Public).To4()...)
		_, _ = c.WriteTo(a, from)
	}
}
